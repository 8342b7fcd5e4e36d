"""Decoders: from the feature maps of an encoder back to fine resolution."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.nn.semantic_heads import ASPP, Cells, ConvNormRelu

UNET_WIDTHS = {"full": (256, 128, 64, 32, 16), "small": (128, 64, 32, 32, 16)}


class UnetDecoder(nn.Module):
    """Doubles the resolution of the coarsest feature map up to the image's, joining the encoder's maps on the way.

    Args:
        channels: of the encoder's feature maps, finest first.
        strides: of the encoder's feature maps; of several at one stride the last is joined.
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


class DeepLabPlusDecoder(nn.Module):
    """DeepLabV3+ (Chen et al. 2018, section 3.1): ASPP, enlarged and refined beside a fine feature map.

    Args:
        channels: of the encoder's feature maps, finest first.
        strides: of the encoder's feature maps; the fine one is that of stride 4.
        rates: dilations of the ASPP.
        width: channels of the ASPP and the refining convolutions.
        outputs: classes, background included.
    """

    def __init__(
        self, channels: Sequence[int], strides: Sequence[int], rates: Sequence[int], width: int, outputs: int
    ) -> None:
        super().__init__()
        self.fine = list(strides).index(4)
        reduced = max(1, width * 3 // 16)  # 48 beside 256: little, so that it does not outweigh the ASPP
        self.aspp = ASPP(channels[-1], rates, width)
        self.project = ConvNormRelu(channels[self.fine], reduced, 1)
        self.refine = nn.Sequential(ConvNormRelu(width + reduced, width), ConvNormRelu(width, width))
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, features: Sequence[Tensor], cells: Cells) -> Tensor:
        """Return class scores [B, outputs, h, w] at stride 4 from feature maps, finest first."""
        fine = self.project(features[self.fine])
        coarse = F.interpolate(self.aspp(features[-1], cells), fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.head(self.refine(torch.cat([coarse, fine], 1)))
