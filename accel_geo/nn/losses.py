"""Loss terms as totals and counts; where all is ignored the total is zero and still part of the graph, never NaN."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
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


def pixel_focal(logits: Tensor, mask: Tensor, gamma: float, class_weights: Tensor | None = None) -> Loss:
    """Focal loss over the pixels that are not ignored (Lin et al. 2017): (1 - p)^gamma times the cross entropy.

    Args:
        logits: [B, C, H, W].
        mask: int64 [B, H, W] with values 0..C-1, 255 ignored.
        gamma: how little weigh the pixels that are easy; 0 is the cross entropy.
        class_weights: [C]; a pixel weighs as its true class does.

    Returns:
        The sum over pixels and their number, or the sum of their weights.
    """
    plain = F.cross_entropy(logits, mask, ignore_index=IGNORED, reduction="none")
    # never quite zero: the slope of a power below 1 has no limit there
    doubt = (-torch.expm1(-plain)).clamp(min=torch.finfo(plain.dtype).tiny)
    pixels = doubt**gamma * plain
    if class_weights is not None:
        pixels = pixels * class_weights.to(pixels.dtype)[mask.masked_fill(mask == IGNORED, 0)]
    return Loss(pixels.sum(), pixel_count(mask, class_weights))


def label_cross_entropy(
    logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, class_weights: Tensor | None = None
) -> Loss:
    """Cross entropy over the samples that are not ignored.

    Args:
        logits: [B, K].
        labels: int64 [B] with values 0..K-1, -1 ignored; or weights of the classes, [B, K], all 0 ignored.
        label_smoothing: share of the target that is spread evenly over the classes.
        class_weights: [K]; a sample weighs as its true class does, a mixed one as its classes do in their shares.

    Returns:
        The sum over samples, and their number or the sum of their weights.
    """
    count, options = label_count(labels, class_weights), {"reduction": "sum", "label_smoothing": label_smoothing}
    if labels.dim() == 1:
        return Loss(F.cross_entropy(logits, labels, class_weights, ignore_index=-1, **options), count)
    keep = labels.sum(1) > 0
    return Loss(F.cross_entropy(logits[keep], labels[keep].to(logits.dtype), class_weights, **options), count)


def label_count(labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the number of samples that are not ignored, or the sum of their class weights; see `label_cross_entropy`."""
    if labels.dim() == 1:
        known = labels != -1
        return known.sum() if class_weights is None else (class_weights[labels.clamp(min=0)] * known).sum()
    return labels.sum() if class_weights is None else (labels * class_weights).sum()


def label_binary_cross_entropy(
    logits: Tensor, labels: Tensor, keep: Tensor, positive_weights: Tensor | None = None
) -> Loss:
    """Binary cross entropy of samples with several labels.

    Args:
        logits: [B, K].
        labels: from 0 to 1, [B, K].
        keep: bool [B]; False is ignored.
        positive_weights: [K]; how many times as much a class counts where it is there.

    Returns:
        The sum over the kept samples and all classes, and the number of those values.
    """
    # the choice by index keeps what stands in ignored samples, even NaN, out of total and gradient
    total = F.binary_cross_entropy_with_logits(
        logits[keep], labels[keep].to(logits.dtype), reduction="sum", pos_weight=positive_weights
    )
    return Loss(total, keep.sum() * logits.shape[1])


