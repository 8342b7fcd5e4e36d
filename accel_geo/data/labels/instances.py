"""Instance segmentation: a box, a class and a mask for every object, from object rasters or shapes."""

from collections.abc import Mapping

import numpy as np
import torch

from accel_geo.data.labels.compact import Label, Place, tight_objects
from accel_geo.data.spec import DataSpec


def decode(row: dict, place: Place) -> Label:
    """Read the objects: the bits of each within its box, one after the other, each beginning at a byte."""
    values, counts, boxes, data, dropped = [], [], [], [], 0
    for value, mask, left, top in tight_objects(row, place):
        if mask is None:
            dropped += 1
            continue
        values.append(value)
        counts.append(int(mask.sum()))
        boxes += [left, top, left + mask.shape[1], top + mask.shape[0]]
        data.append(np.packbits(mask).tobytes())
    return Label(values, counts, boxes, b"".join(data), dropped=dropped)


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `boxes`, `labels` and `masks` of the objects whose class is kept."""
    labels = np.array([index_of[value] for value in label.values], dtype=np.int64)
    boxes = np.asarray(label.boxes).reshape(-1, 4).astype(np.int64)
    masks = np.zeros((np.count_nonzero(labels), *sample["image"].shape[-2:]), dtype=bool)
    data, start, n = np.frombuffer(label.data, dtype=np.uint8), 0, 0
    for index, (x1, y1, x2, y2) in zip(labels, boxes.tolist()):
        pixels = (y2 - y1) * (x2 - x1)
        stop = start + (pixels + 7) // 8
        if index:
            bits = np.unpackbits(data[start:stop], count=pixels)
            masks[n, y1:y2, x1:x2] = bits.reshape(y2 - y1, x2 - x1).view(bool)
            n += 1
        start = stop
    kept = labels > 0
    arrays = {"boxes": boxes[kept].astype(np.float32), "labels": labels[kept], "masks": masks}
    return sample | {name: torch.from_numpy(values) for name, values in arrays.items()}


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return no objects."""
    none = {"boxes": torch.zeros((0, 4)), "labels": torch.zeros(0, dtype=torch.int64)}
    return none | {"masks": torch.zeros((0, *size), dtype=torch.bool)}
