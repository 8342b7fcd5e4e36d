"""GeoData: a data set that is ready to train on, and the ways to look at it: text, JSON, pictures, a page."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.data.chips import Chips
from accel_geo.data.labels import super_resolution
from accel_geo.data.spec import DataSpec
from accel_geo.data.statistics import Moments, chip_moments, merge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accel_geo.tasks.base import Task

Counts = dict[str, dict[str, list[int]]]


@dataclass
class GeoData:
    """A data set that is ready to train on.

    Attributes:
        train: chips to train on.
        valid: chips to validate on; may be empty.
        test: chips to test on at the very end; may be empty.
        spec: what a model needs to know of the data.
        task: the kind of label.
        batch_size: global batch size.
        seed: of the run.
        num_workers: processes that load chips; 0 loads in the training process, which is fastest from a store.
        path: folder of the data set.
        format: its format.
        moments: statistics of each band in pixel values, over the valid pixels of all chips.
        listed: chips that were found, of which a split may leave some out.
        unlabelled: those of them that are left out because they have no label of the chosen classes.
        problems: what was left out or odd, with counts and files.
        class_counts: by split ("train", "valid", "test") and by kind ("chips", "objects", "pixels"), a list over the
            class indexes 0..K: 0 is background (pixels), or chips without any object.
    """

    train: Chips
    valid: Chips
    test: Chips
    spec: DataSpec
    task: "Task"
    batch_size: int
    seed: int
    num_workers: int
    path: str
    format: str
    moments: Moments
    listed: int
    unlabelled: int = 0
    problems: list[str] = field(default_factory=list)
    class_counts: Counts = field(default_factory=dict)

    @property
    def splits(self) -> dict[str, Chips]:
        """The splits by their names."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @cached_property
    def _files(self) -> dict[int, str]:
        return {i: file for chips in self.splits.values() for i, file in zip(chips.ids, chips.files)}

    def file(self, image_id: int) -> str:
        """Return the path of a chip relative to the data folder.

        Raises:
            KeyError: no chip of any split has this image_id.
        """
        if image_id not in self._files:
            raise KeyError(f"no chip has the image_id {image_id}")
        return self._files[image_id]

    def describe(self) -> str:
        """Return what the data are, as text of several lines."""
        spec, sizes = self.spec, Counter(size for chips in self.splits.values() for size in chips.sizes)
        shapes = ", ".join(f"{w} x {h}" + (f" ({n})" if len(sizes) > 1 else "") for (h, w), n in sizes.most_common(4))
        test = f", {len(self.test)} to test" if len(self.test) else ""
        times = f" ({sum(self.train.times)} samples an epoch)" if self.train.times else ""
        finer = f"; the sharp image is {spec.scale} times finer" if spec.scale > 1 else ""
        lines = [
            f"{self.path}: {self.format}, {spec.task}",
            f"chips: {len(self.train)} to train{times}, {len(self.valid)} to validate{test}; {shapes} pixels, "
            f"{spec.dtype}{finer}",
            *(self._class_lines() if spec.classes else []),
        ]
        lines.append(f"{'band':<24}{'0 is':>14}{'1 is':>14}{'mean':>10}{'std':>10}   (mean and std after scaling)")
        for row in zip(spec.bands, spec.low, spec.high, spec.mean, spec.std):
            lines.append(f"{row[0]:<24}{row[1]:>14g}{row[2]:>14g}{row[3]:>10.4f}{row[4]:>10.4f}")
        return "\n".join(lines + [f"note: {problem}" for problem in self.problems])

    def _class_lines(self) -> list[str]:
        shown = ["train", "valid", *(["test"] if len(self.test) else [])]
        kind = next(k for k in ("objects", "pixels", "chips") if k in self.class_counts["train"])
        lines = [f"{'class':<24}{'value':>8}" + "".join(f"{f'{kind}, {split}':>18}" for split in shown)]

        def add(name: str, value: object, what: str, index: int) -> None:
            numbers = [self.class_counts[split][what][index] for split in shown]
            lines.append(f"{name:<24}{value:>8}" + "".join(f"{number:>18}" for number in numbers))

        if kind == "pixels":
            add("background", 0, kind, 0)
        for index, (name, value) in enumerate(zip(self.spec.classes, self.spec.class_values), 1):
            add(name, value, kind, index)
        add("chips without any", "", "chips", 0)
        return lines

    def summary(self) -> dict:
        """Return what the data are as one JSON object.

        Keys: `path`, `format`, `task`, `chips` (found), `splits` (chips of each), `chips_without_objects` (those without any
        class), `sizes` (chips of each [height, width]), `classes` (`value` on disk, `name`, and as the task has them
        `objects`, `pixels`, `chips`, over all splits), `bands` (`name`, and `min`, `max`, `mean`, `std` of the pixel
        values over all chips), `bands_hr` (likewise of the sharp rasters of pairs, else absent), `dtype`, `scale`
        (super-resolution), `problems` (`reason`, and `file`: the first chip it names, or null).
        """
        splits, spec = self.splits, self.spec
        kinds = list(self.class_counts["train"])
        total = {kind: np.sum([self.class_counts[split][kind] for split in splits], axis=0).tolist() for kind in kinds}
        sizes = Counter(size for chips in splits.values() for size in chips.sizes)
        result = {
            "path": self.path,
            "format": self.format,
            "task": spec.task,
            "chips": self.listed,
            "splits": {name: len(chips) for name, chips in splits.items()},
            "chips_without_objects": total["chips"][0] + self.unlabelled,
            "sizes": [{"height": h, "width": w, "chips": n} for (h, w), n in sizes.most_common()],
            "dtype": spec.dtype,
            "classes": [
                {"value": value, "name": name, **{kind: total[kind][index] for kind in kinds}}
                for index, (name, value) in enumerate(zip(spec.classes, spec.class_values), 1)
            ],
            "bands": _band_values(spec.bands, self.moments),
        }
        if spec.task == "super_resolution":
            result["scale"] = spec.scale
            sharp = self._sharp_moments()
            result |= {"bands_hr": _band_values(spec.bands, sharp)} if sharp else {}
        named = set(self._files.values())
        return result | {"problems": [self._problem(text, named) for text in self.problems]}

    def _problem(self, text: str, named: set[str]) -> dict:
        # The first chip that a problem names, where it names one.
        words = (word.rstrip(":;,.)") for word in text.replace("(", " ").split())
        return {"file": next((word for word in words if word in named), None), "reason": text}

    def _sharp_moments(self) -> Moments | None:
        # Of the sharp rasters of pairs; one chip at a time.
        found = []
        for chips in self.splits.values():
            for part in chips.parts:
                labels = (part.store.chip(position).label for position in part.positions)
                found += [chip_moments(*super_resolution.sharp_pixels(label)) for label in labels if len(label.shape)]
        return merge(Moments(*(np.stack(column) for column in zip(*found)))) if found else None

    def show_batch(self, rows: int = 3, path: str | Path | None = None, split: str = "train") -> "Figure":
        """Draw chips with their labels, as training sees them but for random changes.

        Args:
            rows: rows of four chips.
            path: also write the figure to this file; the suffix says how (.png, .jpg, .svg, .pdf), none means PNG.
            split: "train", "valid" or "test".
        """
        chips = self.splits[split]
        samples = [chips[i] for i in range(min(4 * rows, len(chips)))]
        files = chips.files[: len(samples)]
        figure = self.task.figure(self.spec, [sample["image"] for sample in samples], samples, None, files)
        if path is not None:
            figure.savefig(path, bbox_inches="tight", format=Path(path).suffix.lstrip(".").lower() or "png")
        return figure

    def write_page(self, path: str | Path, rows: int = 3) -> Path:
        """Write one HTML file that shows what the data are: counts, bands, problems, and chips with their labels."""
        from accel_geo.report.page import write_report
        from accel_geo.report.pictures import to_png

        summary = self.summary()
        kinds = list(self.class_counts["train"])
        rows_of_classes = [[c["name"], str(c["value"]), *(str(c[kind]) for kind in kinds)] for c in summary["classes"]]
        without = [["chips without any", "", *("" for _ in kinds[1:]), str(summary["chips_without_objects"])]]
        pictures = [(f"Chips of the split {name}", to_png(self.show_batch(rows, split=name))) for name, chips in
                    self.splits.items() if len(chips)]  # fmt: skip
        return write_report(
            path,
            title=f"{Path(self.path).name}: {self.format}, {self.spec.task}",
            facts={
                "path": self.path,
                "chips": summary["chips"],
                "splits": ", ".join(f"{name} {count}" for name, count in summary["splits"].items() if count),
                "pixels": f"{self.spec.dtype}, {len(self.spec.bands)} bands",
                **{
                    f"band {b['name']}": f"{b['min']:g} to {b['max']:g}, mean {b['mean']:.4g}"
                    for b in summary["bands"][:12]
                },
            },
            table=(["class", "value", *kinds], rows_of_classes + without) if rows_of_classes else None,
            table_title="Classes",
            pictures=pictures,
            problems=self.problems,
        )


def _band_values(names: tuple[str, ...], moments: Moments) -> list[dict]:
    std = np.sqrt(moments.spread / np.maximum(moments.count, 1))
    columns = {"min": moments.low, "max": moments.high, "mean": moments.mean, "std": std}
    return [
        {"name": name, **{key: float(values[i]) if moments.count[i] else None for key, values in columns.items()}}
        for i, name in enumerate(names)
    ]
