"""PASCAL_VOC_rectangles: one XML of boxes for each chip, as exported by ArcGIS Pro, and the open Pascal VOC layouts.

ArcGIS writes images/ and labels/ with the class value in <name>; the open layouts are JPEGImages/ and Annotations/, or
the XML beside its image, with the class name in <name>. Boxes are taken as they stand there.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.boxes import Objects
from accel_geo.data.formats.labeled_tiles import parse
from accel_geo.data.formats.rows import Rows, folder, is_raster, kept_as_background, some
from accel_geo.data.pixels import RASTER_SUFFIXES

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

NAME = "PASCAL_VOC_rectangles"
TASKS = ("detection",)
LAYOUT = (
    "images/<chip> and labels/<chip>.xml, JPEGImages/ and Annotations/, or <chip>.xml beside its image; with <bndbox>"
)
_IMAGES = ("images", "jpegimages", "image")
_LABELS = ("labels", "annotations", "label", "annotation", "xml")
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_SAMPLED = 200  # label files that are looked into


class _Places(NamedTuple):
    """Where things lie: the chips' and the labels' folder, the same one where XML lies beside the images."""

    root: Path
    images: Path
    labels: Path
    files: list[str]  # label files, relative to their folder

    @property
    def beside(self) -> bool:
        return self.images == self.labels


def recognise(path: Path) -> bool:
    """Say whether a folder, or a label file, is in this format: the first labels with objects hold boxes."""
    mode = esri.metadata(path).mode
    places = _places(path)
    if mode not in ("", NAME) or not places:
        return False
    seen = False
    for name in places.files[:_SAMPLED]:
        with open(places.labels / name, "rb") as stream:
            data = stream.read().replace(b"\0", b"")  # the text of UTF-16 shows without its zeros
        seen |= b"<annotation" in data
        if b"<object" in data and b"<annotation" in data:
            return b"<bndbox" in data
    return mode == NAME or seen


def _places(path: Path) -> _Places | None:
    if path.is_file():
        base = path.parent
        root = base.parent if base.name.casefold() in _LABELS and folder(base.parent, *_IMAGES) else base
        images = folder(root, *_IMAGES) or base
        return _Places(root, images, base, [path.name]) if path.suffix.lower() == ".xml" else None
    if not path.is_dir():
        return None
    images, labels = folder(path, *_IMAGES), folder(path, *_LABELS)
    if images and labels:
        files = boxes.listing(labels, (".xml",))
        return _Places(path, images, labels, files) if files else None
    for base in (path, *([images] if images else [])):  # labels beside the images
        files, stems = boxes.listing(base, (".xml",), deep=False), set()
        if files:
            stems = {boxes.stem(name) for name in boxes.listing(base, RASTER_SUFFIXES, deep=False)}
        if files := [name for name in files if stems and not is_raster(name[:-4])]:  # a.tif.xml is metadata
            return _Places(path, base, base, files)
    return None


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder, or of one label file.

    A label belongs to the chip that its <filename> names, else to the one of its own name. In folders of their own,
    chips without a label are background; images with labels beside some of them are not: those without are left out.

    Raises:
        ValueError: a label file is no XML, declares entities, or holds a box without four numbers, two label files
            belong to one chip, or there are none.
    """
    places = _places(path)
    if places is None:
        raise ValueError(f"{path} holds no label files: {LAYOUT}")
    chips = boxes.listing(places.images, RASTER_SUFFIXES, deep=not places.beside)
    meta = esri.metadata(places.root)
    found = _read_labels(places, chips, meta.classes)
    lonely, problems = len(places.files) - len(found.label_of) - found.foreign, found.problems
    if places.beside or path.is_file():
        without = [chip for chip in chips if chip not in found.label_of] if path.is_dir() else []
        chips = [chip for chip in chips if chip in found.label_of]
        problems += kept_as_background([], lonely)
        if without:
            problems.append(
                f"{len(without)} image(s) without an XML beside them were left out: {some(without, 3)}; an XML without "
                "objects makes a background chip"
            )
    else:
        problems += kept_as_background([chip for chip in chips if chip not in found.label_of], lonely)
    prefix = os.path.relpath(places.images, places.root).replace(os.sep, "/")
    file_of = {chip: chip if prefix == "." else f"{prefix}/{chip}" for chip in chips}
    rows = boxes.make_rows(
        NAME,
        task,
        places.root,
        {file: found.objects.get(chip) or Objects() for chip, file in file_of.items()},
        meta.classes,
        "the metadata",
        columns={file: boxes.placed(chip) for chip, file in file_of.items()},
        sources=[*meta.files, *(places.labels / label for label in found.label_of.values())],
        problems=[*(esri.disagreements(meta, len(chips)) if path.is_dir() else []), *problems],
    )
    rows.bands, rows.map_space = meta.bands, meta.map_space
    return rows


