"""Edge maps made one pixel wide."""

import numpy as np
from scipy import ndimage

ROUNDING = 1e-9  # smaller differences are none: beyond the border stands the border itself, but for rounding


def thinned(probability: np.ndarray) -> np.ndarray:
    """Return probabilities [H, W] of lines one pixel wide: non-maximum suppression across each line, as Canny has it.

    The direction across a line is that of the strongest negative curvature of the smoothed probabilities, which also
    have their maximum in the middle of a wide line of one value. What is kept lies within half a pixel of that middle,
    so that a line has about as many pixels as its length, whichever way it runs.

    Args:
        probability: [H, W], any real type; outside 0..1 it is clipped, and what is not finite becomes 0.

    Returns:
        float64 [H, W]: the probabilities, 0 where they are no maximum.
    """
    p = unit(probability)
    smooth, yy, xx, xy = (ndimage.gaussian_filter(p, 1.5, order=order) for order in ((0, 0), (2, 0), (0, 2), (1, 1)))
    across = np.arctan2(2 * xy, xx - yy) / 2 + np.pi / 2
    step, here = np.stack([np.sin(across), np.cos(across)]), np.indices(p.shape)
    before, behind = (ndimage.map_coordinates(smooth, here + way * step, order=1, mode="nearest") for way in (-1, 1))
    return np.where((smooth - before >= -ROUNDING) & (smooth - behind > ROUNDING), p, 0)


def unit(values: np.ndarray) -> np.ndarray:
    """Return values as float64 within 0..1; what is not finite becomes 0."""
    values = values.astype(np.float64)
    return np.where(np.isfinite(values), values, 0).clip(0, 1)
