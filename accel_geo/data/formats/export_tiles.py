"""Export_Tiles, as exported by ArcGIS Pro: images/<chip> alone, or with the same ground of a second raster in images2/.

Of a pair images/ is the coarse and images2/ the sharp raster, as the export tool's example of super-resolution has it;
where their sizes differ, the larger one is the sharp one.
"""

from pathlib import Path

from accel_geo.data.formats import boxes, esri, image_pairs
from accel_geo.data.formats.rows import Rows, folder, has_raster, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("super_resolution",)
LAYOUT = "images/<chip>, with ArcGIS metadata, and images2/<chip> where there are pairs"


def _second(path: Path) -> Path | None:
    second = folder(path, "images2", "labels")
    return second if second and has_raster(second) else None


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    images, mode = folder(path, "images"), esri.metadata(path).mode
    if not images or mode not in ("", "Export_Tiles"):
        return False
    if mode:
        return True
    return (
        bool(folder(path, "images2")) and not folder(path, "labels", "labels2", "masks") and _second(path) is not None
    )


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; in a folder of pairs, chips of one raster only are left out.

    Raises:
        ValueError: the sizes of a pair are no whole multiples of each other.
    """
    meta, images, second = esri.metadata(path), folder(path, "images"), _second(path)
    if images is None:
        raise ValueError(f"{path} holds no folder images: {LAYOUT}")
    chips = boxes.listing(images, RASTER_SUFFIXES)
    if second is None:
        rows = [{"file": f"{images.name}/{chip}", **boxes.placed(chip)} for chip in chips]
        result = Rows("Export_Tiles", task, path, table(rows), classes={})
    else:
        result = image_pairs.read_pairs(path, images, second, task, "Export_Tiles")
    result.bands, result.map_space, result.sources = meta.bands, meta.map_space, meta.files
    result.problems = [*esri.disagreements(meta, len(chips)), *result.problems]
    return result
