"""PSPNetClassifier: a class for each pixel, seen beside its surroundings at several scales (Zhao et al. 2017)."""

from collections.abc import Sequence

from torch import Tensor, nn

from accel_geo.models.arguments import FLAG, check_used, list_of, whole
from accel_geo.models.pixel_classifier import PixelClassifier
from accel_geo.nn.backbones import build_backbone, use_levels
from accel_geo.nn.decoders import UNET_WIDTHS, UnetDecoder
from accel_geo.nn.semantic_heads import FCNHead, PyramidPooling, cells_of

WIDTH = {"full": 512, "small": 128}
OUTPUT_STRIDE = 8
PYRAMID = (1, 2, 3, 6)


class PSPNetClassifier(PixelClassifier):
    """PSPNet (Zhao et al. 2017): pyramid pooling over the last feature map; then a U-Net's decoder, or the plain network.

    Without `use_unet` it is the network of the paper: the backbone is dilated to stride 8 and the class scores are
    enlarged eight times. With it the backbone keeps its own strides and the decoder joins its finer feature maps. Pooling
    leaves the cells beyond a chip's own size out. There is no dropout.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py.
        size: "full", or "small": a quarter of the width, and a decoder of about half the width.
        use_unet: with a U-Net's decoder.
        pyramid_sizes: sides of the grids that are pooled.
        aux_loss: without `use_unet`, also train a small head on the last feature map but one, weight 0.4.
        unet_aux_loss: the same with `use_unet`.
        keep_dilation: with `use_unet`, dilate the backbone nevertheless.
        class_balancing: weigh each class by (all pixels) / (its pixels) in the training chips.
        class_weights: weights of background and the classes, K + 1; computed where `class_balancing` asks for them.
        focal_loss: focal loss of each pixel instead of the cross entropy.
        gamma: of the focal loss.
        dice_loss_fraction: f in (1 - f) * pixel loss + f * (1 - soft Dice over the global batch).
        dice_loss_average: "micro": Dice of all classes together; "macro": the mean over the classes of the batch.

    Raises:
        ValueError: a backbone that is unknown or cannot be dilated, an unknown size, grids of less than one cell, an
            option that is not allowed or has no effect, or weights of another backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    heads = ("head.", "aux_classifier.4.")
    rules = {
        **PixelClassifier.rules,
        "use_unet": FLAG,
        "pyramid_sizes": list_of(whole(1), "a list of whole numbers of at least 1"),
        "aux_loss": FLAG,
        "unet_aux_loss": FLAG,
        "keep_dilation": FLAG,
    }
    weights_need = ("pyramid_sizes", "keep_dilation")

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet50",
        weights: str | None = None,
        size: str = "full",
        use_unet: bool = True,
        pyramid_sizes: Sequence[int] = PYRAMID,
        aux_loss: bool = True,
        unet_aux_loss: bool = False,
        keep_dilation: bool = False,
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
            use_unet=use_unet,
            pyramid_sizes=pyramid_sizes,
            aux_loss=aux_loss,
            unet_aux_loss=unet_aux_loss,
            keep_dilation=keep_dilation,
            class_balancing=class_balancing,
            class_weights=class_weights,
            focal_loss=focal_loss,
            gamma=gamma,
            dice_loss_fraction=dice_loss_fraction,
            dice_loss_average=dice_loss_average,
        )
        check_used(self, {"unet_aux_loss": (use_unet, "use_unet=True (the plain network has aux_loss)")})
        pyramid_sizes, most = self.arguments["pyramid_sizes"], max(*self.spec.chip_size, *PYRAMID)
        if max(pyramid_sizes) > most:
            raise ValueError(
                f"pyramid_sizes={pyramid_sizes}: at most {most}, for chips of {' x '.join(map(str, self.spec.chip_size))}"
            )
        stride = None if use_unet and not keep_dilation else OUTPUT_STRIDE
        self.backbone = build_backbone(backbone, len(self.spec.bands), output_stride=stride)
        if not use_unet:
            use_levels(self.backbone, len(self.spec.bands), [-2, -1] if aux_loss else [-1])
        *finer, last = self.backbone.channels
        self.pyramid = PyramidPooling(last, pyramid_sizes, WIDTH[size])
        self.decoder, width = None, WIDTH[size]
        if use_unet:
            self.decoder = UnetDecoder([*finer, width], self.backbone.strides, UNET_WIDTHS[size])
            width = self.decoder.channels
        self.head = nn.Conv2d(width, self.outputs, 1)
        auxiliary = unet_aux_loss if use_unet else aux_loss
        self.aux_classifier = FCNHead(finer[-1], self.outputs) if auxiliary else None
        self.start_from(weights)

    def class_scores(self, images: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
        """Return class scores, in training with those of the auxiliary head."""
        *finer, last = self.backbone(images)
        pooled = self.pyramid(last, cells_of(sizes, self.backbone.strides[-1]))
        scores = [self.head(self.decoder([*finer, pooled]) if self.decoder is not None else pooled)]
        if self.training and self.aux_classifier is not None:
            scores.append(self.aux_classifier(finer[-1]))
        return scores
