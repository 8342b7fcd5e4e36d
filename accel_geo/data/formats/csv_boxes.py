"""CSV: a table with a line for each object, columns image_path, xmin, ymin, xmax, ymax, label (DeepForest's).

Instead of the four numbers, or beside them, a column `geometry` may hold polygons as WKT, in pixels too. Other columns
become attributes of the chip where all its lines agree. Images that no line names are left out: nobody said that there
is nothing on them. A line without box, or with 0, 0, 0, 0, says so.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats import boxes
from accel_geo.data.formats.boxes import Objects
from accel_geo.data.formats.rows import Rows, relative, some
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("detection", "instances", "semantic", "edges", "panoptic")
LAYOUT = "a CSV with the columns image_path, label and xmin, ymin, xmax, ymax (or geometry, WKT), beside the images"
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_NAMES = {"image": ("image_path", "filename", "image"), "label": ("label", "class", "name")}
_UNSAID = ("", "nan", "none", "null", "na", "<na>")  # how tables write that there is nothing


class _Table(NamedTuple):
    """One CSV: its delimiter and the position of each column, named in lower case; `image` and `label` whatever their name."""

    file: Path
    delimiter: str
    columns: dict[str, int]
    width: int  # columns in all

    @property
    def boxed(self) -> bool:
        return all(side in self.columns for side in _SIDES)


def recognise(path: Path) -> bool:
    """Say whether a folder, or a file, is in this format: a first line names the columns."""
    return bool(_tables(path))


def _tables(path: Path) -> list[_Table]:
    if path.is_file():
        files = [path] if path.suffix.lower() == ".csv" else []
    else:
        places = [path, path / "annotations", path / "labels", path / "images"]
        files = [p / name for p in places if p.is_dir() for name in boxes.listing(p, (".csv",), deep=False)]
    return [found for file in files if (found := _header(file, file.stat().st_mtime_ns))]


@lru_cache(maxsize=256)
def _header(file: Path, _modified: int) -> _Table | None:
    with open(file, "rb") as stream:
        data = stream.readline(100_000)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = boxes.read_text(file).split("\n", 1)[0].encode()
    line = data.decode("utf-8-sig", errors="replace")
    for delimiter in ",;\t":
        names = [name.strip().strip('"').casefold() for name in line.split(delimiter)]
        columns = {name: i for i, name in reversed(list(enumerate(names)))}
        for key, same in _NAMES.items():
            name = next((name for name in same if name in columns), None)
            if name:
                columns[key] = columns.pop(name)
        if "image" in columns and ("geometry" in columns or all(side in columns for side in _SIDES)):
            return _Table(file, delimiter, columns, len(names))
    return None


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder of CSV files, or of one.

    Of several files that name the same chip one counts: for boxes one with the four numbers, for shapes one with
    geometry alone, then the first by name.

    Raises:
        ValueError: a line has no finite numbers, a bad geometry or no label, or there are no shapes for a task that
            needs them.
    """
    tables = _tables(path)
    if not tables:
        raise ValueError(f"{path} is no table of boxes: {LAYOUT}")
    usable = tables if task == "detection" else [t for t in tables if "geometry" in t.columns]
    if not usable:
        raise ValueError(
            f"{', '.join(str(t.file) for t in tables)}: there is no column geometry, only boxes; {task} needs polygons "
            "(WKT): read the boxes as detection"
        )
    usable = sorted(usable, key=lambda t: t.boxed == (task != "detection"))  # a stable order
    root = path if path.is_dir() else path.parent
    reader = _Reader(root, task)
    for table in usable:
        reader.add(table)
    sources = [table.file for table in usable]
    columns = {file: reader.attributes_of(file) for file in reader.objects}
    return boxes.make_rows(
        "CSV", task, root, reader.objects, {}, "", columns=columns, sources=sources, problems=reader.problems()
    )


