"""Object detection: a box and a class for every object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from accel_geo.tasks import coco
from accel_geo.tasks.base import Metrics, Task, array, check_labels, counted, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accel_geo.data.spec import DataSpec

RANGES = {
    "small": "all below 32² px",
    "medium": "all of 32² to 96² px",
    "large": "all above 96² px",
}  # areas of objects
DRAWN_SCORE = 0.5  # detections below it clutter a picture


class Detection(Task):
    """COCO's average precision of boxes.

    `map` is the mean over IoU thresholds 0.50:0.95 and classes with truth, `map50` (the monitor) and `map75` at one
    threshold, `map_small`, `map_medium`, `map_large` by area of the object; `ap`, `ap50` and `ap75` per class.

    Attributes:
        kind: what `map` and `ap` compare: "bbox" or "segm".
    """

    name = "detection"
    monitor = "map50"
    kind = "bbox"
    columns = {"ap": "AP", "ap50": "AP50", "ap75": "AP75", "support": "objects"}
    totals = {"ap": "map", "ap50": "map50", "ap75": "map75"}

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds the best 100 `detections` by falling score, equal scores in the order of the network;
        `truth` the `size` of the chip and its `objects`. Boxes and masks are cut at the edge of the valid part;
        detections outside it, or with a box or score that is not finite, are no detections.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "prediction": {"detections": []}, "truth": None}
        if target["ignore"]:
            return record
        for what, labels in (("prediction", prediction), ("truth", target)):
            check_labels(file, what, array(labels["labels"]), 1, len(spec.classes))
        size = h, w = tuple(int(n) for n in target["size"])
        boxes, scores = array(prediction["boxes"]).astype(np.float64).reshape(-1, 4), array(prediction["scores"])
        kept = np.isfinite(boxes).all(1) & np.isfinite(scores)
        boxes = np.clip(np.nan_to_num(boxes), 0, [w, h, w, h])
        kept &= (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        order = [i for i in np.argsort(-np.nan_to_num(scores), kind="stable") if kept[i]][: coco.MAX_DETECTIONS]
        found = self.objects(spec, prediction | {"boxes": boxes}, order, size)
        record["prediction"]["detections"] = [
            {"label": thing["label"], "score": float(scores[i]), **thing} for i, thing in zip(order, found)
        ]
        objects = self.objects(spec, target, range(len(target["boxes"])), size)
        for thing in objects:
            thing["area"] = coco.areas([thing], self.kind)[0]
        record["truth"] = {"size": list(size), "objects": objects}
        return record

    def objects(self, spec: DataSpec, labels: dict, chosen: Sequence[int], size: tuple[int, int]) -> list[dict]:
        """Return the chosen objects of a target or prediction as JSON values: class value and box [x, y, w, h].

        Args:
            spec: of the data.
            labels: target or prediction.
            chosen: which objects, in which order.
            size: (H, W) of the part of the chip that is no padding.
        """
        numbers, bbox = array(labels["labels"]), coco.boxes_to_xywh(array(labels["boxes"]))
        return [{"label": spec.class_values[int(numbers[i]) - 1], "bbox": bbox[i]} for i in chosen]

    def precisions(
        self, spec: DataSpec, records: Iterable[dict], kind: str, ranges: Sequence[str] = coco.AREAS
    ) -> np.ndarray:
        """Return the precisions [10 IoU thresholds, 101 recalls, K, areas] of "bbox" or "segm" over all records."""
        records = counted(records)
        sizes = [record["truth"]["size"] for record in records]
        truths = [record["truth"]["objects"] for record in records]
        found = [record["prediction"]["detections"] for record in records]
        return coco.precisions(sizes, truths, found, spec.class_values, kind, ranges)

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return the average precisions; None where no chip has truth for it."""
        records = counted(records)
        values = self.precisions(spec, records, self.kind)
        labels = range(1, len(spec.classes) + 1)
        objects = Counter(thing["label"] for record in records for thing in record["truth"]["objects"])
        return {
            "map": coco.mean_precision(values),
            "map50": coco.mean_precision(values, iou=0.5),
            "map75": coco.mean_precision(values, iou=0.75),
            **{f"map_{area}": coco.mean_precision(values, area=area) for area in coco.AREAS[1:]},
            "ap": [coco.mean_precision(values, label=label) for label in labels],
            "ap50": [coco.mean_precision(values, iou=0.5, label=label) for label in labels],
            "ap75": [coco.mean_precision(values, iou=0.75, label=label) for label in labels],
            "support": [objects[value] for value in spec.class_values],
        }

    def extra_rows(self, metrics: Metrics) -> list[list[str]]:
        """Return a row for each range of areas that any object lies in."""
        found = {text: metrics[f"map_{area}"] for area, text in RANGES.items()}
        blank = [""] * (len(self.columns) - 1)
        return [[text, show(value), *blank] for text, value in found.items() if value is not None]

    def charts(self, spec: DataSpec, records: Iterable[dict]) -> list[tuple[str, bytes]]:
        """Return the curves of precision over recall of each class with truth, at an IoU of 0.5."""
        from accel_geo.report.charts import precision_recall
        from accel_geo.report.pictures import to_png

        values = self.precisions(spec, records, self.kind, coco.AREAS[:1])[0, :, :, 0]
        recalls = np.linspace(0, 1, len(values))
        lines = [(name, recalls, values[:, i]) for i, name in enumerate(spec.classes) if (values[:, i] > -1).all()]
        return [("Precision and recall at an IoU of 0.5", to_png(precision_recall(lines)))] if lines else []

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Draw the objects in the colours of their classes; detections from a score of 0.5."""
        from accel_geo.report import pictures

        scores = array(labels["scores"]) if "scores" in labels else None
        shown = np.arange(len(labels["labels"])) if scores is None else np.flatnonzero(scores >= DRAWN_SCORE)
        pictures.show_instances(
            axes,
            pictures.stretch(array(image), spec.bands),
            boxes=array(labels["boxes"])[shown],
            labels=array(labels["labels"])[shown],
            masks=array(labels["masks"])[shown] if "masks" in labels else None,
            scores=None if scores is None else scores[shown],
            names=spec.classes,
        )
        objects = f"{len(shown)} object" + "s" * (len(shown) != 1)
        return f"{kind}: {objects}" + (f" of a score ≥ {DRAWN_SCORE}" if scores is not None else "")
