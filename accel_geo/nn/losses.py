"""Loss terms as totals and counts; where all is ignored the total is zero and still part of the graph, never NaN."""

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_geo.data.spec import IGNORED
from accel_geo.parallel.reduction import Loss, global_sum


def pixel_cross_entropy(logits: Tensor, mask: Tensor, class_weights: Tensor | None = None) -> Loss:
    """Cross entropy over the pixels that are not ignored.

    Args:
        logits: [B, C, H, W].
        mask: int64 [B, H, W] with values 0..C-1, 255 ignored.
        class_weights: [C]; a pixel weighs as its true class does.

    Returns:
        The sum over pixels and their number, or the sum of their weights.
    """
    total = F.cross_entropy(logits, mask, class_weights, ignore_index=IGNORED, reduction="sum")
    return Loss(total, pixel_count(mask, class_weights))


def pixel_count(mask: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the number of pixels that are not ignored, or the sum of their class weights."""
    valid = mask != IGNORED
    return valid.sum() if class_weights is None else class_weights.to(mask.device)[mask[valid]].sum()


def label_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
    """Cross entropy over the samples that are not ignored.

    Args:
        logits: [B, K].
        labels: int64 [B] with values 0..K-1, -1 ignored.
        label_smoothing: share of the target that is spread evenly over the classes.

    Returns:
        The sum over samples and their number.
    """
    total = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum", label_smoothing=label_smoothing)
    return Loss(total, (labels != -1).sum())


def label_binary_cross_entropy(logits: Tensor, labels: Tensor, keep: Tensor) -> Loss:
    """Binary cross entropy of samples with several labels.

    Args:
        logits: [B, K].
        labels: 0 or 1, [B, K].
        keep: bool [B]; False is ignored.

    Returns:
        The sum over the kept samples and all classes, and the number of those values.
    """
    # the choice by index keeps what stands in ignored samples, even NaN, out of total and gradient
    total = F.binary_cross_entropy_with_logits(logits[keep], labels[keep].to(logits.dtype), reduction="sum")
    return Loss(total, keep.sum() * logits.shape[1])


def soft_dice(logits: Tensor, mask: Tensor, first_class: int = 0) -> Loss:
    """One minus the soft Dice coefficient of all classes together, over the global batch (Milletari et al., 2016).

    Args:
        logits: [B, C, H, W].
        mask: int64 [B, H, W] with values 0..C-1, 255 ignored.
        first_class: classes below this are left out.

    Returns:
        A term that is the same on every process, with count 1.
    """
    valid = (mask != IGNORED)[:, None]
    truth = F.one_hot(mask.masked_fill(mask == IGNORED, 0), logits.shape[1]).movedim(-1, 1) * valid
    probability = logits.softmax(1) * valid
    truth, probability = truth[:, first_class:].to(logits.dtype), probability[:, first_class:]
    both, either = global_sum(torch.stack([(truth * probability).sum(), (truth + probability).sum()]))
    smooth = torch.finfo(logits.dtype).eps
    return Loss(1 - (2 * both + smooth) / (either + smooth), 1.0)
