"""UnetClassifier: a class for each pixel (Ronneberger et al., 2015, with a pretrained encoder)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.data.spec import IGNORED
from accel_geo.models.base import GeoModel
from accel_geo.nn.backbones import build_backbone, pad_to_multiple, pretrained_state
from accel_geo.nn.losses import pixel_count, pixel_cross_entropy, soft_dice
from accel_geo.nn.weights import load_weights
from accel_geo.parallel.reduction import Loss

WIDTHS = (256, 128, 64, 32, 16)


class UnetClassifier(GeoModel):
    """An encoder of any kind, and a decoder that joins its feature maps from the coarsest to full resolution.

    The head has a channel for background and one for each class. Where the labels are sparse (`spec.ignore_background`)
    background is neither trained nor predicted.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained encoder) or a path, see nn/weights.py.
        size: "full", or "small": a decoder of half the width.
        class_balancing: weigh each class by (all pixels) / (its pixels) in the training chips.
        class_weights: weights of background and the classes, K + 1; computed where `class_balancing` asks for them.
        dice_loss_fraction: f in (1 - f) * cross entropy + f * (1 - soft Dice over the global batch).

    Raises:
        ValueError: an unknown backbone or size, wrong class weights, or weights that do not belong to the backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "semantic"

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet34",
        weights: str | None = None,
        size: str = "full",
        class_balancing: bool = False,
        class_weights: Sequence[float] | None = None,
        dice_loss_fraction: float = 0.0,
    ) -> None:
        if class_balancing and class_weights is None:
            class_weights = balanced_weights(data)
        super().__init__(
            data,
            backbone=backbone,
            size=size,
            class_balancing=class_balancing,
            class_weights=None if class_weights is None else [float(weight) for weight in class_weights],
            dice_loss_fraction=dice_loss_fraction,
        )
        outputs = 1 + len(self.spec.classes)
        if size not in ("full", "small"):
            raise ValueError(f"size is 'full' or 'small', not {size!r}")
        if not 0 <= dice_loss_fraction <= 1:
            raise ValueError(f"dice_loss_fraction={dice_loss_fraction}: from 0 to 1")
        if class_weights is not None and (len(class_weights) != outputs or min(class_weights) < 0):
            raise ValueError(f"class_weights {list(class_weights)}: {outputs} values of at least 0, background first")
        self.dice_loss_fraction = dice_loss_fraction
        # a constant of this training, not part of what is published
        balance = None if class_weights is None else torch.tensor(class_weights, dtype=torch.get_default_dtype())
        self.register_buffer("class_weights", balance, persistent=False)
        self.backbone = build_backbone(backbone, len(self.spec.bands))
        widths = WIDTHS if size == "full" else [width // 2 for width in WIDTHS]
        self.decoder = UnetDecoder(self.backbone.channels, self.backbone.strides, widths)
        self.head = nn.Conv2d(self.decoder.channels, outputs, 3, padding=1)
        if weights is not None:
            load_weights(
                self,
                weights,
                backbone=self.backbone,
                heads=("head.",),
                bands=self.spec.bands,
                classes=self.spec.classes,
                default=lambda: pretrained_state(backbone),
            )

    def backbone_modules(self) -> list[nn.Module]:
        """Return what `freeze` freezes."""
        return [self.backbone]

    def loss_counts(self, targets: list[dict]) -> dict[str, float] | None:
        """Return the count of each loss term, known from the targets; None with the Dice term, a global ratio."""
        if self.dice_loss_fraction:
            return None
        return {"cross_entropy": sum(float(pixel_count(self._truth(t["mask"]), self.class_weights)) for t in targets)}

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Classify the pixels of images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `mask` int64 [H, W], 255 ignored.

        Returns:
            In training the loss terms; in evaluation per image {"mask": int64 [H, W], "scores": [K + 1, H, W]}.
        """
        height, width = images.shape[-2:]
        features = self.backbone(pad_to_multiple(self.normalize(images), self.backbone.strides[-1]))
        logits = self.head(self.decoder(features))[..., :height, :width]
        if self.spec.ignore_background:
            background = torch.arange(logits.shape[1], device=logits.device) == 0
            logits = logits.masked_fill(background[:, None, None], float("-inf"))
        if not self.training:
            # on the CPU many times faster than argmax
            masks, scores = logits.max(1).indices, logits.softmax(1)
            return [{"mask": mask, "scores": score} for mask, score in zip(masks, scores)]
        truth = self._truth(torch.stack([target["mask"].to(images.device) for target in targets]))
        total, count = pixel_cross_entropy(logits, truth, self.class_weights)
        if not self.dice_loss_fraction:
            return {"cross_entropy": Loss(total, count)}
        dice = soft_dice(logits, truth, first_class=int(self.spec.ignore_background))
        return {
            "cross_entropy": Loss(total * (1 - self.dice_loss_fraction), count),
            "dice": Loss(dice.total * self.dice_loss_fraction, dice.count),
        }

    def _truth(self, mask: Tensor) -> Tensor:
        return mask.masked_fill(mask == 0, IGNORED) if self.spec.ignore_background else mask


class UnetDecoder(nn.Module):
    """Doubles the resolution of the coarsest feature map up to the image's, joining the encoder's maps on the way.

    Args:
        channels: of the encoder's feature maps, finest first.
        strides: of the encoder's feature maps.
        widths: channels of the successive blocks; the last is used for all further ones.
    """

    def __init__(self, channels: Sequence[int], strides: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        skips = dict(zip(strides, channels))
        current, stride = channels[-1], strides[-1]
        blocks = []
        while stride > 1:
            stride //= 2
            width = widths[min(len(blocks), len(widths) - 1)]
            blocks.append(_Block(current + skips.get(stride, 0), width))
            current = width
        self.blocks = nn.ModuleList(blocks)
        self.strides = tuple(strides)
        self.channels = current

    def forward(self, features: list[Tensor]) -> Tensor:
        """Return the map [B, channels, H, W] at full resolution of an encoder's feature maps, finest first."""
        skips, stride, x = dict(zip(self.strides, features)), self.strides[-1], features[-1]
        for block in self.blocks:
            stride //= 2
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips[stride]], 1) if stride in skips else x)
        return x


class _Block(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        layers = []
        for channels in (inputs, outputs):
            conv = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            nn.init.kaiming_uniform_(conv.weight, mode="fan_in", nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(*layers)


def balanced_weights(data: object) -> list[float]:
    """Return (all pixels) / (pixels of the class) of background and each class over the training chips, absent ones 1.

    Raises:
        ValueError: no training chips are at hand to count.
    """
    if not hasattr(data, "train"):
        raise ValueError(
            "class_balancing counts the pixels of the training chips: give the data, or class_weights=[...]"
        )
    counts = torch.zeros(1 + len(data.spec.classes), dtype=torch.float64)
    for index in range(len(data.train)):
        mask = data.train[index]["mask"]
        counts += torch.bincount(mask[mask != IGNORED], minlength=len(counts))
    if data.spec.ignore_background:
        counts[0] = 0
    return torch.where(counts > 0, counts.sum() / counts.clamp(min=1), torch.ones_like(counts)).tolist()
