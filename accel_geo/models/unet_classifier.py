"""UnetClassifier: a class for each pixel (Ronneberger et al. 2015, with a pretrained encoder)."""

from collections.abc import Sequence

from torch import Tensor, nn

from accel_geo.models.pixel_classifier import PixelClassifier
from accel_geo.nn.backbones import build_backbone
from accel_geo.nn.decoders import UNET_WIDTHS, UnetDecoder


class UnetClassifier(PixelClassifier):
    """U-Net (Ronneberger et al. 2015): an encoder, and a decoder that joins its feature maps up to full resolution.

    The encoder is of any kind, and may be pretrained; the decoder's convolutions pad and are normalised, where those of
    the paper do neither.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained encoder) or a path, see nn/weights.py.
        size: "full", or "small": a decoder of about half the width.
        class_balancing: weigh each class by (all pixels) / (its pixels) in the training chips.
        class_weights: weights of background and the classes, K + 1; computed where `class_balancing` asks for them.
        focal_loss: focal loss of each pixel instead of the cross entropy.
        gamma: of the focal loss.
        dice_loss_fraction: f in (1 - f) * pixel loss + f * (1 - soft Dice over the global batch).
        dice_loss_average: "micro": Dice of all classes together; "macro": the mean over the classes of the batch.

    Raises:
        ValueError: an unknown backbone or size, a loss option that is not allowed, or weights of another backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    heads = ("head.",)

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet34",
        weights: str | None = None,
        size: str = "full",
        class_balancing: bool = False,
        class_weights: Sequence[float] | None = None,
        focal_loss: bool = False,
        gamma: float = 2.0,
        dice_loss_fraction: float = 0.0,
        dice_loss_average: str = "micro",
    ) -> None:
        super().__init__(
            data,
            backbone=backbone,
            size=size,
            class_balancing=class_balancing,
            class_weights=class_weights,
            focal_loss=focal_loss,
            gamma=gamma,
            dice_loss_fraction=dice_loss_fraction,
            dice_loss_average=dice_loss_average,
        )
        self.backbone = build_backbone(backbone, len(self.spec.bands))
        self.decoder = UnetDecoder(self.backbone.channels, self.backbone.strides, UNET_WIDTHS[size])
        self.head = nn.Conv2d(self.decoder.channels, self.outputs, 3, padding=1)
        self.start_from(weights)

    def class_scores(self, images: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
        """Return class scores at full resolution."""
        return [self.head(self.decoder(self.backbone(images)))]
