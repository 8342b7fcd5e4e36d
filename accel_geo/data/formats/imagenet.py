"""One folder for each class: Imagenet, as exported by ArcGIS Pro (images/<class>/<chip>), and plain <class>/<chip>."""

from pathlib import Path

from accel_geo.data.formats import boxes, esri, image_masks, image_pairs
from accel_geo.data.formats.rows import Rows, folder, has_raster, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("classification",)
LAYOUT = "images/<class>/<chip> or <class>/<chip>"
_NO_CLASSES = {"images2", "labels", "labels2", "masks", "semantic", "annotations", "train", "val", "valid", "test"}
_NO_CLASSES |= set(image_masks.IMAGES)


def _base(path: Path) -> Path:
    return folder(path, "images") or path


def _is_inner(path: Path) -> bool:
    return path.name.casefold() == "images" and esri.metadata(path.parent).mode == "Imagenet"


def _class_folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format; images/ of an export is not, its metadata lie above."""
    mode = esri.metadata(path).mode
    if not path.is_dir() or mode not in ("", "Imagenet"):
        return False
    if not mode and (folder(path, "labels", "masks", "annotations") or _is_inner(path)):
        return False
    base = _base(path)
    folders = _class_folders(base)
    if base == path and any(entry.name.casefold() in _NO_CLASSES for entry in folders):
        return False
    if any((entry / inner).is_dir() for entry in folders for inner in ("images", "labels", "masks")):
        return False  # folders of several data sets are no classes
    if image_pairs.recognise(path):  # low/ and high/ may be classes, but not where they hold the same chips
        return False
    return not has_raster(base) and any(has_raster(entry) for entry in folders)


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; class values come from the metadata, else from the order of the folders' names."""
    base, meta = _base(path), esri.metadata(path)
    folders = [entry for entry in _class_folders(base) if boxes.listing(entry, RASTER_SUFFIXES)]
    classes, problems = dict(meta.classes), []
    numbers = all(entry.name.isdecimal() for entry in folders) and len({int(e.name) for e in folders}) == len(folders)
    rows = []
    for entry in folders:
        value = esri.class_value(entry.name, classes)
        if value is None:
            value = int(entry.name) if numbers and int(entry.name) not in classes else max([0, *classes]) + 1
            classes[value] = entry.name
            if meta.classes:
                problems.append(f"folder {entry.name} is no class of the metadata: taken as class {value}")
        prefix = entry.relative_to(path).as_posix()
        rows += [{"file": f"{prefix}/{chip}", "values": [value]} for chip in boxes.listing(entry, RASTER_SUFFIXES)]
    used = {row["values"][0] for row in rows}
    if unused := [name for value, name in classes.items() if value not in used]:
        problems.append(f"no chip of class {', '.join(unused)}")
    return Rows(
        format="Imagenet",
        task=task,
        root=path,
        dataset=table(rows),
        classes=dict(sorted(classes.items())),
        bands=meta.bands,
        map_space=meta.map_space,
        sources=meta.files,
        problems=[*esri.disagreements(meta, len(rows)), *problems],
    )
