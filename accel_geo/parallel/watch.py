"""A watch over the processes of a run: one that is stopped or gone ends all, by name, without a wait for the timeout.

Each process beats in the run's key-value store and looks at the others. What counts is how often this process itself
looked meanwhile, not the clock: a run that is suspended and continued as a whole is not mistaken for a dead one.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from accel_geo.parallel.processes import launcher, process_state
from accel_geo.parallel.reduction import world_size

INTERVAL = 4.0  # seconds between looks
STOPPED_LOOKS = 4  # looks in a row that see a process of this machine stopped or gone
SILENT_LOOKS = 11  # looks in a row without a beat of a process of another machine
ANSWER = 8.0  # seconds that the store may take for one answer
UNANSWERED_LOOKS = 4  # looks in a row without an answer of the store; with the waiting for it some 48 s
ORPHANED_LOOKS = 10  # looks that a process whose launcher is gone has to save
_busy = threading.Event()


@contextmanager
def busy() -> Iterator[None]:
    """Mark work that may keep the interpreter lock for long, such as an evaluation in a compiled library."""
    _busy.set()
    try:
        yield
    finally:
        _busy.clear()


class Watch(threading.Thread):
    """The watch of one process; `start()` begins it, `stop()` ends it."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.ended = threading.Event()
        # One run may have several watches, one after the other: each fit begins a new one on all processes together.
        self.prefix = f"accel_geo/watch/{next(_numbers)}"
        self.host, self.launcher = socket.gethostname(), launcher() if sys.platform == "linux" else None
        self.store = _connect()
        if self.store is None:  # a process group that met in a file or by a store of its own: without a watch
            self.ended.set()
        else:
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
        beats, silent, stopped = {}, dict.fromkeys(others, 0), dict.fromkeys(others, 0)
        who: dict[int, list[str]] = {}
        count, unanswered, orphaned = 0, 0, 0
        while not self.ended.wait(INTERVAL):
            count += 1
            last = beats
            try:
                self.store.set(f"{self.prefix}/beat/{self.rank}", "busy" if _busy.is_set() else str(count))
                beats = {r: self._read(f"beat/{r}") for r in others}
                who |= {r: said.split(" ") for r in others if r not in who and (said := self._read(f"who/{r}"))}
                unanswered = 0
            except Exception:
                unanswered += 1  # the holder of the store (rank 0 or its launcher) is stopped, gone or just ending
            if self.launcher is not None and process_state(self.launcher) in (None, "Z"):
                orphaned += 1
                if orphaned == 1:
                    self._say(f"the launcher (process {self.launcher}) is gone. Rank {self.rank} saves and stops")
                    os.kill(os.getpid(), signal.SIGTERM)
                if orphaned >= ORPHANED_LOOKS:
                    self._end("it could not save")
                unanswered = 0  # the launcher held the store, which saving does not need
            for r in others:
                host, pid = who.get(r, ["", "0"])
                here = host == self.host and sys.platform == "linux"
                dead = here and beats.get(r) != "done" and process_state(int(pid)) in ("T", "Z", None)
                stopped[r] = stopped[r] + 1 if dead else 0
                fresh = here or unanswered or beats.get(r) in ("busy", "done") or beats.get(r) != last.get(r)
                silent[r] = 0 if fresh else silent[r] + 1
                if stopped[r] >= STOPPED_LOOKS:
                    self._end(f"rank {r} (process {pid} on {host}) is stopped or gone")
                if silent[r] >= SILENT_LOOKS:
                    self._end(
                        f"rank {r} (process {pid} on {host}) has not answered for {INTERVAL * SILENT_LOOKS:.0f} s"
                    )
            if unanswered >= UNANSWERED_LOOKS:
                self._end("the process that holds the run's store (rank 0 or its launcher) does not answer")

    def _read(self, key: str) -> str | None:
        key = f"{self.prefix}/{key}"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def _end(self, reason: str) -> None:
        if self.ended.is_set():
            return
        self._say(f"{reason}. Rank {self.rank} ends; resume with --resume")
        time.sleep(0.1 * self.rank)
        os._exit(13)

    def _say(self, text: str) -> None:
        print(f"accel_geo: {text}.", file=sys.stderr, flush=True)


@contextmanager
def watching() -> Iterator[None]:
    """Watch over the processes of the run during collective work; alone, there is nothing to watch."""
    if world_size() == 1:
        yield
        return
    watch = Watch()
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def _connect() -> dist.TCPStore | None:
    """Return a connection of our own to the store in which the processes met, None where it cannot be reached."""
    address, port = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
    try:
        socket.create_connection((address, port), timeout=ANSWER).close()
    except OSError:
        return None
    return dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=ANSWER))


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


_numbers = _count()
