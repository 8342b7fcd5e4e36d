"""Edge detection: lines of class rasters, or the outlines of areas, shapes and objects; lines are drawn as they are."""

import json
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from scipy.ndimage import binary_erosion, maximum_filter, minimum_filter

from accel_geo.data.labels.compact import (
    BACKGROUND,
    INSIDE,
    NO_DATA,
    Label,
    Place,
    class_pixels,
    class_raster,
    label_name,
    objects,
    pack_pixels,
    unpack_pixels,
)
from accel_geo.data.pixels import nearest_index
from accel_geo.data.shapes import outlines
from accel_geo.data.spec import IGNORED, DataSpec


def decode(row: dict, place: Place) -> Label:
    """Read which pixels are edges; the value of a pixel is that of the class whose edge it is."""
    if not row["values"]:
        mask = class_pixels(row, place._replace(size=place.source, ignored=None))
        mask = area_outlines(mask) if place.filled else mask
    elif row["segments"]:
        mask = np.full(place.source, BACKGROUND)
        for value in sorted(set(row["values"])):
            shapes = [json.loads(shape) for shape, v in zip(row["segments"], row["values"]) if v == value]
            mask[outlines(shapes, place.source)] = value
    else:
        mask = np.full(place.source, BACKGROUND)
        for value, region, left, top in objects(row, place):
            # What lies beyond the chip counts as inside: the edge of a chip is no outline.
            border = region & ~binary_erosion(region, np.ones((3, 3), dtype=bool), border_value=1)
            mask[top : top + region.shape[0], left : left + region.shape[1]][border] = value
    for axis in (0, 1):
        mask = _resized(mask, axis, place.size[axis])
    if place.ignored is not None:
        mask = np.where(place.ignored, NO_DATA, mask.astype(np.int64))
    return pack_pixels(mask, label_name(row))


def area_outlines(mask: np.ndarray) -> np.ndarray:
    """Return class values [H, W] of areas as those of their outlines, one pixel wide, on the inner side.

    Neither the chip's border nor pixels without data (of negative value) bound an area.

    Returns:
        int64 [H, W]: the value where another value lies beside, in eight directions; INSIDE plus the value elsewhere in
        an area, so that areas that are ignored stay so; background and negative values as they were.
    """
    mask = mask.astype(np.int64)
    known = mask >= 0
    low = minimum_filter(np.where(known, mask, -INSIDE), 3, mode="nearest")
    high = maximum_filter(np.where(known, mask, -1), 3, mode="nearest")
    return np.where((mask > 0) & (low == high), INSIDE + mask, mask)


def hold_areas(rows: Iterable[dict], place: Place) -> bool:
    """Say whether the class rasters of rows hold filled areas, not lines.

    Of lines up to 5 pixels wide at most a fifth of the pixels, and a few at crossings, have nothing but labelled pixels
    in the 5 x 5 around them; of areas wider than 8 pixels in both directions more than a quarter. A quarter is the limit,
    over all rows together. Rasters that cannot be read do not count.
    """
    inner = labelled = 0
    for row in rows:
        if row["values"] or not row["label_files"]:
            continue
        try:
            mask = class_raster(place, row["label_files"][0])
        except ValueError:
            continue  # the decoder will name it
        inner += np.count_nonzero(binary_erosion(mask > 0, np.ones((5, 5), dtype=bool)))
        labelled += np.count_nonzero(mask > 0)
    return bool(inner > labelled / 4)


def _resized(mask: np.ndarray, axis: int, new: int) -> np.ndarray:
    # Where lines shrink, a pixel is an edge if any that it stands for is one: the nearest would leave dashes of them.
    old = mask.shape[axis]
    if new < old:
        return np.maximum.reduceat(mask, np.arange(new) * old // new, axis)
    return mask if new == old else np.take(mask, nearest_index(old, new), axis)


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `edges`: 1 where there is an edge of any class that is kept."""
    indexes = unpack_pixels(label, sample["image"].shape[-2:], index_of)
    return sample | {"edges": torch.from_numpy(np.where(indexes == IGNORED, IGNORED, indexes > 0).astype(np.uint8))}


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return edges that are ignored everywhere."""
    return {"edges": torch.full(size, IGNORED, dtype=torch.uint8)}
