"""Readers of on-disk formats, one module each with TASKS, LAYOUT, `recognise(path)` and `read(path, task)`."""

from pathlib import Path
from types import ModuleType

from accel_geo.data.formats import classified_tiles, coco, esri, image_masks, imagenet, rcnn_masks
from accel_geo.data.formats.rows import Rows, has_raster, some

FORMATS: dict[str, ModuleType] = {
    "RCNN_Masks": rcnn_masks,
    "Classified_Tiles": classified_tiles,
    "Imagenet": imagenet,
    "COCO": coco,
    "image_masks": image_masks,
}

# Folders that belong to the one above.
_INNER = {"images", "images2", "labels", "labels2", "masks", "semantic", "annotations"}


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
        raise FileNotFoundError(f"{path} does not exist. {_nearby(path)}")
    names = _names(format, task)
    place, name = _locate(path, names, forced=format is not None)
    rows = FORMATS[name].read(place, task or FORMATS[name].TASKS[0])
    if place != path and path.is_dir():
        rows.problems.insert(0, f"the data set was found in {place}")
    if not len(rows.dataset):
        raise ValueError(f"{place} ({name}) holds no chips. {found(place)}")
    return rows


def _names(format: str | None, task: str | None) -> list[str]:
    names = list(FORMATS)
    if format is not None:
        names = [name for name in FORMATS if name.casefold() == str(format).casefold()]
        if not names:
            raise ValueError(f"format {format!r} is not known; the formats are {', '.join(FORMATS)}")
    fitting = [name for name in names if task is None or task in FORMATS[name].TASKS]
    if not fitting:
        serves = ", ".join(f"{name}: {' '.join(module.TASKS)}" for name, module in FORMATS.items())
        raise ValueError(f"format {format or 'any'} does not serve the task {task!r}; the formats serve {serves}")
    return fitting


def _locate(path: Path, names: list[str], forced: bool) -> tuple[Path, str]:
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
    layouts = "\n".join(f"  {name}: {FORMATS[name].LAYOUT}" for name in names)
    what = f"is not in the format {names[0]}" if forced else "is in no format that can be read"
    raise ValueError(f"{path} {what}. {found(path)}\nFormats that would do:\n{layouts}")


def found(path: Path) -> str:
    """Return a sentence that lists what lies in a folder."""
    if path.is_file():
        return f"It is a file of {path.stat().st_size} bytes."
    entries = sorted(path.iterdir())
    if not entries:
        return "It is empty."
    folders = [f"{e.name}/ ({sum(1 for _ in e.iterdir())} entries)" for e in entries if e.is_dir()]
    files = [e.name for e in entries if not e.is_dir()]
    listed = folders[:12] + files[: max(12 - len(folders), 4)]
    more = len(entries) - len(listed)
    mode = esri.metadata(path).mode
    said = f" Its metadata call it {mode}." if mode else ""
    images = " Chips lie in the folder itself, without labels beside them." if has_raster(path) else ""
    return f"Found there: {', '.join(listed)}{f' and {more} more' if more else ''}.{said}{images}"


def _nearby(path: Path) -> str:
    parent = next((p for p in path.parents if p.exists()), Path("."))
    names = sorted(entry.name for entry in parent.iterdir())
    return f"Check the path; in {parent} there are: {some(names, 12) or 'no files'}"
