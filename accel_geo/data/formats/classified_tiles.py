"""Classified_Tiles, as exported by ArcGIS Pro: labels/<chip>.tif holds class values, 0 is background."""

from pathlib import Path

from accel_geo.data.formats import esri, image_masks
from accel_geo.data.formats.rows import Rows, folder, has_raster

TASKS = ("semantic", "edges")
LAYOUT = "images/<chip> and labels/<chip>, class values as pixels, with ArcGIS metadata"


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format: the same files without metadata are images and masks."""
    labels = folder(path, "labels")
    if not folder(path, "images") or not labels or folder(path, "labels2") or not esri.is_export(path):
        return False
    return esri.metadata(path).mode in ("", "Classified_Tiles") and has_raster(labels)


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; with a class list in the metadata, labels may hold no other values.

    Raises:
        ValueError: the folders images and labels are not there.
    """
    meta, images, labels = esri.metadata(path), folder(path, "images"), folder(path, "labels")
    if images is None or labels is None:
        raise ValueError(f"{path} holds no folders images and labels: {LAYOUT}")
    rows = image_masks.read_pair(path, images, labels, task, "Classified_Tiles")
    if folder(path, "images2"):
        rows.problems.insert(0, "the second image of each chip (images2) is not read")
    rows.problems = [*esri.disagreements(meta, len(rows.dataset)), *rows.problems]
    rows.bands, rows.map_space, rows.sources = meta.bands, meta.map_space, [*meta.files, *rows.sources]
    classes = {value: name for value, name in sorted(meta.classes.items()) if value != 0}
    if classes and not rows.colours:
        rows.classes, rows.named, rows.closed = classes, True, True
    return rows
