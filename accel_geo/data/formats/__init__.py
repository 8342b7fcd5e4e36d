"""Readers of on-disk formats, one module each with TASKS, LAYOUT, `recognise(path)` and `read(path, task)`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from accel_geo.data.formats import (
    advice,
    classified_tiles,
    coco,
    csv_boxes,
    esri,
    export_tiles,
    hub_dataset,
    image_ids,
    image_masks,
    image_pairs,
    imagenet,
    kitti,
    labeled_tiles,
    multilabeled_tiles,
    panoptic_tiles,
    rcnn_masks,
    sharp_images,
    voc,
    yolo,
)
from accel_geo.data.formats.rows import Rows
from accel_geo.data.row_cache import cached_rows
from accel_geo.option_values import is_hub_name

# In the order in which they are tried where no task is asked for.
FORMATS: dict[str, ModuleType] = {
    "Labeled_Tiles": labeled_tiles,
    "MultiLabeled_Tiles": multilabeled_tiles,
    "PASCAL_VOC_rectangles": voc,
    "KITTI_rectangles": kitti,
    "YOLO": yolo,
    "RCNN_Masks": rcnn_masks,
    "Panoptic_Segmentation": panoptic_tiles,
    "Classified_Tiles": classified_tiles,
    "Imagenet": imagenet,
    "Export_Tiles": export_tiles,
    "datasets": hub_dataset,
    "COCO": coco,
    "CSV": csv_boxes,
    "image_ids": image_ids,
    "image_masks": image_masks,
    "image_pairs": image_pairs,
    "sharp_images": sharp_images,
}
# Other names that users know.
_ALIASES = {"coco_rectangles": "COCO", "yolo_rectangles": "YOLO", "pascal_voc": "PASCAL_VOC_rectangles"}
_ALIASES |= {"voc": "PASCAL_VOC_rectangles", "kitti": "KITTI_rectangles", "superres": "Export_Tiles"}

# Folders that belong to the one above.
_INNER = {"images", "images2", "labels", "labels2", "masks", "semantic", "annotations", "instances", "instance"}
_INNER |= {"edge", "edges", "segmentationclass", "jpegimages", "low", "high", "lr", "hr"}
# Folders that are a split as a whole.
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "test": "test",
}


def read_all(path: object, task: str | None = None, format: str | None = None) -> list[tuple[str, Rows]]:
    """Read the rows of whatever `prepare_data` is given.

    Args:
        path: a folder or an annotation file; a list of them; a folder with data sets in train/, valid/ (or val/,
            validation/) and test/; or a data set of the library `datasets`, or the name of one on the hub.
        task: what the labels are read for; None takes what the first format serves.
        format: name of the format of all; None recognises each.

    Returns:
        (split, rows) of each folder; the split is "" where the chips are yet to be divided.

    Raises:
        FileNotFoundError, ValueError: see `read`.
    """
    if _of_the_hub(path):
        from accel_geo.data.formats.hub_dataset import read_dataset

        return [("", read_dataset(path, task))]
    if isinstance(path, list | tuple):
        if not path:
            raise ValueError("the list of data folders is empty; give at least one")
        places = Counter(str(Path(one).resolve()) for one in path if isinstance(one, str | Path))
        if twice := [place for place, number in places.items() if number > 1]:
            raise ValueError(f"{twice[0]} is given twice; give each folder once")
        found: list[tuple[str, Rows]] = []
        for one in path:
            found += read_all(one, task or (found[0][1].task if found else None), format)
        return found
    if not isinstance(path, str | Path):
        raise ValueError(f"{str(path)[:80]!r} ({type(path).__name__}) is no path, no list of them, and no data set")
    if str(path).startswith("/vsi") or "://" in str(path):
        raise ValueError(
            f"{path} is no folder on disk; a scene that GDAL opens needs the file of its labels as vectors"
        )
    folders = _split_folders(Path(path).expanduser(), task, format)
    if not folders:
        return [("", read(path, task, format))]
    first = read(folders["train"], task, format)
    rest = [(split, read(place, first.task, format)) for split, place in folders.items() if split != "train"]
    return [("train", first), *rest]


def read_scenes(path: object, vectors: str | Path, task: str | None, **options: object) -> Rows:
    """Read the rows of scenes whose labels are shapes in a vector file; see `scene_vectors.read_scenes`."""
    from accel_geo.data.formats import scene_vectors

    return scene_vectors.read_scenes(path, vectors, task=task or scene_vectors.TASKS[0], **options)


def _of_the_hub(path: object) -> bool:
    if isinstance(path, str):
        return is_hub_name(path)
    return not isinstance(path, Path | list | tuple) and hasattr(path, "map")  # datasets are not imported to ask them


def _split_folders(path: Path, task: str | None, format: str | None) -> dict[str, Path]:
    # train/, valid/, test/ of a folder, where each is a data set and the folder itself is none.
    if not path.is_dir():
        return {}
    entries = sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name.casefold() in _SPLITS)
    folders = {_SPLITS[entry.name.casefold()]: entry for entry in entries}
    names = _names(format, task)
    if not {"train", "valid"} <= set(folders) or any(FORMATS[name].recognise(path) for name in names):
        return {}
    found = [any(FORMATS[name].recognise(place) for name in names) for place in folders.values()]
    return {split: folders[split] for split in ("train", "valid", "test") if split in folders} if all(found) else {}


def read(path: str | Path, task: str | None = None, format: str | None = None) -> Rows:
    """Read the rows of a data set; the format is recognised.

    Args:
        path: folder of the data set (one level too high or too deep is found), or an annotation file.
        task: what the labels are read for; None takes what the format serves.
        format: name of a format, in any case; None recognises it.

    Raises:
        FileNotFoundError: there is nothing at the path.
        ValueError: no format fits, or there are no chips; the message lists what was found.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {advice.nearby(path)}")
    names = _names(format, task)
    place, name = _locate(path, names, task, forced=format is not None)
    module = FORMATS[name]
    usual = module.default_task(place) if hasattr(module, "default_task") else module.TASKS[0]
    rows = cached_rows(place, task or usual, name, module.read)
    if place != path:
        rows.problems.insert(0, f"the data set was found in {place}")
    if not len(rows.dataset):
        raise ValueError(f"{place} ({name}) holds no chips. {advice.found(place)}")
    return rows


