"""A folder of images and nothing else, for super-resolution: each is the sharp one, made coarser on loading.

Only for runs that ask for the task: any folder of chips would do.
"""

from pathlib import Path

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.rows import Rows, folder, has_raster, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("super_resolution",)
LAYOUT = "<chip>, or images/<chip>: sharp images"
_PARTS = {"images", "images2", "labels", "labels2", "masks"}


def recognise(path: Path) -> bool:
    """Say whether a folder holds images; a folder of a data set belongs to that one."""
    if not path.is_dir() or (path.name.casefold() in _PARTS and folder(path.parent, "images")):
        return False
    return has_raster(folder(path, "images") or path)


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder."""
    meta, images = esri.metadata(path), folder(path, "images")
    prefix = f"{images.name}/" if images else ""
    chips = boxes.listing(images or path, RASTER_SUFFIXES, deep=bool(images))
    rows = [{"file": prefix + chip, **boxes.placed(chip)} for chip in chips]
    return Rows(
        "sharp_images",
        task,
        path,
        table(rows),
        classes={},
        bands=meta.bands,
        map_space=meta.map_space,
        sources=meta.files,
    )
