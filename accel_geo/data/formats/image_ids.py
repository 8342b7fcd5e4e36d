"""Folders of images and object numbers: images/<chip> beside instances/<chip>, 0 none, 1..k the objects of the chip."""

from pathlib import Path

from accel_geo.data.formats import boxes, esri, image_masks
from accel_geo.data.formats.rows import Rows, label_problems, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("instances", "detection", "semantic", "edges")
LAYOUT = "images/<chip> and instances/<chip>, object numbers as pixels; all objects are of one class"
FOLDERS = ("instances", "instance", "instance_masks", "instance_ids", "ids", "objects", "segmentationobject")


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return not esri.metadata(path).mode and image_masks.mask_folder(path, FOLDERS)[1] is not None


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; where the format is asked for, folders named masks or labels do as well.

    Raises:
        ValueError: there is no folder of object numbers.
    """
    images, ids = image_masks.mask_folder(path, (*FOLDERS, *image_masks.MASKS))
    if ids is None:
        raise ValueError(f"{path} holds no folder {' or '.join(FOLDERS)} with a raster named like a chip in images/")
    chips = boxes.listing(images, RASTER_SUFFIXES)
    pairs, lonely = boxes.pair(chips, boxes.listing(ids, RASTER_SUFFIXES), str(ids))
    rows = []
    for chip in chips:
        labels = [f"{ids.name}/{pairs[chip]}"] if chip in pairs else []
        row = {"file": f"{images.name}/{chip}", "label_files": labels, "values": [1] * len(labels)}
        rows.append(row | boxes.placed(chip))
    return Rows("image_ids", task, path, table(rows), {1: "object"}, named=False, problems=label_problems(rows, lonely))