class OtherTask(ValueError):
    """A data set is in a format that does not serve the task; `tasks` are those that it serves."""

    def __init__(self, message: str, tasks: Sequence[str]) -> None:
        super().__init__(message)
        self.tasks = tuple(tasks)


def _names(format: str | None, task: str | None) -> list[str]:
    names = list(FORMATS)
    if format is not None:
        wanted = _ALIASES.get(str(format).casefold(), str(format)).casefold()
        names = [name for name in FORMATS if name.casefold() == wanted]
        if not names:
            raise ValueError(f"format {format!r} is not known; the formats are {', '.join(FORMATS)}")
    fitting = [name for name in names if task is None or task in FORMATS[name].TASKS]
    if format is None and task is None:  # any folder of images would do
        fitting.remove("sharp_images")
    if not fitting:
        serves = ", ".join(f"{name}: {' '.join(module.TASKS)}" for name, module in FORMATS.items())
        raise ValueError(f"format {format or 'any'} does not serve the task {task!r}; the formats serve {serves}")
    # Those that serve the task first and foremost come first: class rasters before polygons that could be drawn.
    return sorted(fitting, key=lambda name: FORMATS[name].TASKS.index(task) if task else 0)


def _locate(path: Path, names: list[str], task: str | None, forced: bool) -> tuple[Path, str]:
    # The folder that a format recognises: the path, else one below it, else the one above.
    def recognised(place: Path) -> str | None:
        return next((name for name in names if FORMATS[name].recognise(place)), None)

    if name := recognised(path):
        return path, name
    if path.is_dir() and not esri.metadata(path).mode:
        entries = [entry for entry in sorted(path.iterdir()) if entry.is_dir() and entry.name.casefold() not in _INNER]
        below = {entry: name for entry in entries if (name := recognised(entry))}
        if len(below) == 1:
            return next(iter(below.items()))
        if below:
            listed = "\n".join(f"  {entry} ({name})" for entry, name in below.items())
            raise ValueError(
                f"{path} holds {len(below)} data sets; give one of them (and one as valid_path):\n{listed}"
            )
    above = [path.parent] if path.name.casefold() in _INNER else []
    if path.parent.name.casefold() in _INNER:
        above.append(path.parent.parent)
    for place in above:
        if name := recognised(place):
            return place, name
    what = "is in no format that can be read" if task is None else f"is in no format that serves the task {task}"
    if forced:
        what = f"is not in the format {names[0]}"
    known = next((name for name in FORMATS if name not in names and FORMATS[name].recognise(path)), None)
    other = f" It is in the format {known} ({', '.join(FORMATS[known].TASKS)})." if known else ""
    layouts = "\n".join(f"  {name}: {FORMATS[name].LAYOUT}" for name in names)
    message = f"{path} {what}.{other} {advice.found(path)}\nFormats that would do:\n{layouts}"
    raise OtherTask(message, FORMATS[known].TASKS) if known else ValueError(message)
