"""Heads of networks that classify pixels: pooling at several scales, and the convolutions that end in class scores.

Maps may be padded on the right and below; `cells` says how many rows and columns of each are its own. Poolings look at
these alone, so that what an image pools does not depend on how far it was padded. Where a name below says whose it is,
the modules carry torchvision's names, so that its published weights match. No head has dropout.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Cells = Sequence[tuple[int, int]]


class PooledNorm(nn.BatchNorm2d):
    """Batch normalisation of pooled maps: a single value per channel is normalised by the running statistics.

    A batch of one image, pooled to one cell, has no variance; `nn.BatchNorm2d` refuses it. The global normalisation that
    replaces this layer in training by `fit` (parallel/batch_norm.py) does the same, over all processes together.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [B, C, h, w]."""
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class ConvNormRelu(nn.Sequential):
    """A convolution without bias that keeps the size, batch normalisation, ReLU.

    Args:
        inputs: channels.
        outputs: channels.
        kernel: side of the window, odd.
        dilation: distance between its cells.
        norm: the normalisation.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, dilation: int = 1, norm: type[nn.Module] = nn.BatchNorm2d
    ) -> None:
        padding = dilation * (kernel // 2)
        conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False)
        super().__init__(conv, norm(outputs), nn.ReLU())


def cells_of(sizes: Sequence[tuple[int, int]], stride: int) -> list[tuple[int, int]]:
    """Return how many rows and columns of a feature map begin inside each image of this (H, W)."""
    return [(-(-height // stride), -(-width // stride)) for height, width in sizes]


def pool_inside(x: Tensor, cells: Cells, side: int) -> Tensor:
    """Average maps [B, C, h, w] over a grid of side x side windows that covers each one's own cells.

    Returns:
        [B, C, side, side].
    """
    if len(set(cells)) == 1:
        return F.adaptive_avg_pool2d(x[..., : cells[0][0], : cells[0][1]], side)
    return torch.cat([F.adaptive_avg_pool2d(x[i : i + 1, :, :h, :w], side) for i, (h, w) in enumerate(cells)])


def spread_inside(pooled: Tensor, cells: Cells, size: tuple[int, int]) -> Tensor:
    """Spread pooled maps [B, C, s, s] over each one's own cells, bilinearly; beyond them stands zero.

    Returns:
        [B, C, *size].
    """

    def spread(x: Tensor, h: int, w: int) -> Tensor:
        x = F.interpolate(x, (h, w), mode="bilinear", align_corners=False)
        return F.pad(x, (0, size[1] - w, 0, size[0] - h))

    if len(set(cells)) == 1:
        return spread(pooled, *cells[0])
    return torch.cat([spread(pooled[i : i + 1], h, w) for i, (h, w) in enumerate(cells)])


class FCNHead(nn.Sequential):
    """Class scores from one feature map, as an auxiliary output (torchvision's names).

    Args:
        channels: of the feature map.
        outputs: classes, background included.
    """

    def __init__(self, channels: int, outputs: int) -> None:
        width = channels // 4
        convs = ConvNormRelu(channels, width)
        super().__init__(*convs, nn.Identity(), nn.Conv2d(width, outputs, 1))


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling with image pooling (Chen et al. 2017, section 3.3; torchvision's names).

    Args:
        channels: of the feature map.
        rates: dilations of the 3 x 3 branches.
        width: channels of each branch and of the result.
    """

    def __init__(self, channels: int, rates: Sequence[int], width: int) -> None:
        super().__init__()
        pooling = nn.Sequential(nn.Identity(), *ConvNormRelu(channels, width, 1, norm=PooledNorm))
        branches = [ConvNormRelu(channels, width, 1), *(ConvNormRelu(channels, width, 3, rate) for rate in rates)]
        self.convs = nn.ModuleList([*branches, pooling])
        self.project = ConvNormRelu(len(self.convs) * width, width, 1)

    def forward(self, x: Tensor, cells: Cells) -> Tensor:
        """Return [B, width, h, w] of a feature map [B, C, h, w]."""
        *branches, pooling = self.convs
        pooled = spread_inside(pooling(pool_inside(x, cells, 1)), cells, x.shape[-2:])
        return self.project(torch.cat([*(branch(x) for branch in branches), pooled], 1))


class DeepLabHead(nn.Sequential):
    """ASPP, a 3 x 3 convolution, class scores (torchvision's names); arguments as of ASPP.

    Args:
        channels: of the feature map.
        rates: dilations.
        width: channels within.
        outputs: classes, background included.
    """

    def __init__(self, channels: int, rates: Sequence[int], width: int, outputs: int) -> None:
        super().__init__(ASPP(channels, rates, width), *ConvNormRelu(width, width), nn.Conv2d(width, outputs, 1))

    def forward(self, features: Sequence[Tensor], cells: Cells) -> Tensor:
        """Return class scores [B, outputs, h, w] from feature maps, finest first, of which the last is used."""
        aspp, *layers = self
        x = aspp(features[-1], cells)
        for layer in layers:
            x = layer(x)
        return x


class PyramidPooling(nn.Module):
    """Pyramid pooling (Zhao et al. 2017, section 3.2): the feature map beside what grids of several sizes see of it.

    Args:
        channels: of the feature map.
        sizes: sides of the grids.
        width: channels of the result, which a 3 x 3 convolution makes of all.
    """

    def __init__(self, channels: int, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        each = max(1, channels // len(self.sizes))
        self.stages = nn.ModuleList([ConvNormRelu(channels, each, 1, norm=PooledNorm) for _ in self.sizes])
        self.bottleneck = ConvNormRelu(channels + each * len(self.sizes), width)

    def forward(self, x: Tensor, cells: Cells) -> Tensor:
        """Return [B, width, h, w] of a feature map [B, C, h, w]."""
        pooled = [stage(pool_inside(x, cells, side)) for side, stage in zip(self.sizes, self.stages)]
        return self.bottleneck(torch.cat([x, *(spread_inside(p, cells, x.shape[-2:]) for p in pooled)], 1))
