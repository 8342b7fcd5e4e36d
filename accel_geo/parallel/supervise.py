"""Several processes on one machine without a launcher: `--devices N` on the command line and `fit(devices=N)` in a script.

The supervisor starts the workers, passes signals on, and ends all of them as soon as one fails, naming it.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

GRACE = 10.0  # seconds that the workers have to end by themselves once one of them failed


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


def run_workers(command: list[str], devices: int) -> int:
    """Run a command as `devices` workers of one world and wait for them.

    Returns:
        0 where all ended well, else the exit code of the first that failed (128 + N after signal N).
    """
    port = free_port()
    workers = [
        subprocess.Popen(command, env={**os.environ, **worker_environment(rank, devices, port)})
        for rank in range(devices)
    ]
    with _passing_signals_to(workers):
        try:
            return _wait(workers)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                    worker.wait()


def _wait(workers: list[subprocess.Popen]) -> int:
    failed: tuple[int, int] | None = None
    deadline = None
    while True:
        codes = [worker.poll() for worker in workers]
        if failed is None:
            if any(codes):
                # A killed worker takes its peers along within moments: name the killed one, not whoever was seen first.
                time.sleep(0.3)
                codes = [worker.poll() for worker in workers]
                failed = min(((rank, code) for rank, code in enumerate(codes) if code), key=lambda f: (f[1] > 0, f[0]))
                rank, code = failed
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                print(f"accel_geo: rank {rank} {how}; the other processes end too.", file=sys.stderr, flush=True)
                deadline = time.monotonic() + GRACE
                for worker in workers:
                    if worker.poll() is None:
                        worker.terminate()
        if None not in codes:
            break
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if failed is None:
        return 0
    return 128 - failed[1] if failed[1] < 0 else failed[1]


@contextmanager
def _passing_signals_to(workers: list[subprocess.Popen]) -> Iterator[None]:
    """Pass the signals that mean "save and stop" on to the workers; Ctrl-C reaches them from the terminal by itself."""

    def forward(number: int, frame: object) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGUSR1)}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def call_in_workers(function: Callable, arguments: tuple, devices: int) -> None:
    """Call an importable function in `devices` new processes that form one world, and wait for them.

    For scripts and notebooks; a script must guard its own start with `if __name__ == "__main__":`.

    Raises:
        RuntimeError: a worker failed; its own message stands above.
    """
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    port = free_port()
    workers = [
        context.Process(target=_call, args=(worker_environment(rank, devices, port), function, arguments))
        for rank in range(devices)
    ]
    for worker in workers:
        worker.start()
    failed = None
    while failed is None and any(worker.exitcode is None for worker in workers):
        failed = next(((rank, w.exitcode) for rank, w in enumerate(workers) if w.exitcode), None)
        time.sleep(0.05)
    failed = failed or next(((rank, w.exitcode) for rank, w in enumerate(workers) if w.exitcode), None)
    if failed is not None:
        for worker in workers:
            worker.kill()
        raise RuntimeError(f"rank {failed[0]} of {devices} ended with exit code {failed[1]}; its message stands above")
    for worker in workers:
        worker.join()


def _call(environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ.update(environment)
    function(*arguments)
