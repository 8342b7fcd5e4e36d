"""Parts of edge detectors: feature maps at several scales, class-balanced cross entropy, published starting weights."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.data.spec import IGNORED
from accel_geo.nn.backbones import RGB, build_backbone, extend_stem, pretrained_state
from accel_geo.nn.weights import load_weights, read_weights
from accel_geo.parallel.reduction import Loss, sum_over_processes

BALANCES = ("image", "batch")
CAFFE_MEAN = {"red": 123.68, "green": 116.779, "blue": 103.939}  # of ImageNet, 0..255, as Caffe's VGG subtracts it


def edge_backbone(name: str, bands: int, size: str) -> nn.Module:
    """Build a backbone down to 16 times its finest stride, at most 32: of a VGG five levels of strides 1 to 16.

    Args:
        name: see nn/backbones.py.
        bands: number of input bands.
        size: "full", or "small": without the coarsest of these levels.

    Raises:
        ValueError: another size, or no such backbone.
    """
    if size not in ("full", "small"):
        raise ValueError(f"size is 'full' or 'small', not {size!r}")
    backbone = build_backbone(name, bands, max_stride=16)
    deepest = min(16 * backbone.strides[0], 32) // (2 if size == "small" else 1)
    return backbone if backbone.strides[-1] == deepest else build_backbone(name, bands, max_stride=deepest)


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


def check_balance(over: str) -> None:
    """Refuse an unknown way to balance.

    Raises:
        ValueError: it is not one of BALANCES.
    """
    if over not in BALANCES:
        raise ValueError(f"balance_over={over!r}: 'image' (edge shares of each image) or 'batch' (of the global batch)")


def load_edge_weights(model: nn.Module, weights: str | Path, backbone: str) -> None:
    """Load starting weights; see nn/weights.py.

    A network published with the names `features.*`, `side.*` and `fuse.*` was trained in Caffe's way: on pixels of 0 to
    255 in the order blue, green, red, less a mean. Its first convolution is rewritten for images that the model has
    normalised, see `from_caffe_pixels`.

    Args:
        model: with `backbone`, `spec` and the buffers `pixel_mean` and `pixel_std`.
        weights: "default" or a path.
        backbone: name of the backbone, whose pretrained weights are the default.
    """
    load_weights(
        model,
        weights,
        backbone=model.backbone,
        heads=(),
        bands=model.spec.bands,
        classes=model.spec.classes,
        default=lambda: pretrained_state(backbone),
        rename=lambda name: f"backbone.{name}" if name.startswith("features.") else name,
    )
    if str(weights) != "default" and Path(weights).is_file():
        state = read_weights(Path(weights))
        if {"features.0.weight", "features.0.bias", "side.0.weight"} <= set(state):
            stem = model.backbone.get_submodule(model.backbone.first_conv)
            filters, bias = state["features.0.weight"], state["features.0.bias"]
            from_caffe_pixels(stem, filters, bias, model.spec.bands, model.pixel_mean, model.pixel_std)


@torch.no_grad()
def from_caffe_pixels(
    conv: nn.Conv2d, filters: Tensor, bias: Tensor, bands: tuple[str, ...], mean: Tensor, std: Tensor
) -> None:
    """Give a convolution on normalised images what another one gives on pixels x of 0..255 less CAFFE_MEAN m.

    With an image n = (x / 255 - mean) / std, filters W of (x - m) become 255 std W, and their bias grows by the sum of
    W (255 mean - m): the same output, but where a filter reaches beyond the image, into padding of the mean colour of
    the data instead of that of ImageNet. Other bands follow `extend_stem`.

    Args:
        conv: is changed.
        filters: [out, 3, kh, kw] for blue, green, red.
        bias: [out].
        bands: names of the image's bands.
        mean: of each band of the image, scaled to 0..1; any shape of C values.
        std: likewise.
    """
    names = [band.strip().lower() for band in bands]
    wide = extend_stem(filters.double().flip(1), bands)
    if len(names) == 3 and not set(names) & set(RGB):
        names = RGB
    other = sum(CAFFE_MEAN.values()) / 3
    caffe = torch.tensor([CAFFE_MEAN.get(name, other) for name in names], dtype=torch.float64)
    mean, std = mean.cpu().double().flatten(), std.cpu().double().flatten()
    conv.weight.copy_(wide * (255 * std)[:, None, None])
    conv.bias.copy_(bias.double() + wide.sum((2, 3)) @ (255 * mean - caffe))
