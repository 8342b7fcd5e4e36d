"""A watch over the processes of a run: one that is stopped or gone ends all, by name, instead of a wait for the timeout.

Each process beats in the run's key-value store and looks at the others. What counts is how often this process itself
looked meanwhile, not the clock: a run that is suspended and continued as a whole is not mistaken for a dead one.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

INTERVAL = 4.0  # seconds between looks
STOPPED_LOOKS = 4  # looks in a row that see a process of this machine stopped
SILENT_LOOKS = 11  # looks in a row without a beat of a process of another machine
_busy = threading.Event()


@contextmanager
def busy() -> Iterator[None]:
    """Mark work that may keep the interpreter lock for long, such as an evaluation in a compiled library."""
    _busy.set()
    try:
        yield
    finally:
        _busy.clear()


def process_state(pid: int) -> str | None:
    """Return the state letter of a process of this machine (T: stopped), None where it is gone or cannot be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


class Watch(threading.Thread):
    """The watch of one process; `start()` begins it, `stop()` ends it."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.ended = threading.Event()
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=INTERVAL * SILENT_LOOKS / 2),
        )
        # One run may have several watches, one after the other: each fit begins a new one on all processes together.
        self.prefix = f"accel_geo/watch/{next(_numbers)}"
        self.host = socket.gethostname()
        self.store.set(f"{self.prefix}/who/{self.rank}", f"{self.host} {os.getpid()}")

    def stop(self) -> None:
        """End the watch, telling the others that this process has."""
        if not self.ended.is_set():
            self.ended.set()
            self.join(timeout=INTERVAL)
            try:
                self.store.set(f"{self.prefix}/beat/{self.rank}", "done")
            except Exception:  # the store's holder may have left already
                return

    def run(self) -> None:
        """Beat and look until stopped."""
        others = [r for r in range(self.size) if r != self.rank]
        last, silent, stopped = {}, dict.fromkeys(others, 0), dict.fromkeys(others, 0)
        count, unanswered = 0, 0
        while not self.ended.wait(INTERVAL):
            count += 1
            try:
                self.store.set(f"{self.prefix}/beat/{self.rank}", "busy" if _busy.is_set() else str(count))
                beats = {r: self._read(f"beat/{r}") for r in others}
                who = {r: (self._read(f"who/{r}") or " ").split(" ") for r in others}
                unanswered = 0
            except Exception:
                # The holder of the store (process 0 or its launcher) is stopped, gone or just ending.
                unanswered += 1
                if unanswered >= 2 and not self.ended.is_set():
                    self._end("the process that holds the run's store (rank 0 or its launcher) does not answer")
                continue
            for r in others:
                here = who[r][0] == self.host and sys.platform == "linux"
                state = process_state(int(who[r][1])) if here and who[r][1] else "?"
                stopped[r] = stopped[r] + 1 if state == "T" else 0
                fresh = here or beats[r] in ("busy", "done") or beats[r] != last.get(r)
                silent[r] = 0 if fresh else silent[r] + 1
                last[r] = beats[r]
                if stopped[r] >= STOPPED_LOOKS:
                    self._end(f"rank {r} (process {who[r][1]} on {who[r][0]}) is stopped")
                if silent[r] >= SILENT_LOOKS:
                    seconds = INTERVAL * SILENT_LOOKS
                    self._end(f"rank {r} (process {who[r][1]} on {who[r][0]}) has not answered for {seconds:.0f} s")

    def _read(self, key: str) -> str | None:
        key = f"{self.prefix}/{key}"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def _end(self, reason: str) -> None:
        if self.ended.is_set():
            return
        print(f"accel_geo: {reason}. Rank {self.rank} ends; resume with --resume.", file=sys.stderr, flush=True)
        time.sleep(0.1 * self.rank)
        os._exit(13)


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


_numbers = _count()
