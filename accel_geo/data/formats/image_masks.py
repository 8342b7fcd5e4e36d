"""Folders of images and masks: images/<chip> beside masks/<chip>, whose pixels are class values, 0 background.

Masks may be named like their chips, or with a word behind (chip_mask.png). They may be pictures, each class in a colour
of its own, where a file beside them tells the colours; a picture in grey holds the values in each of its bands.
"""

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from accel_geo.data.formats import boxes, colour_map, esri
from accel_geo.data.formats.rows import Rows, folder, label_problems, some, table
from accel_geo.data.pixels import RASTER_SUFFIXES

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
    stems = {_plain(chip) for chip in boxes.listing(images, RASTER_SUFFIXES)}
    for name in names:
        masks = folder(path, name)
        if masks and any(_plain(mask) in stems for mask in boxes.listing(masks, RASTER_SUFFIXES)[:_LOOKED_AT]):
            return images, masks
    return images, None


def _names(task: str) -> tuple[str, ...]:
    return (*EDGES, *MASKS) if task == "edges" else (*MASKS, *EDGES)


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return not esri.metadata(path).mode and mask_folder(path, _names("semantic"))[1] is not None


def default_task(path: Path) -> str:
    """Return what the masks are for where no task is asked for: edges where they lie in a folder named so."""
    return "semantic" if mask_folder(path, MASKS)[1] else "edges"


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
    chips, files = boxes.listing(images, RASTER_SUFFIXES), boxes.listing(masks, RASTER_SUFFIXES)
    pairs, lonely = boxes.pair(chips, files, str(masks))
    if not pairs:
        pairs, lonely = _pair_plainly(chips, files, masks)
    rows = []
    for chip in chips:
        labels = [f"{masks.name}/{pairs[chip]}"] if chip in pairs else []
        rows.append({"file": f"{images.name}/{chip}", "label_files": labels, **boxes.placed(chip)})
    result = Rows(name, task, path, table(rows), classes={}, named=False, closed=False)
    result.problems = label_problems(rows, lonely)
    lossy = [file for file in pairs.values() if file.lower().endswith((".jpg", ".jpeg"))]
    if lossy:
        result.problems.append(
            f"{len(lossy)} label(s) are JPEG, which changes values, so that there may be classes that nobody drew: "
            f"{some(lossy, 3)}; write them as PNG or TIFF"
        )
    found = colour_map.read((masks, path), [masks / file for file in islice(pairs.values(), 5)])
    if found is not None:
        result.colours = found.colours
        result.sources += found.sources
        if found.classes:
            result.classes, result.named, result.closed = found.classes, True, True
    return result


def _plain(name: str) -> str:
    return _WORDS.sub("", boxes.stem(name))


def _pair_plainly(chips: Iterable[str], files: Iterable[str], masks: Path) -> tuple[dict[str, str], int]:
    # As `boxes.pair`, for names that end in words such as _mask.
    by_stem: dict[str, str] = {}
    for file in files:
        if (other := by_stem.setdefault(_plain(file), file)) != file:
            raise boxes.two_labels(f"{masks}/{other}", f"{masks}/{file}")
    pairs = {chip: by_stem[name] for chip in chips if (name := _plain(chip)) in by_stem}
    return pairs, len(by_stem) - len(set(pairs.values()))
