"""Worlds of processes that serve many test cases: each process count is started once and told case after case.

`worlds[2].run("fit", output=..., ...)` calls `cases.fit(output=..., ...)` in both processes of a world of two, and returns
what each of them returned, in the order of the ranks. Every case's process count is asserted inside the child.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Lost(AssertionError):
    """A process of the world ended or hung while it served a case."""


class World:
    """Processes that form one world, waiting for cases.

    Args:
        processes: how many.
        folder: for logs and answers.
        cache: what ACCEL_GEO_CACHE is to be.
    """

    def __init__(self, processes: int, folder: Path, cache: Path) -> None:
        self.processes, self.folder, self.cache = processes, folder, cache
        self.workers: list[subprocess.Popen] = []
        self.served = 0

    def start(self) -> None:
        """Start the processes, with the variables that `--devices` sets."""
        from accel_geo.parallel.supervise import free_port, worker_environment

        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        quiet = {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "ACCEL_GEO_CACHE": str(self.cache),
            "PYTHONUNBUFFERED": "1",
        }
        for rank in range(self.processes):
            world = worker_environment(rank, self.processes, port) if self.processes > 1 else {}
            with open(self.log(rank), "ab") as log:
                self.workers.append(
                    subprocess.Popen(
                        [sys.executable, str(HERE / "world.py"), str(self.processes)],
                        env={**os.environ, **quiet, **world},
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        text=True,
                    )
                )

    def log(self, rank: int) -> Path:
        """Where a process's output goes."""
        return self.folder / f"rank-{rank}.log"

    def run(self, case: str, timeout: float = 240.0, **arguments: object) -> list:
        """Run a case on all processes and return each one's value.

        Raises:
            Lost: a process failed, ended or did not answer in time; the world is then ended.
        """
        answers = self.begin(case, **arguments)
        deadline = time.monotonic() + timeout
        while not all(answer.exists() for answer in answers):
            codes = self.codes()
            if any(code is not None and not a.exists() for code, a in zip(codes, answers)):
                self.close()
                raise Lost(f"{case}: exit codes {codes}\n{self.output()}")
            if time.monotonic() > deadline:
                self.close()
                raise Lost(f"{case}: no answer within {timeout} s\n{self.output()}")
            time.sleep(0.02)
        values = [json.loads(answer.read_text()) for answer in answers]
        if any("failed" in value for value in values):
            self.close()
            raise AssertionError("\n".join(value.get("failed", "") for value in values) + self.output())
        assert [value["processes"] for value in values] == [self.processes] * self.processes
        return [value["value"] for value in values]

    def begin(self, case: str, **arguments: object) -> list[Path]:
        """Tell the processes a case without waiting; returns the files in which they will answer."""
        if not self.workers or any(code is not None for code in self.codes()):
            self.start()
        self.served += 1
        self._marks = [self.log(rank).stat().st_size for rank in range(self.processes)]
        answers = [self.folder / f"answer-{self.served}-{rank}.json" for rank in range(self.processes)]
        for worker, answer in zip(self.workers, answers):
            worker.stdin.write(json.dumps([case, arguments, str(answer)], default=str) + "\n")
            worker.stdin.flush()
        return answers

    def wait(self, timeout: float = 60.0) -> list[int]:
        """Wait until every process has ended, for cases that end them, and return the exit codes."""
        deadline = time.monotonic() + timeout
        while None in self.codes():
            if time.monotonic() > deadline:
                output = self.output()
                self.close()
                raise Lost(f"still running after {timeout} s\n{output}")
            time.sleep(0.02)
        return self.codes()

    def codes(self) -> list[int | None]:
        """The exit code of each process, None while it runs."""
        return [worker.poll() for worker in self.workers]

    def said(self, rank: int = 0) -> str:
        """What a process printed since the present or last case began."""
        return self.log(rank).read_bytes()[self._marks[rank] :].decode(errors="replace")

    def output(self) -> str:
        """The end of what every process printed."""
        return "\n".join(f"--- rank {rank}: {self.said(rank)[-3000:]}" for rank in range(self.processes))

    def close(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
            worker.stdin.close()
        self.workers = []


class Worlds:
    """The worlds of a test session by their process count, each started when it is first used."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self.worlds: dict[int, World] = {}
        self.fleeting = 0

    def __getitem__(self, processes: int) -> World:
        if processes not in self.worlds:
            self.worlds[processes] = World(processes, self.folder / f"world-{processes}", self.cache)
        return self.worlds[processes]

    def new(self, processes: int) -> World:
        """A world of its own, for cases that kill it; the caller closes it."""
        self.fleeting += 1
        return World(processes, self.folder / f"own-{self.fleeting}", self.cache)

    def close(self) -> None:
        """End all worlds."""
        for world in self.worlds.values():
            world.close()


def serve(processes: int) -> None:
    """Serve cases from the standard input until it ends."""
    sys.path.insert(0, str(HERE))
    import cases
    import torch

    from accel_geo.parallel.reduction import world_size

    torch.set_num_threads(1)
    for line in sys.stdin:
        case, arguments, answer = json.loads(line)
        try:
            value = getattr(cases, case)(**arguments)
            if not torch.distributed.is_initialized():
                assert processes == 1, f"{case} left no world of {processes}"
            reply = {"value": value, "processes": world_size()}
        except Exception:
            reply = {"failed": traceback.format_exc()}
        sys.stdout.flush()
        temporary = Path(answer + ".tmp")
        temporary.write_text(json.dumps(reply))
        temporary.rename(answer)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
