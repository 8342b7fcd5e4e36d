"""YOLO: labels/<chip>.txt with a line for each object, in fractions of the chip: a box, or the points of an outline.

A line is `class cx cy w h` or `class x1 y1 x2 y2 x3 y3 ...`; the class is an index into the names of data.yaml or
classes.txt. Chips lie in images/, in images/train and images/val, or in train/images and val/images.
"""

import json
import os
import warnings
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.boxes import Objects
from accel_geo.data.formats.rows import Rows, folder, kept_as_background, some
from accel_geo.data.formats.yolo_settings import LISTS, class_lists, splits
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("detection", "instances", "semantic", "edges", "panoptic")
LAYOUT = "images/<chip> and labels/<chip>.txt with lines `class cx cy w h` or `class x1 y1 x2 y2 ...`, 0 to 1"


class _Part(NamedTuple):
    """Two folders, relative to the root, and the folder that they lie in."""

    images: str
    labels: str
    place: str


def _parts(root: Path) -> list[_Part]:
    found = []
    with os.scandir(root) as entries:
        inner = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for place in ("", *inner):
        images, labels = folder(root / place, "images"), folder(root / place, "labels")
        if images and labels:
            prefix = f"{place}/" if place else ""
            found.append(_Part(prefix + images.name, prefix + labels.name, place))
            if not place:
                break
    return found


def _root(path: Path) -> Path:
    return path.parent if path.is_file() and path.suffix.lower() in (".yaml", ".yml") else path


def _labels(folder_: Path) -> list[str]:
    return [name for name in boxes.listing(folder_, (".txt",)) if name.rsplit("/", 1)[-1].lower() not in LISTS]


def recognise(path: Path) -> bool:
    """Say whether a folder, or the data.yaml in it, is in this format: the first label has such lines."""
    root = _root(path)
    mode = esri.metadata(root).mode.casefold()
    if not root.is_dir() or (mode and not mode.startswith("yolo")):
        return False
    files = {part.labels: names for part in _parts(root) if (names := _labels(root / part.labels))}
    for place, names in files.items():
        for line in boxes.sampled(root / place, names):
            return _looks_right(line)
    return bool(files)


def _looks_right(line: str) -> bool:
    text, *rest = line.split()
    numbers = boxes.finite(rest)
    return boxes.whole(text) is not None and _shaped(numbers) and all(-1 <= number <= 2 for number in numbers)


def _shaped(numbers: list[float] | None) -> bool:
    return numbers is not None and (len(numbers) == 4 or (len(numbers) >= 6 and len(numbers) % 2 == 0))


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; chips without a label file are background.

    Boxes and outlines become pixels, for which the size of each chip with labels is read from its header.

    Raises:
        ValueError: a line has other columns, there are no outlines for a task that needs them, or two label files
            belong to one chip.
    """
    root = _root(path)
    parts = _parts(root)
    if not parts:
        raise ValueError(f"{root} holds no folders images and labels: {LAYOUT}")
    lists, meta = class_lists(root, [part.labels for part in parts]), esri.metadata(root)
    objects, columns, without, unread, sources = {}, {}, [], [], []
    lonely = left_out = 0
    for part in parts:
        chips = boxes.listing(root / part.images, RASTER_SUFFIXES)
        pairs, more = boxes.pair(chips, _labels(root / part.labels), str(root / part.labels))
        lonely += more
        for chip in chips:
            file = f"{part.images}/{chip}"
            columns[file] = boxes.placed(f"{part.place}/{chip}" if part.place else chip)
            objects[file] = Objects()
            if chip not in pairs:
                without.append(file)
                continue
            label = f"{root}/{part.labels}/{pairs[chip]}"
            sources.append(Path(label))
            lines = _lines(label)
            size = image_size(f"{root}/{file}") if lines else (0, 0)
            if size is None:
                unread.append(file)
            else:
                left_out += _take(lines, size, task, objects[file])
    problems = [*lists.problems, *kept_as_background(without, lonely)]
    for file, split in splits(lists.settings, root, list(objects)).items():
        columns[file]["attributes"] = json.dumps({"split": split})
    if left_out and not any(each.texts for each in objects.values()):
        raise ValueError(
            f"{root}: none of {left_out} objects has an outline, only boxes; {task} needs lines `class x1 y1 x2 y2 "
            "x3 y3 ...`: read the boxes as detection"
        )
    if left_out:
        problems.append(f"{left_out} object(s) with a box but no outline were left out")
    if unread:
        problems.append(f"{len(unread)} chip(s) have no size that can be read, so that labels do: {some(unread, 3)}")
    known, where = (lists.names, lists.where) if lists.names else (meta.classes, "the metadata")
    sources += [*lists.files, *meta.files]
    rows = boxes.make_rows(
        "YOLO", task, root, objects, known, where, columns=columns, sources=sources, problems=problems
    )
    rows.bands, rows.map_space = meta.bands, meta.map_space
    return rows


def _lines(file: str) -> list[tuple[str, list[float]]]:
    # The class and the numbers of each object of a label file.
    found = []
    for number, line in enumerate(boxes.read_text(file).split("\n"), 1):
        text, *rest = line.split() or [""]
        if not text:
            continue
        numbers, value = boxes.finite(rest), boxes.whole(text)
        if not _shaped(numbers) or value is None or value < 0:
            raise ValueError(
                f"{file}, line {number}: {line.strip()[:120]!r} is no object; lines are `class cx cy w h` (a box) or "
                "`class x1 y1 x2 y2 x3 y3 ...` (an outline) with a class index from 0 and finite numbers"
            )
        found.append((str(value), numbers))
    return found


def _take(lines: list[tuple[str, list[float]]], size: tuple[int, int], task: str, objects: Objects) -> int:
    # Adds the objects in pixels; returns how many boxes have no outline where one is needed.
    width, height = size
    left_out = 0
    for text, numbers in lines:
        if len(numbers) == 4 and task != "detection":
            left_out += 1
            continue
        objects.texts.append(text)
        if task != "detection":
            pixels = [number * (height if i % 2 else width) for i, number in enumerate(numbers)]
            objects.segments.append(json.dumps([pixels]))
        elif len(numbers) == 4:
            x, y, w, h = numbers
            objects.boxes += [(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height]
        else:
            x, y = numbers[::2], numbers[1::2]
            objects.boxes += [min(x) * width, min(y) * height, max(x) * width, max(y) * height]
    return left_out


def image_size(file: str) -> tuple[int, int] | None:
    """Return (width, height) from the header of a raster; None where it cannot be read."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large images: no pixel is read
        try:
            with Image.open(file) as image:
                return image.size
        except Exception:  # whatever Pillow does not know GDAL may
            import rasterio

            try:
                with rasterio.open(file) as source:
                    return source.width, source.height
            except rasterio.errors.RasterioError:
                return None
