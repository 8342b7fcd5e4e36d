"""Choosing anchors and regions: what an image contributes depends on itself and its key alone."""

import torch
from torch import Tensor

from accel_geo.parallel.keys import generator

# values are ranked on this grid: where they are equal but for rounding, the index decides, whatever the machine rounds
RANK_GRID = 2.0**30


def on_rank_grid(values: Tensor) -> Tensor:
    """Round values so that those that are equal but for rounding are equal."""
    return torch.round(values * RANK_GRID) / RANK_GRID


def highest(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Return a bool mask [N] of the `count` candidates (bool [N]) with the highest values [N], ties by index."""
    index = torch.where(candidates)[0]
    order = torch.argsort(values[index], descending=True, stable=True)
    mask = torch.zeros_like(candidates)
    mask[index[order[:count]]] = True
    return mask


class KeyedSampler:
    """Draws a balanced sample of positives and negatives of each image, in place of torchvision's sampler.

    Each candidate of an image gets one priority from a CPU generator keyed by (the target's key, site); the highest
    priorities are taken, ties by index. One candidate more or less therefore leaves the choice among the others
    alone, and neither the other images nor the process count matter.

    Args:
        batch_size_per_image: candidates sampled from an image.
        positive_fraction: the largest share of positives among them.
        site: name of this sampler in the keys.
    """

    def __init__(self, batch_size_per_image: int, positive_fraction: float, site: str) -> None:
        self.batch_size_per_image = batch_size_per_image
        self.positive_fraction = positive_fraction
        self.site = site
        self.keys: list[int | None] = []

    def begin(self, targets: list[dict]) -> None:
        """Set the images that the next call samples: their `key`; one with `ignore` samples nothing."""
        self.keys = [None if target.get("ignore", False) else int(target["key"]) for target in targets]

    def __call__(self, matched: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Sample each image.

        Args:
            matched: per image, a vector over its candidates: 1 or more is positive, 0 negative, -1 neither.

        Returns:
            Per image, bool masks over its candidates: the sampled positives and the sampled negatives.
        """
        positives, negatives = [], []
        for labels, key in zip(matched, self.keys, strict=True):
            if key is None:
                nothing = torch.zeros_like(labels, dtype=torch.bool)
                positives.append(nothing)
                negatives.append(nothing)
                continue
            priority = torch.rand(len(labels), generator=generator(key, self.site)).to(labels.device)
            taken = highest(priority, labels >= 1, int(self.batch_size_per_image * self.positive_fraction))
            positives.append(taken)
            negatives.append(highest(priority, labels == 0, self.batch_size_per_image - int(taken.sum())))
        return positives, negatives
