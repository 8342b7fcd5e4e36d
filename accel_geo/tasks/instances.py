"""Instance segmentation: a box, a class and a mask for every object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from accel_geo.tasks import coco
from accel_geo.tasks.base import Metrics, array
from accel_geo.tasks.detection import Detection

if TYPE_CHECKING:
    from accel_geo.data.spec import DataSpec


class Instances(Detection):
    """COCO's average precision of masks, as `Detection` names it, and of boxes (`box_…`)."""

    name = "instances"
    kind = "segm"
    columns = {"ap": "AP", "ap50": "AP50", "ap75": "AP75", "box_ap50": "box AP50", "support": "objects"}
    totals = {"ap": "map", "ap50": "map50", "ap75": "map75", "box_ap50": "box_map50"}

    def objects(self, spec: DataSpec, labels: dict, chosen: Sequence[int], size: tuple[int, int]) -> list[dict]:
        """Return the chosen objects with their masks as run lengths; see `Detection.objects`."""
        h, w = size
        masks = array(labels["masks"])
        things = super().objects(spec, labels, chosen, size)
        return [thing | {"segmentation": coco.encode_mask(masks[i, :h, :w])} for thing, i in zip(things, chosen)]

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return the average precisions of masks and boxes; None where no chip has truth for it."""
        records = list(records)
        boxes = self.precisions(spec, records, "bbox", coco.AREAS[:1])
        labels = range(1, len(spec.classes) + 1)
        return super().metrics(spec, records) | {
            "box_map": coco.mean_precision(boxes),
            "box_map50": coco.mean_precision(boxes, iou=0.5),
            "box_map75": coco.mean_precision(boxes, iou=0.75),
            "box_ap50": [coco.mean_precision(boxes, iou=0.5, label=label) for label in labels],
        }
