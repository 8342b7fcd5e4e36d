"""Starting weights: a published model, any state dict of a known network, or the library's pretrained ones."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from accel_geo.nn.backbones import RGB, extend_stem
from accel_geo.parallel.reduction import is_main

# words that other programs put before a network's own names
_PREFIXES = {"module", "model", "network", "net", "backbone", "body", "encoder", "trunk", "state_dict"}
_ALLOWED = 'None (random), "default" (pretrained, downloaded), a weights file or a published model\'s folder'
# sequential networks are also published without the name of their container
_CONTAINERS = ("", "features.")
# of ImageNet, 0..255, as Caffe's VGG subtracts it
CAFFE_MEAN = {"red": 123.68, "green": 116.779, "blue": 103.939}
# names in a published edge detector on Caffe's VGG16: its first convolution, and that of its first side output
_CAFFE_NAMES = ("features.0.weight", "features.0.bias", "side.0.weight")


def load_weights(
    model: nn.Module,
    weights: str | Path,
    *,
    backbone: nn.Module,
    heads: tuple[str, ...],
    bands: tuple[str, ...],
    classes: tuple[str, ...],
    default: Callable[[], dict[str, Tensor]],
    unfit: tuple[str, ...] = (),
    adapt: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> str:
    """Load starting weights into a freshly built model, by name.

    Convolutions that see the image follow `extend_stem` where they were made for other bands; what has another shape, and
    the head where the class lists differ, keeps its fresh values; a file in which less than half of the backbone is found
    is refused.

    A published edge detector on VGG16 (`features.*` beside `side.*`) was trained in Caffe's way, on pixels of 0 to 255 in
    the order blue, green, red, less a mean: its first convolution is rewritten by `from_caffe_pixels` for what
    `model.normalize` gives.

    Args:
        model: the whole network; a GeoModel, or a module with its buffers `pixel_mean` and `pixel_std`.
        weights: "default", or the path of a .safetensors, .pth or .pt file, or of a published model's folder.
        backbone: the part of `model` that must be found (see nn/backbones.py).
        heads: prefixes of the names in `model` that depend on the class list.
        bands: names of the model's bands.
        classes: the model's class list.
        default: gives the state dict that "default" stands for.
        unfit: prefixes of the names in `model` that keep their fresh values whatever the file holds: its tensors were
            made for other arguments, though their shapes may be the same.
        adapt: turns a state dict of another library, or of an older one, into what this model would have.

    Returns:
        What was loaded and what was not, in one sentence, which the main process also prints.

    Raises:
        FileNotFoundError: there is no such file, or "default" cannot be downloaded.
        ValueError: the file is not what it should be, or does not belong to this backbone.
    """
    spec = published(weights).get("spec", {})
    if str(weights) == "default":
        source, origin = default(), "the library's pretrained weights"
    else:
        path = _weights_file(Path(weights))
        source, origin = read_weights(path), str(path)
    on_caffe_pixels = made_for_caffe(source)
    if adapt is not None:
        source = adapt(source)

    target = model.state_dict()
    scope = next(name for name, module in model.named_modules() if module is backbone) + "."
    stems = [f"{scope}{name}.weight" for name in backbone.input_convs]
    found = _match(source, target, scope, stems)
    needed = [name for name in target if name.startswith(scope) and not name.endswith("num_batches_tracked")]
    # the normalisation is that of the data at hand
    left = {name for name in found if name.startswith(unfit)}
    found = {name: tensor for name, tensor in found.items() if name not in left | {"pixel_mean", "pixel_std"}}
    usable = {name: tensor for name, tensor in found.items() if name in stems or tensor.shape == target[name].shape}
    hits = sum(name in usable for name in needed)
    if hits * 2 < len(needed):
        raise ValueError(
            f"{origin}: {hits} of the backbone's {len(needed)} tensors were found. The file holds {_examples(source)}; "
            f"the backbone needs {_examples(name.removeprefix(scope) for name in needed)}. Give the weights of this "
            "backbone, or choose the backbone that the file is for (--backbone)"
        )
    for stem in (name for name in stems if name in usable):
        if on_caffe_pixels:
            bias = stem.removesuffix("weight") + "bias"
            usable[stem], usable[bias] = from_caffe_pixels(
                usable[stem], usable[bias], bands, model.pixel_mean, model.pixel_std
            )
        else:
            usable[stem] = extend_stem(usable[stem], bands, spec.get("bands"))
        if usable[stem].shape != target[stem].shape:
            raise ValueError(
                f"{origin}: the first convolution is {list(found[stem].shape)}, this backbone's is "
                f"{list(target[stem].shape)}; choose the backbone that the file is for (--backbone)"
            )
    other_classes = tuple(spec.get("classes", classes)) != classes
    if other_classes or any(n in found and n not in usable for n in _of(heads, target)):
        usable = {name: tensor for name, tensor in usable.items() if not name.startswith(heads)}
    model.load_state_dict(usable, strict=False)
    report = _report(origin, hits, len(needed), usable, left, target, heads, scope)
    if on_caffe_pixels:
        report += "; the first convolution, made for Caffe's pixels, is rewritten for images normalised as here"
    if is_main():
        print(report, flush=True)
    return report


def published(weights: str | Path) -> dict:
    """Return the configuration of the published model that weights are of (`class`, `arguments`, `spec`), else nothing.

    Args:
        weights: as `load_weights` takes them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no path.
    """
    if not isinstance(weights, str | os.PathLike) or not str(weights):
        raise ValueError(f"weights={weights!r}: {_ALLOWED}")
    if str(weights) == "default":
        return {}
    file = _weights_file(Path(weights)).parent / "config.json"
    try:
        config = json.loads(file.read_text())
        return config if {"classes", "bands"} <= set(config["spec"]) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors, .pth or .pt file; nothing in it is executed.

    Raises:
        ValueError: it is none of these, damaged, or holds more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if path.suffix not in (".pth", ".pt"):
            raise ValueError(
                f"{path}: weights are .safetensors, .pth or .pt files, not {path.suffix or 'without a suffix'!r}"
            )
        content = torch.load(path, map_location="cpu", weights_only=True)
    except ValueError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise ValueError(
            f"{path}: not readable as tensors ({type(error).__name__}: {reason}). The file is damaged, or holds Python "
            "objects, which are not loaded; save its state dict alone, best as .safetensors"
        ) from error
    for key in ("state_dict", "model", "model_state_dict", "model_state"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        raise ValueError(f"{path}: no state dict (names and tensors) in it, but a {type(content).__name__}")
    return tensors


def made_for_caffe(tensors: dict[str, Tensor]) -> bool:
    """Say whether a state dict is a published edge detector's on VGG16, which was trained on Caffe's pixels."""
    return any({prefix + name for name in _CAFFE_NAMES} <= set(tensors) for prefix in _prefixes(tensors))


def from_caffe_pixels(
    filters: Tensor, bias: Tensor, bands: tuple[str, ...], mean: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a convolution on normalised images that gives what another gives on pixels x of 0..255 less CAFFE_MEAN m.

    With an image n = (x / 255 - mean) / std, filters W of (x - m) become 255 std W, and their bias grows by the sum of
    W (255 mean - m): the same output, but where a filter reaches beyond the image, into padding of the mean colour of
    the data instead of that of ImageNet. Other bands follow `extend_stem`.

    Args:
        filters: [out, 3, kh, kw] for blue, green, red.
        bias: [out].
        bands: names of the image's C bands.
        mean: of each band of the image, scaled to 0..1; any shape of C values.
        std: likewise.

    Returns:
        Filters [out, C, kh, kw] and bias [out], float64.
    """
    names = [band.strip().lower() for band in bands]
    wide = extend_stem(filters.double().flip(1), bands)
    if len(names) == 3 and not set(names) & set(RGB):
        names = RGB
    other = sum(CAFFE_MEAN.values()) / 3
    caffe = torch.tensor([CAFFE_MEAN.get(name, other) for name in names], dtype=torch.float64)
    mean, std = mean.cpu().double().flatten(), std.cpu().double().flatten()
    return wide * (255 * std)[:, None, None], bias.double() + wide.sum((2, 3)) @ (255 * mean - caffe)


