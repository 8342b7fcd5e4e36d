"""Parts of edge detectors: feature maps at several scales, class-balanced cross entropy."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.data.spec import IGNORED
from accel_geo.nn.backbones import build_backbone
from accel_geo.parallel.reduction import Loss, sum_over_processes


def edge_backbone(name: str, bands: int, size: str) -> nn.Module:
    """Build a backbone down to 16 times its finest stride, at most 32: of a VGG five levels of strides 1 to 16.

    Args:
        name: see nn/backbones.py.
        bands: number of input bands.
        size: "full", or "small": without the coarsest of these levels.

    Raises:
        ValueError: no such backbone, or one with a single one of these levels.
    """
    backbone = build_backbone(name, bands, max_stride=16)
    deepest = min(16 * backbone.strides[0], 32) // (2 if size == "small" else 1)
    if backbone.strides[-1] != deepest:
        backbone = build_backbone(name, bands, max_stride=deepest)
    if len(backbone.strides) < 2:
        raise ValueError(
            f"{name} has feature maps of strides {backbone.strides} alone, but edges are found at two scales at least; "
            "take a network that also has finer ones, such as vgg16, resnet34 or mobilenet_v2"
        )
    return backbone


def level_maps(backbone: nn.Module, images: Tensor) -> list[list[Tensor]]:
    """Return the feature maps of each level, finest level first.

    Of a backbone that is a plain sequence, such as a VGG, these are what each of a level's activations gives; of others
    the level's last map alone.
    """
    if backbone.source != "torchvision":
        return [[level] for level in backbone(images)]
    levels, maps = [], []
    for step in backbone.steps:
        module = backbone.get_submodule(step)
        images = module(images)
        if isinstance(module, nn.ReLU) or step in backbone.taps:
            maps.append(images)
        if step in backbone.taps:
            levels.append(maps)
            maps = []
    return levels


def upsample(maps: Tensor, stride: int, size: Sequence[int]) -> Tensor:
    """Bring maps [B, C, h, w] whose cells are `stride` pixels wide to full resolution, bilinearly, cropped to (H, W)."""
    if stride > 1:
        maps = F.interpolate(maps, scale_factor=float(stride), mode="bilinear", align_corners=False)
    return maps[..., : size[0], : size[1]]


def edge_truth(targets: list[dict], device: torch.device) -> Tensor:
    """Return the targets' `edges` as uint8 [B, H, W] with 0, 1 and 255; of a chip to ignore all is 255."""
    edges = [torch.full_like(t["edges"], IGNORED) if t.get("ignore", False) else t["edges"] for t in targets]
    return torch.stack([chip.to(device) for chip in edges])


def balance_weights(truth: Tensor, like: Tensor, negative: float = 1.0, over: str = "image") -> Tensor:
    """Weigh edge pixels by the share of the others and these by the share of edge pixels (Xie & Tu 2015, eq. 2).

    Args:
        truth: [B, H, W] with 0, 1 and 255, ignored.
        like: gives the dtype.
        negative: further factor of pixels that are no edges; 1.1 in some later networks.
        over: "image": shares of each image alone, as published. An image without edges, or of nothing else, then
            weighs nothing. "batch": shares of the global batch, so that images without edges teach too.

    Returns:
        [B, H, W], 0 where ignored.
    """
    edge, other = truth == 1, truth == 0
    counts = torch.stack([mask.sum((1, 2), keepdim=True) for mask in (edge, other)])
    if over == "batch":
        counts = sum_over_processes(counts.sum(1, keepdim=True))
    counts = counts.to(like.dtype)
    positive, rest = counts / counts.sum(0).clamp(min=1)
    return edge * rest + other * (positive * negative)


def balanced_cross_entropy(logits: Tensor, truth: Tensor, weights: Tensor) -> Loss:
    """Binary cross entropy of edges.

    Args:
        logits: [B, H, W].
        truth: [B, H, W] with 0, 1 and 255, ignored.
        weights: of the pixels, see `balance_weights`.

    Returns:
        The weighted sum over pixels, and the number of pixels that are not ignored.
    """
    total = F.binary_cross_entropy_with_logits(
        logits.to(weights.dtype), (truth == 1).to(weights.dtype), weights, reduction="sum"
    )
    return Loss(total, (truth != IGNORED).sum())
