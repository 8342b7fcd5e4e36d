"""What the formats of rectangles share: lists of files, chips found by name, class names, numbers, rows.

Folders may hold 100,000 chips, so that names are plain text here: a `Path` for each would cost more than reading them.
"""

import itertools
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats import esri
from accel_geo.data.formats.rows import Rows, not_allowed, table

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "test": "test",
}
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_SAMPLED = 200  # label files that are looked into to tell formats apart


@dataclass
class Objects:
    """The objects of one chip as its label file lists them.

    Attributes:
        texts: class of each, a name or a number.
        boxes: x1, y1, x2, y2 of each, one after the other, in pixels; empty where there are segments.
        segments: shape of each as JSON text, in pixels; empty where there are boxes.
    """

    texts: list[str] = field(default_factory=list)
    boxes: list[float] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)


class Settled(NamedTuple):
    """Class values of the texts found.

    Attributes:
        value_of: class value of each text.
        classes: name of each class value, in ascending order.
        named: the names were found, they are not just the values.
        problems: names that are in no class list.
    """

    value_of: dict[str, int]
    classes: dict[int, str]
    named: bool
    problems: list[str]


def listing(base: str | Path, suffixes: tuple[str, ...], deep: bool = True) -> list[str]:
    """List the files in a folder with one of these suffixes (lower case), sorted, relative to it, with "/".

    Hidden files and GDAL's sidecars (.aux.xml) are none of them.
    """
    base, found = str(base), []
    for place, folders, names in os.walk(base, onerror=not_allowed):
        folders[:] = [name for name in folders if not name.startswith(".")] if deep else []
        below = os.path.relpath(place, base).replace(os.sep, "/")
        prefix = "" if below == "." else f"{below}/"
        for name in names:
            lower = name.lower()
            if lower.endswith(suffixes) and not name.startswith(".") and not lower.endswith(".aux.xml"):
                found.append(prefix + name)
    return sorted(found)


def plain(name: str) -> str:
    """Return a path such that case, back-slashes and the two ways of writing accents make no difference."""
    name = name.replace("\\", "/")
    return name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()


def stem(name: str) -> str:
    """Return a path in plain spelling without its last suffix: what pairs a label file with its chip."""
    head, _, last = plain(name).rpartition("/")
    last = last.rsplit(".", 1)[0] if "." in last[1:] else last
    return f"{head}/{last}" if head else last


class Finder:
    """Finds chips by the names that label files give them."""

    def __init__(self, chips: Iterable[str]) -> None:
        """Know the paths of chips, relative to one folder."""
        self._exact = dict.fromkeys(chips)
        self._by_path = {plain(chip): chip for chip in self._exact}
        self._by_name: dict[str, list[str]] = {}
        for chip in self._exact:
            self._by_name.setdefault(plain(chip).rsplit("/", 1)[-1], []).append(chip)

    def find(self, name: str, places: Sequence[str] = ("",), loose: bool = True) -> str | None:
        """Return the chip of a name; None where there is none, or where several fit.

        Args:
            name: its path, which may begin with folders that are lost (C:\\old\\images\\a.tif).
            places: folders below which it may lie, the likeliest first.
            loose: look in all folders where the path does not fit; False takes it as it is.
        """
        parts = [part for part in plain(name).split("/") if part not in ("", ".", "..")]
        for start in range(len(parts) if loose else 1):
            tail = "/".join(parts[start:])
            for place in places:
                if (path := f"{place}/{tail}" if place else tail) in self._by_path:
                    exact = name in self._exact and plain(name) == path  # names may differ in case alone
                    return name if exact else self._by_path[path]
        same = self._by_name.get(parts[-1], []) if parts and loose else []
        return same[0] if len(same) == 1 else None


def pair(chips: Sequence[str], labels: Sequence[str], where: str) -> tuple[dict[str, str], int]:
    """Find the label file of each chip by its path without suffix.

    Args:
        chips: relative to their folder.
        labels: relative to theirs.
        where: the folder of labels, for the message.

    Returns:
        The label file of each chip that has one, and the number of label files without a chip.

    Raises:
        ValueError: two label files belong to one chip.
    """
    by_stem: dict[str, str] = {}
    for label in labels:
        if (other := by_stem.setdefault(stem(label), label)) != label:
            raise two_labels(f"{where}/{other}", f"{where}/{label}")
    pairs = {chip: by_stem[name] for chip in chips if (name := stem(chip)) in by_stem}
    return pairs, len(by_stem) - len(set(pairs.values()))