class _Found(NamedTuple):
    objects: dict[str, Objects]  # of each chip
    label_of: dict[str, str]  # of each chip with a label file
    foreign: int  # XML files that are no annotations
    problems: list[str]


def _read_labels(places: _Places, chips: list[str], known: dict[int, str]) -> _Found:
    finder = boxes.Finder(chips)
    by_stem = {boxes.stem(chip): chip for chip in chips}
    folders = {boxes.plain(chip).rpartition("/")[0] for chip in chips} - {""}
    objects, label_of, renamed, boxless, foreign = {}, {}, [], 0, 0
    for label in places.files:
        file = places.labels / label
        root = parse(file)
        if root.tag != "annotation":
            foreign += 1
            continue
        own = by_stem.get(boxes.stem(label))
        chip = _chip(root.findtext("filename") or "", label, finder, folders) or own
        if chip is None:
            continue
        if own and chip != own:
            renamed.append(label)
        if chip in label_of:
            raise boxes.two_labels(f"{places.labels / label_of[chip]}", f"{file} (both for {chip})")
        label_of[chip] = label
        objects[chip], without = _objects(root, file, known)
        boxless += without
    problems = []
    if renamed:
        problems.append(
            f"{len(renamed)} label file(s) name another chip in <filename> than they are named after: the one in "
            f"<filename> counts: {some(renamed, 3)}"
        )
    if boxless:
        problems.append(f"{boxless} object(s) without a bndbox were left out")
    if foreign:
        problems.append(f"{foreign} XML file(s) that are no annotations were left out")
    return _Found(objects, label_of, foreign, problems)


def _chip(named: str, label: str, finder: boxes.Finder, folders: set[str]) -> str | None:
    # The chip that <filename> names. Where chips lie in the same subfolders as labels, other folders are not searched.
    near = boxes.plain(label).rpartition("/")[0]
    if near in folders:
        return finder.find(f"{near}/{boxes.plain(named.strip()).rpartition('/')[2]}", loose=False)
    return finder.find(named.strip())


def _objects(root: "Element", file: Path, known: dict[int, str]) -> tuple[Objects, int]:
    # The boxes of a label file, and the number of objects without one.
    result, without = Objects(), 0
    for number, entry in enumerate(root.iterfind("object"), 1):
        parts = {child.tag: child for child in entry}
        text = (parts["name"].text or "").strip() if "name" in parts else ""
        if "bndbox" not in parts:
            without += 1
            continue
        sides = {child.tag: child.text for child in parts["bndbox"]}
        box = boxes.finite([sides.get(side) for side in _SIDES])
        if box is None or not text:
            found = ", ".join(f"{side} {(sides.get(side) or '').strip() or 'missing'}" for side in _SIDES)
            raise ValueError(
                f"{file}: object {number} has the name {text!r} and the box {found}; it needs a name and four finite "
                "numbers, pixels of the chip: correct it, or delete the object"
            )
        for part in _names(text, known):
            result.texts.append(part)
            result.boxes += box
    return result, without


def _names(text: str, known: dict[int, str]) -> list[str]:
    # A box of several classes ("1,4") counts once for each, unless a class is named so.
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 or text in known.values():
        return [text]
    return parts if all(boxes.whole(part) is not None or esri.class_value(part, known) for part in parts) else [text]
