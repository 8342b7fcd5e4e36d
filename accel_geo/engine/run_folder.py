"""The folder of a run: its lock, its log and its history; written by the main process only.

A folder holds `history.jsonl`, `log.txt`, `checkpoints/`, `predictions.json`, `report.html` and, at the end, `model/`.
"""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

from accel_geo.parallel.reduction import broadcast_json, is_main
from accel_geo.parallel.watch import process_state
from accel_geo.report.page import write_atomically

STALE = 600.0  # seconds after which a lock of another machine, refreshed at every save, counts as left behind


def collectively(action: object) -> object:
    """Run an action on the main process and return its result on all; where it fails, all processes fail alike.

    Raises:
        ValueError, OSError: what the action raised, on every process, with the same message.
        RuntimeError: it raised anything else, which the main process raises as it is.
    """
    outcome = unforeseen = None
    if is_main():
        try:
            outcome = {"result": action()}
        except OSError as error:
            outcome = {"os_error": f"{type(error).__name__}: {error}", "number": error.errno}
        except ValueError as error:
            outcome = {"error": str(error)}
        except Exception as error:
            unforeseen, outcome = error, {"unforeseen": f"the main process failed: {type(error).__name__}: {error}"}
    outcome = broadcast_json(outcome)
    if unforeseen is not None:
        raise unforeseen
    if "unforeseen" in outcome:
        raise RuntimeError(outcome["unforeseen"])
    if "error" in outcome:
        raise ValueError(outcome["error"])
    if "os_error" in outcome:
        raise OSError(outcome["number"], outcome["os_error"])
    return outcome["result"]


class RunFolder:
    """A run's folder, locked while a fit writes to it.

    Args:
        path: the folder; None keeps everything in memory and writes nothing.
        history: of the fits before this one, where there is no folder that holds it.
    """

    def __init__(self, path: str | os.PathLike | None, history: list[dict] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.history: list[dict] = list(history or [])
        self.failure: OSError | None = None  # what kept the history from being written, on the main process
        self._lines = None
        self._silent = not is_main()

    @property
    def checkpoints(self) -> Path | None:
        """The folder of checkpoints."""
        return None if self.path is None else self.path / "checkpoints"

    def holds_a_run(self) -> bool:
        """Say whether a run has been here."""
        return self.path is not None and (
            (self.path / "history.jsonl").exists() or any(self.path.glob("checkpoints/step-*"))
        )

    def acquire(self, allow_existing: bool) -> bool:
        """Create and lock the folder; collective.

        Args:
            allow_existing: a run that is already here may go on.

        Returns:
            Whether a run was here already.

        Raises:
            ValueError: another run is here, or one is using it now.
            OSError: the folder cannot be written.
        """
        return self.path is not None and collectively(lambda: self._acquire(allow_existing))

    def _acquire(self, allow_existing: bool) -> bool:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--output {self.path} is a file; give a folder")
        existed = self.holds_a_run()
        if existed and not allow_existing:
            raise ValueError(
                f"--output {self.path} already holds a run; go on with it by --resume, or give another folder"
            )
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        lock = self.path / ".lock"
        for _ in range(3):
            try:
                descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                holder = self._holder(lock)
                if holder:
                    raise ValueError(
                        f"--output {self.path} is in use {holder}; wait for it or give another folder"
                    ) from None
                lock.unlink(missing_ok=True)
                continue
            me = {"host": socket.gethostname(), "pid": os.getpid(), "started": _start_time(os.getpid())}
            with os.fdopen(descriptor, "w") as file:
                json.dump({**me, "since": time.strftime("%Y-%m-%d %H:%M:%S")}, file)
            break
        for left in self.checkpoints.glob(".tmp-*"):
            _remove(left)
        self._lines = open(self.path / "history.jsonl", "a", encoding="utf-8")
        return existed

    def _holder(self, lock: Path) -> str | None:
        """Describe the living holder of a lock, or None where it is left behind."""
        try:
            held = json.loads(lock.read_text())
            age = time.time() - lock.stat().st_mtime
        except (OSError, ValueError):
            # Just being written, or cut short by a crash: only age can tell.
            return (
                "by a run that is just starting" if lock.exists() and time.time() - lock.stat().st_mtime < 5 else None
            )
        who = f"by process {held.get('pid')} on {held.get('host')} since {held.get('since')}"
        if held.get("host") == socket.gethostname():
            state = process_state(held["pid"])
            return who if state not in (None, "Z") and _start_time(held["pid"]) == held.get("started") else None
        return who if age < STALE else None

    def release(self) -> None:
        """Close the history and unlock the folder."""
        if self._lines is not None:
            with contextlib.suppress(OSError):  # a full disk, which `append` has noted
                self._lines.close()
            self._lines = None
            (self.path / ".lock").unlink(missing_ok=True)

    def say(self, text: str) -> None:
        """Print a message on the main process and keep it in the log."""
        if self._silent:
            return
        from tqdm import tqdm

        tqdm.write(text)
        if self._lines is not None:
            # The log repeats what was printed: a full disk is told by the history, which matters.
            with contextlib.suppress(OSError), open(self.path / "log.txt", "a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def append(self, record: dict) -> None:
        """Append one line to the history.

        Only the main process writes, so where that fails it is noted for `check` and not raised on one process alone.
        """
        self.history.append(record)
        if self._lines is not None and self.failure is None:
            try:
                self._lines.write(json.dumps(record) + "\n")
                self._lines.flush()
            except OSError as error:
                self.failure = error

    def check(self) -> None:
        """Raise, on the main process, what kept the history from being written; see `collectively`.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        if self.failure is not None:
            raise OSError(self.failure.errno, f"{self.path / 'history.jsonl'}: {self.failure.strerror}")

    def touch(self) -> None:
        """Tell other machines that the lock's holder lives."""
        if self._lines is not None:
            os.utime(self.path / ".lock")

    def cut_history(self, step: int) -> None:
        """Keep the history up to a step and drop what lies behind it, torn lines included; on all processes."""
        self.history = collectively(lambda: self._cut(step)) if self.path is not None else self.history

    def _cut(self, step: int) -> list[dict]:
        path, kept = self.path / "history.jsonl", []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["step"] <= step:
                kept.append(record)
        if self._lines is not None:
            self._lines.close()
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))
        self._lines = open(path, "a", encoding="utf-8")
        return kept


def _start_time(pid: int) -> str | None:
    """Return when a process of this machine started, in the kernel's ticks: tells a process from a later one of its number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _remove(path: Path) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
