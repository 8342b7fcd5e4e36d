"""Band statistics: exact, in float64, one chip at a time, then merged over any set of chips."""

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Statistics of each band over valid pixels: arrays [C], or [N, C] for N chips.

    Attributes:
        count: valid pixels.
        mean: their mean; 0 where there are none.
        spread: sum of squared differences from the mean.
        low: smallest; +inf where there are none.
        high: largest; -inf where there are none.
    """

    count: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    low: np.ndarray
    high: np.ndarray


def chip_moments(values: np.ndarray, missing: np.ndarray | None) -> Moments:
    """Return the statistics of one chip.

    Args:
        values: pixels [C, H, W].
        missing: bool [C, H, W], True where there is no data, or None.
    """
    if missing is None and values.dtype == np.uint8:
        return _byte_moments(values)
    rows = []
    for band, hidden in zip(values, [None] * len(values) if missing is None else missing):
        x = (band.ravel() if hidden is None else band[~hidden]).astype(np.float64)
        if x.size:
            mean = x.mean()
            rows.append((x.size, mean, np.square(x - mean).sum(), x.min(), x.max()))
        else:
            rows.append((0, 0.0, 0.0, np.inf, -np.inf))
    return Moments(*(np.array(column, dtype=np.float64) for column in zip(*rows)))


def _byte_moments(values: np.ndarray) -> Moments:
    # A histogram of 256 counts is exact and several times faster than passes in float64.
    levels = np.arange(256, dtype=np.float64)
    histograms = np.stack([np.bincount(band.ravel(), minlength=256) for band in values]).astype(np.float64)
    count = histograms.sum(1)
    mean = histograms @ levels / count
    spread = (histograms * np.square(levels - mean[:, None])).sum(1)
    present = histograms > 0
    low = present.argmax(1).astype(np.float64)
    high = 255.0 - present[:, ::-1].argmax(1)
    return Moments(count, mean, spread, low, high)


def merge(chips: Moments) -> Moments:
    """Merge the statistics of N chips [N, C] into one [C] (Chan, Golub and LeVeque, 1983)."""
    count = chips.count.sum(0)
    mean = (chips.count * chips.mean).sum(0) / np.maximum(count, 1)
    spread = (chips.spread + chips.count * np.square(chips.mean - mean)).sum(0)
    low = chips.low.min(0, initial=np.inf)
    high = chips.high.max(0, initial=-np.inf)
    return Moments(count, mean, spread, low, high)


def scaling(moments: Moments, dtype: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return low, high, mean and std of each band as DataSpec defines them.

    Args:
        moments: merged statistics [C] of the training chips.
        dtype: type of the pixels on disk.
    """
    bands = len(moments.count)
    if dtype == "uint8":
        low, high = np.zeros(bands), np.full(bands, 255.0)
    else:
        seen = moments.count > 0
        low = np.where(seen, moments.low, 0.0)
        high = np.where(seen, moments.high, 1.0)
        high = np.where(high > low, high, low + 1.0)  # a constant band becomes 0 everywhere
    extent = high - low
    std = np.sqrt(moments.spread / np.maximum(moments.count, 1)) / extent
    mean = np.where(moments.count > 0, (moments.mean - low) / extent, 0.0)
    varies = (moments.high > moments.low) & (std > 0)  # not by std alone: rounding leaves dust in a constant band
    return low.tolist(), high.tolist(), mean.tolist(), np.where(varies, std, 1.0).tolist()
