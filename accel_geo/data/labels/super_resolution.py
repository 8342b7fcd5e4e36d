"""Super-resolution: the sharp image of the same ground, from a pair of rasters, or the chip itself made coarser.

The coarse image is an area mean of `scale` x `scale` pixels: what a sensor of larger pixels sees. Where a pair has two
rasters of one size, the coarse one was enlarged before, and is brought back the same way. Pixels at the right and lower
edge that fill no coarse pixel are left out.
"""

import io
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from accel_geo.data.labels.compact import Label, Place
from accel_geo.data.pixels import read_error, read_pixels, resize_pixels
from accel_geo.data.spec import DataSpec

Size = tuple[int, int]


def decode(row: dict, place: Place) -> Label:
    """Read the sharp raster of a pair: its pixels [C, H, W] as .npy, then the bits of those that are missing, if any.

    Raises:
        ValueError: it cannot be read, or it is neither as large as the coarse one nor as many times finer as all others.
    """
    if not row["label_files"]:
        return Label([], [])
    name = row["label_files"][0]
    try:
        sharp = read_pixels(place.root / name, place.bands)
    except Exception as error:  # any driver error: the caller keeps the chip's place and names the file
        raise ValueError(f"label {name}: {read_error(place.root / name, error)}") from error
    height, width = sharp.values.shape[1:]
    times = height // place.source[0]
    if times not in (1, place.scale) or (height, width) != (times * place.source[0], times * place.source[1]):
        finer = f", or {place.scale} times finer as that of the first chip" if place.scale else ""
        raise ValueError(
            f"{name} has {(height, width)} pixels (height, width), the coarse chip {place.source}: the sharp raster must "
            f"be as large{finer}"
        )
    if place.size != place.source:
        sharp = resize_pixels(sharp, (times * place.size[0], times * place.size[1]))
    stream = io.BytesIO()
    np.save(stream, sharp.values, allow_pickle=False)
    if sharp.missing is not None:
        stream.write(np.packbits(sharp.missing).tobytes())
    return Label([], [], data=stream.getvalue(), shape=list(sharp.values.shape))


def sharp_pixels(label: Label) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the sharp raster of a pair [C, H, W] and what is missing of it, bool [C, H, W] or None."""
    stream = io.BytesIO(label.data)
    values = np.load(stream, allow_pickle=False)
    bits = np.frombuffer(stream.read(), dtype=np.uint8)
    return values, np.unpackbits(bits, count=values.size).reshape(values.shape).view(bool) if len(bits) else None


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `image_hr` and `ignored_hr`; `image` becomes the coarse one."""
    sample, scale = dict(sample), spec.scale
    missing = sample.pop("missing", None)
    if label.shape:
        values, hidden = sharp_pixels(label)
        sharp = torch.from_numpy(spec.scaled(values, hidden))
        ignored = torch.zeros(sharp.shape[-2:], dtype=torch.bool)
        ignored |= torch.from_numpy(hidden).any(0) if hidden is not None else False
    else:
        sharp = sample["image"]
        ignored = torch.zeros(sharp.shape[-2:], dtype=torch.bool) if missing is None else missing.any(0)
    pair_sizes_differ = label.shape and label.shape[1] > sample["image"].shape[1]
    coarse = sample["image"] if pair_sizes_differ else coarser(sample["image"], scale)
    height, width = (min(a, b // scale) for a, b in zip(coarse.shape[-2:], sharp.shape[-2:]))
    sample["image"] = coarse[:, :height, :width]
    cut = (..., slice(height * scale), slice(width * scale))
    return sample | {"image_hr": sharp[cut], "ignored_hr": ignored[cut]}


def coarser(image: Tensor, scale: int) -> Tensor:
    """Return the area mean [C, H // scale, W // scale] of an image [C, H, W]."""
    return image if scale == 1 else avg_pool2d(image[None], scale)[0]


def sample_sizes(sizes: Sequence[Size], shapes: Sequence[Sequence[int]], spec: DataSpec) -> list[Size]:
    """Return the (H, W) of each coarse image, from those of the chips on disk and of their sharp rasters."""
    scale = spec.scale
    return [
        (h, w) if shape and shape[1] > h else (h // scale, w // scale)
        for (h, w), shape in zip(sizes, map(list, shapes))
    ]


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return a sharp image of which nothing counts; `size` is that of the coarse one."""
    sharp = (spec.scale * size[0], spec.scale * size[1])
    return {"image_hr": torch.zeros((len(spec.bands), *sharp)), "ignored_hr": torch.ones(sharp, dtype=torch.bool)}
