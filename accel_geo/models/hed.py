"""HEDEdgeDetector: holistically-nested edge detection (Xie & Tu 2015)."""

import torch
from torch import Tensor, nn

from accel_geo.models.base import GeoModel
from accel_geo.nn.backbones import pad_to_multiple, torchvision_names
from accel_geo.nn.edges import (
    balance_weights,
    balanced_cross_entropy,
    check_balance,
    edge_backbone,
    edge_truth,
    load_edge_weights,
    upsample,
)
from accel_geo.nn.losses import pixel_count
from accel_geo.parallel.reduction import Loss


class HEDEdgeDetector(GeoModel):
    """The probability of an edge at each pixel, from maps at several scales and a weighted mean of them.

    Each level of the backbone gives an edge map of its own (a 1x1 convolution, upsampled bilinearly), and a 1x1
    convolution over these maps the fused one, which is the prediction. All are trained on the same truth with the
    paper's class-balanced cross entropy. The new convolutions begin as the paper's: sides 0, fusion the mean.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py; with a VGG, the paper's, edges are sharpest.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py; the published network
            (`features.*`, `side.*`, `fuse.*`, for pixels in Caffe's order and range) is taken whole, see nn/edges.py.
        size: "full", or "small": without the coarsest level.
        balance_over: "image": edges are balanced in each image, as published; an image without edges then teaches
            nothing. "batch": over the global batch.

    Raises:
        ValueError: an unknown backbone, size or balance, or weights that do not belong to the backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "edges"
    backbones = staticmethod(torchvision_names)

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "vgg16",
        weights: str | None = None,
        size: str = "full",
        balance_over: str = "image",
    ) -> None:
        super().__init__(data, backbone=backbone, size=size, balance_over=balance_over)
        check_balance(balance_over)
        self.balance_over = balance_over
        self.backbone = edge_backbone(backbone, len(self.spec.bands), size)
        self.side = nn.ModuleList(nn.Conv2d(channels, 1, 1) for channels in self.backbone.channels)
        self.fuse = nn.Conv2d(len(self.side), 1, 1)
        for conv in (*self.side, self.fuse):
            nn.init.zeros_(conv.weight)
            nn.init.zeros_(conv.bias)
        nn.init.constant_(self.fuse.weight, 1 / len(self.side))
        if weights is not None:
            load_edge_weights(self, weights, backbone)

    def loss_counts(self, targets: list[dict]) -> dict[str, float] | None:
        """Return the count of each loss term, its pixels; None where the balance is that of a part of the batch."""
        if self.balance_over == "batch":
            return None
        pixels = float(pixel_count(edge_truth(targets, torch.device("cpu"))))
        return dict.fromkeys(self._terms(), pixels)

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Find the edges in images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `edges` uint8 [H, W], 0, 1 and 255, ignored.

        Returns:
            In training a loss term for each level and the fusion; in evaluation per image {"edges": probability [H, W]}.
        """
        features = self.backbone(pad_to_multiple(self.normalize(images), self.backbone.strides[-1]))
        levels = zip(features, self.side, self.backbone.strides)
        sides = torch.cat([upsample(side(level), stride, images.shape[-2:]) for level, side, stride in levels], 1)
        fused = self.fuse(sides)
        if not self.training:
            return [{"edges": edges} for edges in fused[:, 0].to(images.dtype).sigmoid()]
        truth = edge_truth(targets, images.device)
        weights = balance_weights(truth, images, over=self.balance_over)
        maps = torch.cat([sides, fused], 1).unbind(1)
        return {name: balanced_cross_entropy(edges, truth, weights) for name, edges in zip(self._terms(), maps)}

    def _terms(self) -> list[str]:
        return [*(f"side{number}" for number in range(1, len(self.side) + 1)), "fuse"]
