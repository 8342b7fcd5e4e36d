"""prepare_data: from a folder on disk to the chips of training and validation."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.data import cache as caching
from accel_geo.data import formats, splits, statistics
from accel_geo.data import transforms as presets
from accel_geo.data.chips import Chips
from accel_geo.data.classes import ClassChoice, Classes, check_values, choose
from accel_geo.data.formats.rows import Rows, relative, some
from accel_geo.data.pixels import Bands, describe_bands, read_error
from accel_geo.data.spec import IGNORED, DataSpec
from accel_geo.data.statistics import Moments
from accel_geo.data.store import Decoder, Store, check_readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accel_geo.tasks.base import Task

_TRIED = 20  # chips to open in search of the first readable one


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
        kind = next((k for k in ("pixels", "objects") if k in self.class_counts["train"]), "chips")
        lines = [
            f"{self.path}: {self.format}, {spec.task}",
            f"chips: {len(self.train)} to train, {len(self.valid)} to validate; {shapes} pixels, {spec.dtype}",
            f"{'class':<24}{'value':>8}{f'{kind}, train':>18}{f'{kind}, valid':>18}",
        ]
        names = [("background" if kind == "pixels" else "(none)", ""), *zip(spec.classes, spec.class_values)]
        for i, (name, value) in enumerate(names):
            train, valid = (
                self.class_counts[split]["chips" if kind == "objects" and i == 0 else kind][i]
                for split in ("train", "valid")
            )
            lines.append(f"{name:<24}{value:>8}{train:>18}{valid:>18}")
        if kind != "pixels" and not any(self.class_counts[split]["chips"][0] for split in ("train", "valid")):
            del lines[3]
        elif kind == "objects":
            lines[3] = lines[3].replace("(none)", "chips without any", 1)
        lines.append(f"{'band':<24}{'0 is':>14}{'1 is':>14}{'mean':>10}{'std':>10}   (mean and std after scaling)")
        for row in zip(spec.bands, spec.low, spec.high, spec.mean, spec.std):
            lines.append(f"{row[0]:<24}{row[1]:>14g}{row[2]:>14g}{row[3]:>10.4f}{row[4]:>10.4f}")
        return "\n".join(lines + [f"note: {problem}" for problem in self.problems])

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
            f"split_by={split_by!r} is not known; there is {', '.join(splits.SPLITS)}, or give valid_match or valid_path"
        )
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
    sources = [Source.open(rows, bands, resize, limit, cache)]
    if valid_path is not None:
        apart = formats.read(valid_path, rows.task, format or rows.format)
        sources.append(Source.open(apart, bands, resize, None, cache, like=sources[0]))
    problems = [problem for source in sources for problem in source.problems()]
    present = {value for source in sources for found in source.store.values for value in found}
    chosen = choose(rows, present, classes, class_mapping, problems)
    for source in sources:
        source.check(chosen)

    kept = [source.kept(chosen) for source in sources]
    if valid_path is not None:
        parts = [(sources[0], kept[0]), (sources[1], kept[1])]
    else:
        files = [sources[0].files[i] for i in kept[0]]
        split = splits.split_by_name(files, valid_match) if valid_match else splits.random_split(files, val_split, seed)
        parts = [(sources[0], [kept[0][i] for i in side]) for side in split]
        if not split[1] and val_split > 0:
            problems.append("one chip only: it trains, and nothing validates")
    spec = _spec(rows, parts[0], chosen, crop, resize, {dtype for source in sources for dtype in source.store.dtypes})
    kind = TASKS[rows.task]
    transform = _transform(transforms, kind, spec, crop)
    offset = len(sources[0].files)
    made = []
    for training, (source, positions) in zip((True, False), parts):
        shift = offset if source is not sources[0] else 0
        made.append(
            Chips(
                spec,
                source.store,
                positions,
                [position + shift for position in positions],
                [source.names[position] for position in positions],
                chosen.index_of,
                transform=transform if training else kind.transforms(spec, False, crop),
                training=training,
                chip_size=crop if training else None,
            )
        )
    counts = {name: _counts(rows.task, *part, chosen) for name, part in zip(("train", "valid"), parts)}
    absent = [name for name, n in zip(chosen.names, counts["train"]["chips"][1:]) if not n]
    if absent:
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


@dataclass
class Source:
    """One folder of chips: its rows and their store."""

    rows: Rows
    store: Store
    bands: Bands
    files: list[str]
    names: list[str]
    note: str

    @classmethod
    def open(
        cls,
        rows: Rows,
        bands: Sequence[int | str] | None,
        resize: tuple[int, int] | None,
        limit: int | None,
        cache: str,
        like: "Source | None" = None,
    ) -> "Source":
        """Decode the chips of rows, or open their store; `like` is the training folder that a validation folder joins."""
        if limit is not None:
            rows.dataset = rows.dataset.select(range(min(limit, len(rows.dataset))))
        files = rows.dataset["file"][:]
        found = _first_bands(rows, files, bands) if like is None else like.bands
        store, note = caching.prepare_store(Decoder(rows, found, resize), cache)
        check_readable(list(store.problems.values()), len(store))
        names = files if like is None else [relative(rows.root / file, like.rows.root) for file in files]
        return cls(rows, store, found, files, names, note)

    def problems(self) -> list[str]:
        """Return what was odd in the files."""
        store, problems = self.store, [*self.rows.problems, *([self.note] if self.note else [])]
        problems += [f"cannot be read, counts nothing: {problem}" for problem in store.problems.values()]
        if len(store.dtypes) > 1:
            problems.append(f"chips of different pixel types ({', '.join(sorted(store.dtypes))}) are scaled alike")
        if dropped := sum(store.index["dropped"].to_pylist()):
            problems.append(f"{dropped} object(s) that cover no pixel were left out")
        hidden = np.array(store.index["hidden"].to_pylist())
        if hidden.any():
            blank = [self.files[i] for i in np.flatnonzero(hidden == 1)]
            problems.append(
                f"{int((hidden > 0).sum())} chip(s) have pixels without data, {hidden.mean():.2%} of all pixels"
                + (f"; {len(blank)} hold nothing else: {some(blank, 3)}" if blank else "")
            )
        return problems

    def check(self, chosen: Classes) -> None:
        """Refuse labels with values of no class."""
        labels = [files[0] if files else file for file, files in zip(self.files, self.rows.dataset["label_files"])]
        listed = ", ".join(f"{name} ({value})" for value, name in self.rows.classes.items()) or ", ".join(chosen.names)
        check_values(self.store.values, [str(self.rows.root / label) for label in labels], chosen.index_of, listed)

    def kept(self, chosen: Classes) -> list[int]:
        """Return the chips to use: in classification those of the classes left out go, unreadable ones keep their place."""
        if self.rows.task != "classification" or self.rows.multilabel:
            return list(range(len(self.store)))
        return [i for i, found in enumerate(self.store.values) if not found or chosen.index_of[found[0]]]


def _size(value: int | tuple[int, int] | None, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    size = (value, value) if isinstance(value, int) else tuple(value)
    if len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
        raise ValueError(f"{name}={value!r} must be a positive whole number, or two of them (height, width)")
    return size


def _first_bands(rows: Rows, files: list[str], bands: Sequence[int | str] | None) -> Bands:
    # The first chip that opens says which bands there are.
    from rasterio.errors import RasterioError

    errors = []
    for file in files[:_TRIED]:
        try:
            return describe_bands(rows.root / file, bands, rows.bands)
        except RasterioError as error:
            errors.append(f"  {file}: {read_error(rows.root / file, error)}")
    raise ValueError(f"none of the first {len(errors)} chips of {rows.root} can be read:\n" + "\n".join(errors[:5]))


def _spec(
    rows: Rows,
    part: tuple[Source, list[int]],
    chosen: Classes,
    crop: tuple[int, int] | None,
    resize: tuple[int, int] | None,
    dtypes: set[str],
) -> DataSpec:
    source, positions = part
    store, bands = source.store, source.bands
    readable = [i for i in positions if i not in store.problems]
    if not readable:
        raise ValueError(f"no training chip of {rows.root} can be read")
    dtype = str(np.result_type(*dtypes))
    moments = statistics.merge(Moments(*(values[readable] for values in store.moments)))
    low, high, mean, std = map(tuple, statistics.scaling(moments, dtype))
    usual = Counter((store.heights[i], store.widths[i]) for i in readable).most_common(1)[0][0]
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


def _counts(task: str, source: Source, positions: list[int], chosen: Classes) -> dict[str, list[int]]:
    # Lists over the class indexes 0..K; of chips index 0 counts those without any class.
    chips, amount = [0] * (len(chosen.names) + 1), [0] * (len(chosen.names) + 1)
    for position in positions:
        pairs = [(chosen.index_of[v], n) for v, n in zip(source.store.values[position], source.store.counts[position])]
        held = {index for index, _ in pairs} - {0, IGNORED}
        for index in held or ({0} if position not in source.store.problems else ()):
            chips[index] += 1
        for index, number in pairs:
            if index < len(amount) and (index or task == "semantic"):
                amount[index] += number if task == "semantic" else 1
    return {"chips": chips} | (
        {"pixels": amount} if task == "semantic" else {"objects": amount} if task == "instances" else {}
    )


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
