"""SIGTERM and SIGUSR1 mean: finish the step, save, stop with exit code 0 (a cluster can then requeue the job)."""

import signal
import threading


class Stopped(SystemExit):
    """Training stopped on request after saving; leaves a script with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class StopSignals:
    """Notes a stop signal while training runs; the handlers from before return at the end."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        # Only the main thread may set handlers; elsewhere (a notebook's worker thread) signals keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.requested = True
