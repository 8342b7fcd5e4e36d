"""DeepLab: a class for each pixel from a dilated backbone (Chen et al. 2017 and 2018)."""

from collections.abc import Sequence

from torch import Tensor

from accel_geo.models.arguments import FLAG, Rule, check_used
from accel_geo.models.pixel_classifier import PixelClassifier
from accel_geo.nn.backbones import build_backbone, use_levels
from accel_geo.nn.decoders import DeepLabPlusDecoder
from accel_geo.nn.semantic_heads import DeepLabHead, FCNHead, cells_of

WIDTH = {"full": 256, "small": 64}
RATES, AT_STRIDE = (6, 12, 18), 16  # dilations of the ASPP of the paper


class DeepLab(PixelClassifier):
    """DeepLabV3 (Chen et al. 2017): a dilated backbone, atrous spatial pyramid pooling, scores enlarged to full resolution.

    With a ResNet and output_stride=8 it is torchvision's `deeplabv3_resnet50` and takes its weights, but for dropout,
    which it has none of. Image pooling leaves the cells beyond a chip's own size out.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py.
        size: "full", or "small": a head of a quarter of the width.
        plus: DeepLabV3+ (Chen et al. 2018): refine the scores beside the feature map of stride 4.
        aux_loss: also train a small head on the last feature map but one, weight 0.4.
        output_stride: of the dilated backbone: 16, or 8: finer and slower. The dilations of the ASPP follow it.
        keep_dilation: False leaves the backbone undilated, at its own stride: fast and coarse.
        class_balancing: weigh each class by (all pixels) / (its pixels) in the training chips.
        class_weights: weights of background and the classes, K + 1; computed where `class_balancing` asks for them.
        focal_loss: focal loss of each pixel instead of the cross entropy.
        gamma: of the focal loss.
        dice_loss_fraction: f in (1 - f) * pixel loss + f * (1 - soft Dice over the global batch).
        dice_loss_average: "micro": Dice of all classes together; "macro": the mean over the classes of the batch.

    Raises:
        ValueError: a backbone that is unknown or cannot be dilated, an unknown size or output_stride, an option that is
            not allowed or has no effect, or weights of another backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    heads = ("classifier.4.", "classifier.head.", "aux_classifier.4.")
    rules = {
        **PixelClassifier.rules,
        "plus": FLAG,
        "aux_loss": FLAG,
        "output_stride": Rule("8 or 16", lambda value: type(value) is int and value in (8, 16)),
        "keep_dilation": FLAG,
    }
    weights_need = ("output_stride", "keep_dilation")

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet101",
        weights: str | None = None,
        size: str = "full",
        plus: bool = False,
        aux_loss: bool = True,
        output_stride: int = 16,
        keep_dilation: bool = True,
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
            plus=plus,
            aux_loss=aux_loss,
            output_stride=output_stride,
            keep_dilation=keep_dilation,
            class_balancing=class_balancing,
            class_weights=class_weights,
            focal_loss=focal_loss,
            gamma=gamma,
            dice_loss_fraction=dice_loss_fraction,
            dice_loss_average=dice_loss_average,
        )
        check_used(self, {"output_stride": (keep_dilation, "keep_dilation=True")})
        stride = output_stride if keep_dilation else None
        self.backbone = build_backbone(backbone, len(self.spec.bands), output_stride=stride)
        channels, strides, width = self.backbone.channels, self.backbone.strides, WIDTH[size]
        rates = [max(1, rate * AT_STRIDE // strides[-1]) for rate in RATES]
        if plus:
            self.classifier = DeepLabPlusDecoder(channels, strides, rates, width, self.outputs)
        else:
            self.classifier = DeepLabHead(channels[-1], rates, width, self.outputs)
        self.aux_classifier = FCNHead(channels[-2], self.outputs) if aux_loss else None
        levels = [-1] + [-2] * aux_loss + ([self.classifier.fine] if plus else [])
        use_levels(self.backbone, len(self.spec.bands), levels)
        self.start_from(weights)

    def class_scores(self, images: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
        """Return class scores, in training with those of the auxiliary head."""
        features = self.backbone(images)
        scores = [self.classifier(features, cells_of(sizes, self.backbone.strides[-1]))]
        if self.training and self.aux_classifier is not None:
            scores.append(self.aux_classifier(features[-2]))
        return scores
