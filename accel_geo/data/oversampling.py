"""Oversampling: chips of rare classes occur several times an epoch."""

import numpy as np
import torch

from accel_geo.parallel import keys


def occurrences(labels: np.ndarray, seed: int) -> list[int]:
    """Return how often each chip occurs in an epoch, so that every class does about as often as the largest.

    From the rarest class on, its chips are repeated evenly until they are as many as those of the largest class; which
    of them occur once more than the others is drawn by the seed. With one class a chip the classes become equal; where
    chips have several, those classes that come along with rare ones grow too.

    Args:
        labels: bool [N, K], the classes of each chip; chips without any occur once.
        seed: of the run.
    """
    times, chips = np.ones(len(labels), dtype=np.int64), labels.sum(0)
    for label in np.argsort(chips, kind="stable"):
        members = np.flatnonzero(labels[:, label])
        missing = int(chips.max() - times[members].sum())
        if len(members) and missing > 0:
            order = torch.randperm(len(members), generator=keys.generator(seed, "oversample", int(label))).numpy()
            times[members] += missing // len(members)
            times[members[order[: missing % len(members)]]] += 1
    return times.tolist()
