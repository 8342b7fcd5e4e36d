"""BDCNEdgeDetector: the bi-directional cascade network for edge detection (He et al. 2019)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from accel_geo.models.edge_detector import EdgeDetector
from accel_geo.nn.edges import level_maps, upsample

RATE, DILATED, CHANNELS = 4, 3, 21


class BDCNEdgeDetector(EdgeDetector):
    """BDCN, the bi-directional cascade network for perceptual edge detection (He et al. 2019): edges at their own scale.

    Each scale learns the edges that the other scales do not find; together they give the probability of an edge at each
    pixel. Scale enhancement modules see each convolution of a VGG (of other backbones each level) through dilated filters;
    each level sums theirs up and gives two edge maps. One is added to those of all finer levels (shallow to deep), the
    other to those of all coarser ones (deep to shallow), without gradient to them: each sum is trained on the truth, and
    so each level on what is left to it. A 1x1 convolution over all these sums gives the fused map.

    The backbone keeps its strides, as in the paper's text; the authors' program lets the last block work at stride 8.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py; the paper's is VGG16.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py; the VGG16 of a published
            HED (`features.*`, `side.*`, for pixels in Caffe's order and range) fits as well.
        size: "full", or "small": without the coarsest level, and enhancement modules of half the width.
        balance_over: "image": edges are balanced in each image, as published; an image without edges then teaches
            nothing. "batch": over the global batch.
        output: what is predicted: "fuse": the fused map, as published; "mean": the mean of the probabilities of all maps.
        thin: predictions are thinned to lines one pixel wide, see nn/thinning.py. Metrics thin in any case.

    Raises:
        ValueError: an unknown backbone, size or balance, a backbone of a single level, or weights that do not belong to
            the backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    # as published: weights of the losses of sides and fusion, and of pixels that are no edges
    terms = {"shallow_to_deep": 0.5, "deep_to_shallow": 0.5, "fuse": 1.1}
    negative = 1.1

    def build_sides(self, size: str) -> None:
        """Add the modules of each level, and the fusion."""
        width = 32 if size == "full" else 16
        self.scales = nn.ModuleList(_Scale(channels, width) for channels in self._channels())
        self.fusion = nn.Conv2d(2 * len(self.scales), 1, 1)
        nn.init.constant_(self.fusion.weight, 0.8 / len(self.fusion.weight[0]))
        nn.init.zeros_(self.fusion.bias)

    def edge_maps(self, images: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return the maps of all levels in both directions, and the fused one."""
        levels = zip(level_maps(self.backbone, images), self.scales, self.backbone.strides)
        sides = [upsample(scale(maps), stride, size) for maps, scale, stride in levels]
        shallow_to_deep = torch.cat(cascade([side[:, :1] for side in sides]), 1)
        deep_to_shallow = torch.cat(cascade([side[:, 1:] for side in reversed(sides)])[::-1], 1)
        fused = self.fusion(torch.cat([shallow_to_deep, deep_to_shallow], 1))
        return {"shallow_to_deep": shallow_to_deep, "deep_to_shallow": deep_to_shallow, "fuse": fused}

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
