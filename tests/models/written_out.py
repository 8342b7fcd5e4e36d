"""Networks written out from the papers' equations, each layer by hand: what the package's own are compared with.

No module of the package stands in here. A network is a module whose layers are made, and called, in the order of the
data's way through it; `copy_in_order` fills it with another network's weights, which must have them in the same order.
"""

import torch
from torch import nn
from torch.nn import functional as F

MEAN, STD = torch.tensor([0.4, 0.2]).tolist()  # of each band of the tests' chips, rounded as a network stores them
IGNORED = 255


def conv_norm(inputs, outputs, kernel, stride=1, dilation=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, bias=False)
    return nn.ModuleList([conv, nn.BatchNorm2d(outputs)])


def apply(pair, x, relu=True):
    conv, norm = pair
    x = norm(conv(x))
    return x.clamp(min=0) if relu else x


class BasicBlock(nn.Module):
    """He et al. 2016, figure 5, left; dilation as in Chen et al. 2017, figure 3: what comes behind a lost stride."""

    def __init__(self, inputs, outputs, stride, dilations):
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride, dilations[0])
        self.second = conv_norm(outputs, outputs, 3, 1, dilations[1])
        self.shortcut = conv_norm(inputs, outputs, 1, stride) if (inputs, stride) != (outputs, 1) else None

    def forward(self, x):
        y = apply(self.second, apply(self.first, x), relu=False)
        return (y + (x if self.shortcut is None else apply(self.shortcut, x, relu=False))).clamp(min=0)


class ResNet18(nn.Module):
    """He et al. 2016, table 1; a stage whose stride would exceed `output_stride` keeps it and is dilated."""

    def __init__(self, output_stride):
        super().__init__()
        self.stem = conv_norm(3, 64, 7, 2)
        self.stages, channels, now, dilation = nn.ModuleList(), 64, 4, 1
        for number, width in enumerate((64, 128, 256, 512)):
            stride, before = 1 if number == 0 else 2, dilation
            if now * stride > output_stride:
                stride, dilation = 1, 2 * dilation
            now *= stride
            first = BasicBlock(channels, width, stride, (before, dilation))
            self.stages.append(nn.ModuleList([first, BasicBlock(width, width, 1, (dilation, dilation))]))
            channels = width

    def forward(self, images):
        x = apply(self.stem, images)
        features = [x]
        x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)  # nothing is below zero behind a ReLU
        for first, second in self.stages:
            x = second(first(x))
            features.append(x)
        return features


class Unet(nn.Module):
    """Ronneberger et al. 2015 with a pretrained encoder, as segmentation_models.pytorch's `Unet` joins the two."""

    def __init__(self, outputs):
        super().__init__()
        self.encoder, self.blocks, channels = ResNet18(32), nn.ModuleList(), 512
        for skip, width in zip((256, 128, 64, 64, 0), (256, 128, 64, 32, 16)):
            self.blocks.append(nn.ModuleList([conv_norm(channels + skip, width, 3), conv_norm(width, width, 3)]))
            channels = width
        self.head = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, images):
        features = self.encoder((images - MEAN) / STD)
        x = features.pop()
        for first, second in self.blocks:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
            x = torch.cat([x, features.pop()], 1) if features else x
            x = apply(second, apply(first, x))
        return [self.head(x)]


