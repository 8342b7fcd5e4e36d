"""COCO: one JSON of images, annotations and categories, beside the chips; objects as boxes, polygons or run lengths.

Panoptic files, whose annotations list the segments of a PNG, are read by `coco_panoptic`.
"""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats import boxes, coco_objects, coco_panoptic
from accel_geo.data.formats.rows import Rows, read_json, some, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("instances", "detection", "semantic", "edges", "panoptic")
LAYOUT = "images/<chip> and a JSON of images, annotations (with segmentation, bbox or segments_info) and categories"
_PLAIN = {"id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "date_captured"}

_OUTLINE = re.compile(rb'"segmentation"\s*:\s*(\{|\[\s*[\[\d.-])')


class _Found(NamedTuple):
    """A file, its content, and how many of its annotations serve the task."""

    file: Path
    values: dict
    fitting: int


def recognise(path: Path) -> bool:
    """Say whether a folder, or a JSON file, is in this format."""
    return bool(_candidates(path))


def default_task(path: Path) -> str:
    """Return the task that the files at a path serve best: instances, detection where there are only boxes, panoptic."""
    served = {_shown(file.read_bytes().replace(b"\0", b"")) for file in _candidates(path)}
    return next((task for task in ("instances", "detection", "panoptic") if task in served), TASKS[0])


def _shown(text: bytes) -> str:
    # What a file holds shows in its text: parsing a large one takes long.
    if b'"segments_info"' in text:
        return "panoptic"
    return "instances" if _OUTLINE.search(text) else "detection" if b'"bbox"' in text else TASKS[0]


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        files = [path] if path.suffix.lower() == ".json" else []
    else:
        places = [path, path / "annotations", path / "labels", path / "images"]
        files = [p / name for p in places if p.is_dir() for name in boxes.listing(p, (".json",), deep=False)]
    return [file for file in sorted(files) if _looks_right(file, file.stat().st_mtime_ns)]


@lru_cache(maxsize=64)
def _looks_right(file: Path, _modified: int) -> bool:
    data = file.read_bytes().replace(b"\0", b"")
    return all(key in data for key in (b'"images"', b'"annotations"', b'"categories"'))


def _load(file: Path) -> dict:
    values = read_json(file)
    lists = ("images", "annotations", "categories")
    if not isinstance(values, dict) or not all(isinstance(values.get(name), list) for name in lists):
        raise ValueError(f"{file} is no COCO file: it must be an object with the lists {', '.join(lists)}")
    for name in lists:
        if not all(isinstance(entry, dict) for entry in values[name]):
            raise ValueError(f"{file}: an entry of {name} is no object; each must be one, as {{...}}")
    return values


def _fitting(values: dict, task: str) -> int:
    # How many annotations hold what the task needs.
    panoptic = coco_panoptic.is_panoptic(values)
    if panoptic or task == "panoptic":
        return len(values["annotations"]) if panoptic == (task == "panoptic") else 0
    keys = ("segmentation", "bbox") if task == "detection" else ("segmentation",)
    return sum(any(annotation.get(key) for key in keys) for annotation in values["annotations"])


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder or a JSON file; of several files the one with most annotations for the task is read.

    Class values are the category ids, 0 and gaps included. Regions of crowds (iscrowd) count in panoptic segmentation
    and are left out elsewhere.

    Raises:
        ValueError: no annotation serves the task, a category id is not in the list, an entry lacks its name or id, or
            numbers are none; the message names the file and the annotation.
    """
    found, problems = _choose(path, task)
    file, values = found.file, found.values
    root = path if path.is_dir() else file.parent
    if root.name.casefold() in ("annotations", "labels"):
        root = root.parent
    classes = _classes(values["categories"], file)
    chips = _Chips(root, file)
    file_of = chips.match(values["images"])
    further = {chip: _columns(image, chip) for image in values["images"] if (chip := file_of.get(str(image["id"])))}
    if coco_panoptic.is_panoptic(values):
        labels = coco_panoptic.labels(values, root, file, file_of, classes, problems)
        things = coco_panoptic.things(values["categories"], problems)
    else:
        labels = coco_objects.labels(values["annotations"], classes, file, file_of, task, problems)
        things = frozenset(classes) if task == "panoptic" else frozenset()
    rows = [{"file": chip, **further[chip], **labels.get(image, {})} for image, chip in file_of.items()]
    return Rows(
        format="COCO",
        task=task,
        root=root,
        dataset=table(rows),
        classes=dict(sorted(classes.items())),
        zero_is_class=classes.get(0, "").casefold() != "background" or task != "semantic",
        things=things,
        sources=[file],
        problems=[*problems, *chips.problems],
    )


def _choose(path: Path, task: str) -> tuple[_Found, list[str]]:
    # The file to read, and what to tell of the others.
    candidates = _candidates(path)
    if not candidates:
        raise ValueError(f"{path} holds no COCO JSON (a file with images, annotations and categories)")
    loaded = {file: _load(file) for file in candidates}
    found = [_Found(file, values, _fitting(values, task)) for file, values in loaded.items()]
    if task == "panoptic" and not any(each.fitting for each in found):  # single objects: the rest is unlabelled
        found = [_Found(each.file, each.values, _fitting(each.values, "instances")) for each in found]
    best = max(found, key=lambda each: each.fitting)
    if not best.fitting and best.values["annotations"]:
        panoptic = coco_panoptic.is_panoptic(best.values)
        held = "segments_info" if panoptic else "boxes" if _fitting(best.values, "detection") else "neither"
        serves = {"segments_info": "read it as panoptic", "boxes": "read them as detection"}.get(held, "")
        needs = "polygons or RLE in 'segmentation'" + (" or a 'bbox'" if task == "detection" else "")
        raise ValueError(
            f"{best.file}: none of {len(best.values['annotations'])} annotations has a segmentation, only {held}; {task} "
            f"needs {needs}{f': {serves}' if serves else ''}"
        )
    others = ", ".join(f"{each.file.name} ({each.fitting})" for each in found if each is not best)
    told = f"read {best.file.name} ({best.fitting} annotations for {task}), not {others}: a JSON as the path chooses"
    return best, [told] if others else []


def _classes(categories: list[dict], file: Path) -> dict[int, str]:
    classes: dict[int, str] = {}
    for category in categories:
        value, name = category.get("id"), category.get("name")
        number = boxes.whole(str(value).strip())
        if number is None or isinstance(value, bool) or not str(name or "").strip():
            raise ValueError(f"{file}: category {str(category)[:120]} needs an id, a whole number, and a name")
        if classes.setdefault(number, str(name).strip()) != str(name).strip():
            raise ValueError(f"{file}: category id {number} stands for {classes[number]!r} and {name!r}; use two ids")
    return classes


def _columns(image: dict, chip: str) -> dict[str, str]:
    # What follows from the chip's folders, and what else the file says of it.
    columns = boxes.placed(chip.removeprefix("images/"))
    further = {k: v for k, v in image.items() if k not in _PLAIN and isinstance(v, str | int | float)}
    if further:
        columns["attributes"] = json.dumps(json.loads(columns.get("attributes", "{}")) | further)
    return columns


class _Chips:
    """Finds the chips that a file lists. Their names may carry folders, back-slashes or a lost absolute path."""

    def __init__(self, root: Path, file: Path) -> None:
        self._file, self._present, self.problems = file, boxes.listing(root, RASTER_SUFFIXES), []
        self._finder = boxes.Finder(self._present)
        place = "" if file.parent == root else boxes.plain(file.parent.relative_to(root).as_posix())
        self._places = ("", "images", place, file.stem.casefold().split("_")[-1])  # annotations/instances_val2017.json

    def match(self, images: list[dict]) -> dict[str, str]:
        """Return the chip of each image id, relative to the root; ids may be numbers here and texts there."""
        found: dict[str, str] = {}
        missing, taken = [], set()
        for image in images:
            number, name = image.get("id"), image.get("file_name")
            if not isinstance(number, int | str) or not isinstance(name, str):
                raise ValueError(f"{self._file}: image {str(image)[:120]} needs an id and a file_name")
            number, chip = str(number), self._finder.find(name, self._places)
            if chip is None:
                missing.append(name)
            elif chip in taken or number in found:
                raise ValueError(f"{self._file}: {name} (id {number}) is listed twice; each image must have one entry")
            else:
                taken.add(chip)
                found[number] = chip
        self._tell(missing, taken)
        return found

    def _tell(self, missing: list[str], taken: set[str]) -> None:
        name = self._file.name
        if missing:
            self.problems.append(
                f"{len(missing)} image(s) of {name} are not on disk and were left out: {some(missing, 3)}"
            )
        folders = {chip.rpartition("/")[0] for chip in taken}
        extra = [chip for chip in self._present if chip not in taken and chip.rpartition("/")[0] in folders]
        if extra:
            self.problems.append(
                f"{len(extra)} chip(s) on disk are not listed in {name} and were left out: "
                f"{some([chip.rpartition('/')[2] for chip in extra], 3)}"
            )
