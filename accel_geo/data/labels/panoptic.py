"""Panoptic segmentation: every pixel belongs to one segment, an object of a thing class or a region of stuff.

Pixels of a thing class that belong to no object are one crowd segment of that class: the class is known there, the
objects are not told apart, and nothing is counted right or wrong.
"""

import json
from collections.abc import Mapping

import numpy as np
import torch

from accel_geo.data.labels.compact import NO_DATA, Label, Place, class_raster, raster, resize_labels
from accel_geo.data.shapes import shape_mask
from accel_geo.data.spec import DataSpec

Segment = tuple[int, bool, np.ndarray, int, int]  # class value, crowd, mask of a window, left, top


def decode(row: dict, place: Place) -> Label:
    """Read the segments: for each pixel the position of its segment from 1, as uint16; 0 is unlabelled.

    Raises:
        ValueError: a chip has more than 65,535 segments.
    """
    ids = np.zeros(place.source, dtype=np.uint16)
    segments = _segments(row, place)
    if len(segments) > 65_535:
        raise ValueError(f"{row['file']} has {len(segments)} segments; at most 65,535 are possible")
    for number, (_, _, mask, left, top) in enumerate(segments, 1):
        ids[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = number
    if place.size != place.source:
        ids = resize_labels(ids, place.size)
    if place.ignored is not None:
        ids[place.ignored] = 0
    counts = np.bincount(ids.ravel(), minlength=len(segments) + 1)[1:]
    kept = counts.nonzero()[0]
    renumber = np.zeros(len(segments) + 1, dtype=np.uint16)
    renumber[kept + 1] = np.arange(1, len(kept) + 1)
    return Label(
        [segments[i][0] for i in kept],
        counts[kept].tolist(),
        data=renumber[ids].tobytes(),
        crowd=[n for n, i in enumerate(kept) if segments[i][1]],
        # Nothing is lost where objects cover all of a crowd's pixels.
        dropped=sum(not crowd for _, crowd, *_ in segments) - sum(not segments[i][1] for i in kept),
    )


def _segments(row: dict, place: Place) -> list[Segment]:
    # Later ones lie on top.
    if row["segment_ids"]:
        return _numbered(row, place)
    if row["segments"]:
        shapes = [(v, shape_mask(json.loads(s), place.source)) for s, v in zip(row["segments"], row["values"])]
        things = [(value, False, *shape) for value, shape in shapes if value in place.things]
        return _stuff([shape for shape in shapes if shape[0] not in place.things], place) + things
    files = row["label_files"]
    found: list[Segment] = []
    if files and files[0]:
        classes = class_raster(place, files[0])
        for value in np.unique(classes):
            if value not in (0, NO_DATA):
                found.append((int(value), int(value) in place.things, classes == value, 0, 0))
    for name, value in zip(files[1:], row["values"]):
        bands, nodata = raster(place, name)
        for band in bands:
            numbers = np.unique(band)
            for number in numbers[(numbers > 0) & (numbers != nodata)]:
                found.append((value, False, band == number, 0, 0))
    return found


def _stuff(shapes: list[tuple[int, tuple]], place: Place) -> list[Segment]:
    # All shapes of a stuff class are one segment.
    regions: dict[int, np.ndarray] = {}
    for value, (mask, left, top) in shapes:
        whole = regions.setdefault(value, np.zeros(place.source, dtype=bool))
        whole[top : top + mask.shape[0], left : left + mask.shape[1]] |= mask
    return [(value, False, whole, 0, 0) for value, whole in regions.items()]


def _numbered(row: dict, place: Place) -> list[Segment]:
    # COCO panoptic: one raster whose pixels are the segments' ids, as a number or spread over red, green and blue.
    bands, _ = raster(place, row["label_files"][0])
    ids = sum(band.astype(np.int64) << (8 * i) for i, band in enumerate(bands[:3]))
    unknown = set(np.unique(ids).tolist()) - {0, *row["segment_ids"]}
    if unknown:
        name = row["label_files"][0]
        raise ValueError(f"label {name} holds the segment id {min(unknown)}, which the annotation file does not list")
    crowds = set(row["crowd"])
    listed = enumerate(zip(row["values"], row["segment_ids"]))
    return [(value, i in crowds, ids == number, 0, 0) for i, (value, number) in listed]


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `segment_ids` and `segments`; segments of classes left out become unlabelled."""
    ids = np.frombuffer(label.data, dtype=np.uint16).reshape(sample["image"].shape[-2:]).astype(np.int64)
    indexes, crowds = [index_of[value] for value in label.values], set(label.crowd)
    segments = [
        {"id": i + 1, "label": index, "isthing": spec.isthing[index - 1], "iscrowd": i in crowds}
        for i, index in enumerate(indexes)
        if index
    ]
    if len(segments) < len(indexes):
        ids *= np.array([0, *(index > 0 for index in indexes)], dtype=np.int64)[ids]
    return sample | {"segment_ids": torch.from_numpy(ids), "segments": segments}


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return an unlabelled chip."""
    return {"segment_ids": torch.zeros(size, dtype=torch.int64), "segments": []}
