"""Writes a data set of the library `datasets` to files: its images, and an index of one row for each chip."""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.data.cache import cache_folder
from accel_geo.data.formats.hub_columns import Classes, Kind, ObjectReader, find, kind_of, kind_of_value, listed
from accel_geo.data.formats.hub_files import content
from accel_geo.data.once import builds_here, finish, make_once, remove, temporary_beside, wait_for

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 2  # raise it whenever what is written changes
_BATCH = 2000  # rows held as Python objects
_LONGEST = 200  # characters of a text that is kept as a further column


class Writer:
    """Writes the images and labels of all splits.

    Attributes:
        kinds: what each column holds.
        columns: which column is what.
        tasks: that the labels serve, the default first.
    """

    def __init__(self, parts: Mapping[str, object], chosen: Mapping[str, str], box_format: str) -> None:
        """Find the columns; nothing is written yet.

        Args:
            parts: the data set of each split.
            chosen: names of columns by role, where the user gives them.
            box_format: "xywh" or "xyxy".

        Raises:
            ValueError: there is no image column, or the splits have different columns.
        """
        self._parts, self._box_format = parts, box_format
        self._first: dict[str, Iterable] = {}
        self.kinds = self._kinds()
        self.columns = found = find(self.kinds, chosen)
        self._objects = ObjectReader(found.objects, self.kinds, box_format) if found.objects else None
        self._labels = Classes(self.kinds[found.label]) if found.label else None
        shapes = self._objects is not None and self._objects.shapes
        tasks = ["super_resolution"] * bool(found.sharp) + ["semantic", "edges"] * bool(found.mask)
        tasks += ["instances"] * shapes + ["detection"] * bool(found.objects) + ["semantic", "edges"] * shapes
        self.tasks = list(dict.fromkeys(tasks + ["classification"] * bool(found.label)))
        self._digest, self._left_out = hashlib.blake2b(digest_size=12), Counter()

    def _kinds(self) -> dict[str, Kind]:
        # What the columns of the first split hold; the others must have them too.
        found = {}
        for name, part in self._parts.items():
            if part.features is not None:
                found[name] = {column: kind_of(feature) for column, feature in part.features.items()}
            else:
                examples = iter(part)
                first = next(examples, None)
                self._first[name] = itertools.chain([] if first is None else [first], examples)
                found[name] = {column: kind_of_value(value) for column, value in (first or {}).items()}
        kinds = next((kinds for kinds in found.values() if kinds), {})
        for name, other in found.items():
            if other and set(other) != set(kinds):
                raise ValueError(
                    f"the splits have different columns: {listed(kinds)}; but {name}: {listed(other)}. Make them alike, or "
                    "choose one (split=NAME)"
                )
        return kinds

    def folder(self) -> Path:
        """Return the folder of the files, written where that is not done yet.

        It is named by the fingerprints of the data sets; for streams, which have none, by what came.
        """
        base = cache_folder().parent / "datasets"
        if not all(hasattr(part, "__len__") for part in self._parts.values()):
            return self._stream(base)
        marks = {name: (part._fingerprint, len(part)) for name, part in self._parts.items()}
        key = hashlib.blake2b(json.dumps([marks, self._options()]).encode(), digest_size=12).hexdigest()
        make_once(base / key, self._write)
        return base / key

    def _stream(self, base: Path) -> Path:
        # Each process reads the stream, since only its content says where it lies; one of each machine writes it.
        base.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(base / "stream") if builds_here() else None
        try:
            self._write(temporary)
            target = base / self._digest.hexdigest()
            if temporary is None:
                wait_for(target)
            else:
                finish(temporary, target)
        finally:
            if temporary is not None:
                remove(temporary)
        return target

    def _options(self) -> list:
        return [_VERSION, vars(self.columns), self._box_format]

    def _write(self, folder: Path | None) -> None:
        # All files below a folder; without one, only the digest of what they would hold.
        import pyarrow as pa
        import pyarrow.parquet as parquet

        if folder:
            folder.mkdir(parents=True)
        self._digest.update(json.dumps(self._options()).encode())
        batches, rows = [], []
        for split, number, example in self._examples():
            try:
                row = self._row(folder, split, number, example)
            except (ValueError, TypeError, KeyError, FileNotFoundError) as error:
                place = f"row {number}" + (f" of the split {split}" if split else "")
                kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
                raise kind(f"{place} of the data set: {error}") from error
            if row is not None:
                rows.append(row)
            if len(rows) == _BATCH:
                batches.append(pa.RecordBatch.from_pylist(rows, schema=_schema()))
                rows = []
        batches.append(pa.RecordBatch.from_pylist(rows, schema=_schema()))
        index, about = self._settled(pa.Table.from_batches(batches))
        if not len(index):
            raise ValueError(f"the data set has no image in its column {self.columns.image!r}, or no rows")
        self._digest.update(json.dumps(about, sort_keys=True).encode())
        if folder:
            parquet.write_table(index, folder / "index.parquet")
            (folder / "about.json").write_text(json.dumps(about, indent=1))

    def _examples(self) -> Iterator[tuple[str, int, dict]]:
        from tqdm import tqdm

        for split, part in self._parts.items():
            examples: Iterable = self._first.get(split, part)
            if examples is part:
                examples = self._selected(part)
            total = len(part) if hasattr(part, "__len__") else None
            bar = tqdm(examples, f"data set {split}".strip(), total, unit="chip", disable=None, leave=False)
            for number, example in enumerate(bar):
                yield split, number, example

    def _selected(self, part: object) -> Iterable[dict]:
        # The columns that are used: images not decoded, arrays as such where that can be had (40 times faster).
        import datasets

        used = [name for name in vars(self.columns).values() if name]
        wanted = {*used, *(name for name, kind in self.kinds.items() if _plain(kind))}
        wanted |= {self._objects.category} if self._objects else set()
        part = part.with_format(None).select_columns([name for name in self.kinds if name in wanted])
        for name in used:
            if isinstance(part.features[name], datasets.Image):
                part = part.cast_column(name, datasets.Image(decode=False))
        arrays = [name for name in used if self.kinds[name].pixels and self.kinds[name].depth]
        if not arrays or not hasattr(part, "__len__"):
            return part
        exact = {"dtype": "float64"} if any(self.kinds[name].dtype == "float64" for name in arrays) else {}
        return part.with_format("numpy", columns=arrays, output_all_columns=True, **exact)

    def _row(self, folder: Path | None, split: str, number: int, example: Mapping) -> dict | None:
        columns = self.columns
        if self._missing(columns.image, example):
            self._left_out["row(s) without an image were left out"] += 1
            return None
        place = re.sub(r"[^\w-]+", "_", split) if split else ""
        row: dict = {"split": split, "file": None, "mask": None, "sharp": None}
        row["file"], stem = self._file(folder, "images", place, f"{number:07}", example[columns.image], columns.image)
        for role, below in (("mask", "masks"), ("sharp", "sharp")):
            name = getattr(columns, role)
            if name and not self._missing(name, example):
                row[role], _ = self._file(folder, below, place, stem, example[name], name, role == "mask")
            elif name:
                self._left_out[f"chip(s) without a {role}" + (", kept as background" if role == "mask" else "")] += 1
        labels = example.get(columns.label) if columns.label else None
        if self._labels:
            entries = [labels] if not self._labels.kind.depth else [] if labels is None else labels
            row["labels"] = [v for entry in entries if (v := self._labels.value(entry)) is not None]
            if not row["labels"]:
                self._left_out["chip(s) without a label"] += 1
        if self._objects:
            row |= self._objects.read(example)._asdict()
        used = set(vars(columns).values())
        further = {name: self._further(name, value) for name, value in example.items() if name not in used}
        further = {name: value for name, value in further.items() if value is not None}
        row["attributes"] = json.dumps(({"split": split} if split else {}) | further, ensure_ascii=False)
        self._digest.update(repr(sorted(row.items())).encode())
        return row

    def _missing(self, name: str, example: Mapping) -> bool:
        # A whole-number array that is not there comes as an array of NaN.
        value, dtype = example.get(name), self.kinds[name].dtype or "float"
        return value is None or (
            not dtype.startswith("float")
            and getattr(value, "dtype", None) == np.float32
            and bool(np.isnan(value).all())
        )

    def _further(self, name: str, value: object) -> object:
        # What a column of plain values says, None where it is none of those.
        kind = self.kinds.get(name)
        if value is None or kind is None or not _plain(kind):
            return None
        if kind.leaf == "class":
            return kind.names[value] if 0 <= value < len(kind.names) else None
        value = value.item() if hasattr(value, "item") else value
        return None if isinstance(value, str) and len(value) > _LONGEST else value

    def _file(
        self, folder: Path | None, below: str, place: str, stem: str, value: object, column: str, mask: bool = False
    ) -> tuple[str, str]:
        # Write an image's file; return its path as rows name it, and its stem, which labels share.
        found = content(value, self.kinds[column].dtype, mask)
        if found.file:
            return found.file.as_posix(), stem
        if found.name and below == "images":
            stem += "_" + re.sub(r"[^\w.-]+", "_", found.name)[:80]
        self._digest.update(len(found.data).to_bytes(8, "big") + found.data)
        path = "/".join(part for part in (below, place, stem + found.suffix) if part)
        if folder:
            file = folder / path
            try:
                file.write_bytes(found.data)
            except FileNotFoundError:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(found.data)
        return path, stem

    def _settled(self, index: "pa.Table") -> tuple["pa.Table", dict]:
        # The index with the final class values, and what is known of the whole.
        about: dict = {"left_out": self._left_out, "label": None, "objects": None}
        if self._labels:
            classes, named, final = self._labels.settle()
            index = _renumbered(index, "labels", final)
            about["label"] = {"classes": classes, "named": named, "several": self._labels.kind.depth > 0}
        if self._objects:
            if self._objects.fractions:
                raise ValueError(
                    f"no box of the column {self.columns.objects!r} is larger than 1: they are parts of the chip, but boxes "
                    "must be in pixels; multiply them by the width and height of the image (dataset.map)"
                )
            reader = self._objects.classes
            classes, named, final = reader.settle() if reader else ({1: "object"}, False, {})
            index = _renumbered(index, "values", final)
            about["objects"] = {"classes": classes, "named": named}
        files = index["file"].to_pylist()
        about["twice"] = len(files) - len(set(files))
        return index, about


def _plain(kind: Kind) -> bool:
    return not kind.depth and kind.leaf in ("class", "int", "float", "bool", "string")


def _schema() -> "pa.Schema":
    import pyarrow as pa

    kinds = {name: pa.string() for name in ("split", "file", "mask", "sharp", "attributes")}
    kinds |= {name: pa.list_(pa.int64()) for name in ("labels", "values")}
    kinds |= {"boxes": pa.list_(pa.float64()), "segments": pa.list_(pa.string()), "crowd": pa.list_(pa.int32())}
    return pa.schema(kinds)


def _renumbered(index: "pa.Table", column: str, final: dict[int, int]) -> "pa.Table":
    if not final:
        return index
    import pyarrow as pa

    values = [None if row is None else [final[value] for value in row] for row in index[column].to_pylist()]
    return index.set_column(index.column_names.index(column), column, pa.array(values, pa.list_(pa.int64())))
