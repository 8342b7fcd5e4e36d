"""Feature pyramids from torchvision and timm by name, for any number of bands.

A backbone is a module that maps images [B, C, H, W] to a list of feature maps, finest first, with the attributes
`channels` and `strides` (one each per level), `input_convs` (names of the convolutions that see the image itself: one, or
several where branches begin there) and `source`. Its parameters keep the names of the library it comes from, so that
published weights match by name.

Names that torchvision has are torchvision's networks; other names are timm's, and `timm:NAME` is timm's in any case.
Library dropout and stochastic depth are off: what a network computes is a function of its input.
"""

import copy
import difflib
import math
from collections.abc import Callable, Sequence

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import StochasticDepth

from accel_geo.nn.dilation import dilate

RGB = ("red", "green", "blue")
_INSTEAD = "take a convolutional network such as resnet34, mobilenet_v2 or timm:efficientnet_lite0"
_PROBE = (64, 96)  # height and width of an image that is no square and that all strides divide


class Backbone(nn.Module):
    """The trunk of a torchvision classifier, cut where its resolution changes.

    Args:
        network: the torchvision network; only the modules on the trunk are kept, under their own names.
        steps: dotted names of the modules that are applied one after another.
        max_stride: levels coarser than this are left out, with their modules.
    """

    source = "torchvision"

    def __init__(self, network: nn.Module, steps: list[str], max_stride: int) -> None:
        super().__init__()
        sizes, channels = _trace(network, steps)
        side = 64
        steps = [step for step, size in zip(steps, sizes) if side // size <= max_stride]
        sizes = sizes[: len(steps)]
        for step in steps:
            _adopt(self, network, step)
        # a level is what comes out last at its resolution
        last = [i for i in range(len(steps)) if i + 1 == len(steps) or sizes[i + 1] != sizes[i]]
        self.steps = steps
        self.taps = {steps[i] for i in last}
        self.channels = [channels[i] for i in last]
        self.strides = [side // sizes[i] for i in last]
        self.input_convs = [_first_conv(self)]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the feature maps of an image batch [B, C, H, W], finest first."""
        features = []
        for step in self.steps:
            x = self.get_submodule(step)(x)
            if step in self.taps:
                features.append(x)
        return features


def build_backbone(name: str, bands: int, *, max_stride: int = 32, output_stride: int | None = None) -> nn.Module:
    """Build a randomly initialised feature pyramid.

    Args:
        name: a torchvision name ("resnet34", "mobilenet_v2", "vgg16_bn", ...), a timm name, or "timm:NAME".
        bands: number of input bands.
        max_stride: coarser levels are left out.
        output_stride: coarser levels are computed at this stride, by dilation, see nn/dilation.py; None: as they are.

    Returns:
        A module as described at the top of this file.

    Raises:
        ValueError: no such network, one that has no convolutional feature pyramid, or one that cannot be dilated.
    """
    if name in torchvision_names():
        network = torchvision.models.get_model(name, weights=None)
        backbone = Backbone(network, _trunk(name, network), max_stride)
        _set_bands(backbone, bands)
    else:
        backbone = _timm_backbone(name, bands, max_stride)
    _silence(backbone)
    if output_stride is not None:
        dilate(backbone, bands, output_stride)
    return backbone


def pretrained_state(name: str, option: str = "weights") -> dict[str, Tensor]:
    """Return the library's own pretrained weights of a backbone, from the cache or downloaded.

    Args:
        name: of the backbone.
        option: argument that takes a file in their place, for the message.

    Raises:
        FileNotFoundError: they cannot be had here; the message says which file to fetch and where to pass it.
    """
    if name in torchvision_names():
        weights = torchvision.models.get_model_weights(name).DEFAULT
        try:
            return weights.get_state_dict(progress=False, check_hash=True)
        except Exception as error:
            raise cannot_download(name, weights.url, error, option) from error
    import timm

    short = name.removeprefix("timm:")
    try:
        return timm.create_model(short, features_only=True, pretrained=True).state_dict()
    except Exception as error:
        origin = timm.get_pretrained_cfg(short)
        hub = origin and origin.hf_hub_id
        where = (
            f"model.safetensors of the hub repository {hub}"
            if hub
            else (origin and origin.url) or "(none is published)"
        )
        raise cannot_download(name, where, error, option) from error


def cannot_download(name: str, where: str, error: Exception, option: str = "weights") -> FileNotFoundError:
    """Return the error that says which file to fetch by hand, and where to pass it."""
    flag = f"--{option.replace('_', '-')}"
    return FileNotFoundError(
        f"the pretrained weights of {name} are not on this machine and cannot be downloaded from here "
        f"({type(error).__name__}). Fetch {where} elsewhere, then pass the file: {option}=PATH, on the command line "
        f"{flag} PATH; or train without: leave {flag} out"
    )


def extend_stem(weight: Tensor, bands: tuple[str, ...], weight_bands: tuple[str, ...] | None = None) -> Tensor:
    """Carry the first convolution's filters over to other bands.

    A band that the weights know by name keeps its filters; any other band gets their mean over the bands; all are
    scaled by M / N (M bands in the weights, N wanted), so that the response keeps its size. Where no name is known
    and the number of bands agrees, the filters are taken as they are.

    Args:
        weight: filters [out, M, kh, kw].
        bands: names of the wanted bands.
        weight_bands: names of the bands of the weights; None: red, green, blue where M = 3, else unknown.

    Returns:
        Filters [out, N, kh, kw].
    """
    known, wanted = weight.shape[1], [band.strip().lower() for band in bands]
    if weight_bands is None or len(weight_bands) != known:
        weight_bands = RGB if known == 3 else ("",) * known
    names = [band.strip().lower() for band in weight_bands]
    if len(wanted) == known and not set(wanted) & set(names):
        return weight
    mean = weight.mean(1)
    filters = [weight[:, names.index(band)] if band in names else mean for band in wanted]
    return torch.stack(filters, 1) * (known / len(wanted))


def pad_to_multiple(images: Tensor, multiple: int) -> Tensor:
    """Pad images [B, C, H, W] with zeros on the right and below until both sides are multiples."""
    height, width = images.shape[-2:]
    return F.pad(images, (0, -width % multiple, 0, -height % multiple))


def torchvision_names() -> list[str]:
    """Return the names of the torchvision networks that can be backbones."""
    return [name for name in torchvision.models.list_models(module=torchvision.models) if name.startswith(_FAMILIES)]


_RESNETS = ("resnet", "resnext", "wide_resnet")
_FAMILIES = (*_RESNETS, "regnet", "mobilenet_v", "vgg", "densenet", "efficientnet", "convnext")


def _trunk(name: str, network: nn.Module) -> list[str]:
    if name.startswith(_RESNETS):
        return ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4"]
    if name.startswith("regnet"):
        return ["stem", *(f"trunk_output.{child}" for child, _ in network.trunk_output.named_children())]
    if name.startswith("densenet"):
        # torchvision applies this activation in its forward
        network.features.add_module("relu5", nn.ReLU(inplace=True))
    return [f"features.{child}" for child, _ in network.features.named_children()]


def _trace(network: nn.Module, steps: list[str], side: int = 64) -> tuple[list[int], list[int]]:
    training, x, sizes, channels = network.training, torch.zeros(1, 3, side, side), [], []
    network.eval()
    with torch.no_grad():
        for step in steps:
            x = network.get_submodule(step)(x)
            sizes.append(x.shape[-1])
            channels.append(x.shape[1])
    network.train(training)
    return sizes, channels


def _adopt(target: nn.Module, network: nn.Module, step: str) -> None:
    # put network's module under the same dotted name, through empty containers
    *parents, child = step.split(".")
    for name in parents:
        if not hasattr(target, name):
            target.add_module(name, nn.Module())
        target = getattr(target, name)
    target.add_module(child, network.get_submodule(step))


def _timm_backbone(name: str, bands: int, max_stride: int) -> nn.Module:
    import timm

    short = name.removeprefix("timm:")
    if not timm.is_model(short):
        _refuse(name, torchvision_names() + timm.list_models())
    try:
        every = timm.create_model(short, features_only=True, in_chans=bands).feature_info.info
        levels = [i for i, level in enumerate(every) if level["reduction"] <= max_stride]
        backbone = timm.create_model(short, features_only=True, in_chans=bands, out_indices=levels)
        channels, strides = backbone.feature_info.channels(), backbone.feature_info.reduction()
        image = _probe_image(bands)
        features, input_convs = _look(backbone, image)
        shapes = [list(feature.shape) for feature in features]
    except Exception as error:
        raise ValueError(
            f"timm's {short} has no feature pyramid for {bands} bands and any image size ({type(error).__name__}: "
            f"{error}); {_INSTEAD}"
        ) from error
    if not strides:
        found = ", ".join(str(level["reduction"]) for level in every)
        raise ValueError(
            f"timm's {short} has feature maps of strides {found}, none of {max_stride} or less; {_INSTEAD}"
        )
    wanted = [[1, depth, *(side // stride for side in _PROBE)] for depth, stride in zip(channels, strides)]
    if len(set(strides)) < len(strides) or shapes != wanted:
        raise ValueError(
            f"timm's {short} gives feature maps {shapes} for an image of {' x '.join(map(str, _PROBE))} pixels, not [B, C, "
            f"H / stride, W / stride]; {_INSTEAD}"
        )
    backbone.channels, backbone.strides, backbone.source = list(channels), list(strides), "timm"
    backbone.input_convs = input_convs
    use_levels(backbone, bands, range(len(strides)))  # timm may keep stages behind the last one
    return backbone


def use_levels(backbone: nn.Module, bands: int, levels: Sequence[int]) -> None:
    """Leave out, in place, what is of use for none of these levels, so that each parameter is trained.

    The other feature maps are void then.

    Args:
        backbone: as `build_backbone` gives it.
        bands: of the image.
        levels: positions of the feature maps that a network looks at, from 0, or from -1 backwards.

    Raises:
        ValueError: the backbone cannot do without the others.
    """
    if isinstance(backbone, Backbone):
        return  # a chain: all before its last level leads there
    image = _probe_image(bands)
    every = backbone.eval()(image)
    features = [every[level] for level in levels]
    sum(feature.sum() for feature in features).backward()
    _drop_unused(backbone)
    unused = [parameter for parameter in backbone.parameters() if parameter.grad is None]
    backbone.zero_grad()
    if unused or not _gives(backbone, image, levels, features):
        strides = ", ".join(str(backbone.strides[level]) for level in levels)
        raise ValueError(
            f"timm's {type(backbone).__name__} cannot do without more than its feature maps of stride {strides}, which are "
            f"all that is needed here; {_INSTEAD}"
        )
    backbone.train()


def _probe_image(bands: int) -> Tensor:
    # no random numbers, or initial weights would change; no constant, to recognise the image
    return torch.linspace(0, 1, bands * math.prod(_PROBE)).view(1, bands, *_PROBE)


def _look(backbone: nn.Module, image: Tensor) -> tuple[list[Tensor], list[str]]:
    """Return the feature maps of an image, and the names of the convolutions that see it."""
    seeing: list[str] = []

    def note(name: str) -> Callable:
        def hook(layer: nn.Module, inputs: tuple[Tensor]) -> None:
            if inputs[0].shape == image.shape and torch.equal(inputs[0], image):
                seeing.append(name)

        return hook

    convs = [(name, layer) for name, layer in backbone.named_modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in convs]
    features = backbone.eval()(image)
    for hook in hooks:
        hook.remove()
    return features, seeing


@torch.no_grad()
def _gives(backbone: nn.Module, image: Tensor, levels: Sequence[int], features: list[Tensor]) -> bool:
    try:
        found = backbone(image)
        return all(torch.equal(found[level], wanted) for level, wanted in zip(levels, features, strict=True))
    except Exception:  # whatever it has run into
        return False


class _LeftOut(nn.Module):
    """In place of a module whose result is of no use: zero, which fits to any shape."""

    def forward(self, x: Tensor | list[Tensor], *rest: object) -> Tensor:
        return (x[0] if isinstance(x, list) else x).new_zeros(1, 1, 1, 1)


def _drop_unused(module: nn.Module) -> None:
    for name, child in module.named_children():
        unused = [parameter.grad is None for parameter in child.parameters()]
        if unused and all(unused) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            setattr(module, name, _LeftOut())
        else:
            _drop_unused(child)


def _refuse(name: str, known: list[str]) -> None:
    close = difflib.get_close_matches(name.removeprefix("timm:"), sorted(set(known)), n=5, cutoff=0.5)
    hint = (
        f"close matches: {', '.join(close)}"
        if close
        else "for example resnet18, resnet50, mobilenet_v2, efficientnet_b0"
    )
    raise ValueError(
        f"no backbone is called {name!r}; {hint}. torchvision's and timm's names are allowed, timm:NAME forces timm"
    )


def _first_conv(module: nn.Module) -> str:
    return next(name for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d))


def _set_bands(backbone: nn.Module, bands: int) -> None:
    (name,) = backbone.input_convs
    old = backbone.get_submodule(name)
    if old.in_channels == bands:
        return
    # a copy keeps the library's kind of convolution, its padding for instance
    new = copy.deepcopy(old)
    new.in_channels = bands
    new.weight = nn.Parameter(torch.empty(old.out_channels, bands, *old.kernel_size))
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    *parents, child = name.split(".")
    setattr(backbone.get_submodule(".".join(parents)), child, new)


def _silence(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, (nn.modules.dropout._DropoutNd, StochasticDepth)):
            layer.p = 0.0
        if isinstance(getattr(layer, "drop_prob", None), float):
            layer.drop_prob = 0.0
