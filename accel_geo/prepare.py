"""prepare_data: from folders, scenes or data sets to the chips of training, validation and test."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.data import formats
from accel_geo.data import transforms as presets
from accel_geo.data.cache import MODES
from accel_geo.data.chips import Chips, Part
from accel_geo.data.classes import ClassChoice, Classes, choose, unite
from accel_geo.data.division import Rule, divide, index_tables
from accel_geo.data.formats.rows import Rows, some
from accel_geo.data.oversampling import occurrences
from accel_geo.data.source import Source, open_source
from accel_geo.data.spec import DataSpec
from accel_geo.data.statistics import merge, scaling
from accel_geo.geodata import GeoData

if TYPE_CHECKING:
    from accel_geo.tasks.base import Task

__all__ = ["GeoData", "prepare_data"]

Paths = str | Path | Sequence[str | Path] | None
Size = int | tuple[int, int] | None
SCALE = 4  # of super-resolution, where sizes do not tell


def prepare_data(
    path: object,
    *,
    task: str | None = None,
    format: str | None = None,
    chip_size: Size = None,
    val_split: float = 0.1,
    split_by: str | None = None,
    valid_match: str | None = None,
    valid_path: Paths = None,
    test_path: Paths = None,
    stratify: bool | None = None,
    batch_size: int = 8,
    transforms: bool | Callable = True,
    mixup: float = 0.0,
    oversample: bool = False,
    classes: ClassChoice = None,
    class_mapping: Mapping | None = None,
    ignore_classes: Sequence[str | int] = (),
    ignore_background: bool = False,
    bands: Sequence[int | str] | None = None,
    resize_to: Size = None,
    scale: int | None = None,
    edge_tolerance: float | None = None,
    limit: int | None = None,
    seed: int = 42,
    num_workers: int | str = "auto",
    cache: str = "auto",
    verify: bool = False,
    vectors: str | Path | None = None,
    class_column: str | None = None,
    stride: Size = None,
    area: str | Path | None = None,
    buffer: float | None = None,
    **aliases: object,
) -> GeoData:
    """Read a data set: recognise its format, decode its chips once, split it, measure it.

    Every process of a distributed run calls it and gets the same; the first process of each machine decodes.

    Args:
        path: folder of the data set, or an annotation file; a list of such folders, whose classes are united by name;
            with `vectors` a scene, a list or a folder of scenes, or any path that GDAL opens; a `datasets.Dataset`,
            `DatasetDict`, streaming or not, or the name of one on the hub. None takes the built-in scenes.
        task: one of `accel_geo.tasks.TASKS`; None takes what the format serves.
        format: name of the format; None recognises it.
        chip_size: size, or (H, W), of the random crop in training, validation sees whole chips; with `vectors` of the
            windows. In super-resolution of the sharp image.
        val_split: part of the chips to validate on.
        split_by: "random": by name and seed; "group": scenes, folders or neighbouring chips stay together;
            "column:NAME": by a column of the data. None: the split that the data bring along (folders train/ and
            valid/, a column "split"), else random.
        valid_match: validate on the chips whose file names match this pattern instead.
        valid_path: validate on this folder instead, or on these.
        test_path: folders to test on at the very end, see `GeoData.test`.
        stratify: keep the share of each class in a random split; None: where a chip has one class.
        batch_size: global batch size.
        transforms: True: the task's preset; False: only the crop; or what is applied to training samples after the
            crop: a function `(sample, key) -> sample`, or a transform of torchvision.transforms.v2. Draws from global
            generators are keyed.
        mixup: alpha of the Beta distribution by which each training chip is blended with another one (Zhang et al. 2018,
            classification): 0.4 is usual, 0 blends none.
        oversample: training chips of rare classes occur several times an epoch, until every class does about as often as
            the largest (classification).
        classes: names or values of the classes to keep, or names by value; None keeps all.
        class_mapping: {old: new} merges or renames classes; old is a name or a value.
        ignore_classes: names or values whose pixels count nowhere; objects and labels of them are left out.
        ignore_background: labels are sparse: background is neither trained nor predicted (semantic).
        bands: bands to use, by position from 1 or by name; None takes all but alpha.
        resize_to: size, or (H, W), that every chip is resized to first.
        scale: how many times finer the sharp image is (super-resolution); None: as the sizes of pairs tell, else 4.
        edge_tolerance: pixels between centres within which an edge counts as found in metrics (edges); None: 3.
        limit: only the first so many chips in order of image_id.
        seed: of the split and of all that is random in training.
        num_workers: processes that load chips; "auto": none, unless chips are decoded each time.
        cache: "disk", "memory", "off" or "auto"; see `accel_geo.data.cache.prepare_store`.
        verify: find changed files by their content, not by size and time alone.
        vectors: file of polygons, lines or points that are the labels of the scenes in `path`.
        class_column: the column of that file with the class; None: one class.
        stride: steps between windows, or (down, across), in pixels; None: as large as the windows.
        area: file of polygons: only windows that lie at least half inside.
        buffer: radius around points and lines, in units of the scene's reference system.
        aliases: names that users of arcgis.learn know: val_split_pct, dataset_type, extract_bands (from 0), downsample_factor.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: the data cannot be read, or an option does not fit them; the message says what was found.
    """
    from accel_geo.tasks import TASKS

    known = _aliases(aliases)
    val_split, format = known.get("val_split", val_split), known.get("format", format)
    bands, scale = known.get("bands", bands), known.get("scale", scale)
    if task is not None and task not in TASKS:
        raise ValueError(f"task {task!r} is not known; the tasks are {', '.join(TASKS)}")
    if split_by not in (None, "random", "group") and not str(split_by).startswith("column:"):
        raise ValueError(f"split_by={split_by!r} is not known; it is random, group or column:NAME, or use valid_path")
    if not 0 <= val_split < 1:
        raise ValueError(f"val_split={val_split} must be at least 0 and below 1: the part of the chips to validate on")
    if cache not in MODES:
        raise ValueError(f"cache={cache!r} is not known; it is one of {', '.join(MODES)}")
    if valid_match is not None and valid_path is not None:
        raise ValueError("valid_match and valid_path both say what to validate on; give one of them")
    if not (isinstance(transforms, bool) or callable(transforms)):
        raise ValueError(
            f"transforms={transforms!r} must be True (the task's preset), False (none), a function (sample, key) -> sample, "
            "or a transform of torchvision.transforms.v2, such as v2.Compose([...]) of several"
        )
    for name, number in (("batch_size", batch_size), ("limit", limit), ("scale", scale)):
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise ValueError(f"{name}={number!r} must be at least 1, a whole number")
    if not 0 <= mixup < float("inf"):
        raise ValueError(
            f"mixup={mixup} must be at least 0: alpha of a Beta distribution, 0.4 is usual, 0 mixes nothing"
        )
    if edge_tolerance is not None and not 0 < edge_tolerance < 50:
        raise ValueError(f"edge_tolerance={edge_tolerance} must be above 0 and below 50 pixels; 3 is usual")
    crop, resize = _size(chip_size, "chip_size"), _size(resize_to, "resize_to")
    if path is None:
        from accel_geo.data.scenes import builtin

        path = builtin(task or "instances", smoke=False)

    if vectors is not None:
        if crop is None:
            raise ValueError("vectors needs chip_size: the size of the windows that the scenes are cut into")
        steps = _size(stride, "stride") or crop
        scenes = {"class_column": class_column, "size": crop, "stride": steps, "area": area, "buffer": buffer}
        listed = [("", formats.read_scenes(path, vectors, task=task, **scenes))]
        crop = None
    else:
        alone = {"class_column": class_column, "stride": stride, "area": area, "buffer": buffer}
        if wrong := [name for name, value in alone.items() if value is not None]:
            raise ValueError(f"{', '.join(wrong)} needs vectors: the file of labels for the scenes in {path}")
        listed = formats.read_all(path, task, format)
    listed += [("valid", rows) for rows in _folders(valid_path, listed[0][1], format)]
    listed += [("test", rows) for rows in _folders(test_path, listed[0][1], format)]
    sources: list[Source] = []
    for role, rows in listed:
        used = sum(len(source.names) for source in sources if source.role == role)
        left = None if limit is None or role in ("valid", "test") else limit - used
        if left == 0:
            continue
        first, after = (sources[0], sources[-1]) if sources else (None, None)
        here = {"bands": bands, "resize_to": resize, "limit": left, "cache": cache, "verify": verify, "role": role}
        sources.append(open_source(rows, first=first, after=after, **here))
    where = [f" (in {source.rows.root})" if len(sources) > 1 else "" for source in sources]
    problems = [problem + place for source, place in zip(sources, where) for problem in source.problems()]

    united, translations = unite([source.rows for source in sources])
    if (mixup or oversample) and united.task != "classification":
        name = "mixup" if mixup else "oversample"
        raise ValueError(f"{name} goes by the class of a whole chip: it is for classification, not for {united.task}")
    if edge_tolerance is not None and united.task != "edges":
        raise ValueError(
            f"edge_tolerance={edge_tolerance:g} is for edges, not for {united.task}; leave it out, or take a network that "
            "finds edges (task='edges')"
        )
    present = {
        table.get(value, value)
        for source, table in zip(sources, translations)
        for value in source.store.present_values()
    }
    chosen = choose(united, present, problems, classes=classes, mapping=class_mapping, ignore_classes=ignore_classes)
    tables = index_tables(translations, chosen.index_of)
    listed_classes = ", ".join(f"{name} ({value})" for value, name in united.classes.items()) or ", ".join(chosen.names)
    for source, table in zip(sources, tables):
        source.check(table, listed_classes)
    rule = Rule(val_split, split_by, valid_match, stratify, seed)
    kept = [source.kept(table) for source, table in zip(sources, tables)]
    unlabelled = sum(len(source.store) - len(k) for source, k in zip(sources, kept))
    if unlabelled:
        problems.append(f"{unlabelled} chip(s) without a label of the chosen classes were left out")
    parts = divide(sources, kept, rule, problems)
    if not any(parts[1]) and val_split > 0:
        problems.append("there is one chip only: it trains, and nothing validates")

    scale = _scale(united, scale) if united.task == "super_resolution" else 1
    spec = _spec(sources, parts[0], united, chosen, crop, resize, scale, ignore_background)
    if edge_tolerance is not None:
        spec = replace(spec, edge_tolerance=float(edge_tolerance))
    kind, crop = TASKS[united.task], crop and (crop[0] // scale, crop[1] // scale)
    made = []
    for number, side in enumerate(parts):
        training = number == 0
        pieces = [
            Part(source.store, positions, source.first_id, source.names, table)
            for source, positions, table in zip(sources, side, tables)
            if positions
        ]
        transform = _transform(transforms, kind, spec, crop) if training else kind.transforms(spec, False, crop)
        more = {"training": True, "chip_size": crop, "mixup": float(mixup)} if training else {}
        if training and oversample:
            labels = [source.labels(*at, len(chosen.names)) for source, *at in zip(sources, side, tables)]
            more["times"] = occurrences(np.concatenate(labels), seed)
        made.append(Chips(spec, pieces, transform=transform, **more))
    _check_sizes(made, scale)
    counts = {
        name: _counts(sources, side, tables, len(chosen.names)) for name, side in zip(("train", "valid", "test"), parts)
    }
    problems += _one_sided(chosen, counts)
    return GeoData(
        *made,
        spec=spec,
        task=kind,
        batch_size=batch_size,
        seed=seed,
        num_workers=_workers(num_workers, [source.store for source in sources]),
        path=str(united.root),
        format=united.format,
        moments=merge_all([source.moments(range(len(source.store))) for source in sources]),
        listed=sum(len(source.store) for source in sources),
        unlabelled=unlabelled,
        problems=problems,
        class_counts=counts,
    )


def _aliases(given: dict) -> dict:
    # What users of arcgis.learn write; its band indexes count from 0.
    known = {
        "val_split_pct": "val_split",
        "dataset_type": "format",
        "extract_bands": "bands",
        "downsample_factor": "scale",
    }
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(f"prepare_data() has no argument {', '.join(unknown)}; see help(accel_geo.prepare_data)")
    values = {known[name]: value for name, value in given.items() if value is not None}
    if "bands" in values:
        values["bands"] = [band + 1 if isinstance(band, int) else band for band in values["bands"]]
    return values


def _folders(paths: Paths, first: Rows, format: str | None) -> list[Rows]:
    # Of validation or test: the format and task of the training data.
    if paths is None:
        return []
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    if not several:
        raise ValueError("the list of folders in valid_path or test_path is empty; give at least one, or None")
    return [formats.read(path, first.task, format or first.format) for path in several]


def _scale(rows: Rows, wanted: int | None) -> int:
    if rows.scale is None:
        return wanted or SCALE
    if wanted not in (None, rows.scale):
        raise ValueError(f"scale={wanted}, but the sharp rasters of {rows.root} are {rows.scale} times finer")
    return rows.scale


def _check_sizes(splits: list[Chips], scale: int) -> None:
    small = [file for chips in splits for file, size in zip(chips.files, chips.sizes) if 0 in size]
    if small:
        raise ValueError(
            f"{len(small)} chip(s) are, or are cropped, smaller than the {scale} pixels of one coarse pixel: "
            f"{some(small, 3)}. Leave them out, or choose a larger chip_size or a smaller scale"
        )


def _counts(sources: list[Source], side: list[list[int]], tables: list[dict], classes: int) -> dict[str, list[int]]:
    found = [source.counts(*at, classes) for source, *at in zip(sources, side, tables)]
    return {kind: sum(counts[kind] for counts in found).tolist() for kind in found[0]}


def _one_sided(chosen: Classes, counts: dict) -> list[str]:
    # What to tell of classes that only one side has seen.
    held = {split: np.array(kinds["chips"][1:]) for split, kinds in counts.items()}
    problems = []
    missing = [name for name, n in zip(chosen.names, held["train"]) if not n]
    if missing:
        problems.append(f"no training chip holds the class {', '.join(missing)}")
    if held["valid"].any():
        unseen = [name for name, t, v in zip(chosen.names, held["train"], held["valid"]) if t and not v]
        problems += [f"no validation chip holds the class {', '.join(unseen)}"] if unseen else []
    return problems


def merge_all(moments: list) -> object:
    """Merge the band statistics of several folders."""
    return merge(type(moments[0])(*(np.stack(column) for column in zip(*moments))))


def _size(value: int | tuple[int, int] | None, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    size = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(size) != 2 or not all(isinstance(n, Integral) and n > 0 for n in size):
        raise ValueError(f"{name}={value!r} must be a positive whole number, or two of them (height, width)")
    return int(size[0]), int(size[1])


def _spec(
    sources: list[Source],
    train: list[list[int]],
    united: Rows,
    chosen: Classes,
    crop: tuple[int, int] | None,
    resize: tuple[int, int] | None,
    scale: int,
    ignore_background: bool,
) -> DataSpec:
    bands = sources[0].bands
    readable = [[i for i in side if i not in source.store.problems] for source, side in zip(sources, train)]
    if not any(readable):
        raise ValueError(f"no training chip of {united.root} can be read")
    dtypes = sorted({str(dtype) for source in sources for dtype in source.store.dtypes})
    dtype = str(np.result_type(*dtypes))
    moments = merge_all([source.moments(positions) for source, positions in zip(sources, readable) if positions])
    low, high, mean, std = map(tuple, scaling(moments, dtype))
    sizes = Counter(size for source, side in zip(sources, readable) for size in source.store.sizes(side))
    usual = sizes.most_common(1)[0][0]
    usual = tuple(map(min, crop, usual)) if crop else usual
    return DataSpec(
        task=united.task,
        classes=chosen.names,
        class_values=chosen.values,
        bands=bands.names,
        dtype=dtype,
        low=low,
        high=high,
        mean=mean,
        std=std,
        chip_size=(usual[0] // scale, usual[1] // scale),
        multilabel=united.multilabel,
        ignore_background=ignore_background and united.task == "semantic",
        band_indexes=bands.indexes,
        all_bands=not bands.chosen,
        file_dtypes=tuple(dtypes),
        resize_to=resize,
        nodata=bands.nodata,
        map_space=united.map_space,
        scale=scale,
        isthing=tuple(value in united.things for value in chosen.values) if united.task == "panoptic" else (),
    )


def _transform(
    transforms: bool | Callable, task: "Task", spec: DataSpec, crop: tuple[int, int] | None
) -> Callable[[dict, int], dict] | None:
    if transforms is True:
        return task.transforms(spec, True, crop)
    cropped = presets.crop_transform(crop) if crop else None
    return presets.then(cropped, transforms) if callable(transforms) else cropped


def _workers(number: int | str, stores: list) -> int:
    if number != "auto":
        if not str(number).isdecimal():
            raise ValueError(f'num_workers={number!r} must be "auto" or a whole number from 0')
        return int(number)
    # Two workers cap every source at about 7,500 chips/s, far below the store: they pay only where chips are decoded.
    if all(store.keeps_pixels for store in stores):
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(min(4, (os.cpu_count() or 1) // local), 1)