def two_labels(first: str, second: str) -> ValueError:
    """Return the error of two label files for one chip."""
    return ValueError(f"two label files for one chip: {first} and {second}; keep one of them")


def read_text(file: str | Path) -> str:
    """Read a text file: UTF-8 or UTF-16 with or without a byte-order mark, else Windows' western characters."""
    with open(file, "rb") as stream:
        data = stream.read()
    try:
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def sampled(base: str | Path, labels: Sequence[str]) -> Iterable[str]:
    """Yield the first lines that are not blank of some label files, to tell formats apart."""
    for label in labels[:_SAMPLED]:
        try:
            lines = read_text(f"{base}/{label}").split("\n")
        except OSError:
            continue
        yield from [line for line in lines if line.strip()][:1]


def finite(texts: Sequence[object]) -> list[float] | None:
    """Return numbers; None where one is missing, no number, NaN or infinite."""
    try:
        values = [float(text) for text in texts]
    except (TypeError, ValueError):
        return None
    return values if all(map(math.isfinite, values)) else None


def whole(text: str) -> int | None:
    """Return the integer that a text writes ("3", "3.0"); None where it is none, or longer than a class value can be."""
    return int(text.partition(".")[0]) if len(text) < 18 and _WHOLE.fullmatch(text) else None


def settle(texts: Iterable[str], known: dict[int, str], where: str) -> Settled:
    """Find the class value of each text: a number is the value, a name is looked up.

    Numbers that are not among the known classes are kept, so that they can be refused with the chip's name. Names that
    are not become classes of their own, numbered from 1 in their order, without numbers that are in use.

    Args:
        texts: as they stand in the label files.
        known: name of each class value from a class list; empty where there is none.
        where: what holds the class list, for the messages.
    """
    texts = sorted(set(texts))
    value_of, classes, problems = {}, dict(known), []
    for text in texts:
        number = whole(text)
        if number is not None and (not known or number in known):
            value_of[text] = number
            classes.setdefault(number, text)
        elif (value := esri.class_value(text, known)) is not None:
            value_of[text] = value
        elif number is not None:
            value_of[text] = number
    new = [text for text in texts if text not in value_of]
    free = max(known, default=0)
    for text in new:
        free = next(value for value in itertools.count(max(free, 0) + 1) if value not in classes)
        value_of[text], classes[free] = free, text
        if known:
            problems.append(f"{text!r} is no class of {where}: taken as class {free}")
    return Settled(value_of, dict(sorted(classes.items())), bool(known or new), problems)


def placed(chip: str) -> dict[str, str]:
    """Return the columns that follow from a chip's folders: group, and the split where a folder is named after one."""
    folders = chip.split("/")[:-1]
    split = next((SPLITS[name.casefold()] for name in folders if name.casefold() in SPLITS), None)
    columns = {"group": "/".join(folders)} if folders else {}
    return columns | ({"attributes": json.dumps({"split": split})} if split else {})


def make_rows(
    name: str,
    task: str,
    root: Path,
    objects: dict[str, Objects],
    known: dict[int, str],
    where: str,
    *,
    columns: dict[str, dict[str, str]] | None = None,
    sources: Iterable[Path] = (),
    problems: Iterable[str] = (),
) -> Rows:
    """Make the rows of chips with objects.

    Args:
        name: of the format.
        task: what the labels are read for.
        root: folder that the chips are relative to.
        objects: those of each chip, also where there are none.
        known: name of each class value from a class list.
        where: what holds that list.
        columns: further columns of each chip.
        sources: the files that were read.
        problems: what was odd.
    """
    settled = settle((text for each in objects.values() for text in each.texts), known, where)
    value_of, classes, columns = settled.value_of, settled.classes, columns or {}
    rows = [
        {"file": file, "values": [value_of[text] for text in each.texts], "boxes": each.boxes}
        | {"segments": each.segments, **columns.get(file, {})}
        for file, each in objects.items()
    ]
    return Rows(
        format=name,
        task=task,
        root=root,
        dataset=table(rows),
        classes=classes,
        named=settled.named,
        zero_is_class=True,
        things=frozenset(classes) if task == "panoptic" else frozenset(),
        sources=list(sources),
        problems=[*settled.problems, *problems],
    )
