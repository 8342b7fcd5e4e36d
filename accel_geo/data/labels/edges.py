"""Edge detection: from binary rasters, or the outlines of shapes and objects; lines are drawn as they are."""

import json
from collections.abc import Mapping

import numpy as np
import torch
from scipy.ndimage import binary_erosion

from accel_geo.data.labels.compact import (
    BACKGROUND,
    NO_DATA,
    Label,
    Place,
    class_pixels,
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
