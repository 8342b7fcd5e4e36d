"""Starting weights: a published model, any state dict of a known network, or the library's pretrained ones."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from accel_geo.nn.backbones import extend_stem
from accel_geo.parallel.reduction import is_main

# words that other programs put before a network's own names
_PREFIXES = {"module", "model", "network", "net", "backbone", "body", "encoder", "trunk", "state_dict"}
# sequential networks are also published without the name of their container
_CONTAINERS = ("", "features.")


def load_weights(
    model: nn.Module,
    weights: str | Path,
    *,
    backbone: nn.Module,
    heads: tuple[str, ...],
    bands: tuple[str, ...],
    classes: tuple[str, ...],
    default: Callable[[], dict[str, Tensor]],
    rename: Callable[[str], str] | None = None,
) -> str:
    """Load starting weights into a freshly built model, by name.

    A first convolution made for other bands follows `extend_stem`; what has another shape, and the head where the class
    lists differ, keeps its fresh values; a file in which less than half of the backbone is found is refused.

    Args:
        model: the whole network.
        weights: "default", or the path of a .safetensors, .pth or .pt file, or of a published model's folder.
        backbone: the part of `model` that must be found (see nn/backbones.py).
        heads: prefixes of the names in `model` that depend on the class list.
        bands: names of the model's bands.
        classes: the model's class list.
        default: gives the state dict that "default" stands for.
        rename: turns a name of an older library into today's.

    Returns:
        What was loaded and what was not, in one sentence, which the main process also prints.

    Raises:
        FileNotFoundError: there is no such file, or "default" cannot be downloaded.
        ValueError: the file is not what it should be, or does not belong to this backbone.
    """
    if str(weights) == "default":
        source, origin, facts = default(), "the library's pretrained weights", {}
    else:
        path = _weights_file(Path(weights))
        source, origin, facts = read_weights(path), str(path), _facts(path.parent)
    if rename is not None:
        source = {rename(name): tensor for name, tensor in source.items()}

    target = model.state_dict()
    scope = next(name for name, module in model.named_modules() if module is backbone) + "."
    stem = f"{scope}{backbone.first_conv}.weight"
    found = _match(source, target, scope, stem)
    needed = [name for name in target if name.startswith(scope) and not name.endswith("num_batches_tracked")]
    # the normalisation is that of the data at hand
    found = {name: tensor for name, tensor in found.items() if name not in ("pixel_mean", "pixel_std")}
    usable = {name: tensor for name, tensor in found.items() if name == stem or tensor.shape == target[name].shape}
    hits = sum(name in usable for name in needed)
    if hits * 2 < len(needed):
        raise ValueError(
            f"{origin}: {hits} of the backbone's {len(needed)} tensors were found. The file holds {_examples(source)}; "
            f"the backbone needs {_examples(name.removeprefix(scope) for name in needed)}. Give the weights of this "
            "backbone, or choose the backbone that the file is for (--backbone)"
        )
    if stem in usable:
        usable[stem] = extend_stem(usable[stem], bands, facts.get("bands"))
        if usable[stem].shape != target[stem].shape:
            raise ValueError(
                f"{origin}: the first convolution is {list(found[stem].shape)}, this backbone's is "
                f"{list(target[stem].shape)}; choose the backbone that the file is for (--backbone)"
            )
    if facts.get("classes", classes) != classes or any(n in found and n not in usable for n in _of(heads, target)):
        usable = {name: tensor for name, tensor in usable.items() if not name.startswith(heads)}
    model.load_state_dict(usable, strict=False)
    report = _report(origin, hits, len(needed), usable, target, heads, scope)
    if is_main():
        print(report, flush=True)
    return report


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


def _weights_file(path: Path) -> Path:
    if path.is_dir() and (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    if path.is_file():
        return path
    folder = path if path.is_dir() else path.parent
    here = sorted(p.name for p in folder.iterdir())[:8] if folder.is_dir() else []
    what = "no model.safetensors in this folder" if path.is_dir() else "no such weights file"
    raise FileNotFoundError(
        f"{path}: {what}; {folder} holds {', '.join(here) or 'nothing'}. "
        'weights is None (random), "default" (pretrained, downloaded), a weights file or a published model\'s folder'
    )


def _facts(folder: Path) -> dict[str, tuple[str, ...]]:
    # class list and bands of a published model, from the configuration beside its weights
    try:
        spec = json.loads((folder / "config.json").read_text())["spec"]
        return {"classes": tuple(spec["classes"]), "bands": tuple(spec["bands"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _match(source: dict[str, Tensor], target: dict[str, Tensor], scope: str, stem: str) -> dict[str, Tensor]:
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
                fitting = [n for n, t in found.items() if t.shape == target[n].shape or n == stem]
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
    origin: str, hits: int, needed: int, usable: dict, target: dict[str, Tensor], heads: tuple[str, ...], scope: str
) -> str:
    fresh = [
        n for n in target if n not in usable and not n.endswith(("num_batches_tracked", "pixel_mean", "pixel_std"))
    ]
    text = f"weights: {origin}: {hits} of {needed} tensors of the backbone"
    beyond = sum(not name.startswith(scope) for name in usable)
    if beyond:
        text += f" and {beyond} others"
    head = [name for name in fresh if name.startswith(heads)]
    rest = [name for name in fresh if not name.startswith(heads) and not name.startswith(scope)]
    if beyond and head:
        text += "; new head for this class list"
    if beyond and rest:
        text += f"; new: {_examples(rest)}"
    return text
