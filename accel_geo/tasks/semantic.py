"""Semantic segmentation: a class for every pixel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from accel_geo.data.spec import IGNORED
from accel_geo.tasks.base import Metrics, Task, array, check_labels, class_scores, counted, mean, ratio, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from accel_geo.data.spec import DataSpec


class Semantic(Task):
    """Metrics of pixels: sums of pixel counts over all chips, then one division.

    `miou`, the monitor, is the mean IoU over the background and all classes, `miou_no_background` over the classes
    alone; classes that occur neither in the truth nor in the prediction are left out of both. Where the data say
    `ignore_background`, pixels of background in the truth count nowhere and both means are over the classes.
    """

    name = "semantic"
    monitor = "miou"
    columns = {"iou": "IoU", "precision": "precision", "recall": "recall", "f1": "F1", "support": "pixels"}
    totals = {"iou": "miou", "precision": "precision_mean", "recall": "recall_mean", "f1": "f1_mean"}

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `truth` holds the confusion counts as sparse triples [truth, prediction, pixels] of labels 0..K, ignored pixels
        left out; `prediction` the predicted pixels of each class value over the whole chip without padding.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "prediction": {"pixels": {}}, "truth": None}
        if target["ignore"]:
            return record
        h, w = target["size"]
        predicted = array(prediction["mask"])[:h, :w].astype(np.int64)
        truth = array(target["mask"])[:h, :w].astype(np.int64)
        valid = truth != IGNORED
        labels = len(spec.classes) + 1
        check_labels(file, "prediction", predicted, 0, labels - 1)
        check_labels(file, "truth", truth[valid], 0, labels - 1, f" and {IGNORED} (ignored)")
        pixels: Counter = Counter()
        for label, count in zip(*np.unique(predicted, return_counts=True)):
            pixels[str((0, *spec.class_values)[label])] += int(count)
        counts = np.bincount(truth[valid] * labels + predicted[valid], minlength=labels**2)
        cells = np.flatnonzero(counts)
        record["prediction"]["pixels"] = dict(pixels)
        record["truth"] = {"confusion": [[int(c // labels), int(c % labels), int(counts[c])] for c in cells]}
        return record

    def confusion(self, spec: DataSpec, records: Iterable[dict]) -> np.ndarray:
        """Return the pixel counts [K + 1, K + 1] over all records: rows truth, columns prediction."""
        total = np.zeros((len(spec.classes) + 1,) * 2, dtype=np.int64)
        for record in counted(records):
            for truth, predicted, count in record["truth"]["confusion"]:
                total[truth, predicted] += count
        if spec.ignore_background:
            total[0] = 0
        return total

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return accuracy, the mean IoUs, means over classes, and per class iou, precision, recall, f1, dice, support.

        Of pixels, the Dice coefficient and F1 are one and the same; both names stand there.
        """
        total = self.confusion(spec, records)
        hits, true, predicted = np.diagonal(total), total.sum(1), total.sum(0)
        iou = [ratio(h, t + p - h) for h, t, p in zip(hits, true, predicted)]
        if spec.ignore_background:
            iou[0] = None
        scores = class_scores(hits[1:], predicted[1:], true[1:])
        return {
            "accuracy": ratio(hits.sum(), total.sum()),
            "miou": mean(iou),
            "miou_no_background": mean(iou[1:]),
            "iou_background": iou[0],
            "precision_mean": mean(scores["precision"]),
            "recall_mean": mean(scores["recall"]),
            "f1_mean": mean(scores["f1"]),
            "dice_mean": mean(scores["f1"]),
            "iou": iou[1:],
            **scores,
            "dice": scores["f1"],
            "support": true[1:].tolist(),
        }

    def extra_rows(self, metrics: Metrics) -> list[list[str]]:
        """Return the rows of the background and of the mean over the classes alone."""
        return [
            ["background", show(metrics["iou_background"]), "", "", "", ""],
            ["all without background", show(metrics["miou_no_background"]), "", "", "", ""],
        ]

    def charts(self, spec: DataSpec, records: Iterable[dict]) -> list[tuple[str, bytes]]:
        """Return the confusion matrix of pixels."""
        from accel_geo.report.pictures import to_png

        return [("Confusion of pixels", to_png(self.confusion_figure(spec, self.confusion(spec, records))))]

    def confusion_figure(self, spec: DataSpec, counts: np.ndarray) -> Figure:
        """Return a figure of what `confusion` counts."""
        from accel_geo.report.charts import confusion_matrix

        return confusion_matrix(counts, ("background", *spec.classes))

    def legend(self, spec: DataSpec) -> list[tuple[str, tuple]]:
        """Return the classes and the grey of ignored pixels."""
        return [*super().legend(spec), ("ignored", (0.4, 0.4, 0.4))]

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Lay the mask over the image; ignored pixels are hatched."""
        from accel_geo.report import pictures

        rgb = pictures.stretch(array(image), spec.bands)
        pictures.show_mask(axes, rgb, array(labels["mask"]), pictures.colours(len(spec.classes)), ignored=IGNORED)
        return kind
