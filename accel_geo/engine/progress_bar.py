"""What the user watches: a bar on the main process with loss, learning rate, samples/s and the time spent on waiting."""

import sys
import time

from accel_geo.parallel.reduction import is_main

INTERVAL, LOG_INTERVAL = 0.5, 20.0  # seconds between updates, on a terminal and in a log


class ProgressBar:
    """A tqdm bar over the optimizer steps of a fit; silent on all but the main process.

    Args:
        total: optimizer steps of the fit.
        done: steps that were done before a resumption.
    """

    def __init__(self, total: int, done: int) -> None:
        from tqdm import tqdm

        self.interval = INTERVAL if sys.stderr.isatty() else LOG_INTERVAL
        self.bar = tqdm(
            total=total,
            initial=done,
            disable=not is_main(),
            unit="step",
            mininterval=self.interval,
            maxinterval=2 * self.interval,
            dynamic_ncols=True,
        )
        self.shown = self.mark = time.perf_counter()
        self.samples, self.waited = 0, 0.0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def take_seconds(self) -> float:
        """Return the seconds since the last call: a whole step with its loading."""
        now = time.perf_counter()
        seconds, self.mark = now - self.mark, now
        return max(seconds, 1e-9)

    def skip(self) -> None:
        """Let the time since the last call, spent on an evaluation or a save, count for no step."""
        self.mark = time.perf_counter()

    def show(self, loss: float, lr: float | list[float], samples: int, waited: float) -> None:
        """Count a step; renew the text from time to time."""
        self.samples, self.waited = self.samples + samples, self.waited + waited
        now = time.perf_counter()
        if now - self.shown >= self.interval and not self.bar.disable:
            seconds = now - self.shown
            rate = lr if isinstance(lr, float) else lr[0]
            self.bar.set_postfix_str(
                f"loss {loss:.4g}, lr {rate:.2g}, {self.samples / seconds:.1f} samples/s, wait {self.waited / seconds:.0%}",
                refresh=False,
            )
            self.shown, self.samples, self.waited = now, 0, 0.0
        self.bar.update()
