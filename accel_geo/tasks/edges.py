"""Edge detection: which pixels lie on an edge, a boundary or a thin line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage
from torch import Tensor

from accel_geo.data.spec import IGNORED
from accel_geo.tasks.base import Metrics, Table, Task, array, counted, ratio, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accel_geo.data.spec import DataSpec

TOLERANCE = 3  # pixels between centres within which an edge counts as found
LEVELS = 64  # thresholds are 1/64, 2/64, … 63/64: exact in every floating type, evenly spaced as BSDS500 has them
THRESHOLDS = np.arange(1, LEVELS) / LEVELS
MIDDLE = LEVELS // 2 - 1  # index of the threshold 0.5


class Edges(Task):
    """Precision, recall and F1 of edge pixels with a tolerance of 3 pixels, at 0.5 and over 63 thresholds.

    The measures are those of BSDS500 (Martin et al. 2004; Arbelaez et al. 2011): `ods`, the monitor, is the best F1 of
    one threshold for all chips, `ois` the F1 where each chip has its own best threshold, `ap` the area under the curve
    of precision over recall (linear between thresholds, at 101 recalls, 0 beyond the highest recall reached, the
    precision of the highest threshold below the lowest). `precision`, `recall`, `f1` are those at 0.5, of what maps and
    predictions.json hold. Counts are summed over all chips before any division.

    What differs from BSDS500's tool: a predicted pixel is right where any edge of the truth lies within the tolerance,
    and an edge pixel is found where any predicted one does, in place of an optimal assignment of one to one; and the
    tolerance is a number of pixels, not 0.0075 of a chip's diagonal. Thick predictions are therefore not punished
    within the tolerance; `thin` makes them one pixel wide first, as BSDS500 does.

    Args:
        thin: measure predictions after non-maximum suppression; about 0.05 s more for a chip of 512 x 512 pixels.
    """

    name = "edges"
    monitor = "ods"

    def __init__(self, thin: bool = False) -> None:
        self.thin = thin

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds the pixels of the background ("0") and of edges at a threshold of 0.5 over the whole chip
        without padding. `truth` holds the number of `edges` pixels and, for each threshold, how many of them were
        `found`, how many pixels were `predicted`, and how many of those are `right`. Ignored pixels are neither truth
        nor prediction. Probabilities that are not finite are no edges.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "prediction": {"pixels": {}}, "truth": None}
        if target["ignore"]:
            return record
        h, w = target["size"]
        probability, truth = array(prediction["edges"])[:h, :w], array(target["edges"])[:h, :w]
        odd = np.setdiff1d(truth, (0, 1, IGNORED))
        if odd.size:
            raise ValueError(f"{file}: the truth holds the value {odd[0]}; allowed are 0, 1 and {IGNORED} (ignored)")
        levels = _levels(thinned(probability) if self.thin else probability)
        edges = int((levels > MIDDLE).sum())
        pixels = {"0": levels.size - edges, str(spec.class_values[0]): edges}
        record["prediction"]["pixels"] = {value: count for value, count in pixels.items() if count}
        levels[truth == IGNORED] = 0
        true = truth == 1
        record["truth"] = {
            "edges": int(true.sum()),
            "found": _at_least(dilated(levels)[true]),
            "predicted": _at_least(levels.ravel()),
            "right": _at_least(levels[dilated(true)]),
        }
        return record

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return precision, recall and F1 at 0.5, F1 at the best thresholds (`ods_…`, `ois`), and `ap`.

        Without any edge in the truth all but the precision is undefined, without any predicted pixel the precision.
        """
        records = counted(records)
        counts = _counts(records)
        edges, found, predicted, right = (count.sum(0) for count in counts)
        f1 = _f1(edges, found, predicted, right)
        # Each chip's own best threshold. Ties go to the highest: the fewest false pixels where there is no edge.
        own = LEVELS - 2 - _f1(*counts)[:, ::-1].argmax(1)
        chosen = (np.broadcast_to(count, counts[1].shape)[np.arange(len(own)), own].sum() for count in counts)
        best, defined = int(f1.argmax()), bool(edges[0])
        return {
            "precision": ratio(right[MIDDLE], predicted[MIDDLE]),
            "recall": ratio(found[MIDDLE], edges[0]),
            "f1": float(f1[MIDDLE]) if defined else None,
            "ods": float(f1[best]) if defined else None,
            "ods_precision": ratio(right[best], predicted[best]) if defined else None,
            "ods_recall": ratio(found[best], edges[0]),
            "ods_threshold": float(THRESHOLDS[best]) if defined else None,
            "ois": float(_f1(*chosen)) if defined else None,
            "ap": _area(*self.curve(records)) if defined else None,
            "support": edges.tolist(),
        }

    def curve(self, records: Iterable[dict]) -> tuple[np.ndarray, np.ndarray]:
        """Return recalls, rising, and precisions over all records, where there are edges and pixels were predicted."""
        edges, found, predicted, right = (count.sum(0) for count in _counts(counted(records)))
        some = np.flatnonzero(predicted * edges)[::-1]
        return found[some] / np.maximum(edges, 1), right[some] / predicted[some]

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
        caption = f"Precision and recall of edge pixels, within {TOLERANCE} pixels"
        return [(caption, to_png(precision_recall(lines, mark)))]

    def legend(self, spec: DataSpec) -> list[tuple[str, tuple]]:
        """Return the colour of edges and the grey of ignored pixels."""
        return [*super().legend(spec), ("ignored", (0.4, 0.4, 0.4))]

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Draw the edges over a dimmed image; predictions below 0.5 are the fainter, the smaller they are."""
        from accel_geo.report import pictures

        edges = array(labels["edges"])
        ignored = edges == IGNORED if kind == "truth" else np.zeros(edges.shape, dtype=bool)
        strength = np.where(ignored, 0, _probability(edges))
        rgb = pictures.stretch(array(image), spec.bands)
        pictures.show_edges(axes, rgb, np.where(strength >= 0.5, 1, strength), ignored, pictures.colours(1)[0])
        return kind if kind == "truth" else f"{kind}, fainter below 0.5"


def thinned(probability: np.ndarray) -> np.ndarray:
    """Return probabilities [H, W] of lines one pixel wide: non-maximum suppression across each line, as Canny has it.

    The direction across a line is that of the strongest negative curvature of the smoothed probabilities, which also
    have their maximum in the middle of a wide line of one value.
    """
    p = _probability(probability)
    smooth, yy, xx, xy = (ndimage.gaussian_filter(p, 1.5, order=order) for order in ((0, 0), (2, 0), (0, 2), (1, 1)))
    across = np.arctan2(2 * xy, xx - yy) / 2 + np.pi / 2
    step, here = np.stack([np.sin(across), np.cos(across)]), np.indices(p.shape)
    before, behind = (ndimage.map_coordinates(smooth, here + way * step, order=1, mode="nearest") for way in (-1, 1))
    return np.where((smooth >= before) & (smooth > behind), p, 0)


def dilated(values: np.ndarray, radius: int = TOLERANCE) -> np.ndarray:
    """Return for each pixel of [H, W] the largest value at a distance of at most `radius` pixels."""
    h, w = values.shape
    padded, reach = np.pad(values, radius), range(-radius, radius + 1)
    out = values.copy()
    # Shifts of whole arrays: a few tens of passes over single bytes are far quicker than any filter of a footprint.
    for dy, dx in ((dy, dx) for dy in reach for dx in reach if dy * dy + dx * dx <= radius * radius):
        np.maximum(out, padded[radius + dy : radius + dy + h, radius + dx : radius + dx + w], out=out)
    return out


def _probability(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    return np.where(np.isfinite(values), values, 0).clip(0, 1)


def _levels(probability: np.ndarray) -> np.ndarray:
    """Return how many thresholds each pixel reaches, uint8."""
    return (_probability(probability) * LEVELS).clip(max=LEVELS - 1).astype(np.uint8)


def _at_least(levels: np.ndarray) -> list[int]:
    """Return how many of these pixels reach each threshold."""
    return np.bincount(levels, minlength=LEVELS)[::-1].cumsum()[::-1][1:].tolist()


def _counts(records: list[dict]) -> list[np.ndarray]:
    """Return the counts of each chip: `edges` [N, 1], and [N, thresholds] of found, predicted, right."""
    widths = {"edges": 1, "found": LEVELS - 1, "predicted": LEVELS - 1, "right": LEVELS - 1}
    return [
        np.array([record["truth"][key] for record in records], dtype=np.int64).reshape(len(records), width)
        for key, width in widths.items()
    ]


def _f1(edges: np.ndarray, found: np.ndarray, predicted: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return F1, 0 where it is undefined."""
    precision, recall = right / np.maximum(predicted, 1), found / np.maximum(edges, 1)
    return 2 * precision * recall / np.where(precision + recall > 0, precision + recall, 1)


def _area(recall: np.ndarray, precision: np.ndarray) -> float:
    if not len(recall):
        return 0.0
    points = np.unique(recall)
    best = [precision[recall == point].max() for point in points]
    return float(np.interp(np.linspace(0, 1, 101), points, best, right=0).mean())
