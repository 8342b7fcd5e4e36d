"""Rows: what every format reader returns, and the helpers that readers share."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from accel_geo.data.pixels import RASTER_SUFFIXES

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class Rows:
    """A data set as its format lists it: no pixel has been read.

    Attributes:
        format: name of the format.
        task: what the labels are read for.
        root: folder that all files are relative to.
        dataset: one row for each chip, in order of `file`; the columns are those of `table`.
        classes: name of each class value, in ascending order of values; never background.
        named: the names were found in the data; otherwise they are just the values.
        closed: labels may hold these class values only; otherwise the values found on disk are the classes.
        bands: names of the bands from metadata, or none.
        map_space: imagery seen from above in map orientation.
        zero_is_class: 0 is an ordinary class value, not background (category ids that count from 0).
        multilabel: a chip may have several labels (classification).
        things: class values whose objects are counted one by one (panoptic).
        scale: how many times finer the sharp raster of a pair is (super-resolution); None where sizes do not tell.
        colours: class value of each colour (R, G, B) of label rasters that are pictures; empty where they hold values.
        filled: class rasters hold filled areas, whose outlines are the edges (edges).
        sources: further files that the rows were made from (an annotation file, metadata).
        problems: what was odd or left out, with counts.
    """

    format: str
    task: str
    root: Path
    dataset: "Dataset"
    classes: dict[int, str]
    named: bool = True
    closed: bool = True
    bands: tuple[str, ...] = ()
    map_space: bool = True
    zero_is_class: bool = False
    multilabel: bool = False
    things: frozenset[int] = frozenset()
    scale: int | None = None
    colours: dict[tuple[int, int, int], int] = field(default_factory=dict)
    filled: bool = False
    sources: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def table(rows: Iterable[dict]) -> "Dataset":
    """Make the dataset of rows, in order of file and window.

    Args:
        rows: dicts of `file` and whatever a format has besides; see `EMPTY` for the others and what they are left out
            for. Paths are relative to the root, with forward slashes, or such that GDAL opens them.

            file: the chip, or the scene that it is a window of;
            window: column, row, width, height in that raster; may reach beyond its edge; empty: the whole raster;
            label_files: label rasters: class values (semantic, edges), object numbers (instances), both (panoptic: the
                class raster or "" first) or the sharp raster (super-resolution);
            values: class value of each object raster, segment or box, or each label (classification);
            segments: shapes of the objects as JSON text in pixels of the chip: COCO polygons or RLE, or GeoJSON;
            boxes: x1, y1, x2, y2 of each box, one after the other, in pixels of the chip;
            crowd: positions in `values` of regions whose objects are not told apart;
            segment_ids: what stands in the label raster for each value (COCO panoptic);
            group: what must not be split over training and validation;
            attributes: further columns of the chip, as a JSON object.
    """
    import pyarrow as pa
    from datasets import Dataset

    kinds = {"file": pa.string(), "window": pa.list_(pa.int32()), "label_files": pa.list_(pa.string())}
    kinds |= {"values": pa.list_(pa.int64()), "segments": pa.list_(pa.string()), "boxes": pa.list_(pa.float64())}
    kinds |= {"crowd": pa.list_(pa.int32()), "segment_ids": pa.list_(pa.int64())}
    kinds |= {"group": pa.string(), "attributes": pa.string()}
    ordered = sorted(rows, key=lambda row: (row["file"], (row.get("window") or [])[1::-1]))  # windows: row by row
    columns = [pa.array([row.get(name, EMPTY.get(name)) for row in ordered], kind) for name, kind in kinds.items()]
    return Dataset(pa.Table.from_arrays(columns, names=list(kinds)))


EMPTY = {"window": [], "label_files": [], "values": [], "segments": [], "boxes": [], "crowd": [], "segment_ids": []}
EMPTY |= {"group": "", "attributes": ""}


def folder(path: Path, *names: str) -> Path | None:
    """Return the subfolder with one of these names, in any case, the first name first; None where there is none."""
    if not path.is_dir():
        return None
    found = {entry.name.casefold(): entry for entry in path.iterdir() if entry.is_dir()}
    return next((found[name] for name in names if name in found), None)


def is_raster(name: str) -> bool:
    """Say whether a file name is that of a raster: not a sidecar (.aux.xml, .tfw, .ovr) and not hidden litter."""
    return name.lower().endswith(RASTER_SUFFIXES) and not name.startswith(".")


def rasters(path: Path, deep: bool = True) -> list[Path]:
    """List the rasters in a folder, and below it where `deep`, in order of their paths."""
    found = []
    for base, folders, names in os.walk(path, onerror=not_allowed):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if deep else []
        found += [Path(base, name) for name in names if is_raster(name)]
    return sorted(found)


def not_allowed(error: OSError) -> None:
    """Raise the error of a folder that may not be read, where `os.walk` would pass over it."""
    if isinstance(error, PermissionError):
        raise error


def has_raster(path: Path) -> bool:
    """Say whether a folder itself holds a raster."""
    with os.scandir(path) as entries:
        return any(is_raster(entry.name) and entry.is_file() for entry in entries)


def kept_as_background(without: Sequence[str], lonely: int) -> list[str]:
    """Return what to tell of chips without a label file, and of label files without a chip."""
    problems = []
    if without:
        problems.append(f"{len(without)} chip(s) without a label file, kept as background: {some(without, 3)}")
    if lonely:
        problems.append(f"{lonely} label file(s) without a chip were left out")
    return problems


def label_problems(rows: Iterable[dict], lonely: int) -> list[str]:
    """Return `kept_as_background` of rows with label files."""
    return kept_as_background([row["file"] for row in rows if not row["label_files"]], lonely)


def read_json(file: Path) -> object:
    """Read a JSON file, with or without a byte-order mark.

    Raises:
        ValueError: it is no JSON.
    """
    data = file.read_bytes()
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no valid JSON: {error}") from error


def relative(file: Path, root: Path) -> str:
    """Return a file's path relative to the root, with forward slashes."""
    return Path(os.path.relpath(file, root)).as_posix()


def some(names: Iterable[object], most: int = 5) -> str:
    """Join the first few names for a message and count the rest."""
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
