"""Instance segmentation: a box, a class and a mask for every object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from accel_geo.tasks import coco
from accel_geo.tasks.base import Metrics, Task, array, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accel_geo.data.spec import DataSpec

DRAWN_SCORE = 0.5  # detections below it clutter a picture


class Instances(Task):
    """COCO's average precision of masks, and of boxes (`box_…`).

    `map` is the mean over IoU thresholds 0.50:0.95 and classes with truth, `map50` (the monitor) and `map75` at one
    threshold, `map_small`, `map_medium`, `map_large` by area of the object; `ap`, `ap50`, `box_ap50` per class.
    """

    name = "instances"
    monitor = "map50"
    columns = {"ap": "AP", "ap50": "AP50", "box_ap50": "box AP50", "support": "objects"}
    totals = {"ap": "map", "ap50": "map50", "box_ap50": "box_map50"}

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds the best 100 `detections` by falling score, equal scores in the order of the network;
        `truth` the `size` of the chip and its `objects`. Boxes and masks are cut at the edge of the valid part;
        detections outside it, or with a box or score that is not finite, are no detections.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "prediction": {"detections": []}, "truth": None}
        if target["ignore"]:
            return record
        size = h, w = tuple(int(n) for n in target["size"])
        boxes, scores = array(prediction["boxes"]).astype(np.float64).reshape(-1, 4), array(prediction["scores"])
        kept = np.isfinite(boxes).all(1) & np.isfinite(scores)
        boxes = np.clip(np.nan_to_num(boxes), 0, [w, h, w, h])
        kept &= (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        order = [i for i in np.argsort(-np.nan_to_num(scores), kind="stable") if kept[i]][: coco.MAX_DETECTIONS]
        found = self._objects(spec, boxes, prediction["labels"], prediction["masks"], order, size)
        record["prediction"]["detections"] = [
            {"label": thing["label"], "score": float(scores[i]), **thing} for i, thing in zip(order, found)
        ]
        boxes = array(target["boxes"]).astype(np.float64).reshape(-1, 4)
        objects = self._objects(spec, boxes, target["labels"], target["masks"], range(len(boxes)), size)
        for thing in objects:
            thing["area"] = coco.mask_area(thing["segmentation"])
        record["truth"] = {"size": list(size), "objects": objects}
        return record

    @staticmethod
    def _objects(
        spec: DataSpec,
        boxes: np.ndarray,
        labels: Tensor | np.ndarray,
        masks: Tensor | np.ndarray,
        order: Iterable[int],
        size: tuple[int, int],
    ) -> list[dict]:
        labels, bbox = array(labels), coco.boxes_to_xywh(boxes)
        return [
            {
                "label": spec.class_values[int(labels[i]) - 1],
                "bbox": bbox[i],
                "segmentation": coco.encode_mask(array(masks[i])[: size[0], : size[1]]),
            }
            for i in order
        ]

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return the average precisions of masks and boxes; None where no chip has truth for it."""
        records = counted(records)
        index = {value: i for i, value in enumerate(spec.class_values, start=1)}
        labels = range(1, len(index) + 1)

        def numbered(objects: list[dict]) -> list[dict]:
            return [thing | {"label": index[thing["label"]]} for thing in objects]

        sizes = [record["truth"]["size"] for record in records]
        truths = [numbered(record["truth"]["objects"]) for record in records]
        found = [numbered(record["prediction"]["detections"]) for record in records]
        masks, boxes = (coco.precisions(sizes, truths, found, len(index), kind) for kind in ("segm", "bbox"))
        support = [sum(thing["label"] == label for chip in truths for thing in chip) for label in labels]
        return {
            "map": coco.mean_precision(masks),
            "map50": coco.mean_precision(masks, iou=0.5),
            "map75": coco.mean_precision(masks, iou=0.75),
            **{f"map_{area}": coco.mean_precision(masks, area=area) for area in coco.AREAS[1:]},
            "box_map": coco.mean_precision(boxes),
            "box_map50": coco.mean_precision(boxes, iou=0.5),
            "ap": [coco.mean_precision(masks, label=label) for label in labels],
            "ap50": [coco.mean_precision(masks, iou=0.5, label=label) for label in labels],
            "box_ap50": [coco.mean_precision(boxes, iou=0.5, label=label) for label in labels],
            "support": support,
        }

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Outline the objects in the colours of their classes; detections from a score of 0.5."""
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
