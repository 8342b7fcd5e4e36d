"""Starting processes as a user would: in a clean environment, with their output and what became of them."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "accelerate_configs"
PROBE = str(Path(__file__).with_name("probe.py"))
UNET = str(ROOT / "recipes" / "unetclassifier.py")
PYTHON = [sys.executable]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# What a launcher or a user's own settings would leave behind.
FOREIGN = ("ACCELERATE_", "OMPI_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC_", "FSDP_", "ACCEL_GEO_", "OMP_", "MASTER_")
SINGLE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "PYTEST_ADDOPTS")


def config(name: str) -> list[str]:
    """Return the command of accelerate with one of the repository's configurations."""
    return [*ACCELERATE, "--config_file", str(CONFIGS / name)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return a clean environment whose settings and caches lie in a folder."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in SINGLE}
    caches = {"HF_HOME": str(folder / "hf"), "ACCEL_GEO_CACHE": str(folder / "cache")}
    return {**kept, **caches, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", **more}


class Finished(NamedTuple):
    """A command that has ended: exit code, output of stdout and stderr, and the JSON lines of the probes in it."""

    code: int
    output: str
    errors: str

    @property
    def probes(self) -> list[dict]:
        return probes(self.output)

    def in_one_world(self, processes: int) -> "Finished":
        """Check, by what each process itself saw, that all were in one world."""
        assert self.code == 0, self.errors
        found = self.probes
        assert [p["processes"] for p in found] == [processes] * processes, (found, self.errors)
        assert {p["world"] for p in found} == {processes}
        assert sorted(p["rank"] for p in found) == list(range(processes))
        assert all(sorted(p["pids"]) == sorted(q["pid"] for q in found) for p in found)
        return self

    def refused(self, *words: str) -> "Finished":
        """Check that it stopped with a message that holds the words, and that no process got going."""
        assert self.code != 0 and not self.probes, self.output
        for word in words:
            assert word in self.errors, self.errors
        return self


def probes(text: str) -> list[dict]:
    """Return the JSON lines in an output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


class Running:
    """A command that runs, its output going to files."""

    def __init__(self, command: list[str], folder: Path, name: str, **more: str) -> None:
        self.output, self.errors = folder / f"{name}.out", folder / f"{name}.err"
        self._known: set[int] = set()
        with open(self.output, "w") as output, open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                command, env=environment(folder, **more), stdout=output, stderr=errors, start_new_session=True
            )

    def wait_for(self, condition: object, seconds: float = 120.0) -> object:
        """Wait until a condition of this run holds, and return it."""
        end = time.monotonic() + seconds
        while not (value := condition(self)):
            assert self.process.poll() is None and time.monotonic() < end, self.errors.read_text()
            time.sleep(0.1)
        return value

    def workers(self, count: int = 2) -> list[int]:
        """Wait for the probes' lines and return the workers' process ids by rank."""
        self.wait_for(lambda run: len(probes(run.output.read_text())) == count)
        return probes(self.output.read_text())[0]["pids"]

    def finish(self, seconds: float = 120.0) -> Finished:
        """Wait for the end of the command; what it leaves running stays, so that a test can look for it."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self._known |= descendants(self.process.pid)  # gone from the tree once their parent is
            time.sleep(0.1)
        assert self.process.poll() is not None, f"still running after {seconds} s: {self.errors.read_text()}"
        return Finished(self.process.returncode, self.output.read_text(), self.errors.read_text())

    def kill(self) -> None:
        """Kill the command and all that it started."""
        self._known |= descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self._known:
            if alive(pid) and "python" in _command_line(pid):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def running(command: list[str], folder: Path, name: str = "run", **more: str) -> "Running":
    """Start a command; whatever is left of it at the end is killed."""
    run = Running(command, folder, name, **more)
    try:
        yield run
    finally:
        run.kill()


def run(command: list[str], folder: Path, seconds: float = 120.0, **more: str) -> Finished:
    """Run a command to its end."""
    with running(command, folder, **more) as process:
        return process.finish(seconds)


def alive(pid: int) -> bool:
    """Say whether a process runs (a dead one that nobody has waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def all_gone(pids: list[int], seconds: float) -> bool:
    """Wait until none of the processes runs."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(map(alive, pids))


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(
                int(entry.name)
            )
        except OSError:
            continue
    found, queue = set(), [pid]
    while queue:
        new = children.get(queue.pop(), [])
        found.update(new)
        queue += new
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
