"""Transforms of samples: one preset to train and one to evaluate, every draw a function of the sample's key.

A transform is a callable `(sample, key) -> sample`; key 0 draws nothing. What moves pixels is in `geometry`, what
changes them in `colour`, what lets torchvision's transforms take part in `torchvision_transforms`.
"""

from collections.abc import Callable
from functools import partial

import torch

from accel_geo.data.colour import band_gain, band_noise, brightness_contrast
from accel_geo.data.geometry import crop, dihedral, tight_boxes, window, zoom
from accel_geo.data.spec import DataSpec
from accel_geo.parallel import keys

__all__ = [
    "Transform",
    "crop",
    "crop_transform",
    "dihedral",
    "evaluation_transform",
    "then",
    "tight_boxes",
    "training_transform",
    "window",
    "zoom",
]

Transform = Callable[[dict, int], dict]

SCALES = (0.8, 1.25)  # how small and how large the training preset shows things, where it crops


def training_transform(spec: DataSpec, chip_size: tuple[int, int] | None, colour: bool = True) -> Transform:
    """Return the training preset: a random crop at a random scale, then turns and flips, then changes of colour.

    Super-resolution learns how the coarse image relates to the fine one: neither its scale nor its colours change.

    Args:
        spec: of the data. Imagery in map orientation gets all eight turns and mirrorings, other imagery is mirrored
            left and right; 8-bit RGB changes in brightness and contrast, other imagery in each band's gain and offset,
            with a little noise.
        chip_size: (H, W) to crop to; a smaller chip keeps its size. What is cropped is shown at 0.8 to 1.25 times its
            size (never more than the chip holds). None crops nothing.
        colour: change colours.
    """
    return partial(_training, spec, chip_size, colour)


def _training(spec: DataSpec, chip_size: tuple[int, int] | None, colour: bool, sample: dict, key: int) -> dict:
    draw = torch.rand(5, generator=keys.generator(key, "transform")).tolist() if key else None
    if chip_size is not None:
        size = tuple(sample["image"].shape[-2:])
        wanted = tuple(map(min, size, chip_size))
        seen = wanted if spec.task == "super_resolution" else _seen(size, wanted, key)
        sample = zoom(sample, *window(size, seen, draw and draw[:2]), wanted)
    if draw is None:
        return sample
    if spec.map_space:
        sample = dihedral(sample, int(draw[2] * 8))
    elif draw[2] < 0.5:
        sample = dihedral(sample, 1)
    if not colour or spec.task == "super_resolution":
        return sample
    if spec.dtype == "uint8" and len(spec.bands) == 3:
        return brightness_contrast(sample, 0.8 + 0.4 * draw[3], 0.75 + 0.5 * draw[4])
    sample = band_gain(sample, spec, keys.generator(key, "bands"))
    return band_noise(sample, spec, keys.generator(key, "noise"))


def _seen(size: tuple[int, int], wanted: tuple[int, int], key: int) -> tuple[int, int]:
    # The (height, width) of the window that is resized to the wanted crop of a chip of this size.
    if not key or size == wanted:
        return wanted
    smallest, largest = SCALES
    scale = smallest * (largest / smallest) ** float(torch.rand(1, generator=keys.generator(key, "scale")))
    scale = max(scale, wanted[0] / size[0], wanted[1] / size[1])  # the window lies within the chip
    return min(size[0], max(1, round(wanted[0] / scale))), min(size[1], max(1, round(wanted[1] / scale)))


def evaluation_transform(spec: DataSpec, chip_size: tuple[int, int] | None = None) -> Transform:
    """Return the evaluation preset: the whole chip as it is."""
    return _unchanged


def _unchanged(sample: dict, key: int) -> dict:
    return sample


def crop_transform(chip_size: tuple[int, int]) -> Transform:
    """Return a transform that only crops, at random where there is a key, else at the centre."""
    return partial(_crop, chip_size)


def _crop(chip_size: tuple[int, int], sample: dict, key: int) -> dict:
    draw = torch.rand(2, generator=keys.generator(key, "transform")).tolist() if key else None
    return crop(sample, *window(sample["image"].shape[-2:], chip_size, draw))


def then(first: Transform | None, second: Transform | torch.nn.Module) -> Transform:
    """Return a transform that applies a user's own after another, its draws from global generators keyed.

    Args:
        first: applied before, or None.
        second: a function `(sample, key) -> sample`, or one of torchvision.transforms.v2 (or a module like them, which
            takes and returns a dict of tv_tensors); see `torchvision_transforms.apply`. It must keep the size of the
            sample, and is left out where nothing is random (key 0).

    Raises:
        ValueError: `second` is of torchvision's old transforms, which know images only.
    """
    home = type(second).__module__
    if home.startswith("torchvision.transforms.") and not home.startswith("torchvision.transforms.v2."):
        raise ValueError(
            f"transforms={type(second).__name__} is of torchvision.transforms, which move images without their labels; "
            "take it from torchvision.transforms.v2"
        )
    return partial(_then, first, second)


def _then(first: Transform | None, second: Transform | torch.nn.Module, sample: dict, key: int) -> dict:
    sample = first(sample, key) if first else sample
    if not key:
        return sample
    if isinstance(second, torch.nn.Module):
        from accel_geo.data.torchvision_transforms import apply

        return apply(second, sample, key)
    with keys.scope(key, "user"):
        return second(sample, key)