def _weights_file(path: Path) -> Path:
    if path.is_dir() and (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    if path.is_file():
        return path
    folder = path if path.is_dir() else path.parent
    here = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else []
    what = "no model.safetensors in this folder" if path.is_dir() else "no such weights file"
    raise FileNotFoundError(f"{path}: {what}; {folder} holds {', '.join(here) or 'nothing'}. weights is {_ALLOWED}")


def _match(source: dict[str, Tensor], target: dict[str, Tensor], scope: str, stems: list[str]) -> dict[str, Tensor]:
    """Pair the file's tensors with the model's names in the way that pairs the most."""
    # timm joins the names of nested modules with "_" in its pyramids and with "." elsewhere
    canonical = {name.replace(".", "_"): name for name in target}
    best, most = {}, (0, 0)
    for prefix in _prefixes(source):
        tails = {n[len(prefix) :].replace(".", "_"): t for n, t in source.items() if n.startswith(prefix)}
        for base in dict.fromkeys(("", scope)):
            for container in _CONTAINERS:
                start = (base + container).replace(".", "_")
                found = {canonical[start + n]: t for n, t in tails.items() if start + n in canonical}
                fitting = [n for n, t in found.items() if t.shape == target[n].shape or n in stems]
                score = (len(fitting), len(found))
                if score > most:
                    best, most = found, score
    return best


def _prefixes(names: dict[str, Tensor]) -> list[str]:
    found = {"": None}
    for name in names:
        prefix = ""
        for word in name.split(".")[:-1]:
            if word not in _PREFIXES:
                # "features.0.weight" may also belong to a container that has no name here
                if word == "features":
                    found[prefix + "features."] = None
                break
            prefix += word + "."
            found[prefix] = None
    return list(found)


def _of(heads: tuple[str, ...], target: dict[str, Tensor]) -> list[str]:
    return [name for name in target if name.startswith(heads)]


def _examples(names: object) -> str:
    names = sorted(name for name in names if not name.endswith("num_batches_tracked"))
    shown = names[:2] + names[-1:] if len(names) > 3 else names
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _report(
    origin: str,
    hits: int,
    needed: int,
    usable: dict,
    left: set[str],
    target: dict[str, Tensor],
    heads: tuple[str, ...],
    scope: str,
) -> str:
    silent = ("num_batches_tracked", "pixel_mean", "pixel_std")
    fresh = [n for n in target if n not in usable and n not in left and not n.endswith(silent)]
    text = f"weights: {origin}: {hits} of {needed} tensors of the backbone"
    beyond = sum(not name.startswith(scope) for name in usable)
    if beyond:
        text += f" and {beyond} others"
    head = [name for name in fresh if name.startswith(heads)]
    rest = [name for name in fresh if not name.startswith(heads) and not name.startswith(scope)]
    if beyond and head:
        text += "; new head for this class list"
    if left:
        text += f"; new, as they were made for other arguments: {_examples(left)}"
    if beyond and rest:
        text += f"; new: {_examples(rest)}"
    return text
