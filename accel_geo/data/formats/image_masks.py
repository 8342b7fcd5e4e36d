"""Folders of images and masks: images/<chip> beside masks/<chip>, whose pixels are class values, 0 background."""

from pathlib import Path

from accel_geo.data.formats import esri
from accel_geo.data.formats.rows import Rows, folder, label_problems, pair, rasters, relative, stem, table

TASKS = ("semantic",)
LAYOUT = "images/<chip> and masks|labels|semantic/<chip>, class values as pixels"
MASKS = ("semantic", "masks", "mask", "labels", "label", "annotations")


def _folders(path: Path) -> tuple[Path | None, Path | None]:
    images = folder(path, "images", "image", "imgs")
    if images is None:
        return None, None
    stems = {stem(file, images) for file in rasters(images)}
    for name in MASKS:
        masks = folder(path, name)
        if masks and any(stem(file, masks) in stems for file in rasters(masks)):
            return images, masks
    return images, None


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return not esri.metadata(path).mode and _folders(path)[1] is not None


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; which classes there are shows in the masks."""
    images, masks = _folders(path)
    if masks is None:
        raise ValueError(f"{path} holds no folder {' or '.join(MASKS)} with a mask named like a chip in images/")
    return read_pair(path, images, masks, task, "image_masks")


def read_pair(path: Path, images: Path, masks: Path, task: str, name: str) -> Rows:
    """Read the rows of two folders, one of chips and one of class rasters of the same names."""
    files = rasters(images)
    pairs, lonely = pair(files, images, masks)
    rows = [
        {"file": relative(file, path), "label_files": [relative(pairs[file], path)] if file in pairs else []}
        for file in files
    ]
    problems = label_problems(rows, lonely)
    return Rows(name, task, path, table(rows), classes={}, named=False, closed=False, problems=problems)
