"""Dilation: a network whose feature maps stay finer, its weights unchanged (Chen et al. 2015, "à trous").

What lowers the resolution beyond the wanted stride keeps it instead, and what comes after looks at cells that are as
far apart in the image as before. Each convolution is told by the resolution that it worked at, which one forward pass
shows; so the rule needs to know no network. torchvision's own dilated ResNets come out the same.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 256


class DilatedPool(nn.Module):
    """A pooling whose stride was taken away: as large as its input, over cells `dilation` apart.

    Args:
        kind: "max" or "avg".
        kernel: side of the window.
        padding: of the pooling before.
        dilation: distance of the cells of a window.
    """

    def __init__(self, kind: str, kernel: int, padding: int, dilation: int) -> None:
        super().__init__()
        self.kind, self.kernel, self.padding, self.dilation = kind, kernel, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled map [B, C, H, W]; the border is repeated outwards."""
        before, all_around = self.padding * self.dilation, self.dilation * (self.kernel - 1)
        after = all_around - before
        height, width = x.shape[-2:]
        x = F.pad(x, (before, after, before, after), mode="replicate")
        steps = range(0, all_around + 1, self.dilation)
        shifted = [x[..., row : row + height, column : column + width] for row in steps for column in steps]
        stacked = torch.stack(shifted)
        return stacked.amax(0) if self.kind == "max" else stacked.mean(0)


def dilate(backbone: nn.Module, bands: int, output_stride: int) -> None:
    """Keep a backbone's feature maps at `output_stride` or finer, in place; see nn/backbones.py for its attributes.

    Args:
        backbone: the network; its `strides` are brought up to date.
        bands: of the image.
        output_stride: the coarsest stride that is left.

    Raises:
        ValueError: the network lowers its resolution by other means than convolutions and poolings.
    """
    if backbone.strides[-1] <= output_stride:
        return
    wanted = [min(stride, output_stride) for stride in backbone.strides]
    try:
        for name, (before, after) in _strides(backbone, bands).items():
            _change(backbone, name, before, after, output_stride)
        with torch.no_grad():
            found = [SIDE // feature.shape[-1] for feature in _still(backbone, bands)]
        fault = "" if found == wanted else f"its strides would be {found}, not {wanted}"
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        raise ValueError(
            f"this backbone cannot be dilated to stride {output_stride} ({fault}); take a network that lowers its "
            "resolution by convolutions or poolings only, such as resnet50, mobilenet_v2 or densenet121"
        )
    backbone.strides = wanted


def _strides(backbone: nn.Module, bands: int) -> dict[str, tuple[int, int]]:
    # the strides before and after each convolution and pooling, as one forward pass shows them
    seen: dict[str, tuple[int, int]] = {}
    kinds = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)

    def look(name: str) -> object:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            seen[name] = (SIDE // inputs[0].shape[-1], SIDE // output.shape[-1])

        return hook

    hooks = [m.register_forward_hook(look(name)) for name, m in backbone.named_modules() if isinstance(m, kinds)]
    with torch.no_grad():
        _still(backbone, bands)
    for hook in hooks:
        hook.remove()
    return seen


def _still(backbone: nn.Module, bands: int) -> list[Tensor]:
    # a forward pass that leaves the network as it is
    training = backbone.training
    try:
        return backbone.eval()(torch.zeros(1, bands, SIDE, SIDE))
    finally:
        backbone.train(training)


def _change(backbone: nn.Module, name: str, before: int, after: int, output_stride: int) -> None:
    layer = backbone.get_submodule(name)
    kernel = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size,) * 2
    apart = 1 if kernel == (1, 1) else before // min(before, output_stride)
    keeps = after > max(before, output_stride)
    if before == SIDE or not keeps and apart == 1:
        return  # a gate's pooled map, or nothing to change
    if isinstance(layer, nn.Conv2d):
        if keeps:
            layer.stride = (min(after, output_stride) // min(before, output_stride),) * 2
        layer.dilation = tuple(apart * step for step in layer.dilation)
        if kernel[0] % 2 == 0:  # a window without a centre begins at its cell
            layer.register_forward_pre_hook(partial(_pad_after, apart * (kernel[0] - 1)))
        elif not isinstance(layer.padding, str):
            layer.padding = tuple(apart * side for side in layer.padding)
    else:
        kind = "max" if isinstance(layer, nn.MaxPool2d) else "avg"
        padding = layer.padding if isinstance(layer.padding, int) else layer.padding[0]
        *parents, child = name.split(".")
        setattr(backbone.get_submodule(".".join(parents)), child, DilatedPool(kind, kernel[0], padding, apart))


def _pad_after(amount: int, layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (F.pad(inputs[0], (0, amount, 0, amount)),)
