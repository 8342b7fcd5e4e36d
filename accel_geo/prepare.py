"""prepare_data: from a folder on disk to the chips of training and validation."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.data import formats, splits
from accel_geo.data import transforms as presets
from accel_geo.data.cache import MODES
from accel_geo.data.chips import Chips, Part
from accel_geo.data.classes import ClassChoice, Classes, choose
from accel_geo.data.formats.rows import some
from accel_geo.data.source import Source, open_source
from accel_geo.data.spec import DataSpec
from accel_geo.data.statistics import scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accel_geo.tasks.base import Task


@dataclass
class GeoData:
    """A data set that is ready to train on.

    Attributes:
        train: chips to train on.
        valid: chips to validate on; may be empty.
        spec: what a model needs to know of the data.
        task: the kind of label.
        batch_size: global batch size.
        seed: of the run.
        num_workers: processes that load chips; 0 loads in the training process, which is fastest from a store.
        path: folder of the data set.
        format: its format.
        problems: what was left out or odd, with counts and files.
        class_counts: by split and by kind ("chips", "objects" or "pixels"), a list over the class indexes 0..K: 0 is
            background (pixels), or chips without any object.
    """

    train: Chips
    valid: Chips
    spec: DataSpec
    task: "Task"
    batch_size: int
    seed: int
    num_workers: int
    path: str
    format: str
    problems: list[str] = field(default_factory=list)
    class_counts: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @cached_property
    def _files(self) -> dict[int, str]:
        return {i: file for chips in (self.train, self.valid) for i, file in zip(chips.ids, chips.files)}

    def file(self, image_id: int) -> str:
        """Return the path of a chip relative to the data folder.

        Raises:
            KeyError: no chip of either split has this image_id.
        """
        if image_id not in self._files:
            raise KeyError(f"no chip has the image_id {image_id}")
        return self._files[image_id]

    def describe(self) -> str:
        """Return what the data are, as text of several lines."""
        spec, sizes = self.spec, Counter(self.train.sizes + self.valid.sizes)
        shapes = ", ".join(f"{w} x {h}" + (f" ({n})" if len(sizes) > 1 else "") for (h, w), n in sizes.most_common(4))
        lines = [
            f"{self.path}: {self.format}, {spec.task}",
            f"chips: {len(self.train)} to train, {len(self.valid)} to validate; {shapes} pixels, {spec.dtype}",
            *self._class_lines(),
        ]
        lines.append(f"{'band':<24}{'0 is':>14}{'1 is':>14}{'mean':>10}{'std':>10}   (mean and std after scaling)")
        for row in zip(spec.bands, spec.low, spec.high, spec.mean, spec.std):
            lines.append(f"{row[0]:<24}{row[1]:>14g}{row[2]:>14g}{row[3]:>10.4f}{row[4]:>10.4f}")
        return "\n".join(lines + [f"note: {problem}" for problem in self.problems])

    def _class_lines(self) -> list[str]:
        kind = next((k for k in ("pixels", "objects") if k in self.class_counts["train"]), "chips")
        lines = [f"{'class':<24}{'value':>8}{f'{kind}, train':>18}{f'{kind}, valid':>18}"]

        def add(name: str, value: object, what: str, index: int) -> None:
            train, valid = (self.class_counts[split][what][index] for split in ("train", "valid"))
            lines.append(f"{name:<24}{value:>8}{train:>18}{valid:>18}")

        if kind == "pixels":
            add("background", 0, kind, 0)
        for index, (name, value) in enumerate(zip(self.spec.classes, self.spec.class_values), 1):
            add(name, value, kind, index)
        if kind != "chips":
            add("chips without any", "", "chips", 0)
        return lines

    def show_batch(self, rows: int = 3, path: str | Path | None = None) -> "Figure":
        """Draw training chips with their labels, as training sees them but for random changes.

        Args:
            rows: rows of four chips.
            path: also write the figure to this file.
        """
        samples = [self.train[i] for i in range(min(4 * rows, len(self.train)))]
        files = self.train.files[: len(samples)]
        figure = self.task.figure(self.spec, [sample["image"] for sample in samples], samples, None, files)
        if path is not None:
            figure.savefig(path, bbox_inches="tight")
        return figure


def prepare_data(
    path: str | Path | None,
    *,
    task: str | None = None,
    format: str | None = None,
    chip_size: int | tuple[int, int] | None = None,
    val_split: float = 0.1,
    split_by: str = "random",
    valid_match: str | None = None,
    valid_path: str | Path | None = None,
    batch_size: int = 8,
    transforms: bool | Callable[[dict, int], dict] = True,
    classes: ClassChoice = None,
    class_mapping: Mapping | None = None,
    bands: Sequence[int | str] | None = None,
    resize_to: int | tuple[int, int] | None = None,
    limit: int | None = None,
    seed: int = 42,
    num_workers: int | str = "auto",
    cache: str = "auto",
    vectors: str | Path | None = None,
    class_column: str | None = None,
) -> GeoData:
    """Read a data set: recognise its format, decode its chips once, split it, measure it.

    Every process of a distributed run calls it and gets the same; the first process of each machine decodes.

    Args:
        path: folder of the data set, or an annotation file; None takes the built-in scenes.
        task: "classification", "semantic" or "instances"; None takes what the format serves.
        format: name of the format; None recognises it.
        chip_size: size, or (H, W), of the random crop in training; validation sees whole chips.
        val_split: part of the chips to validate on.
        split_by: "random": by name and seed.
        valid_match: validate on the chips whose file names match this pattern instead.
        valid_path: validate on this folder of the same format instead.
        batch_size: global batch size.
        transforms: True: the task's preset; False: only the crop; or a function `(sample, key) -> sample` applied to
            training samples after the crop, whose draws from global generators are keyed.
        classes: names or values of the classes to keep, or names by value; None keeps all.
        class_mapping: {old: new} merges or renames classes; old is a name or a value.
        bands: bands to use, by position from 1 or by name; None takes all but alpha.
        resize_to: size, or (H, W), that every chip is resized to first.
        limit: only the first so many chips in order of image_id.
        seed: of the split and of all that is random in training.
        num_workers: processes that load chips; "auto": none, unless chips are decoded each time.
        cache: "disk", "memory", "off" or "auto"; see `accel_geo.data.cache.prepare_store`.
        vectors: a vector file whose shapes are the labels of scenes; no format serves it, so it is refused.
        class_column: the column of that file with the class; likewise.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: the data cannot be read, or an option does not fit them; the message says what was found.
    """
    from accel_geo.tasks import TASKS

    if task is not None and task not in TASKS:
        raise ValueError(f"task {task!r} is not known; the tasks are {', '.join(TASKS)}")
    if split_by not in splits.SPLITS:
        raise ValueError(
            f"split_by={split_by!r} is not known; there is {', '.join(splits.SPLITS)}, or valid_match or valid_path"
        )
    if cache not in MODES:
        raise ValueError(f"cache={cache!r} is not known; it is one of {', '.join(MODES)}")
    if valid_match is not None and valid_path is not None:
        raise ValueError("valid_match and valid_path both say what to validate on; give one of them")
    if vectors is not None or class_column is not None:
        raise ValueError(
            "no format reads scenes with vectors; cut them into chips with labels first, as the formats expect"
        )
    for name, number in (("batch_size", batch_size), ("limit", limit)):
        if number is not None and number < 1:
            raise ValueError(f"{name}={number} must be at least 1")
    if path is None:
        from accel_geo.data.scenes import builtin

        path = builtin(task or "instances", smoke=False)
    crop, resize = _size(chip_size, "chip_size"), _size(resize_to, "resize_to")

    rows = formats.read(path, task, format)
    sources = [open_source(rows, bands=bands, resize_to=resize, limit=limit, cache=cache)]
    if valid_path is not None:
        apart = formats.read(valid_path, rows.task, format or rows.format)
        sources.append(open_source(apart, resize_to=resize, cache=cache, after=sources[0]))
    problems = [problem for source in sources for problem in source.problems()]
    present = {value for source in sources for found in source.store.values for value in found}
    chosen = choose(rows, present, classes, class_mapping, problems)
    for source in sources:
        source.check(chosen)
    parts = _split(sources, chosen, val_split, valid_match, seed)
    if not parts[1][1] and val_split > 0:
        problems.append("there is one chip only: it trains, and nothing validates")

    spec = _spec(sources, parts[0][1], chosen, crop, resize)
    kind = TASKS[rows.task]
    made = [
        Chips(
            spec,
            [Part(source.store, positions, source.first_id, source.names, chosen.index_of)],
            transform=_transform(transforms, kind, spec, crop) if training else kind.transforms(spec, False, crop),
            training=training,
            chip_size=crop if training else None,
        )
        for training, (source, positions) in zip((True, False), parts)
    ]
    counts = {name: source.counts(positions, chosen) for name, (source, positions) in zip(("train", "valid"), parts)}
    if absent := [name for name, n in zip(chosen.names, counts["train"]["chips"][1:]) if not n]:
        problems.append(f"no training chip holds the class {', '.join(absent)}")
    return GeoData(
        *made,
        spec=spec,
        task=kind,
        batch_size=batch_size,
        seed=seed,
        num_workers=_workers(num_workers, cache),
        path=str(rows.root),
        format=rows.format,
        problems=problems,
        class_counts=counts,
    )


def _split(
    sources: list[Source], chosen: Classes, val_split: float, valid_match: str | None, seed: int
) -> list[tuple[Source, list[int]]]:
    # The (source, positions) of training and of validation.
    kept = [source.kept(chosen) for source in sources]
    if len(sources) == 2:
        return list(zip(sources, kept))
    names = [sources[0].names[position] for position in kept[0]]
    if not names:
        raise ValueError(f"no chip of {sources[0].rows.root} is left: none belongs to the classes {some(chosen.names)}")
    sides = splits.split_by_name(names, valid_match) if valid_match else splits.random_split(names, val_split, seed)
    return [(sources[0], [kept[0][i] for i in side]) for side in sides]


def _size(value: int | tuple[int, int] | None, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    size = (value, value) if isinstance(value, int) else tuple(value)
    if len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
        raise ValueError(f"{name}={value!r} must be a positive whole number, or two of them (height, width)")
    return size


def _spec(
    sources: list[Source],
    positions: list[int],
    chosen: Classes,
    crop: tuple[int, int] | None,
    resize: tuple[int, int] | None,
) -> DataSpec:
    source, bands, rows = sources[0], sources[0].bands, sources[0].rows
    readable = [i for i in positions if i not in source.store.problems]
    if not readable:
        raise ValueError(f"no training chip of {rows.root} can be read")
    dtype = str(np.result_type(*(dtype for each in sources for dtype in each.store.dtypes)))
    low, high, mean, std = map(tuple, scaling(source.moments(readable), dtype))
    usual = Counter((source.store.heights[i], source.store.widths[i]) for i in readable).most_common(1)[0][0]
    return DataSpec(
        task=rows.task,
        classes=chosen.names,
        class_values=chosen.values,
        bands=bands.names,
        dtype=dtype,
        low=low,
        high=high,
        mean=mean,
        std=std,
        chip_size=tuple(map(min, crop, usual)) if crop else usual,
        multilabel=rows.multilabel,
        band_indexes=bands.indexes,
        resize_to=resize,
        nodata=bands.nodata,
        map_space=rows.map_space,
    )


def _transform(
    transforms: bool | Callable, task: "Task", spec: DataSpec, crop: tuple[int, int] | None
) -> Callable[[dict, int], dict] | None:
    if transforms is True:
        return task.transforms(spec, True, crop)
    cropped = presets.crop_transform(crop) if crop else None
    return presets.then(cropped, transforms) if callable(transforms) else cropped


def _workers(number: int | str, cache: str) -> int:
    if number != "auto":
        if not str(number).isdecimal():
            raise ValueError(f'num_workers={number!r} must be "auto" or a whole number from 0')
        return int(number)
    # Two workers cap every source at about 7,500 chips/s, far below the store: they pay only where chips are decoded.
    if cache != "off":
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(min(4, (os.cpu_count() or 1) // local), 1)
