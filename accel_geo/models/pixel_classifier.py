"""What the networks that classify pixels share: background and classes, losses, predictions."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_geo.models.arguments import FLAG, NOT_NEGATIVE, SHARE, Rule, check_used, list_of, or_none
from accel_geo.models.base import GeoModel
from accel_geo.models.confusion import PlotsConfusion
from accel_geo.nn.backbones import pad_to_multiple, pretrained_state
from accel_geo.nn.losses import PixelLoss
from accel_geo.nn.weights import load_weights
from accel_geo.parallel.reduction import Loss

AUXILIARY_WEIGHT = 0.4


class PixelClassifier(PlotsConfusion, GeoModel):
    """A network with class scores for each pixel: a channel for background and one for each class.

    Where the labels are sparse (`spec.ignore_background`) background is neither trained nor predicted. A subclass builds
    `self.backbone` and its head, then calls `start_from`; it gives `heads` and `class_scores`.

    Args:
        data: the data, or their DataSpec.
        backbone: name of the backbone.
        size: "full" or "small".
        class_balancing: weigh each class by (all pixels) / (its pixels) in the training chips.
        class_weights: weights of background and the classes, K + 1; computed where `class_balancing` asks for them.
        focal_loss, gamma, dice_loss_fraction, dice_loss_average: see `nn.losses.PixelLoss`.
        arguments: the subclass's other arguments, stored with the model to rebuild it.

    Raises:
        ValueError: an unknown size, or a loss option that is not allowed or has no effect.
    """

    task = "semantic"
    heads: tuple[str, ...]
    rules = {
        **GeoModel.rules,
        "class_balancing": FLAG,
        "class_weights": or_none(list_of(NOT_NEGATIVE, "a list of numbers of at least 0, background first")),
        "focal_loss": FLAG,
        "gamma": NOT_NEGATIVE,
        "dice_loss_fraction": SHARE,
        "dice_loss_average": Rule("'micro' or 'macro'", lambda value: value in ("micro", "macro")),
    }

    def __init__(
        self,
        data: object,
        *,
        backbone: str,
        size: str,
        class_balancing: bool,
        class_weights: Sequence[float] | None,
        focal_loss: bool,
        gamma: float,
        dice_loss_fraction: float,
        dice_loss_average: str,
        **arguments: object,
    ) -> None:
        loss = {
            "class_weights": class_weights,
            "focal_loss": focal_loss,
            "gamma": gamma,
            "dice_loss_fraction": dice_loss_fraction,
            "dice_loss_average": dice_loss_average,
        }
        super().__init__(data, backbone=backbone, size=size, class_balancing=class_balancing, **loss, **arguments)
        needs = {
            "gamma": (focal_loss, "focal_loss=True"),
            "dice_loss_average": (dice_loss_fraction > 0, "a dice_loss_fraction above 0"),
        }
        check_used(self, needs)
        if class_balancing and class_weights is None:
            self.arguments["class_weights"] = balanced_weights(data)
        self.outputs, weights = 1 + len(self.spec.classes), self.arguments["class_weights"]
        if weights and not (len(weights) == self.outputs and any(weights[int(self.spec.ignore_background) :])):
            raise ValueError(
                f"class_weights={weights}: {self.outputs} values of at least 0, background first, and not all 0"
            )
        self.aux_classifier = None
        loss = {name: self.arguments[name] for name in loss}
        self.loss = PixelLoss(self.outputs, **loss, ignore_background=self.spec.ignore_background)

    def class_scores(self, images: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
        """Return class scores [B, K + 1, h, w] at any resolution, the network's own first, in training auxiliary ones.

        Args:
            images: [B, C, H, W], normalised, padded to a multiple of the coarsest stride.
            sizes: (H, W) of each image before any padding.
        """
        raise TypeError(f"{type(self).__name__} must define class_scores(images, sizes)")

    def start_from(self, weights: str | None) -> None:
        """Load starting weights, see nn/weights.py.

        Args:
            weights: None, "default" (the library's pretrained backbone) or a path.

        Raises:
            ValueError: they do not belong to the backbone.
            FileNotFoundError: no such weights, or no download of them from here.
        """
        if weights is None:
            return
        load_weights(
            self,
            weights,
            backbone=self.backbone,
            heads=self.heads,
            bands=self.spec.bands,
            classes=self.spec.classes,
            default=lambda: pretrained_state(self.arguments["backbone"]),
        )

    def loss_counts(self, targets: list[dict]) -> dict[str, float]:
        """Return the counts of the terms that are means over pixels; the Dice term is a ratio of a whole part."""
        count = sum(self.loss.count(target["mask"]) for target in targets)
        names = [self.loss.name] if self.aux_classifier is None else [self.loss.name, "auxiliary"]
        return dict.fromkeys(names, count)

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Classify the pixels of images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `mask` int64 [H, W], 255 ignored, and `size`; in evaluation their `size` is used
                where given.

        Returns:
            In training the loss terms; in evaluation per image {"mask": int64 [H, W], "scores": [K + 1, H, W]}.
        """
        height, width = images.shape[-2:]
        padded = pad_to_multiple(self.normalize(images), self.backbone.strides[-1])
        sizes = [(height, width)] * len(images) if targets is None else [target["size"] for target in targets]
        logits, *auxiliary = [
            self._logits(scores, padded.shape[-2:])[..., :height, :width] for scores in self.class_scores(padded, sizes)
        ]
        if not self.training:
            # on the CPU many times faster than argmax
            masks, scores = logits.max(1).indices, logits.to(images.dtype).softmax(1)
            return [{"mask": mask, "scores": score} for mask, score in zip(masks, scores)]
        truth = torch.stack([target["mask"].to(images.device) for target in targets])
        losses = self.loss(logits, truth)
        for scores in auxiliary:
            total, count = self.loss.pixels(scores, truth)
            losses["auxiliary"] = Loss(total * AUXILIARY_WEIGHT, count)
        return losses

    def _logits(self, scores: Tensor, size: tuple[int, int]) -> Tensor:
        if scores.shape[-2:] != size:
            scores = F.interpolate(scores, size, mode="bilinear", align_corners=False)
        if self.spec.ignore_background:
            background = torch.arange(scores.shape[1], device=scores.device) == 0
            scores = scores.masked_fill(background[:, None, None], float("-inf"))
        return scores


def balanced_weights(data: object) -> list[float]:
    """Return (all pixels) / (pixels of the class) of background and each class over the training chips, absent ones 1.

    Raises:
        ValueError: no training chips are at hand to count.
    """
    if not hasattr(data, "class_counts"):
        raise ValueError(
            "class_balancing counts the pixels of the training chips: give the data, or class_weights=[...]"
        )
    counts = torch.tensor(data.class_counts["train"]["pixels"], dtype=torch.float64)
    if data.spec.ignore_background:
        counts[0] = 0
    return torch.where(counts > 0, counts.sum() / counts.clamp(min=1), torch.ones_like(counts)).tolist()
