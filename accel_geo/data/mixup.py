"""Mixup (Zhang et al. 2018): a training chip is blended with another one that the chip's key chooses."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from accel_geo.data.spec import DataSpec
from accel_geo.parallel import keys


def partner(key: int, alpha: float, index: int, ends: Sequence[int]) -> tuple[int, int, float]:
    """Draw what a sample is mixed with: a function of its key alone, whichever process loads it.

    Args:
        key: of the sample, not 0.
        alpha: the shares follow Beta(alpha, alpha).
        index: the sample's position in its split.
        ends: cumulative number of occurrences of each sample in an epoch: who occurs often is chosen often.

    Returns:
        Position of another sample (the same one where there is no other), the key of that one's transforms, and the
        share of the sample itself: the larger of the two, so that an epoch shows each sample mostly as itself.
    """
    draw = np.random.default_rng(keys.fold(key, "mixup"))
    share = float(draw.beta(alpha, alpha))
    start = ends[index - 1] if index else 0
    others = ends[-1] - (ends[index] - start)
    at = int(draw.integers(others)) if others else start
    chosen = bisect_right(ends, at if at < start or not others else at + ends[index] - start)
    return chosen, keys.fold(key, "mixup partner"), max(share, 1 - share)


def mix(sample: dict, other: dict, share: float, spec: DataSpec) -> dict:
    """Blend a sample with another one, image and labels; it keeps its size.

    Where their sizes differ, the middles lie on each other: what is beyond the sample is cut off, what the other one does
    not cover stays unmixed, and the labels weigh as the pixels do. A chip that cannot be read is not mixed.

    Args:
        sample: of classification, not yet padded.
        other: the one to blend in.
        share: of the sample itself where both have pixels, from 0 to 1.
        spec: of the data.

    Returns:
        The sample with `label_weights` float32 [K], or the mixed `labels` where chips have several.
    """
    single = not spec.multilabel
    if sample["ignore"] or other["ignore"] or (single and min(sample["label"], other["label"]) < 0):
        return sample | {"label_weights": _weights(sample, spec)} if single else sample
    image, pixels = sample["image"].clone(), other["image"]
    common = [min(ours, theirs) for ours, theirs in zip(image.shape[1:], pixels.shape[1:])]
    here = image[:, *_middle(image, common)]
    here.lerp_(pixels[:, *_middle(pixels, common)], 1 - share)
    weight = (1 - share) * here[0].numel() / image[0].numel()
    name, ours, theirs = ("label_weights", *(_weights(s, spec) for s in (sample, other))) if single else (
        "labels", sample["labels"], other["labels"]
    )  # fmt: skip
    return sample | {"image": image, name: torch.lerp(ours, theirs, weight)}


def _middle(image: Tensor, size: Sequence[int]) -> tuple[slice, ...]:
    starts = [(whole - part) // 2 for whole, part in zip(image.shape[1:], size)]
    return tuple(slice(start, start + part) for start, part in zip(starts, size))


def _weights(sample: dict, spec: DataSpec) -> Tensor:
    weights = torch.zeros(len(spec.classes))
    if not sample["ignore"] and sample["label"] >= 0:
        weights[sample["label"]] = 1
    return weights
