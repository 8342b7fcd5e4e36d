"""Folders of images and masks: images/<chip> beside masks/<chip>, whose pixels are class values, 0 background.

Masks may be named like their chips, or with a word behind (chip_mask.png). They may be pictures, each class in a colour
of its own, where a file beside them tells the colours; a picture in grey holds the values in each of its bands.
"""

import os
import re
from itertools import islice
from pathlib import Path

from accel_geo.data.formats import colour_map, esri
from accel_geo.data.formats.rows import Rows, folder, label_problems, pair, rasters, relative, stem, table

TASKS = ("semantic", "edges")
LAYOUT = "images/<chip> and masks|labels|semantic/<chip>, class values (or colours, with a class_dict.csv) as pixels"
IMAGES = ("images", "image", "imgs", "img", "jpegimages")
MASKS = ("semantic", "masks", "mask", "labels", "label", "annotations", "annotation", "gt", "segmentationclass")
EDGES = ("edges", "edge", "boundaries", "boundary")
_WORDS = re.compile(r"[\W_]+(?:masks?|labels?|lbl|gt|seg|segmentation|annotation|image|img|sat|rgb)$")
_LOOKED_AT = 20  # masks whose names tell whether a folder belongs to the chips


def mask_folder(path: Path, names: tuple[str, ...]) -> tuple[Path | None, Path | None]:
    """Return the folder of images, and the first of these folders with a raster that is named like an image."""
    images = folder(path, *IMAGES)
    if images is None:
        return None, None
    plain: set[str] = set()
    for _, _, files in os.walk(images):
        plain |= {_WORDS.sub("", os.path.splitext(name)[0].casefold()) for name in files}
    for name in names:
        masks = folder(path, name)
        some_masks = islice(rasters(masks), _LOOKED_AT) if masks else ()
        if any(_plain(file, masks).rsplit("/", 1)[-1] in plain for file in some_masks):
            return images, masks
    return images, None


def _names(task: str) -> tuple[str, ...]:
    return (*EDGES, *MASKS) if task == "edges" else (*MASKS, *EDGES)


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return not esri.metadata(path).mode and mask_folder(path, _names("semantic"))[1] is not None


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; which classes there are shows in the masks, or in the file of their colours.

    Raises:
        ValueError: there are no masks, or they are in colours that no file explains.
    """
    images, masks = mask_folder(path, _names(task))
    if masks is None:
        wanted = " or ".join(_names(task))
        raise ValueError(f"{path} holds no folder {wanted} with a mask named like a chip in images/")
    return read_pair(path, images, masks, task, "image_masks")


def read_pair(path: Path, images: Path, masks: Path, task: str, name: str) -> Rows:
    """Read the rows of two folders, one of chips and one of class rasters of the same names.

    Args:
        path: folder of the data set.
        images: folder of the chips.
        masks: folder of the class rasters.
        task: "semantic" or "edges".
        name: of the format.

    Raises:
        ValueError: two masks belong to one chip, or they are in colours that no file explains.
    """
    files = rasters(images)
    pairs, lonely = pair(files, images, masks)
    if not pairs:
        pairs, lonely = _pair_plainly(files, images, masks)
    rows = [
        {"file": relative(file, path), "label_files": [relative(pairs[file], path)] if file in pairs else []}
        for file in files
    ]
    result = Rows(name, task, path, table(rows), classes={}, named=False, closed=False)
    result.problems = label_problems(rows, lonely)
    found = colour_map.read((masks, path), list(islice(pairs.values(), 5)))
    if found is not None:
        result.colours = found.colours
        result.sources += found.sources
        if found.classes:
            result.classes, result.named, result.closed = found.classes, True, True
    return result


def _plain(file: Path, base: Path) -> str:
    return _WORDS.sub("", stem(file, base))


def _pair_plainly(files: list[Path], images: Path, masks: Path) -> tuple[dict[Path, Path], int]:
    # As `pair`, for names that end in words such as _mask.
    by_stem: dict[str, Path] = {}
    for mask in rasters(masks):
        other = by_stem.setdefault(_plain(mask, masks), mask)
        if other != mask:
            raise ValueError(f"two label files for one chip: {other} and {mask}; keep one of them")
    stems = {file: _plain(file, images) for file in files}
    pairs = {file: by_stem[key] for file, key in stems.items() if key in by_stem}
    return pairs, len(by_stem) - len(set(stems.values()) & set(by_stem))
