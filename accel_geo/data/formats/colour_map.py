"""Label rasters that are pictures: which class each colour stands for, from a file beside them."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats.rows import some

Colour = tuple[int, int, int]
NAMES = (
    "class_dict.csv", "class_dict_seg.csv", "classes.csv", "colours.csv", "colors.csv",
    "colours.txt", "colors.txt", "label_colours.txt", "label_colors.txt", "labelmap.txt",
)  # fmt: skip
_BACKGROUND = {"background", "none", "clear"}
_IGNORED = {"void", "ignore", "ignored", "unlabelled", "unlabeled", "unknown", "nodata", "no data"}
_LAST = re.compile(r"(.*?\S)[\s,;:]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;:]*")  # name r g b
_FIRST = re.compile(r"(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;:]+(\S.*)")  # r g b name


class ColourMap(NamedTuple):
    """What the colours of label rasters stand for.

    Attributes:
        colours: class value of each colour; 0 background, -1 ignored.
        classes: name of each class value; empty where the colours are grey and stand for themselves.
        sources: the file that says so.
    """

    colours: dict[Colour, int]
    classes: dict[int, str]
    sources: list[Path]


def read(folders: Iterable[Path], labels: Sequence[Path]) -> ColourMap | None:
    """Return what the colours of label rasters mean; None where they have one band of values.

    Args:
        folders: where a file of colours may lie, the first place first.
        labels: a few of the rasters.

    Raises:
        ValueError: the rasters are in colours and no file says what they mean, or it cannot be understood; the message
            lists the colours found.
    """
    pictures = [label for label in labels if _bands(label) in (3, 4)]
    if not pictures:
        return None
    folders = list(folders)
    for place in folders:
        present = {entry.name.casefold(): entry for entry in place.iterdir() if entry.is_file()}
        if file := next((present[name] for name in NAMES if name in present), None):
            return _map(file)
    found = sorted({colour for label in pictures for colour in _colours(label)})
    if all(r == g == b for r, g, b in found):
        return ColourMap({(v, v, v): v for v in range(256)}, {}, [])
    raise ValueError(
        f"{pictures[0]} has several bands: it is a picture in {len(found)} colours ({some(found, 8)}). Put a "
        f"{NAMES[0]} with the columns name,r,g,b for each of them into {folders[-1]}, or write class values in one band"
    )


def _bands(file: Path) -> int:
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(file) as source:
            return source.count
    except RasterioError:
        return 0  # the decoder names the file


def _colours(file: Path) -> set[Colour]:
    import numpy as np
    import rasterio

    with rasterio.open(file) as source:
        pixels = source.read([1, 2, 3]).reshape(3, -1)
    return {tuple(colour) for colour in np.unique(pixels, axis=1).T.tolist()}


def _map(file: Path) -> ColourMap:
    text = file.read_bytes().decode("utf-8-sig", errors="replace")
    entries = _table(text) if file.suffix.lower() == ".csv" else []
    entries = entries or [entry for line in text.splitlines() if (entry := _line(line))]
    colours: dict[Colour, int] = {}
    values: dict[str, int] = {}
    for name, colour in entries:
        if max(colour) > 255:
            raise ValueError(
                f"{file}: the colour {colour} of {name!r} is out of range; red, green and blue are 0 to 255"
            )
        key = name.casefold()
        value = 0 if key in _BACKGROUND else -1 if key in _IGNORED else values.setdefault(name, len(values) + 1)
        if colours.setdefault(colour, value) != value:
            raise ValueError(f"{file}: the colour {colour} stands for two classes; give each class its own")
    if not values:
        raise ValueError(f"{file} names no class; each line must hold a name and three numbers, red, green and blue")
    return ColourMap(colours, {value: name for name, value in values.items()}, [file])


def _table(text: str) -> list[tuple[str, Colour]]:
    # A CSV with a header that says which columns hold what; empty where there is no such header.
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    columns = {str(name).strip().casefold(): name for name in rows.fieldnames or []}
    wanted = [
        next((columns[name] for name in names if name in columns), None)
        for names in (("name", "class", "label"), ("r", "red"), ("g", "green"), ("b", "blue"))
    ]
    if None in wanted:
        return []
    found = [[(row[name] or "").strip() for name in wanted] for row in rows]
    return [(name, (int(r), int(g), int(b))) for name, r, g, b in found if all(n.isdecimal() for n in (r, g, b))]


def _line(line: str) -> tuple[str, Colour] | None:
    line = line.strip()
    if match := _FIRST.fullmatch(line):
        *numbers, name = match.groups()
    elif match := _LAST.fullmatch(line):
        name, *numbers = match.groups()
    else:
        return None
    return (name.strip(" \"',:;"), tuple(int(n) for n in numbers)) if not line.startswith("#") else None
