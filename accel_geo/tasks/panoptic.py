"""Panoptic segmentation: every pixel belongs to one segment, an object of a thing class or a region of stuff."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage
from torch import Tensor

from accel_geo.tasks.base import Metrics, Task, array, check_labels, counted, mean, ratio, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accel_geo.data.spec import DataSpec


class Panoptic(Task):
    """Panoptic quality (Kirillov et al. 2019), counted as panopticapi does.

    Segments of one class match where their IoU is above 0.5. For a class `pq` is the sum of the matched IoUs over
    TP + FP / 2 + FN / 2, `sq` the mean matched IoU (0 where nothing matches) and `rq` TP over the same: pq = sq rq. The
    scalars `pq` (the monitor), `sq`, `rq` are means over the classes that occur in truth or prediction, `…_things` and
    `…_stuff` those over one kind; `class_pq`, `class_sq`, `class_rq` per class.

    Unlabelled pixels of the truth count for no prediction. Crowds are neither found nor missed. A predicted segment more
    than half of which lies on unlabelled pixels and crowds of its class is no false positive.
    """

    name = "panoptic"
    monitor = "pq"
    columns = {"class_pq": "PQ", "class_sq": "SQ", "class_rq": "RQ", "support": "segments"}
    totals = {"class_pq": "pq", "class_sq": "sq", "class_rq": "rq"}

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds the `segments` that have pixels outside the padding: `id`, `label` (class value), `isthing`,
        `score` where the network gives one, `area` in pixels and `bbox` [x, y, w, h], by rising id. `truth` holds
        `classes` as [label 1..K, matched IoUs, false positives, false negatives] of those that occur. Ids in the image
        that are not listed are unlabelled.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "prediction": {"segments": []}, "truth": None}
        if target["ignore"]:
            return record
        for what, labels in (("prediction", prediction), ("truth", target)):
            check_labels(file, what, np.array([s["label"] for s in labels["segments"]]), 1, len(spec.classes))
        true, truth = _numbered(target, target["size"])
        found, predicted = _numbered(prediction, target["size"])
        boxes = ndimage.find_objects(found, max_label=len(predicted))
        areas = np.bincount(found.ravel(), minlength=len(predicted) + 1)[1:]
        record["prediction"]["segments"] = [
            _entry(spec, segment, int(area), box) for segment, area, box in zip(predicted, areas, boxes)
        ]
        record["truth"] = {"classes": matches(true, truth, found, predicted)}
        return record

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return the qualities over all classes, things and stuff, and per class; None for classes that do not occur."""
        ious: list[list[float]] = [[] for _ in spec.classes]
        wrong, missed = ([0] * len(spec.classes) for _ in range(2))
        for record in counted(records):
            for label, matched, false_positives, false_negatives in record["truth"]["classes"]:
                ious[label - 1] += matched
                wrong[label - 1] += false_positives
                missed[label - 1] += false_negatives
        total = [math.fsum(matched) for matched in ious]
        weight = [len(m) + (fp + fn) / 2 for m, fp, fn in zip(ious, wrong, missed)]
        values = {
            "pq": [ratio(t, w) for t, w in zip(total, weight)],
            "sq": [(ratio(t, len(m)) or 0.0) if w else None for t, m, w in zip(total, ious, weight)],
            "rq": [ratio(len(m), w) for m, w in zip(ious, weight)],
        }
        kinds = {"_things": True, "_stuff": False}
        return {
            **{key: mean(per_class) for key, per_class in values.items()},
            **{
                key + suffix: mean(value for value, thing in zip(per_class, spec.isthing) if thing == wanted)
                for suffix, wanted in kinds.items()
                for key, per_class in values.items()
            },
            **{f"class_{key}": per_class for key, per_class in values.items()},
            "support": [len(m) + fn for m, fn in zip(ious, missed)],
        }

    def extra_rows(self, metrics: Metrics) -> list[list[str]]:
        """Return the rows of things and stuff."""
        return [
            [f"all {kind}", *(show(metrics[f"{key}_{kind}"]) for key in ("pq", "sq", "rq")), ""]
            for kind in ("things", "stuff")
        ]

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Fill the segments in the colours of their classes, objects in different shades, with borders."""
        from accel_geo.report import pictures

        segments = labels["segments"]
        pictures.show_segments(
            axes,
            pictures.stretch(array(image), spec.bands),
            array(labels["segment_ids"]),
            segments,
            pictures.colours(len(spec.classes)),
        )
        return f"{kind}: {len(segments)} segment" + "s" * (len(segments) != 1)


def _numbered(labels: dict, size: tuple[int, int]) -> tuple[np.ndarray, list[dict]]:
    """Return the image of ids cut to `size` and its segments that have pixels there, renumbered to 1, 2, … by id."""
    h, w = size
    ids, place = np.unique(array(labels["segment_ids"])[:h, :w], return_inverse=True)
    listed = {int(segment["id"]): segment for segment in labels["segments"]}
    known = np.array([i != 0 and int(i) in listed for i in ids], dtype=bool)
    numbers = np.where(known, known.cumsum(), 0)
    return numbers[place].reshape(h, w), [listed[int(i)] for i in ids[known]]


def _entry(spec: DataSpec, segment: dict, area: int, box: tuple[slice, slice]) -> dict:
    rows, columns = box
    entry = {"id": int(segment["id"]), "label": spec.class_values[int(segment["label"]) - 1]}
    entry["isthing"] = bool(segment["isthing"])
    if "score" in segment:
        score = float(segment["score"])
        entry["score"] = score if math.isfinite(score) else None
    bbox = [columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start]
    return entry | {"area": area, "bbox": bbox}


def matches(
    true: np.ndarray, truth: Sequence[dict], found: np.ndarray, predicted: Sequence[dict]
) -> list[list[int | list[float]]]:
    """Match the segments of one chip.

    Args:
        true: [H, W] numbers of the segments of the truth from 1; 0 is unlabelled.
        truth: these segments: `label` 1..K and `iscrowd`.
        found: [H, W] numbers of predicted segments from 1; 0 is nothing.
        predicted: these segments: `label`.

    Returns:
        For each label that occurs [label, matched IoUs, false positives, false negatives], by rising label.
    """
    n, m = len(truth) + 1, len(predicted) + 1
    overlap = np.bincount(true.ravel().astype(np.int64) * m + found.ravel(), minlength=n * m).reshape(n, m)
    label = np.array([0, *(s["label"] for s in truth)])
    crowd = np.array([False, *(bool(s.get("iscrowd")) for s in truth)])
    guess = np.array([0, *(s["label"] for s in predicted)])
    same = (label[:, None] == guess[None]) & (label[:, None] > 0)
    union = overlap.sum(1)[:, None] + (overlap.sum(0) - overlap[0])[None] - overlap
    # No two of either side overlap, so that an IoU above 0.5 matches one to one.
    matched = same & ~crowd[:, None] & (2 * overlap > union)
    # Pixels that say nothing for or against a predicted segment
    void = overlap[0] + np.where(same & crowd[:, None], overlap, 0).sum(0)
    wrong = ~matched.any(0) & (2 * void <= overlap.sum(0)) & (guess > 0)
    missed = ~matched.any(1) & ~crowd & (label > 0)
    out = []
    for k in sorted(set(label[~crowd & (label > 0)].tolist()) | set(guess[guess > 0].tolist())):
        rows, columns = np.nonzero(matched & (label == k)[:, None])
        ious = overlap[rows, columns] / union[rows, columns]
        out.append([k, ious.tolist(), int((wrong & (guess == k)).sum()), int((missed & (label == k)).sum())])
    return [entry for entry in out if entry[1] or entry[2] or entry[3]]