class DeepLabV3Plus(nn.Module):
    """Chen et al. 2018, figure 2: ASPP at stride 16, enlarged beside 48 channels of stride 4, two 3 x 3 convolutions."""

    def __init__(self, outputs):
        super().__init__()
        self.encoder = ResNet18(16)
        self.pyramid = nn.ModuleList([conv_norm(512, 256, 1), *(conv_norm(512, 256, 3, 1, r) for r in (6, 12, 18))])
        self.image = conv_norm(512, 256, 1)
        self.project, self.low = conv_norm(5 * 256, 256, 1), conv_norm(64, 48, 1)
        self.first, self.second = conv_norm(256 + 48, 256, 3), conv_norm(256, 256, 3)
        self.head, self.auxiliary = nn.Conv2d(256, outputs, 1), Auxiliary(256, outputs)

    def forward(self, images):
        features = self.encoder((images - MEAN) / STD)
        x = features[4]
        whole = apply(self.image, x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        x = apply(self.project, torch.cat([*(apply(branch, x) for branch in self.pyramid), whole], 1))
        x = torch.cat([enlarged(x, features[1].shape[2:]), apply(self.low, features[1])], 1)
        scores = self.head(apply(self.second, apply(self.first, x)))
        return [enlarged(each, images.shape[2:]) for each in (scores, self.auxiliary(features[3]))]


class PSPNet(nn.Module):
    """Zhao et al. 2017, figure 3: stride 8, grids of 1, 2, 3 and 6 cells of a quarter of the channels, section 4: 0.4."""

    def __init__(self, outputs):
        super().__init__()
        self.encoder = ResNet18(8)
        self.grids = nn.ModuleList([conv_norm(512, 128, 1) for _ in range(4)])
        self.bottleneck = conv_norm(2 * 512, 512, 3)
        self.head, self.auxiliary = nn.Conv2d(512, outputs, 1), Auxiliary(256, outputs)

    def forward(self, images):
        features = self.encoder((images - MEAN) / STD)
        x = features[4]
        seen = [x]
        for side, grid in zip((1, 2, 3, 6), self.grids):
            seen.append(enlarged(apply(grid, cells(x, side)), x.shape[2:]))
        scores = self.head(apply(self.bottleneck, torch.cat(seen, 1)))
        return [enlarged(each, images.shape[2:]) for each in (scores, self.auxiliary(features[3]))]


class Auxiliary(nn.Module):
    """A 3 x 3 convolution to a quarter of the channels, and class scores."""

    def __init__(self, channels, outputs):
        super().__init__()
        self.hidden, self.scores = conv_norm(channels, channels // 4, 3), nn.Conv2d(channels // 4, outputs, 1)

    def forward(self, x):
        return self.scores(apply(self.hidden, x))


def cells(x, side):
    """Average a map over side x side windows; window i of n covers floor(i h / n) up to ceil((i + 1) h / n)."""
    h, w = x.shape[2:]
    rows = [slice(i * h // side, -(-(i + 1) * h // side)) for i in range(side)]
    columns = [slice(i * w // side, -(-(i + 1) * w // side)) for i in range(side)]
    return torch.stack([torch.stack([x[:, :, r, c].mean((2, 3)) for c in columns], -1) for r in rows], -2)


def enlarged(x, size):
    """Interpolate a map bilinearly between the centres of its cells; the border is repeated."""

    def weights(cells, count):
        at = ((torch.arange(count, dtype=x.dtype) + 0.5) * cells / count - 0.5).clamp(0, cells - 1)
        return (1 - (at[:, None] - torch.arange(cells)).abs()).clamp(min=0)

    return weights(x.shape[2], size[0]) @ x @ weights(x.shape[3], size[1]).T


def cross_entropy(scores, mask):
    """The mean over the pixels that are not ignored."""
    kept = mask != IGNORED
    chosen = scores.movedim(1, -1)[kept]
    return (chosen.exp().sum(1).log() - chosen.gather(1, mask[kept][:, None])[:, 0]).mean()


def copy_in_order(network, source):
    """Fill a network with another one's parameters, the n-th of each kind of layer with the n-th."""
    for kind in (nn.Conv2d, nn.BatchNorm2d):
        theirs, ours = ([m for m in net.modules() if isinstance(m, kind)] for net in (source, network))
        assert len(theirs) == len(ours) > 10
        for mine, other in zip(ours, theirs):
            mine.load_state_dict(other.state_dict())
    return network