def soft_dice(logits: Tensor, mask: Tensor, first_class: int = 0, average: str = "micro") -> Loss:
    """One minus the soft Dice coefficient over the global batch (Milletari et al. 2016).

    Args:
        logits: [B, C, H, W].
        mask: int64 [B, H, W] with values 0..C-1, 255 ignored.
        first_class: classes below this are left out.
        average: "micro": of all classes together; "macro": the mean over the classes that occur in the batch's truth,
            however few their pixels.

    Returns:
        A term that is the same on every process, with count 1.
    """
    probability = logits.softmax(1) * (mask != IGNORED)[:, None]
    classes = range(first_class, logits.shape[1])
    here = [mask == label for label in classes]
    both = torch.stack([(probability[:, label] * pixels).sum() for label, pixels in zip(classes, here)])
    truth = torch.stack([pixels.sum() for pixels in here]).to(both.dtype)
    predicted = probability.sum((0, 2, 3))[first_class:]
    both, truth, predicted = global_sum(torch.stack([both, truth, predicted]))
    smooth = torch.finfo(both.dtype).eps
    if average == "micro":
        return Loss(1 - (2 * both.sum() + smooth) / (truth.sum() + predicted.sum() + smooth), 1.0)
    occurs = truth > 0
    each = (1 - (2 * both + smooth) / (truth + predicted + smooth)) * occurs
    return Loss(each.sum() / occurs.sum().clamp(min=1), 1.0)


class PixelLoss(nn.Module):
    """The loss of networks that classify pixels: cross entropy or focal, and Dice in a share of it.

    (1 - f) * pixel loss + f * Dice loss, each a term of its own. The pixel loss is a mean over the pixels that are not
    ignored, weighted by their class; the Dice loss is one of the global batch as a whole.

    Args:
        outputs: classes, background first.
        class_weights: of each class; None: all alike. A constant of this training, not part of what is published.
        focal_loss: focal loss of each pixel instead of the cross entropy.
        gamma: of the focal loss.
        dice_loss_fraction: f.
        dice_loss_average: "micro" or "macro", see `soft_dice`.
        ignore_background: pixels of class 0 do not count.

    Raises:
        ValueError: a value that is not allowed; the message says which are.
    """

    def __init__(
        self,
        outputs: int,
        *,
        class_weights: Sequence[float] | None = None,
        focal_loss: bool = False,
        gamma: float = 2.0,
        dice_loss_fraction: float = 0.0,
        dice_loss_average: str = "micro",
        ignore_background: bool = False,
    ) -> None:
        super().__init__()
        if class_weights is not None and (len(class_weights) != outputs or min(class_weights) < 0):
            raise ValueError(f"class_weights {list(class_weights)}: {outputs} values of at least 0, background first")
        if not gamma >= 0:
            raise ValueError(f"gamma={gamma}: at least 0")
        if not 0 <= dice_loss_fraction <= 1:
            raise ValueError(f"dice_loss_fraction={dice_loss_fraction}: from 0 to 1")
        if dice_loss_average not in ("micro", "macro"):
            raise ValueError(f"dice_loss_average is 'micro' or 'macro', not {dice_loss_average!r}")
        self.name, self.gamma = ("focal", gamma) if focal_loss else ("cross_entropy", 0.0)
        self.fraction, self.average, self.first_class = dice_loss_fraction, dice_loss_average, int(ignore_background)
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.get_default_dtype())
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, mask: Tensor) -> dict[str, Loss]:
        """Return the terms.

        Args:
            logits: [B, C, H, W].
            mask: int64 [B, H, W], 0 background, 1..K, 255 ignored.
        """
        total, count = self.pixels(logits, mask)
        if not self.fraction:
            return {self.name: Loss(total, count)}
        dice = soft_dice(logits, self.counted(mask), self.first_class, self.average)
        return {
            self.name: Loss(total * (1 - self.fraction), count),
            "dice": Loss(dice.total * self.fraction, dice.count),
        }

    def pixels(self, logits: Tensor, mask: Tensor) -> Loss:
        """Return the pixel loss alone."""
        mask = self.counted(mask)
        if self.name == "focal":
            return pixel_focal(logits, mask, self.gamma, self.class_weights)
        return pixel_cross_entropy(logits, mask, self.class_weights)

    def count(self, mask: Tensor) -> float:
        """Return the count of the pixel loss."""
        return float(pixel_count(self.counted(mask), self.class_weights))

    def counted(self, mask: Tensor) -> Tensor:
        """Return the mask with 255 wherever a pixel does not count."""
        return mask.masked_fill(mask == 0, IGNORED) if self.first_class else mask
