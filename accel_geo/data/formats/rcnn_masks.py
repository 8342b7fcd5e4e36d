"""RCNN_Masks, as exported by ArcGIS Pro: labels/<class name>/<chip>.tif, 0 none, 1..k the objects of that class."""

from collections.abc import Iterable
from pathlib import Path

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.rows import Rows, folder, has_raster, label_problems, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("instances", "detection", "semantic", "edges")
LAYOUT = "images/<chip> and labels/<class>/<chip>, object numbers as pixels"


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format; folders of labels that are folders of images too are no classes."""
    images, labels = folder(path, "images"), folder(path, "labels")
    mode = esri.metadata(path).mode
    if not images or not labels or (mode and mode != "RCNN_Masks") or folder(path, "labels2"):
        return False
    classes = [entry for entry in labels.iterdir() if entry.is_dir() and not (images / entry.name).is_dir()]
    return mode == "RCNN_Masks" or any(boxes.listing(entry, RASTER_SUFFIXES) for entry in classes)


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; a class folder that the metadata do not know becomes a class of its own.

    Raises:
        ValueError: two label files of a class belong to one chip.
    """
    base, labels, meta = folder(path, "images"), folder(path, "labels"), esri.metadata(path)
    if base is None or labels is None:
        raise ValueError(f"{path} holds no folders images and labels: {LAYOUT}")
    classes, problems = dict(meta.classes), []
    found, lonely = object_files(boxes.listing(base, RASTER_SUFFIXES), labels, classes, problems)
    rows = []
    for chip, masks in found.items():
        row = {"file": f"{base.name}/{chip}", "label_files": [file for _, file in masks], **boxes.placed(chip)}
        rows.append(row | {"values": [value for value, _ in masks]})
    return Rows(
        format="RCNN_Masks",
        task=task,
        root=path,
        dataset=table(rows),
        classes=dict(sorted(classes.items())),
        bands=meta.bands,
        map_space=meta.map_space,
        sources=meta.files,
        problems=[*esri.disagreements(meta, len(rows)), *problems, *label_problems(rows, lonely)],
    )


def object_files(
    chips: Iterable[str], labels: Path | None, classes: dict[int, str], problems: list[str]
) -> tuple[dict[str, list[tuple[int, str]]], int]:
    """Find the object rasters of each chip, one for each class that occurs in it.

    Args:
        chips: names of the chips below their folder.
        labels: folder of the class folders, or None.
        classes: name of each class value; folders of other names are added.
        problems: what is odd is added here.

    Returns:
        (class value, file relative to the folder above `labels`) of each chip, in order of values, and the number of
        files without a chip.
    """
    found: dict[str, list[tuple[int, str]]] = {chip: [] for chip in chips}
    if labels is None:
        return found, 0
    folders = sorted(entry for entry in labels.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    listed, lonely = bool(classes), 0
    if has_raster(labels):  # a single class without a folder of its own
        folders = [labels, *folders]
        classes.update({} if classes else {1: "object"})
    for entry in folders:
        name = next(iter(classes.values())) if entry == labels else entry.name
        files = boxes.listing(entry, RASTER_SUFFIXES, deep=entry != labels)
        value = esri.class_value(name, classes)
        if value is None and files:
            digits = name.isdecimal() and int(name) not in classes
            value = int(name) if digits else max([0, *classes]) + 1
            classes[value] = name
            if listed:
                problems.append(f"{labels.name}/{name} is no class of the metadata: taken as class {value}")
        pairs, more = boxes.pair(found, files, str(entry))
        lonely += more
        prefix = labels.name if entry == labels else f"{labels.name}/{entry.name}"
        for chip, label in pairs.items():
            found[chip].append((value, f"{prefix}/{label}"))
    for masks in found.values():
        masks.sort()
    return found, lonely
