"""The feature maps that a detector of one shot looks at (Liu et al. 2016): a backbone's, and coarser ones behind it."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.ssd import SSDHead
from torchvision.models.detection.ssdlite import SSDLiteHead
from torchvision.ops import Conv2dNormActivation

# of the convolutions behind the backbone
WIDTHS = {"full": {"fc": 1024, "extra": (512, 256, 256, 256)}, "small": {"fc": 256, "extra": (128,)}}
# torchvision's SSDLite
_lite_norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.03)


class SingleShotFeatures(nn.Module):
    """Feature maps of some strides, of which the coarse ones come from convolutions of stride 2 behind the backbone.

    Args:
        body: a backbone, see nn/backbones.py.
        strides: of the wanted maps, finest first; beyond the backbone's, doubles of its coarsest.
        style: "plain": convolutions with batch normalisation; "lite": depthwise separable ones (SSDLite, Sandler et al.
            2018); "vgg": as published: without normalisation, dilated convolutions in place of the fully connected
            layers, and the finer maps scaled to a learnt length. Its maps of stride 64 and more come, as all others, from
            convolutions of stride 2, so that any size of image will do.
        size: "full" or "small" width.
    """

    def __init__(self, body: nn.Module, strides: list[int], style: str, size: str) -> None:
        super().__init__()
        self.body, self.strides = body, list(strides)
        known, last, widths = dict(zip(body.strides, body.channels)), body.strides[-1], WIDTHS[size]
        self.scales, self.fc = nn.ParameterDict(), None
        if style == "vgg":
            finer = [stride for stride in strides if stride < last or (stride == last and last < 16)]
            self.scales.update({str(stride): nn.Parameter(torch.full((known[stride],), 20.0)) for stride in finer})
            if last == 16:
                self.fc, known[last] = _fully_convolutional(known[last], widths["fc"]), widths["fc"]
        self.extra = nn.ModuleList()
        while last < strides[-1]:
            inputs, last = known[last], 2 * last
            known[last] = widths["extra"][min(len(self.extra), len(widths["extra"]) - 1)]
            self.extra.append(_EXTRA[style](inputs, known[last]))
        self.channels = [known[stride] for stride in strides]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps of an image batch [B, C, H, W] whose sides are multiples of the backbone's last stride."""
        maps = dict(zip(self.body.strides, self.body(images)))
        last = self.body.strides[-1]
        if self.fc is not None:
            maps[last] = self.fc(maps[last])
        x = maps[last]
        for block in self.extra:
            x, last = block(x), 2 * last
            maps[last] = x
        for stride, scale in self.scales.items():
            maps[int(stride)] = scale.view(-1, 1, 1) * F.normalize(maps[int(stride)])
        return [maps[stride] for stride in self.strides]


def single_shot_head(channels: list[int], anchors: list[int], outputs: int, style: str) -> nn.Module:
    """Return torchvision's head: a convolution, or a separable one, on each map for classes and for boxes.

    Args:
        channels: of each map.
        anchors: at each cell of each map.
        outputs: scores of an anchor.
        style: as for `SingleShotFeatures`.
    """
    return (
        SSDLiteHead(channels, anchors, outputs, _lite_norm) if style == "lite" else SSDHead(channels, anchors, outputs)
    )


def _fully_convolutional(inputs: int, width: int) -> nn.Sequential:
    return _xavier(
        nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1),
            nn.Conv2d(inputs, width, 3, padding=6, dilation=6),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 1),
            nn.ReLU(inplace=True),
        )
    )


def _vgg_extra(inputs: int, outputs: int) -> nn.Sequential:
    return _xavier(
        nn.Sequential(
            nn.Conv2d(inputs, outputs // 2, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs // 2, outputs, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
        )
    )


def _plain_extra(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        Conv2dNormActivation(inputs, outputs // 2, 1), Conv2dNormActivation(outputs // 2, outputs, 3, stride=2)
    )


def _lite_extra(inputs: int, outputs: int) -> nn.Sequential:
    layer = partial(Conv2dNormActivation, norm_layer=_lite_norm, activation_layer=nn.ReLU6)
    block = nn.Sequential(
        layer(inputs, outputs // 2, 1),
        layer(outputs // 2, outputs // 2, 3, stride=2, groups=outputs // 2),
        layer(outputs // 2, outputs, 1),
    )
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.03)
    return block


def _xavier(block: nn.Sequential) -> nn.Sequential:
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return block


_EXTRA = {"plain": _plain_extra, "lite": _lite_extra, "vgg": _vgg_extra}
