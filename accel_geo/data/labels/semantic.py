"""Semantic segmentation: a class for every pixel, from class rasters, shapes or object rasters."""

from collections.abc import Mapping

import numpy as np
import torch

from accel_geo.data.labels.compact import Label, Place, class_pixels, label_name, pack_pixels, unpack_pixels
from accel_geo.data.spec import IGNORED, DataSpec


def decode(row: dict, place: Place) -> Label:
    """Read the class of each pixel."""
    return pack_pixels(class_pixels(row, place), label_name(row))


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `mask`."""
    mask = unpack_pixels(label, sample["image"].shape[-2:], index_of)
    return sample | {"mask": torch.from_numpy(mask.astype(np.int64))}


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return a mask that is ignored everywhere."""
    return {"mask": torch.full(size, IGNORED, dtype=torch.int64)}
