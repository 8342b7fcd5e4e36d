"""A folder of images and nothing else, for super-resolution: each is the sharp one, made coarser on loading.

Only for runs that ask for the task: any folder of chips would do.
"""

from pathlib import Path

from accel_geo.data.formats import esri
from accel_geo.data.formats.rows import Rows, folder, rasters, relative, table

TASKS = ("super_resolution",)
LAYOUT = "<chip>, or images/<chip>: sharp images"
ASKED = True  # never taken unless the task or the format is asked for


def recognise(path: Path) -> bool:
    """Say whether a folder holds images."""
    return path.is_dir() and bool(rasters(folder(path, "images") or path, deep=False))


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder."""
    meta = esri.metadata(path)
    rows = [{"file": relative(file, path)} for file in rasters(folder(path, "images") or path)]
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
