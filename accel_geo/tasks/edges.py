"""Edge detection: which pixels lie on an edge, a boundary or a thin line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from accel_geo.data.spec import IGNORED
from accel_geo.nn.thinning import thinned, unit
from accel_geo.tasks.base import Metrics, Table, Task, array, counted, ratio, show
from accel_geo.tasks.edge_matching import match

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accel_geo.data.spec import DataSpec

LEVELS = 64  # thresholds are 1/64, 2/64, … 63/64: exact in every floating type, evenly spaced as BSDS500 has them
THRESHOLDS = np.arange(1, LEVELS) / LEVELS
MIDDLE = LEVELS // 2 - 1  # index of the threshold 0.5


class Edges(Task):
    """Precision, recall and F1 of edge pixels with a tolerance, at 0.5 and over 63 thresholds.

    The measures are those of BSDS500's benchmark (Martin et al. 2004; Arbelaez et al. 2011). Predictions are thinned by
    non-maximum suppression, then predicted pixels and those of the truth are matched one to one, as many as possible
    within `spec.edge_tolerance` pixels; precision is the matched part of the predicted pixels, recall that of the
    truth's. `ods`, the monitor, is the best F1 of one threshold for all chips, `ois` the F1 where each chip has its own
    best threshold, `ap` the area under the curve of precision over recall. Counts are summed over all chips before any
    division. As there, precision and recall go linearly from threshold to threshold: `ods` may lie between two, and
    `ap` sums precision at the recalls 0, 0.01, … 1, where it is 0 outside those that were reached. Predictions with
    one recall at all thresholds, such as a mask of 0 and 1, therefore have an `ap` of 0.

    The truth there is drawn one pixel wide; here it may be wider (outlines of all the pixels that they touch, brushes of
    three pixels), so it is thinned in the same way. Both then have about one pixel for each pixel of length: what
    predicts the truth itself scores 1, and so does the middle line of a wide truth, or a wide line around it. But of
    dots only the nearest pixels are found, and two parallel lines for one are half wrong. A tolerance in pixels stands
    in the place of 0.0075 of the image's diagonal there.

    `precision`, `recall`, `f1` are those at 0.5, the threshold of maps and predictions.json.
    """

    name = "edges"
    monitor = "ods"

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds the pixels of the background ("0") and of edges at a threshold of 0.5 over the whole chip
        without padding, not thinned. `truth` holds the number of `edges` pixels and, for each threshold, how many pixels
        were `predicted` and how many of them are `matched`, all thinned. Ignored pixels are neither truth nor
        prediction. Probabilities that are not finite are no edges.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "prediction": {"pixels": {}}, "truth": None}
        if target["ignore"]:
            return record
        h, w = target["size"]
        probability, truth = array(prediction["edges"])[:h, :w], array(target["edges"])[:h, :w]
        odd = np.setdiff1d(truth, (0, 1, IGNORED))
        if odd.size:
            raise ValueError(f"{file}: the truth holds the value {odd[0]}; allowed are 0, 1 and {IGNORED} (ignored)")
        edges = int((_levels(probability) > MIDDLE).sum())
        pixels = {"0": probability.size - edges, str(spec.class_values[0]): edges}
        record["prediction"]["pixels"] = {value: count for value, count in pixels.items() if count}
        levels, true = _levels(thinned(probability)), thinned(truth == 1) > 0
        levels[truth == IGNORED] = 0
        record["truth"] = {
            "edges": int(true.sum()),
            "predicted": _at_least(levels),
            "matched": _at_least(levels[match(levels, true, spec.edge_tolerance)]),
        }
        return record

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return precision, recall and F1 at 0.5, F1 at the best thresholds (`ods_…`, `ois`), and `ap`.

        Without any edge in the truth all but the precision is undefined, without any predicted pixel the precision.
        """
        records = counted(records)
        counts = _counts(records)
        edges, predicted, matched = (count.sum(0) for count in counts)
        precision, recall = _shares(edges, predicted, matched)
        # Each chip's own best threshold. Ties go to the highest: the fewest false pixels where there is no edge.
        own = LEVELS - 2 - _f1(*_shares(*counts))[:, ::-1].argmax(1)
        chosen = (np.broadcast_to(count, counts[1].shape)[np.arange(len(own)), own].sum() for count in counts)
        best, defined = _best(precision, recall), bool(edges[0])
        return {
            "precision": ratio(matched[MIDDLE], predicted[MIDDLE]),
            "recall": ratio(matched[MIDDLE], edges[0]),
            "f1": float(_f1(precision, recall)[MIDDLE]) if defined else None,
            "ods": best[0] if defined else None,
            "ods_precision": best[1] if defined and predicted.any() else None,
            "ods_recall": best[2] if defined else None,
            "ods_threshold": best[3] if defined else None,
            "ois": float(_f1(*_shares(*chosen))) if defined else None,
            "ap": _area(recall, precision) if defined else None,
            "support": edges.tolist(),
        }

    def curve(self, records: Iterable[dict]) -> tuple[np.ndarray, np.ndarray]:
        """Return recalls, rising, and precisions over all records, where there are edges and pixels were predicted."""
        edges, predicted, matched = (count.sum(0) for count in _counts(counted(records)))
        precision, recall = _shares(edges, predicted, matched)
        some = np.flatnonzero(predicted * edges)[::-1]
        return recall[some], precision[some]

    def table(self, spec: DataSpec, metrics: Metrics) -> Table:
        """Return precision, recall and F1 at the thresholds that count, and the average precision."""
        parts = ("precision", "recall", "f1")
        best = ("ods_precision", "ods_recall", "ods")
        rows = [
            ["0.5", *(show(metrics[key]) for key in parts)],
            ["the best for each chip (OIS)", "", "", show(metrics["ois"])],
            ["average precision", show(metrics["ap"]), "", ""],
            [f"the best for all: {show(metrics['ods_threshold'])} (ODS)", *(show(metrics[key]) for key in best)],
        ]
        return ["threshold", "precision", "recall", "F1"], rows

    def charts(self, spec: DataSpec, records: Iterable[dict]) -> list[tuple[str, bytes]]:
        """Return the curve of precision over recall with the best threshold marked."""
        from accel_geo.report.charts import precision_recall
        from accel_geo.report.pictures import to_png

        metrics, (recall, precision) = self.metrics(spec, records), self.curve(records)
        if not len(recall):
            return []
        mark = (metrics["ods_recall"], metrics["ods_precision"], f"ODS {show(metrics['ods'])}")
        lines = [("edges", recall, precision)]
        caption = f"Precision and recall of edge pixels, within {spec.edge_tolerance:g} pixels"
        return [(caption, to_png(precision_recall(lines, mark)))]

    def legend(self, spec: DataSpec) -> list[tuple[str, tuple]]:
        """Return the colour of edges and the grey of ignored pixels."""
        return [*super().legend(spec), ("ignored", (0.4, 0.4, 0.4))]

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Draw the edges over a dimmed image; predictions below 0.5 are the fainter, the smaller they are."""
        from accel_geo.report import pictures

        edges = array(labels["edges"])
        ignored = edges == IGNORED if kind == "truth" else np.zeros(edges.shape, dtype=bool)
        strength = np.where(ignored, 0, unit(edges))
        rgb = pictures.stretch(array(image), spec.bands)
        pictures.show_edges(axes, rgb, np.where(strength >= 0.5, 1, strength), ignored, pictures.colours(1)[0])
        return kind if kind == "truth" else f"{kind}, fainter below 0.5"


def _levels(probability: np.ndarray) -> np.ndarray:
    """Return how many thresholds each pixel reaches, uint8."""
    return (unit(probability) * LEVELS).clip(max=LEVELS - 1).astype(np.uint8)


def _at_least(levels: np.ndarray) -> list[int]:
    """Return how many of these pixels reach each threshold."""
    return np.bincount(levels.ravel(), minlength=LEVELS)[::-1].cumsum()[::-1][1:].tolist()


def _counts(records: list[dict]) -> list[np.ndarray]:
    """Return the counts of each chip: `edges` [N, 1], and [N, thresholds] of predicted and matched."""
    widths = {"edges": 1, "predicted": LEVELS - 1, "matched": LEVELS - 1}
    return [
        np.array([record["truth"][key] for record in records], dtype=np.int64).reshape(len(records), width)
        for key, width in widths.items()
    ]


def _shares(edges: np.ndarray, predicted: np.ndarray, matched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return precision and recall, 0 where undefined."""
    return matched / np.maximum(predicted, 1), matched / np.maximum(edges, 1)


def _f1(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """Return F1, 0 where it is undefined."""
    return 2 * precision * recall / np.where(precision + recall > 0, precision + recall, 1)


def _best(precision: np.ndarray, recall: np.ndarray) -> tuple[float, ...]:
    """Return the largest F1, its precision, recall and threshold, in 100 steps from each threshold to the next."""
    share = np.linspace(0, 1, 100)
    lines = [values[:-1, None] * (1 - share) + values[1:, None] * share for values in (precision, recall, THRESHOLDS)]
    points = [_f1(*lines[:2]).ravel(), *(line.ravel() for line in lines)]
    first = points[0].argmax()
    return tuple(float(values[first]) for values in points)


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    """Return the area under precision over recall as BSDS500 has it, where one recall makes none."""
    points = np.unique(recall)
    if len(points) < 2:
        return 0.0
    best = [precision[recall == point].max() for point in points]
    return float(np.interp(np.arange(101) / 100, points, best, left=0, right=0).sum() * 0.01)
