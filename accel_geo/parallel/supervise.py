"""Several processes on one machine without a launcher: `--devices N` of a recipe and `fit(devices=N)` in a script.

The supervisor starts the workers, passes signals on, and ends all of them as soon as one fails, naming it.
"""

import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from typing import Protocol

from accel_geo.parallel.processes import SUPERVISOR, process_state

GRACE = 10.0  # seconds that the workers have to end by themselves once one of them failed
LOOK = 1.0  # seconds between looks at whether a worker is stopped
STOPPED_LOOKS = 12  # looks in a row that see a worker stopped; counted, so that suspending the whole run is no failure
SPAWNING = "ACCEL_GEO_SPAWNING"  # set while new interpreters start, which import a script's main module


def free_port() -> int:
    """Return a free port of this machine."""
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker_environment(rank: int, devices: int, port: int) -> dict[str, str]:
    """Return the variables that make a process worker `rank` of `devices` on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(devices),
        "LOCAL_WORLD_SIZE": str(devices),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Worker(Protocol):
    """What the supervisor needs of a process: subprocess.Popen has it, and `_Spawned` gives it to multiprocessing's."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, -N after signal N, None while it runs."""

    def send_signal(self, number: int) -> None:
        """Send a signal to the running process."""


def run_workers(command: list[str], devices: int) -> int:
    """Run a command as `devices` workers of one world and wait for them.

    Returns:
        0 where all ended well, else the exit code of the first that failed (128 + N after signal N).
    """
    port = free_port()
    environment = {**os.environ, SUPERVISOR: str(os.getpid())}

    def start(rank: int) -> Worker:
        return subprocess.Popen(command, env={**environment, **worker_environment(rank, devices, port)})

    try:
        failed = _supervise(start, devices)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if failed is None:
        return 0
    return 128 - failed[1] if failed[1] < 0 else failed[1]


def _supervise(start: Callable[[int], Worker], devices: int) -> tuple[int, int] | None:
    """Start workers and wait until all have ended; end all once one has failed or is stopped.

    Returns:
        Rank and exit code of the first that failed, None where all ended well.
    """
    workers: list[Worker] = []
    with _passing_signals_to(workers):
        try:
            for rank in range(devices):
                workers.append(start(rank))
            return _wait(workers)
        except KeyboardInterrupt:
            # Ctrl-C reaches the workers from the terminal by itself: let them end.
            end = time.monotonic() + GRACE
            while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
                time.sleep(0.05)
            raise
        finally:
            _send(workers, signal.SIGKILL)
            for worker in workers:
                while worker.poll() is None:
                    time.sleep(0.01)


def _wait(workers: list[Worker]) -> tuple[int, int] | None:
    failed: tuple[int, int] | None = None
    deadline, next_look, stopped = math.inf, 0.0, [0] * len(workers)
    while True:
        codes = [worker.poll() for worker in workers]
        if failed is None and any(codes):
            # A killed worker takes its peers along within moments: name the killed one, not whoever was seen first.
            time.sleep(0.3)
            codes = [worker.poll() for worker in workers]
            failed = _worst(codes)
        elif failed is None and time.monotonic() >= next_look:
            next_look = time.monotonic() + LOOK
            stopped = [n + 1 if process_state(w.pid) == "T" else 0 for n, w in zip(stopped, workers)]
            failed = next(((rank, -signal.SIGSTOP) for rank, n in enumerate(stopped) if n >= STOPPED_LOOKS), None)
        if failed is not None and deadline == math.inf:
            deadline = time.monotonic() + GRACE
            _tell(f"rank {failed[0]} (process {workers[failed[0]].pid}) {_how(failed[1])}; the other processes end too")
            _send(workers, signal.SIGTERM)
        if None not in codes or time.monotonic() > deadline:
            return failed
        time.sleep(0.05)


def _how(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    return f"{'is stopped' if code == -signal.SIGSTOP else 'was killed'} by {signal.Signals(-code).name}"


def _worst(codes: list[int | None]) -> tuple[int, int] | None:
    """Return rank and code of the failed worker to name: a killed one before one that ended by itself."""
    return min(((rank, code) for rank, code in enumerate(codes) if code), key=lambda f: (f[1] > 0, f[0]), default=None)


def _tell(text: str) -> None:
    print(f"accel_geo: {text}.", file=sys.stderr, flush=True)


def _send(workers: list[Worker], number: int) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(number)


@contextmanager
def _passing_signals_to(workers: list[Worker]) -> Iterator[None]:
    """Pass the signals that mean "save and stop" on to the workers; Ctrl-C reaches them from the terminal by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def forward(number: int, frame: object) -> None:
        _send(workers, number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Spawned:
    """A process of multiprocessing as a Worker."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        process.start()
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def call_in_workers(function: Callable, arguments: tuple, devices: int) -> None:
    """Call an importable function in `devices` new processes that form one world, and wait for them.

    For scripts and notebooks; a script must guard its own start with `if __name__ == "__main__":`.

    Raises:
        RuntimeError: a worker failed; its own message stands above. Or the script lacks the guard.
    """
    if SPAWNING in os.environ:
        raise RuntimeError(
            "the new processes import this script, and it starts training while they do: put what it does under\n"
            '    if __name__ == "__main__":\n'
            "or run it by a launcher: torchrun --standalone --nproc-per-node 2 SCRIPT, with fit() without devices"
        )
    context = multiprocessing.get_context("spawn")
    port = free_port()

    def start(rank: int) -> Worker:
        environment = {**worker_environment(rank, devices, port), SUPERVISOR: str(os.getpid())}
        os.environ[SPAWNING] = "1"
        try:
            return _Spawned(context.Process(target=_call, args=(environment, function, arguments)))
        finally:
            del os.environ[SPAWNING]

    failed = _supervise(start, devices)
    if failed is not None:
        raise RuntimeError(f"rank {failed[0]} of {devices} failed (exit code {failed[1]}); its message stands above")


def _call(environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ.pop(SPAWNING, None)
    os.environ.update(environment)
    try:
        function(*arguments)
    except Exception:
        # Not a plain end: other processes may be waiting in collective calls that this one's teardown would join.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
