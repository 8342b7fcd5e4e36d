"""Transforms of samples: plain slices and flips, every draw a function of the sample's key.

A transform is a callable `(sample, key) -> sample`; key 0 draws nothing. What has pixels moves together, by whole
pixels, so that masks never hold a new value. Boxes of instances are the tight boxes of their masks.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from accel_geo.data.spec import DataSpec
from accel_geo.parallel import keys

Transform = Callable[[dict, int], dict]

# Keys whose last two dimensions are pixels. "missing" marks what has no data, so that colour changes leave it at 0.
SPATIAL = ("image", "mask", "masks", "missing")


def training_transform(spec: DataSpec, chip_size: tuple[int, int] | None, colour: bool = True) -> Transform:
    """Return the training preset: a random crop, then turns and flips, then changes of colour.

    Args:
        spec: of the data. Imagery in map orientation gets all eight turns and mirrorings, other imagery is mirrored
            left and right; 8-bit RGB changes in brightness and contrast, other imagery in each band's gain and offset.
        chip_size: (H, W) to crop to; a smaller chip keeps its size. None crops nothing.
        colour: change colours.
    """
    return partial(_training, spec, chip_size, colour)


def _training(spec: DataSpec, chip_size: tuple[int, int] | None, colour: bool, sample: dict, key: int) -> dict:
    draw = torch.rand(5, generator=keys.generator(key, "transform")).tolist() if key else None
    if chip_size is not None:
        sample = crop(sample, *window(sample["image"].shape[-2:], chip_size, draw and draw[:2]))
    if draw is None:
        return sample
    if spec.map_space:
        sample = dihedral(sample, int(draw[2] * 8))
    elif draw[2] < 0.5:
        sample = dihedral(sample, 1)
    if not colour:
        return sample
    if spec.dtype == "uint8" and len(spec.bands) == 3:
        return brightness_contrast(sample, 0.8 + 0.4 * draw[3], 0.75 + 0.5 * draw[4])
    return band_gain(sample, spec, keys.generator(key, "bands"))


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


def then(first: Transform | None, second: Transform) -> Transform:
    """Return a transform that applies a user's function after another, its draws from global generators keyed."""
    return partial(_then, first, second)


def _then(first: Transform | None, second: Transform, sample: dict, key: int) -> dict:
    sample = first(sample, key) if first else sample
    if not key:
        return sample
    with keys.scope(key, "user"):
        return second(sample, key)


def window(size: tuple[int, int], wanted: tuple[int, int], draw: list[float] | None) -> tuple[int, int, int, int]:
    """Return the (top, left, height, width) of a crop.

    Args:
        size: (H, W) of the chip.
        wanted: (H, W) of the crop; where the chip is smaller its own size.
        draw: two numbers in [0, 1), where the crop lies; None takes the centre.
    """
    height, width = min(size[0], wanted[0]), min(size[1], wanted[1])
    down, right = draw or (0.5, 0.5)
    return int(down * (size[0] - height + 1)), int(right * (size[1] - width + 1)), height, width


def crop(sample: dict, top: int, left: int, height: int, width: int) -> dict:
    """Cut a window out of a sample. Instances that vanish go with box and label; the others get new tight boxes."""
    if sample["image"].shape[-2:] == (height, width):
        return sample
    moved = {k: sample[k][..., top : top + height, left : left + width] for k in SPATIAL if k in sample}
    sample = {**sample, **moved}
    if "masks" in sample:
        kept = sample["masks"].flatten(1).any(1)
        masks = sample["masks"][kept]
        sample |= {"masks": masks, "labels": sample["labels"][kept], "boxes": tight_boxes(masks)}
    return sample


def tight_boxes(masks: Tensor) -> Tensor:
    """Return the boxes float32 [N, 4] around masks bool [N, H, W], none of which is empty; x2 and y2 lie outside."""
    if not len(masks):
        return torch.zeros((0, 4), dtype=torch.float32)

    def ends(line: Tensor) -> tuple[Tensor, Tensor]:
        line = line.to(torch.uint8)
        return line.argmax(1), line.shape[1] - line.flip(1).argmax(1)

    (x1, x2), (y1, y2) = ends(masks.any(1)), ends(masks.any(2))
    return torch.stack([x1, y1, x2, y2], 1).to(torch.float32)


def dihedral(sample: dict, which: int) -> dict:
    """Turn and mirror a sample.

    Args:
        sample: with an image of any size.
        which: 0 to 7: 1 mirrors left and right, 2 up and down, 4 swaps rows and columns first; their sums do both. The
            swap is left out where the sample is not square, so that sizes stay as the index says.
    """
    height, width = sample["image"].shape[-2:]
    across, down, swap = which & 1, which & 2, which & 4 and height == width
    flips = [dim for dim, do in ((-1, across), (-2, down)) if do]

    def move(x: Tensor) -> Tensor:
        x = x.mT if swap else x
        return x.flip(flips) if flips else x

    sample = {**sample, **{key: move(sample[key]) for key in SPATIAL if key in sample}}
    if "boxes" in sample:
        x1, y1, x2, y2 = sample["boxes"].unbind(1)
        if swap:
            x1, y1, x2, y2 = y1, x1, y2, x2
        if across:
            x1, x2 = width - x2, width - x1
        if down:
            y1, y2 = height - y2, height - y1
        sample["boxes"] = torch.stack([x1, y1, x2, y2], 1)
    return sample


def brightness_contrast(sample: dict, brightness: float, contrast: float) -> dict:
    """Multiply an 8-bit RGB image by a brightness, then spread it around its mean by a contrast; it stays in [0, 1]."""
    image = sample["image"]
    middle = image.mean() * brightness
    # (image * brightness - middle) * contrast + middle, in one pass
    image = torch.add(middle * (1 - contrast), image, alpha=brightness * contrast).clamp_(0, 1)
    return {**sample, "image": blank(image, sample)}


def band_gain(sample: dict, spec: DataSpec, generator: torch.Generator) -> dict:
    """Multiply each band by its own gain (0.9 to 1.1) and shift it by up to 0.1 of its standard deviation."""
    gain, shift = torch.rand((2, len(spec.bands), 1, 1), generator=generator)
    shift = (shift - 0.5) * 0.2 * torch.tensor(spec.std, dtype=torch.float32)[:, None, None]
    return {**sample, "image": blank(sample["image"] * (0.9 + 0.2 * gain) + shift, sample)}


def blank(image: Tensor, sample: dict) -> Tensor:
    """Set an image to 0 where the sample has no data."""
    return image.masked_fill_(sample["missing"], 0) if "missing" in sample else image
