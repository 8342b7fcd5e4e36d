"""Object detection: a box and a class for every object, from boxes, or around object rasters and shapes."""

from collections.abc import Mapping

import numpy as np
import torch

from accel_geo.data.labels.compact import Label, Place, tight_objects
from accel_geo.data.spec import DataSpec


def decode(row: dict, place: Place) -> Label:
    """Read the boxes, cut at the edge of the chip; those without area, or with their ends swapped, are dropped."""
    if row["boxes"] or not (row["segments"] or row["label_files"]):
        boxes = np.asarray(row["boxes"], dtype=np.float64).reshape(-1, 4)
        values = np.asarray(row["values"], dtype=np.int64)
        (height, width), (h, w) = place.source, place.size
        boxes = boxes.clip(0, [width, height, width, height]) * [w / width, h / height, w / width, h / height]
        boxes = boxes.astype(np.float32)  # as they are served, so that none loses its area later
        kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        values, boxes, dropped = values[kept].tolist(), boxes[kept].ravel().tolist(), int((~kept).sum())
    else:
        found = list(tight_objects(row, place))
        values = [value for value, mask, _, _ in found if mask is not None]
        boxes = [n for _, mask, x, y in found if mask is not None for n in (x, y, x + mask.shape[1], y + mask.shape[0])]
        dropped = len(found) - len(values)
    return Label(values, [1] * len(values), boxes, dropped=dropped)


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `boxes` and `labels` of the objects whose class is kept."""
    labels = torch.tensor([index_of[value] for value in label.values], dtype=torch.int64)
    boxes = torch.tensor(np.asarray(label.boxes, dtype=np.float32)).reshape(-1, 4)
    return sample | {"boxes": boxes[labels > 0], "labels": labels[labels > 0]}


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return no objects."""
    return {"boxes": torch.zeros((0, 4)), "labels": torch.zeros(0, dtype=torch.int64)}
