"""KITTI_rectangles: labels/<chip>.txt of 15 columns for each object, as exported by ArcGIS Pro and by KITTI itself.

The columns are class, truncated, occluded, alpha, x1, y1, x2, y2 and seven numbers of the object in space, sometimes a
score; only the class and the box count. ArcGIS writes the class value, which may be a name with blanks elsewhere.
"""

from pathlib import Path

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.boxes import Objects
from accel_geo.data.formats.rows import Rows, folder, kept_as_background
from accel_geo.data.pixels import RASTER_SUFFIXES

NAME = "KITTI_rectangles"
TASKS = ("detection",)
LAYOUT = "images/<chip> and labels/<chip>.txt with 15 columns: class, three numbers, x1 y1 x2 y2, seven numbers"
_NUMBERS = 14  # columns behind the class


def _folders(path: Path) -> tuple[Path | None, Path | None]:
    return folder(path, "images", "image_2", "image"), folder(path, "labels", "label_2", "label")


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format: 14 numbers or more stand behind the class, not all of them fractions."""
    images, labels = _folders(path)
    mode = esri.metadata(path).mode
    if not images or not labels or mode not in ("", NAME):
        return False
    files = boxes.listing(labels, (".txt",))
    return bool(files) and (mode == NAME or any(map(_looks_right, boxes.sampled(labels, files))))


def _looks_right(line: str) -> bool:
    numbers = boxes.finite(line.split()[-_NUMBERS:])
    if numbers is None or len(line.split()) <= _NUMBERS:
        return False
    return any(abs(number) > 2 for number in numbers)  # else the outline of an object in fractions of the chip


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; chips without a label file are background, objects named DontCare are left out.

    Raises:
        ValueError: a line has too few columns or no finite numbers, or two label files belong to one chip.
    """
    images, labels = _folders(path)
    if not images or not labels:
        raise ValueError(f"{path} holds no folders images and labels: {LAYOUT}")
    meta = esri.metadata(path)
    known = {name.casefold() for name in meta.classes.values()}
    chips = boxes.listing(images, RASTER_SUFFIXES)
    pairs, lonely = boxes.pair(chips, boxes.listing(labels, (".txt",)), str(labels))
    objects, ignored = {}, 0
    for chip in chips:
        each = objects[f"{images.name}/{chip}"] = Objects()
        if chip in pairs:
            ignored += _read_label(f"{labels}/{pairs[chip]}", each, known)
    problems = kept_as_background([chip for chip in chips if chip not in pairs], lonely)
    if ignored:
        problems.append(f"{ignored} object(s) named DontCare were left out")
    rows = boxes.make_rows(
        NAME,
        task,
        path,
        objects,
        meta.classes,
        "the metadata",
        columns={f"{images.name}/{chip}": boxes.placed(chip) for chip in chips},
        sources=[*meta.files, *(labels / label for label in pairs.values())],
        problems=[*esri.disagreements(meta, len(chips)), *problems],
    )
    rows.bands, rows.map_space = meta.bands, meta.map_space
    return rows


def _read_label(file: str, objects: Objects, known: set[str]) -> int:
    # Adds the objects of a label file; returns how many DontCare regions it holds.
    ignored = 0
    for number, line in enumerate(boxes.read_text(file).split("\n"), 1):
        if not line.strip():
            continue
        text, box = _parse(line, known)
        if box is None:
            raise ValueError(
                f"{file}, line {number}: {line.strip()[:120]!r} has no class and {_NUMBERS} finite numbers behind it "
                "(truncated occluded alpha x1 y1 x2 y2 and seven more); correct or delete the line"
            )
        if text.casefold() == "dontcare":
            ignored += 1
        else:
            objects.texts.append(text)
            objects.boxes += box
    return ignored


def _parse(line: str, known: set[str]) -> tuple[str, list[float] | None]:
    # The class may hold blanks, so that columns count from the right; there may be a score behind them. A last word of
    # the class that is a number is the first column where only then the box is the right way round.
    parts = line.rsplit(maxsplit=_NUMBERS)
    numbers = boxes.finite(parts[1:])
    if len(parts) <= _NUMBERS or numbers is None:
        return "", None
    text, box = parts[0].strip(), numbers[3:7]
    if " " in text.replace("\t", " ") and text.casefold() not in known:
        *first, last = text.split()
        if boxes.finite([last]) is not None and not _upright(box) and _upright(numbers[2:6]):
            return " ".join(first), numbers[2:6]
    return " ".join(text.split()), box


def _upright(box: list[float]) -> bool:
    return box[2] > box[0] and box[3] > box[1]
