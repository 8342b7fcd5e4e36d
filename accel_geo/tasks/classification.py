"""Classification: one class per chip, or any number of them (multi-label)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from accel_geo.tasks.base import Metrics, Task, array, class_scores, counted, mean, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from accel_geo.data.spec import DataSpec

THRESHOLD = 0.5  # of a multi-label score
BETA = 2.0  # recall counts this many times as much as precision in `fbeta`


class Classification(Task):
    """Metrics of chips.

    Single label: `accuracy` is monitored. Multi-label: `f1_micro` is, over all pairs of chip and class; `accuracy` is
    the share of chips with all classes right, `fbeta` the micro-averaged F-measure with beta 2. `f1_macro` is the
    mean over the classes that occur in truth or prediction.
    """

    name = "classification"
    monitor = "accuracy"
    columns = {"precision": "precision", "recall": "recall", "f1": "F1", "support": "chips"}
    totals = {"precision": "precision_mean", "recall": "recall_mean", "f1": "f1_macro"}

    def monitor_for(self, spec: DataSpec) -> str:
        """Return "f1_micro" for multi-label data, else "accuracy"."""
        return "f1_micro" if spec.multilabel else self.monitor

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds `label` (`labels` for multi-label: those of a score of at least 0.5) as class values and the
        `scores` of all classes; `truth` the class value or values. Equal scores go to the first class. A score that is
        not finite is null and loses. An ignored chip has no label and no scores.
        """
        key = "labels" if spec.multilabel else "label"
        record = {"image_id": int(target["image_id"]), "file": file, "truth": None}
        if target["ignore"]:
            return record | {"prediction": {key: [] if spec.multilabel else None, "scores": []}}
        scores = array(prediction["scores"]).astype(np.float64)
        finite = np.where(np.isfinite(scores), scores, -np.inf)
        values = spec.class_values
        if spec.multilabel:
            predicted = [values[i] for i in np.flatnonzero(finite >= THRESHOLD)]
            truth = [values[i] for i in np.flatnonzero(array(target["labels"]) >= 0.5)]
        else:
            predicted, truth = values[int(finite.argmax())], values[int(target["label"])]
        shown = [score if np.isfinite(score) else None for score in scores.tolist()]
        return record | {"prediction": {key: predicted, "scores": shown}, "truth": {key: truth}}

    def confusion(self, spec: DataSpec, records: Iterable[dict]) -> np.ndarray:
        """Return the chip counts [K, K]: rows truth, columns prediction; multi-label [K, 2, 2]: without and with a class."""
        if spec.multilabel:
            records = counted(records)
            truth, predicted = (self._indicators(spec, records, key) for key in ("truth", "prediction"))
            cells = 2 * truth + predicted
            return np.stack([(cells == cell).sum(0) for cell in range(4)], -1).reshape(-1, 2, 2)
        index = {value: i for i, value in enumerate(spec.class_values)}
        total = np.zeros((len(index),) * 2, dtype=np.int64)
        for record in counted(records):
            total[index[record["truth"]["label"]], index[record["prediction"]["label"]]] += 1
        return total

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return accuracy, f1_micro, f1_macro, means, and per class precision, recall, f1, support (and confusion)."""
        records = counted(records)
        if spec.multilabel:
            truth, predicted = (self._indicators(spec, records, key) for key in ("truth", "prediction"))
            hits, found, true = (truth & predicted).sum(0), predicted.sum(0), truth.sum(0)
            right, weight = (truth == predicted).all(1).sum(), BETA**2
            special = {"fbeta": ratio((1 + weight) * hits.sum(), weight * true.sum() + found.sum())}
        else:
            total = self.confusion(spec, records)
            hits, found, true, right = np.diagonal(total), total.sum(0), total.sum(1), np.trace(total)
            special = {"confusion": total.tolist()}
        scores = class_scores(hits, found, true)
        return {
            "accuracy": ratio(right, len(records)),
            "f1_micro": ratio(2 * hits.sum(), found.sum() + true.sum()),
            "f1_macro": mean(scores["f1"]),
            "precision_mean": mean(scores["precision"]),
            "recall_mean": mean(scores["recall"]),
            **scores,
            "support": true.tolist(),
            **special,
        }

    @staticmethod
    def _indicators(spec: DataSpec, records: list[dict], key: str) -> np.ndarray:
        rows = [[value in record[key]["labels"] for value in spec.class_values] for record in records]
        return np.array(rows, dtype=bool).reshape(len(records), len(spec.class_values))

    def charts(self, spec: DataSpec, records: Iterable[dict]) -> list[tuple[str, bytes]]:
        """Return the confusion matrix of chips, or one for each class."""
        from accel_geo.report.pictures import to_png

        return [("Confusion of chips", to_png(self.confusion_figure(spec, self.confusion(spec, records))))]

    def confusion_figure(self, spec: DataSpec, counts: np.ndarray) -> Figure:
        """Return a figure of what `confusion` counts."""
        from accel_geo.report import charts

        draw = charts.binary_confusions if spec.multilabel else charts.confusion_matrix
        return draw(counts, spec.classes)

    def hardest(self, spec: DataSpec, records: Iterable[dict], count: int) -> list[int]:
        """Return the image_ids of the chips with the highest loss, where their true classes have the lowest scores."""

        def likelihood(record: dict) -> float:
            scores = [0.0 if score is None else score for score in record["prediction"]["scores"]]
            truth = record["truth"]["labels"] if spec.multilabel else [record["truth"]["label"]]
            there = np.isin(spec.class_values, truth)
            if not spec.multilabel:
                return float(np.array(scores)[there].sum())
            return float(np.log(np.maximum(np.where(there, scores, 1 - np.array(scores)), 1e-300)).sum())

        return [record["image_id"] for record in sorted(counted(records), key=likelihood)[:count]]

    def legend(self, spec: DataSpec) -> list[tuple[str, tuple]]:
        """Return nothing: the classes stand on the pictures."""
        return []

    def panels(self, target: dict, prediction: dict | None) -> list[tuple[str, dict]]:
        """Return one picture: the prediction is written under the chip beside the truth."""
        return [("truth", target)] if prediction is None else [("prediction", {**target, **prediction})]

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Write the class into the picture; a prediction drawn with its truth is framed by right or wrong."""
        from accel_geo.report import pictures

        def names(chosen: Iterable[int]) -> str:
            return ", ".join(spec.classes[i] for i in chosen) or "none"

        truth = predicted = None
        if "labels" in labels:
            truth = [int(i) for i in np.flatnonzero(array(labels["labels"]) >= 0.5)]
        elif "label" in labels:
            truth = [int(labels["label"])]
        if kind == "prediction":
            scores = np.nan_to_num(array(labels["scores"]).astype(np.float64), nan=-np.inf)
            predicted = [int(i) for i in np.flatnonzero(scores >= THRESHOLD)]
            if not spec.multilabel:
                predicted = [int(scores.argmax())]
        pictures.show_class(
            axes,
            pictures.stretch(array(image), spec.bands),
            truth=None if truth is None else names(truth),
            prediction=None if predicted is None else names(predicted),
            score=float(scores.max()) if predicted is not None and not spec.multilabel else None,
        )
        return ""
