"""What a kind of label means: how it is transformed, recorded, measured and drawn. One class per task.

A **record** is all that metrics and predictions.json need of one chip, as plain JSON values, so that records of all
processes can be gathered and the metric computed once, exactly:
`{"image_id": int, "file": str, "prediction": {...}, "truth": {...} or None}`. `prediction` is the chip's entry in
predictions.json; `truth` is None for an ignored chip, which counts in no metric.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from accel_geo.data.spec import DataSpec

Metrics = dict[str, float | list | None]
Table = tuple[list[str], list[list[str]]]


class Task(ABC):
    """A kind of label.

    Attributes:
        name: as in DataSpec.task.
        monitor: the metric that decides which checkpoint is best; higher is better.
        columns: metrics of a class in `table`, in order: key of a per-class list -> title of the column.
        totals: the same columns over all classes: key of a per-class list -> key of the scalar.
        needs_image: `record` looks at the image too: the target holds it as `image`.
    """

    name: str
    monitor: str
    columns: dict[str, str]
    totals: dict[str, str]
    needs_image: bool = False

    def transforms(self, spec: DataSpec, training: bool, chip_size: tuple[int, int] | None) -> Callable:
        """Return the preset `transform(sample, key) -> sample` of a split."""
        from accel_geo.data import transforms

        preset = transforms.training_transform if training else transforms.evaluation_transform
        return preset(spec, chip_size)

    @abstractmethod
    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        Args:
            spec: of the data.
            prediction: what the network gave in eval mode for this chip.
            target: the chip's labels; `size` bounds the part that counts, `ignore` takes the chip out.
            file: path of the chip relative to the data folder.
        """

    @abstractmethod
    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return the metrics over all records: scalars and lists in the order of the classes, None where undefined.

        A pure function of the records in the order of image_id, whatever order they come in.
        """

    @abstractmethod
    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Draw one chip with labels into axes and return a short text to write above.

        Args:
            axes: of matplotlib.
            spec: of the data.
            image: [C, H, W] as networks get it, without padding.
            labels: a target or a prediction, without padding.
            kind: which picture: "truth", "prediction" or another of `panels`.
        """

    def monitor_for(self, spec: DataSpec) -> str:
        """Return the name of the metric to monitor for these data."""
        return self.monitor

    def predictions(self, records: Iterable[dict]) -> list[dict]:
        """Return predictions.json: one entry per chip in the order of image_id, labels as class values on disk."""
        return [{"image_id": r["image_id"], "file": r["file"], **r["prediction"]} for r in ordered(records)]

    def table(self, spec: DataSpec, metrics: Metrics) -> Table:
        """Return the metrics per class as (header, rows) of text, the last row over all classes."""
        rows = [[name, *(show(metrics[key][i]) for key in self.columns)] for i, name in enumerate(spec.classes)]
        rows += self.extra_rows(metrics)
        rows.append(["all", *(show(metrics[self.totals[key]]) if key in self.totals else "" for key in self.columns)])
        return ["class", *self.columns.values()], rows

    def extra_rows(self, metrics: Metrics) -> list[list[str]]:
        """Return rows between the classes and the last row of `table`."""
        return []

    def charts(self, spec: DataSpec, records: Iterable[dict]) -> list[tuple[str, bytes]]:
        """Return further pictures of an evaluation as (caption, PNG), such as a confusion matrix."""
        return []

    def hardest(self, spec: DataSpec, records: Iterable[dict], count: int) -> list[int]:
        """Return the image_ids of the chips that were predicted worst, the worst first; none by default."""
        return []

    def legend(self, spec: DataSpec) -> list[tuple[str, tuple]]:
        """Return what the legend under a figure names: (text, colour)."""
        from accel_geo.report.pictures import colours

        return list(zip(spec.classes, colours(len(spec.classes))))

    def panels(self, target: dict, prediction: dict | None) -> list[tuple[str, dict]]:
        """Return the pictures of one chip as (kind, labels)."""
        if prediction is None:
            return [("truth", target)]
        return [("image", {}), ("truth", target), ("prediction", prediction)]

    def figure(
        self,
        spec: DataSpec,
        images: Sequence[Tensor | np.ndarray],
        targets: Sequence[dict],
        predictions: Sequence[dict] | None = None,
        files: Sequence[str] | None = None,
        columns: int = 4,
        kinds: Sequence[str] | None = None,
    ) -> Figure:
        """Draw chips with their truth, or image, truth and prediction side by side.

        Args:
            spec: of the data.
            images: of each chip [C, H, W], padded or not.
            targets: of each chip.
            predictions: of each chip; None draws the truth alone.
            files: names above the pictures.
            columns: pictures in a row where the truth alone is drawn.
            kinds: which of a chip's pictures to draw, such as "image", "truth", "prediction"; None draws all.
        """
        from accel_geo.report import pictures

        panels = []
        for i, (image, target) in enumerate(zip(images, targets)):
            size = h, w = target["size"]
            truth = valid_part(target, size, spec.scale)
            prediction = None if predictions is None else valid_part(predictions[i], size, spec.scale)
            views = [view for view in self.panels(truth, prediction) if kinds is None or view[0] in kinds]
            panels += [(array(image)[:, :h, :w], target, files[i] if files else "", *view) for view in views]
        per_chip = len(panels) // max(len(images), 1)
        if per_chip > 1:  # all pictures of a chip in one row
            columns = per_chip * max(columns // per_chip if predictions is None else 1, 1)
        legend = self.legend(spec)
        figure, axes = pictures.grid(len(panels), columns, legend)
        for place, (image, target, name, kind, labels) in zip(axes, panels):
            text = kind
            if target["ignore"]:
                text = "not counted: " + str(target.get("problem", "ignored"))
            if target["ignore"] or kind == "image":
                enlarged = image.repeat(spec.scale, axis=1).repeat(spec.scale, axis=2)
                pictures.show_image(place, pictures.stretch(enlarged, spec.bands))
            else:
                text = self.draw(place, spec, image, labels, kind)
            pictures.caption(place, name if kind == "image" or per_chip == 1 else "", text)
        return figure

    def picture(
        self, spec: DataSpec, image: Tensor | np.ndarray, target: dict, prediction: dict | None = None, file: str = ""
    ) -> bytes:
        """Return the PNG of one chip: `figure` of a single one."""
        from accel_geo.report.pictures import to_png

        return to_png(self.figure(spec, [image], [target], None if prediction is None else [prediction], [file]))


def ordered(records: Iterable[dict]) -> list[dict]:
    """Return the records in the order of image_id."""
    return sorted(records, key=lambda record: record["image_id"])


def counted(records: Iterable[dict]) -> list[dict]:
    """Return the records that count in metrics, in the order of image_id."""
    return [record for record in ordered(records) if record["truth"] is not None]


def array(values: Tensor | np.ndarray) -> np.ndarray:
    """Return a tensor of any device as an array; bfloat16, which numpy lacks, as float32."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def valid_part(labels: dict, size: tuple[int, int], scale: int = 1) -> dict:
    """Return a target or prediction as arrays, with what has pixels cut to the part of the chip that is no padding."""
    labels = {key: array(value) if isinstance(value, Tensor) else value for key, value in labels.items()}
    times = {"mask": 1, "masks": 1, "edges": 1, "segment_ids": 1, "image_hr": scale, "ignored_hr": scale}
    h, w = size
    return labels | {key: labels[key][..., : n * h, : n * w] for key, n in times.items() if key in labels}


def check_labels(file: str, what: str, values: np.ndarray, low: int, high: int, also: str = "") -> None:
    """Refuse labels outside low..high.

    Raises:
        ValueError: there are such; the message names the file and `what` holds them, and `also`, what else is allowed.
    """
    if values.size and (values.min() < low or values.max() > high):
        raise ValueError(
            f"{file}: the {what} holds labels {values.min()}..{values.max()}; allowed are {low}..{high}{also}"
        )


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole as a float, None where the whole is zero."""
    return float(part) / float(whole) if whole else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the defined values, None where there is none."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


def class_scores(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> dict[str, list[float | None]]:
    """Return precision, recall and F1 per class from counts [K]; None where the denominator is zero."""
    return {
        "precision": [ratio(h, p) for h, p in zip(hits, predicted)],
        "recall": [ratio(h, t) for h, t in zip(hits, true)],
        "f1": [ratio(2 * h, p + t) for h, p, t in zip(hits, predicted, true)],
    }


def show(value: float | int | None) -> str:
    """Return a metric as text: counts whole, fractions with three digits, a dash where undefined."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
