"""Data sets of the library `datasets`: in memory, saved, streamed, or by their name on the hub.

Their images are written once as files, encoded ones byte for byte, so that all that follows is rows of files as of any
format. Which column is what shows in its type and its name; see `LAYOUT` and `hub_columns`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from accel_geo.data.formats.hub_columns import Columns, listed
from accel_geo.data.formats.hub_writer import Writer
from accel_geo.data.formats.rows import Rows, some, table

TASKS = ("classification", "detection", "instances", "semantic", "edges", "super_resolution")
LAYOUT = (
    "a data set of the library datasets (save_to_disk) with an image and a label, mask, objects {bbox, category}, or the "
    "pair lr and hr"
)


def recognise(path: Path) -> bool:
    """Say whether a folder is a data set that `save_to_disk` wrote."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def default_task(path: Path) -> None:
    """Leave it to `read_dataset`, which looks at the columns."""


def read(path: Path, task: str | None) -> Rows:
    """Read the rows of a folder that `save_to_disk` wrote; see `read_dataset`."""
    return read_dataset(str(path), task)


def read_dataset(
    dataset: object,
    task: str | None = None,
    *,
    split: str | Iterable[str] | None = None,
    columns: Mapping[str, str] | None = None,
    box_format: str = "xywh",
) -> Rows:
    """Read the rows of a data set of the library `datasets`.

    The splits of a DatasetDict become the column "split" of each chip, and further columns of plain values keep their
    names. A stream is read to its end, once. Labels: a class (ClassLabel, whole number or text; -1 or None: not known)
    or a list of those; objects, a struct or a list of structs of `bbox` and `category`, where present with
    `segmentation` (COCO polygons or run lengths) and `iscrowd`; a mask of class values, 0 background; or the pair `lr`
    and `hr`.

    Args:
        dataset: a Dataset, DatasetDict, IterableDataset or IterableDatasetDict; the folder of one that `save_to_disk`
            wrote; or a name on the hub, "owner/name" or "owner/name:configuration".
        task: what the labels are read for; None takes super-resolution of a pair, else masks, objects, labels.
        split: of a DatasetDict only this split, or these.
        columns: names of columns that are not recognised, by role: image, sharp, mask, objects, label.
        box_format: "xywh" (COCO's, as usual on the hub) or "xyxy", in pixels.

    Raises:
        FileNotFoundError: the name cannot be loaded, or an image is not there.
        ValueError: there is no image column, nothing serves the task, or an entry is odd; the message says what is there.
    """
    if box_format not in ("xywh", "xyxy"):
        raise ValueError(f"box_format={box_format!r} is not known; it is xywh or xyxy, in pixels")
    if task is not None and task not in TASKS:
        raise ValueError(
            f"data sets of the library datasets do not serve the task {task!r}; they serve {', '.join(TASKS)}"
        )
    if isinstance(dataset, str | Path):
        dataset = _load(str(dataset))
    parts = _parts(dataset, split)
    writer = Writer(parts, columns or {}, box_format)
    _check(writer, task)
    return _rows(writer.folder(), writer.columns, task or writer.tasks[0])


def _load(name: str) -> object:
    import datasets

    path, _, configuration = name.partition(":")
    try:
        if Path(name).expanduser().is_dir():
            return datasets.load_from_disk(str(Path(name).expanduser()))
        return datasets.load_dataset(path, configuration or None)
    except (OSError, RuntimeError, ValueError) as error:
        kind = FileNotFoundError if isinstance(error, OSError) else ValueError
        reason = " ".join(str(error).split())
        raise kind(
            f"the data set {name!r} cannot be loaded ({type(error).__name__}: {reason[:300]}). Check the name "
            '("owner/name", or "owner/name:configuration"); without a network, save it where there is one '
            '(datasets.load_dataset("owner/name").save_to_disk("FOLDER")) and give that folder'
        ) from error


def _parts(dataset: object, split: str | Iterable[str] | None) -> dict[str, object]:
    # The data set of each split; of a single one under "".
    if not isinstance(dataset, Mapping):
        if not (hasattr(dataset, "features") and hasattr(dataset, "cast_column")):
            raise ValueError(f"{type(dataset).__name__} is no data set of the library datasets")
        if split is not None:
            raise ValueError(f"split={split!r} needs a DatasetDict; this is a single {type(dataset).__name__}")
        return {"": dataset}
    wanted = [split] if isinstance(split, str) else list(split or dataset)
    if missing := [name for name in wanted if name not in dataset]:
        raise ValueError(f"the data set has no split {some(missing)}; its splits are {', '.join(dataset)}")
    if not wanted:
        raise ValueError("the data set has no split")
    return {name: dataset[name] for name in wanted}


def _check(writer: Writer, task: str | None) -> None:
    there = listed(writer.kinds)
    if not writer.tasks:
        raise ValueError(
            f"the data set has images ({writer.columns.image!r}) but no labels that are known; its columns are {there}. "
            f"Labels are {LAYOUT.split(' with ')[1]}; rename a column (dataset.rename_column), or give "
            "columns={'label': NAME}, or mask, objects, sharp"
        )
    if task is not None and task not in writer.tasks:
        raise ValueError(
            f"the data set does not serve the task {task!r} but {', '.join(writer.tasks)}; its columns are {there}. "
            "Rename the column of the labels, or give columns={ROLE: NAME} with the role label, mask, objects or sharp"
        )


def _rows(folder: Path, columns: Columns, task: str) -> Rows:
    # The rows of a folder that has been written, for one task.
    import pyarrow.parquet as parquet

    about = json.loads((folder / "about.json").read_text())
    problems = [f"{number} {what}" for what, number in about["left_out"].items()]
    if about["twice"]:
        problems.append(f"{about['twice']} image(s) are listed more than once, maybe in several splits")
    source = "mask" if columns.mask and task in ("semantic", "edges") else "objects"
    source = {"classification": "labels", "super_resolution": "sharp"}.get(task, source)
    rows = []
    for record in parquet.read_table(folder / "index.parquet").to_pylist():
        row = {"file": record["file"], "attributes": record["attributes"] or ""}
        if source in ("mask", "sharp"):
            row["label_files"] = [record[source]] if record[source] else []
        elif source == "labels":
            row["values"] = record["labels"] or []
        else:
            shapes = task != "detection" or not record["boxes"]
            row |= {name: record[name] or [] for name in ("values", "crowd")}
            row |= {"segments": record["segments"] or []} if shapes else {"boxes": record["boxes"]}
        rows.append(row)
    settled = {"labels": about["label"], "objects": about["objects"]}.get(source)
    classes = {int(value): name for value, name in settled["classes"].items()} if settled else {}
    return Rows(
        format="datasets",
        task=task,
        root=folder,
        dataset=table(rows),
        classes=classes,
        named=bool(settled and settled["named"]),
        closed=settled is not None,
        zero_is_class=source == "objects" and 0 in classes,
        multilabel=bool(source == "labels" and settled["several"]),
        sources=[folder / "index.parquet"],
        problems=problems,
    )
