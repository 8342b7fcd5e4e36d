"""COCO instances: one JSON of images, annotations and categories, beside the chips."""

import json
import math
from collections import Counter
from functools import lru_cache
from pathlib import Path

from accel_geo.data.formats.rows import Rows, rasters, read_json, relative, some, table

TASKS = ("instances",)
LAYOUT = "images/<chip> and a JSON of images, annotations (with segmentation) and categories"


def recognise(path: Path) -> bool:
    """Say whether a folder, or a JSON file, is in this format."""
    return bool(_candidates(path))


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        files = [path] if path.suffix.lower() == ".json" else []
    else:
        places = [path, path / "annotations", path / "labels", path / "images"]
        files = sorted(file for place in places if place.is_dir() for file in place.glob("*.[jJ][sS][oO][nN]"))
    return [file for file in files if not file.name.startswith(".") and _looks_right(file, file.stat().st_mtime_ns)]


@lru_cache(maxsize=64)
def _looks_right(file: Path, _modified: int) -> bool:
    data = file.read_bytes().replace(b"\0", b"")
    keys = (b'"images"', b'"annotations"', b'"categories"')
    return all(key in data for key in keys) and b'"segments_info"' not in data


def _load(file: Path) -> dict:
    values = read_json(file)
    lists = ("images", "annotations", "categories")
    if not isinstance(values, dict) or not all(isinstance(values.get(name), list) for name in lists):
        raise ValueError(f"{file} is no COCO file: it must be an object with the lists {', '.join(lists)}")
    return values


def _shapes(values: dict) -> int:
    return sum(bool(annotation.get("segmentation")) for annotation in values["annotations"])


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder or a JSON file; of several files the one with most segmentations is read.

    Raises:
        ValueError: no annotation has a segmentation, or a category id is not in the list.
    """
    candidates = _candidates(path)
    if not candidates:
        raise ValueError(f"{path} holds no COCO JSON (a file with images, annotations and categories)")
    loaded = {file: _load(file) for file in candidates}
    file = max(candidates, key=lambda f: _shapes(loaded[f]))
    values, problems = loaded[file], []
    if not _shapes(values) and values["annotations"]:
        raise ValueError(
            f"{file}: none of {len(values['annotations'])} annotations has a segmentation, only boxes; instances need "
            "polygons or RLE in 'segmentation'"
        )
    if len(candidates) > 1:
        others = ", ".join(f"{f.name} ({_shapes(loaded[f])})" for f in candidates if f != file)
        problems.append(f"read {file.name} ({_shapes(values)} segmentations), not {others}: a JSON as the path chooses")
    root = path if path.is_dir() else file.parent
    if root.name.casefold() in ("annotations", "labels"):
        root = root.parent
    classes = {int(category["id"]): str(category["name"]).strip() for category in values["categories"]}
    objects = _objects(values, classes, file, problems)
    rows = []
    for image, name in _files(values["images"], root, file, problems).items():
        mine = objects.get(image, [])
        rows.append({"file": name, "values": [v for v, _ in mine], "segments": [s for _, s in mine]})
    return Rows("COCO", task, root, table(rows), dict(sorted(classes.items())), sources=[file], problems=problems)


def _files(images: list[dict], root: Path, file: Path, problems: list[str]) -> dict[int, str]:
    # The chip of each image id, relative to the root. Names may carry folders, back-slashes or a lost absolute path.
    present = rasters(root)
    by_path = {relative(image, root).casefold(): image for image in present}
    by_name: dict[str, list[Path]] = {}
    for image in present:
        by_name.setdefault(image.name.casefold(), []).append(image)
    beside = relative(file.parent, root).casefold()
    found: dict[int, str] = {}
    missing, taken = [], set()
    for image in images:
        name = str(image["file_name"]).replace("\\", "/").casefold()
        names = [name, f"images/{name}", f"{beside}/{name}", f"{file.stem.casefold().split('_')[-1]}/{name}"]
        match = next((by_path[n] for n in names if n in by_path), None)
        same = by_name.get(name.rsplit("/", 1)[-1], [])
        if match is None and len(same) == 1:
            match = same[0]
        if match is None:
            missing.append(image["file_name"])
        elif match in taken:
            raise ValueError(f"{file}: {image['file_name']} is listed twice; each image must have one entry")
        else:
            taken.add(match)
            found[image["id"]] = relative(match, root)
    if missing:
        problems.append(f"{len(missing)} image(s) of {file.name} are not on disk and were left out: {some(missing, 3)}")
    folders = {image.parent for image in taken}
    extra = [image for image in present if image not in taken and image.parent in folders]
    if extra:
        names = some([image.name for image in extra], 3)
        problems.append(f"{len(extra)} chip(s) on disk are not listed in {file.name} and were left out: {names}")
    return found


def _objects(
    values: dict, classes: dict[int, str], file: Path, problems: list[str]
) -> dict[int, list[tuple[int, str]]]:
    # (class value, segmentation as JSON) of the objects of each image id; what is left out is counted.
    known, dropped = {image["id"] for image in values["images"]}, Counter()
    objects: dict[int, list[tuple[int, str]]] = {}
    for annotation in values["annotations"]:
        category = annotation.get("category_id")
        if category not in classes:
            raise ValueError(
                f"{file}: annotation {annotation.get('id')} has category_id {category!r}, none of its categories "
                f"{some(classes)}; add it there, or correct the annotation"
            )
        shape = _shape(annotation.get("segmentation"))
        if annotation.get("iscrowd"):
            dropped["crowd annotation(s) (iscrowd = 1)"] += 1
        elif annotation["image_id"] not in known:
            dropped["annotation(s) of an image that is not listed"] += 1
        elif not shape:
            dropped["annotation(s) without a usable segmentation"] += 1
        else:
            objects.setdefault(annotation["image_id"], []).append((category, json.dumps(shape)))
    problems += [f"{count} {what} of {file.name} were left out" for what, count in dropped.items()]
    return objects


def _shape(segmentation: object) -> list | dict | None:
    if isinstance(segmentation, dict):
        return segmentation if {"size", "counts"} <= set(segmentation) else None
    parts = segmentation if isinstance(segmentation, list) else []
    if parts and isinstance(parts[0], int | float):
        parts = [parts]  # one polygon without its outer list
    return [p for p in parts if len(p) >= 6 and len(p) % 2 == 0 and all(math.isfinite(x) for x in p)] or None