class _Reader:
    """Collects the objects of each chip over several files."""

    def __init__(self, root: Path, task: str) -> None:
        self.objects: dict[str, Objects] = {}
        self._root, self._task = root, task
        self._present = boxes.listing(root, RASTER_SUFFIXES)
        self._finder = boxes.Finder(self._present)
        self._known: dict[tuple[str, str], str | None] = {}  # chip of a name in a file's folder
        self._table_of: dict[str, Path] = {}
        self._further: dict[str, dict[str, str | None]] = {}  # other columns of each chip; None where lines differ
        self._missing: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def add(self, table: _Table) -> None:
        """Add the lines of a file."""
        columns = table.columns
        place = relative(table.file.parent, self._root)
        further = {name: i for name, i in columns.items() if name not in (*_SIDES, "image", "label", "geometry", "")}
        for number, cells in _lines(table):
            if len(cells) < table.width or any(cells[table.width :]):
                raise _error(
                    table,
                    number,
                    f"has {len(cells)} columns, the first line {table.width}; correct it, and mind quotes that do not end",
                )
            chip = self._chip(cells[columns["image"]], "" if place == "." else boxes.plain(place))
            if chip is None:
                self._missing[cells[columns["image"]]] = self._missing.get(cells[columns["image"]], 0) + 1
            elif self._table_of.setdefault(chip, table.file) != table.file:
                first = self._table_of[chip].name
                self._counts[f"line(s) of {table.file.name} about chips that {first} describes"] += 1
            else:
                self._note(chip, {name: cells[i] for name, i in further.items()})
                self._object(table, number, cells, self.objects.setdefault(chip, Objects()))

    def _chip(self, name: str, place: str) -> str | None:
        key = name, place
        if key not in self._known:
            images = f"{place}/images" if place else "images"
            chip = self._finder.find(name, (place, images, "images")) if name else None
            if chip is None and os.path.isabs(name) and os.path.isfile(name):
                chip = relative(Path(name), self._root)
            self._known[key] = chip
        return self._known[key]

    def _note(self, chip: str, further: dict[str, str]) -> None:
        known = self._further.setdefault(chip, further)
        if known != further:
            self._further[chip] = {name: value if further.get(name) == value else None for name, value in known.items()}

    def _object(self, table: _Table, number: int, cells: list[str], objects: Objects) -> None:
        columns = table.columns
        text = cells[columns["label"]] if "label" in columns else "object"
        geometry = cells[columns["geometry"]] if "geometry" in columns else ""
        sides = [cells[columns[side]] for side in _SIDES] if table.boxed else []
        given = [side for side in sides if side.casefold() not in _UNSAID]
        box = boxes.finite(sides) if given else None
        shaped = geometry.casefold() not in _UNSAID
        if given and box is None:
            found = ", ".join(f"{side} {cells[columns[side]] or 'empty'}" for side in _SIDES)
            raise _error(table, number, f"has the box {found}; it needs four finite numbers, or none of them")
        if (not shaped and not given) or (box is not None and not any(box)):
            return  # it says that there is nothing on the chip
        if self._task == "detection" and box is None or self._task != "detection":
            shape = self._shape(table, number, geometry) if shaped else None
            if shape is None:
                self._counts["line(s) without a polygon" if not shaped else "shape(s) that are no polygon"] += 1
                return
            if self._task != "detection":
                objects.segments.append(shape.text)
            box = shape.bounds
        if text.casefold() in _UNSAID:
            raise _error(table, number, "has a box but no label; write the class there")
        objects.texts.append(text)
        if self._task == "detection":
            objects.boxes += box

    def _shape(self, table: _Table, number: int, geometry: str) -> "_Shape | None":
        import shapely

        try:
            shape = shapely.from_wkt(geometry)
        except shapely.errors.ShapelyError as error:
            reason = f"has a geometry that is no WKT ({' '.join(str(error).split())})"
            raise _error(table, number, f"{reason}; write POLYGON ((x y, x y, ...)) in pixels") from error
        if shape.geom_type not in ("Polygon", "MultiPolygon") or shape.is_empty:
            return None
        if boxes.finite(shapely.get_coordinates(shape).ravel()) is None:
            raise _error(table, number, "has a geometry with a coordinate that is no finite number")
        return _Shape(json.dumps(shapely.geometry.mapping(shapely.force_2d(shape))), list(shape.bounds))

    def attributes_of(self, chip: str) -> dict[str, str]:
        """Return the columns of a chip beside its objects."""
        further = {name: value for name, value in self._further[chip].items() if value}
        columns = boxes.placed(chip.removeprefix("images/"))
        if split := boxes.SPLITS.get(self._table_of[chip].stem.casefold()):  # train.csv and val.csv
            further.setdefault("split", split)
        if further:
            columns["attributes"] = json.dumps(json.loads(columns.get("attributes", "{}")) | further)
        return columns

    def problems(self) -> list[str]:
        """Return what was left out."""
        problems = [f"{count} {what} were left out" for what, count in self._counts.items()]
        if self._missing:
            problems.append(
                f"{len(self._missing)} image(s) that {sum(self._missing.values())} line(s) name are not on disk, or not "
                f"once: left out: {some(self._missing, 3)}"
            )
        folders = {chip.rpartition("/")[0] for chip in self.objects}
        extra = [c for c in self._present if c.rpartition("/")[0] in folders and c not in self.objects]
        if extra:
            problems.append(
                f"{len(extra)} image(s) on disk that no line names were left out: {some(extra, 3)}; a line with an "
                "empty box makes a background chip"
            )
        return problems


def _lines(table: _Table) -> Iterator[tuple[int, list[str]]]:
    # The lines behind the first that are not blank, with their numbers.
    limit = csv.field_size_limit(2**31 - 1)  # a polygon may have many points
    lines = csv.reader(io.StringIO(boxes.read_text(table.file)), delimiter=table.delimiter)
    try:
        next(lines)
        for line in lines:
            cells = [cell.strip() for cell in line]
            if any(cells):
                yield lines.line_num, cells
    except csv.Error as error:
        raise _error(table, lines.line_num, f"cannot be read: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _error(table: _Table, number: int, what: str) -> ValueError:
    return ValueError(f"{table.file}, line {number} {what}")


class _Shape(NamedTuple):
    text: str  # GeoJSON
    bounds: list[float]
