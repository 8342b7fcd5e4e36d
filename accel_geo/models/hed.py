"""HEDEdgeDetector: holistically-nested edge detection (Xie & Tu 2015)."""

import torch
from torch import Tensor, nn

from accel_geo.models.edge_detector import EdgeDetector
from accel_geo.nn.edges import upsample


class HEDEdgeDetector(EdgeDetector):
    """HED, holistically-nested edge detection (Xie & Tu 2015): the probability of an edge at each pixel.

    Each level of the backbone gives an edge map of its own (a 1x1 convolution, upsampled bilinearly), and a 1x1
    convolution over these maps a fused one, their weighted mean. All are trained on the same truth with the
    paper's class-balanced cross entropy. The new convolutions begin as the paper's: sides 0, fusion the mean.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py; with a VGG, the paper's, edges are sharpest.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py; the published network
            (`features.*`, `side.*`, `fuse.*`, for pixels in Caffe's order and range) is taken whole.
        size: "full", or "small": without the coarsest level.
        balance_over: "image": edges are balanced in each image, as published; an image without edges then teaches
            nothing. "batch": over the global batch.
        output: what is predicted: "fuse": the fused map; "mean": the mean of the probabilities of all maps, the paper's
            final output.
        thin: predictions are thinned to lines one pixel wide, see nn/thinning.py. Metrics thin in any case.

    Raises:
        ValueError: an unknown backbone, size or balance, a backbone of a single level, or weights that do not belong to
            the backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    def build_sides(self, size: str) -> None:
        """Add a convolution for each level, and the fusion."""
        self.side = nn.ModuleList(nn.Conv2d(channels, 1, 1) for channels in self.backbone.channels)
        self.fuse = nn.Conv2d(len(self.side), 1, 1)
        for conv in (*self.side, self.fuse):
            nn.init.zeros_(conv.weight)
            nn.init.zeros_(conv.bias)
        nn.init.constant_(self.fuse.weight, 1 / len(self.side))
        self.terms = {f"side{number}": 1.0 for number in range(1, len(self.side) + 1)} | {"fuse": 1.0}

    def edge_maps(self, images: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return the map of each level, and the fused one."""
        levels = zip(self.backbone(images), self.side, self.backbone.strides)
        sides = [upsample(side(level), stride, size) for level, side, stride in levels]
        return dict(zip(self.terms, [*sides, self.fuse(torch.cat(sides, 1))], strict=True))
