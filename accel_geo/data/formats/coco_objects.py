"""Objects of COCO files: annotations with a bbox, with polygons, or with run lengths (RLE)."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from accel_geo.data.formats import boxes
from accel_geo.data.formats.rows import some


def labels(
    annotations: list[dict],
    classes: dict[int, str],
    file: Path,
    known: Iterable[str],
    task: str,
    problems: list[str],
) -> dict[str, dict[str, list]]:
    """Return the columns values, segments or boxes, and crowd of each image id; what is left out is counted.

    Args:
        annotations: of the file.
        classes: name of each category id.
        file: the JSON file, for messages.
        known: image ids, as texts, whose chips are there.
        task: what the labels are read for.
        problems: what is left out is added here.

    Raises:
        ValueError: a category is not in the list, or coordinates are no finite numbers.
    """
    dropped: Counter[str] = Counter()
    found: dict[str, dict[str, list]] = {}
    for annotation in annotations:
        category, image, crowd = annotation.get("category_id"), annotation.get("image_id"), annotation.get("iscrowd")
        value = boxes.whole(str(category).strip())
        if value not in classes:
            raise ValueError(
                f"{file}: annotation {annotation.get('id')} has category_id {category!r}, none of its categories "
                f"{some(classes) or '(none are listed)'}; add it there, or correct the annotation"
            )
        if not isinstance(image, int | str):
            raise ValueError(f"{file}: annotation {annotation.get('id')} has the image_id {image!r}; it needs one")
        if crowd and task != "panoptic":
            dropped["crowd annotation(s) (iscrowd = 1)"] += 1
            continue
        image = str(image)
        if image not in known:
            dropped["annotation(s) of an image that is not listed, or not on disk,"] += 1
            continue
        shape = _box(annotation, file) if task == "detection" else _shape(annotation, file)
        if not shape:
            what = "bbox" if task == "detection" else "segmentation"
            dropped[f"annotation(s) without a usable {what}"] += 1
            continue
        mine = found.setdefault(image, {"values": [], "segments": [], "boxes": [], "crowd": []})
        if crowd:
            mine["crowd"].append(len(mine["values"]))
        mine["values"].append(value)
        if task == "detection":
            mine["boxes"] += shape
        else:
            mine["segments"].append(json.dumps(shape))
    problems += [f"{count} {what} of {file.name} were left out" for what, count in dropped.items()]
    return found


def _numbers(numbers: object, annotation: dict, key: str, file: Path) -> list[float]:
    kinds = isinstance(numbers, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    if not kinds or not all(map(math.isfinite, numbers)):
        raise ValueError(
            f"{file}: annotation {annotation.get('id')} has the {key} {str(numbers)[:120]}; it must hold finite numbers, "
            "pixels of the chip"
        )
    return numbers


def _shape(annotation: dict, file: Path) -> list | dict | None:
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, dict):
        return _runs(segmentation, annotation, file) if {"size", "counts"} <= set(segmentation) else None
    parts = segmentation if isinstance(segmentation, list) else []
    if parts and not isinstance(parts[0], list):
        parts = [parts]  # one polygon without its outer list
    polygons = [_numbers(part, annotation, "segmentation", file) for part in parts]
    return [part for part in polygons if len(part) >= 6 and len(part) % 2 == 0] or None


def _runs(rle: dict, annotation: dict, file: Path) -> dict:
    size, counts = rle["size"], rle["counts"]
    listed = isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)
    runs = counts if isinstance(counts, list) else []
    if not listed or not (isinstance(counts, list | str) and all(isinstance(n, int) and n >= 0 for n in runs)):
        raise ValueError(
            f"{file}: annotation {annotation.get('id')} has the segmentation {str(rle)[:120]}; run lengths are "
            '{"size": [height, width], "counts": [whole numbers from 0]}, or the text that pycocotools makes of the counts'
        )
    return rle


def _box(annotation: dict, file: Path) -> list[float] | None:
    # x1, y1, x2, y2 of the bbox, else around the segmentation.
    if given := annotation.get("bbox"):
        numbers = _numbers(given, annotation, "bbox", file)
        if len(numbers) != 4:
            raise ValueError(
                f"{file}: annotation {annotation.get('id')} has the bbox {given}; it is x, y, width, height"
            )
        x, y, width, height = numbers
        return [x, y, x + width, y + height]
    shape = _shape(annotation, file)
    if isinstance(shape, dict):
        return _around_runs(shape, annotation, file)
    points = [point for part in shape or [] for point in zip(part[::2], part[1::2])]
    return [f(axis) for f in (min, max) for axis in zip(*points)] if points else None


def _around_runs(rle: dict, annotation: dict, file: Path) -> list[float] | None:
    from accel_geo.data.shapes import shape_mask

    try:
        mask, _, _ = shape_mask(rle, tuple(rle["size"]))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file}: annotation {annotation.get('id')} has an RLE that cannot be read: {error}"
        ) from error
    rows, columns = mask.any(1).nonzero()[0].tolist(), mask.any(0).nonzero()[0].tolist()
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] if rows else None
