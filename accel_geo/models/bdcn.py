"""BDCNEdgeDetector: the bi-directional cascade network for edge detection (He et al. 2019)."""

from collections.abc import Sequence

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
    level_maps,
    load_edge_weights,
    upsample,
)
from accel_geo.nn.losses import pixel_count
from accel_geo.parallel.reduction import Loss

# as published: weights of the losses of sides and fusion, and of pixels that are no edges
SIDE, FUSED, NEGATIVE = 0.5, 1.1, 1.1
RATE, DILATED, CHANNELS = 4, 3, 21


class BDCNEdgeDetector(GeoModel):
    """The probability of an edge at each pixel, where each scale learns the edges that the other scales do not find.

    Scale enhancement modules see each convolution of a VGG (of other backbones each level) through dilated filters;
    each level sums theirs up and gives two edge maps. One is added to those of all finer levels (shallow to deep), the
    other to those of all coarser ones (deep to shallow), without gradient to them: each sum is trained on the truth, and
    so each level on what is left to it. A 1x1 convolution over all these sums gives the prediction.

    The backbone keeps its strides, as in the paper's text; the authors' program lets the last block work at stride 8.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py; the paper's is VGG16.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py; the VGG16 of a published
            HED (`features.*`, `side.*`, for pixels in Caffe's order and range) fits as well, see nn/edges.py.
        size: "full", or "small": without the coarsest level, and enhancement modules of half the width.
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
        width = 32 if size == "full" else 16
        self.scales = nn.ModuleList(_Scale(channels, width) for channels in self._channels())
        self.fusion = nn.Conv2d(2 * len(self.scales), 1, 1)
        nn.init.constant_(self.fusion.weight, 0.8 / len(self.fusion.weight[0]))
        nn.init.zeros_(self.fusion.bias)
        if weights is not None:
            load_edge_weights(self, weights, backbone)

    def loss_counts(self, targets: list[dict]) -> dict[str, float] | None:
        """Return the count of each loss term, its pixels; None where the balance is that of a part of the batch."""
        if self.balance_over == "batch":
            return None
        pixels = float(pixel_count(edge_truth(targets, torch.device("cpu"))))
        return {"shallow_to_deep": pixels, "deep_to_shallow": pixels, "fuse": pixels}

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Find the edges in images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `edges` uint8 [H, W], 0, 1 and 255, ignored.

        Returns:
            In training the loss terms, those of all levels of a direction together; in evaluation per image
            {"edges": probability [H, W]}.
        """
        padded = pad_to_multiple(self.normalize(images), self.backbone.strides[-1])
        levels = zip(level_maps(self.backbone, padded), self.scales, self.backbone.strides)
        sides = [upsample(scale(maps), stride, images.shape[-2:]) for maps, scale, stride in levels]
        shallow_to_deep = cascade([side[:, :1] for side in sides])
        deep_to_shallow = cascade([side[:, 1:] for side in reversed(sides)])[::-1]
        fused = self.fusion(torch.cat(shallow_to_deep + deep_to_shallow, 1))
        if not self.training:
            return [{"edges": edges} for edges in fused[:, 0].to(images.dtype).sigmoid()]
        truth = edge_truth(targets, images.device)
        weights = balance_weights(truth, images, NEGATIVE, self.balance_over)
        maps = {"shallow_to_deep": shallow_to_deep, "deep_to_shallow": deep_to_shallow, "fuse": [fused]}
        losses = {}
        for name, edges in maps.items():
            terms = [balanced_cross_entropy(of_level[:, 0], truth, weights) for of_level in edges]
            factor = FUSED if name == "fuse" else SIDE
            losses[name] = Loss(factor * torch.stack([term.total for term in terms]).sum(), terms[0].count)
        return losses

    @torch.no_grad()
    def _channels(self) -> list[list[int]]:
        # in evaluation mode, or the statistics of batch normalisation would count this image
        training = self.backbone.training
        levels = level_maps(self.backbone.eval(), torch.zeros(1, len(self.spec.bands), 64, 64))
        self.backbone.train(training)
        return [[maps.shape[1] for maps in level] for level in levels]


def cascade(maps: Sequence[Tensor]) -> list[Tensor]:
    """Add to each map all that stand before it, without gradient to those."""
    sums, before = [], 0
    for edges in maps:
        sums.append(edges + before)
        before = before + edges.detach()
    return sums


class _Scale(nn.Module):
    """The two edge maps [B, 2, h, w] of a level, from all its feature maps."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.enhance = nn.ModuleList(ScaleEnhancement(inputs, width) for inputs in channels)
        self.reduce = nn.ModuleList(nn.Conv2d(width, CHANNELS, 1) for _ in channels)
        self.score = nn.Conv2d(CHANNELS, 2, 1)
        for conv in (*self.reduce, self.score):
            _normal(conv)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        enhanced = [reduce(enhance(x)) for reduce, enhance, x in zip(self.reduce, self.enhance, maps, strict=True)]
        return self.score(torch.stack(enhanced).sum(0))


class ScaleEnhancement(nn.Module):
    """A 3x3 convolution, and three dilated ones of it that are added (rates 4, 8 and 12).

    Args:
        inputs: channels of the feature map.
        width: channels of all convolutions.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, width, 3, padding=1)
        rates = [RATE * k for k in range(1, DILATED + 1)]
        self.dilated = nn.ModuleList(nn.Conv2d(width, width, 3, padding=rate, dilation=rate) for rate in rates)
        for conv in (self.conv, *self.dilated):
            _normal(conv)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, width, h, w] of a feature map [B, inputs, h, w]."""
        x = self.conv(x).relu()
        return x + sum(conv(x).relu() for conv in self.dilated)


def _normal(conv: nn.Conv2d) -> None:
    nn.init.normal_(conv.weight, std=0.01)
    nn.init.zeros_(conv.bias)
