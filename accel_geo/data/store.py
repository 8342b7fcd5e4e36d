"""The store: every chip of a data set decoded once, in one Arrow file that all processes and epochs map into memory.

A column of raw bytes read through its buffer costs no copy; labels are kept compact (see labels.py). The store depends
on the files and on what shapes their pixels, and on neither classes nor splits, so that runs share it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from accel_geo.data.formats.rows import Rows
from accel_geo.data.labels import KINDS, Label, Place
from accel_geo.data.pixels import Bands, Pixels, read_error, read_pixels, resize_pixels
from accel_geo.data.statistics import Moments, chip_moments

VERSION = 2  # raise it whenever the meaning of a column changes: older stores are then left alone
_BLOCK = 64  # chips in a record batch
_MOST_UNREADABLE = 0.05

_INDEX = {
    "height": pa.int32(),
    "width": pa.int32(),
    "dtype": pa.string(),
    **{name: pa.list_(pa.float64()) for name in Moments._fields},
    "values": pa.list_(pa.int64()),
    "counts": pa.list_(pa.int64()),
    "boxes": pa.list_(pa.float32()),
    "shape": pa.list_(pa.int32()),
    "crowd": pa.list_(pa.int32()),
    "dropped": pa.int32(),
    "hidden": pa.float64(),
    "problem": pa.string(),
}
_PAYLOAD = {"pixels": pa.large_binary(), "missing": pa.large_binary(), "label": pa.large_binary()}
SCHEMA = pa.schema({**_INDEX, **_PAYLOAD})
INDEX_SCHEMA = pa.schema(_INDEX)


class Chip(NamedTuple):
    """One decoded chip: its pixels [C, H, W] and compact label, or the reason why there are none."""

    pixels: Pixels | None
    label: Label
    problem: str | None = None


@dataclass
class Decoder:
    """Reads the chips of rows from their files. It holds no open file, so that workers may carry it."""

    rows: Rows
    bands: Bands
    resize_to: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.rows.dataset)

    def __call__(self, row: dict) -> Chip:
        """Read one chip and its label; whatever is wrong with them becomes its problem."""
        file = self.rows.root / row["file"]
        try:
            pixels = read_pixels(file, self.bands)
            source = pixels.values.shape[1:]
            if self.resize_to:
                pixels = resize_pixels(pixels, self.resize_to)
            size = pixels.values.shape[1:]
            rows = self.rows
            place = Place(rows.root, source, size, pixels.ignored, self.bands, rows.things, rows.colours)
            label = KINDS[rows.task].decode(row, place)
        except Exception as error:  # a bad file may raise anything; the chip keeps its place and is named
            return Chip(None, Label([], []), f"{row['file']}: {read_error(file, error)}")
        return Chip(pixels, label)

    def blocks(self) -> Iterator[list[Chip]]:
        """Read all chips, some at a time; threads serve, since the reading releases Python's lock."""
        dataset = self.rows.dataset
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for start in range(0, len(dataset), _BLOCK):
                block = dataset[start : start + _BLOCK]
                yield list(pool.map(self, [dict(zip(block, values)) for values in zip(*block.values())]))

    def manifest(self) -> str:
        """Return the key of the store: a hash of every file's path, size and time, and of what shapes the pixels."""
        dataset = self.rows.dataset
        names = {*dataset["file"][:], *(name for labels in dataset["label_files"][:] for name in labels)}
        root = self.rows.root.resolve()
        stats = [(name, *_stat(root / name)) for name in sorted(names)]
        stats += [(str(file), *_stat(file)) for file in self.rows.sources]
        options = [VERSION, str(root), self.rows.task, self.rows.format, self.bands, self.resize_to, len(self)]
        return hashlib.blake2b(json.dumps([options, stats]).encode(), digest_size=12).hexdigest()


def _stat(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


class Store:
    """The decoded chips of one data set, by their position in its rows.

    Attributes:
        index: what is known of each chip without its pixels, an Arrow table.
        moments: band statistics of each chip, arrays [N, C].
        values, counts: those of each chip's label, lists.
        problems: why a chip could not be read, by its position.
    """

    def __init__(self, table: pa.Table, decoder: Decoder, file: Path | None = None) -> None:
        """Hold a table of chips; without the column of pixels each chip is decoded when it is asked for."""
        self._table, self._decoder, self._file = table, decoder, file
        self.index = table.select(list(_INDEX))
        names = ("height", "width", "dtype", "values", "counts", "boxes", "shape", "crowd")
        columns = {name: self.index[name].to_pylist() for name in names}
        self.heights, self.widths = columns["height"], columns["width"]
        self._dtypes, self._boxes = columns["dtype"], columns["boxes"]
        self.values, self.counts = columns["values"], columns["counts"]
        self._shapes, self.crowds = columns["shape"], columns["crowd"]
        self.moments = Moments(*(np.array(self.index[name].to_pylist(), dtype=np.float64) for name in Moments._fields))
        texts = enumerate(self.index["problem"].to_pylist())
        self.problems = {position: text for position, text in texts if text is not None}
        self._payload = None
        if "pixels" in table.column_names:
            self._payload = [table[name].chunks for name in _PAYLOAD]

    def __len__(self) -> int:
        return len(self.heights)

    def __reduce__(self) -> tuple:
        # A store on disk travels to a worker as its path, not as its content.
        return (_reopen, (self._file, self._decoder)) if self._file else (Store, (self._table, self._decoder))

    @property
    def dtype(self) -> str:
        """The type that holds the pixels of every chip."""
        found = {dtype for position, dtype in enumerate(self._dtypes) if position not in self.problems}
        return str(np.result_type(*found)) if found else "uint8"

    @property
    def dtypes(self) -> set[str]:
        """The pixel types that occur."""
        return {dtype for position, dtype in enumerate(self._dtypes) if position not in self.problems}

    def sizes(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """Return (H, W) of each chip, (0, 0) of those that cannot be read."""
        return [(self.heights[p], self.widths[p]) for p in positions]

    def label_shapes(self, positions: Sequence[int]) -> list[Sequence[int]]:
        """Return the shape of each chip's label data where it is not the chip's, else an empty one."""
        return [self._shapes[p] for p in positions]

    @property
    def keeps_pixels(self) -> bool:
        """Whether chips are held decoded, or decoded each time."""
        return self._payload is not None

    def present_values(self) -> set[int]:
        """Return the values that occur in the labels of all chips."""
        return {int(value) for found in self.values for value in found}

    def footprints(self) -> tuple[np.ndarray, list[str]]:
        """Return left, bottom, right, top of each chip [N, 4], NaN where it is not georeferenced, and its system."""
        if "bounds" not in self.index.column_names:
            return np.full((len(self), 4), np.nan), [""] * len(self)
        bounds = self.index["bounds"].to_pylist()
        return np.array([b or [np.nan] * 4 for b in bounds], dtype=np.float64), self.index["crs"].to_pylist()

    def pixels(self, position: int) -> np.ndarray:
        """Return the stored pixels [C, H, W] of a chip without a copy (read-only); 0 where missing."""
        chunk, place = divmod(position, _BLOCK)
        data = self._payload[0][chunk][place].as_buffer()
        shape = (-1, self.heights[position], self.widths[position])
        pixels = np.frombuffer(data, dtype=self._dtypes[position]).reshape(shape)
        pixels.flags.writeable = False  # Arrow calls a mapped buffer mutable; a write would end the process
        return pixels

    def chip(self, position: int) -> Chip:
        """Return a chip and its compact label, or the problem it has."""
        if position in self.problems:
            return Chip(None, Label([], []), self.problems[position])
        if self._payload is None:
            return self._decoder(self._decoder.rows.dataset[position])
        values, (chunk, place) = self.pixels(position), divmod(position, _BLOCK)
        missing = self._payload[1][chunk][place].as_buffer()
        if missing is not None:
            bits = np.unpackbits(np.frombuffer(missing, dtype=np.uint8), count=values.size)
            missing = bits.reshape(values.shape).view(bool)
        data = self._payload[2][chunk][place].as_buffer()
        columns = (self.values, self.counts, self._boxes)
        values_counts_boxes = [column[position] for column in columns]
        label = Label(*values_counts_boxes, data, self._shapes[position], self.crowds[position])
        return Chip(Pixels(values, missing), label)


def _reopen(file: Path, decoder: Decoder) -> Store:
    return open_store(file, decoder)


def open_store(file: Path, decoder: Decoder) -> Store:
    """Map a finished store file into memory."""
    return Store(pa.ipc.open_file(pa.memory_map(str(file))).read_all(), decoder, file)


def batches(decoder: Decoder, keep: bool) -> Iterator[pa.RecordBatch]:
    """Decode all chips into record batches, with their pixels or without.

    Raises:
        ValueError: more than 5 % of the chips cannot be read; the first few are named.
    """
    failed: list[str] = []
    bands, schema = len(decoder.bands.indexes), SCHEMA if keep else INDEX_SCHEMA
    for chips in decoder.blocks():
        failed += [chip.problem for chip in chips if chip.problem is not None]
        yield pa.RecordBatch.from_pylist([_record(chip, bands, keep) for chip in chips], schema=schema)
    check_readable(failed, len(decoder))


def check_readable(failed: list[str], chips: int) -> None:
    """Refuse a data set of which more than 5 % cannot be read.

    Raises:
        ValueError: it names the first few chips and their reasons.
    """
    if len(failed) > _MOST_UNREADABLE * chips:
        listed = "\n".join(f"  {problem}" for problem in failed[:5])
        raise ValueError(
            f"{len(failed)} of {chips} chips cannot be read, more than {_MOST_UNREADABLE:.0%}; the first:\n{listed}\n"
            "Repair or remove these files, or check that the data set is of the format that it was taken for"
        )


def _record(chip: Chip, bands: int, keep: bool) -> dict:
    if chip.pixels is None:
        values, missing = np.zeros((bands, 0, 0), dtype=np.uint8), np.zeros((bands, 0, 0), dtype=bool)
    else:
        values, missing = chip.pixels.values, chip.pixels.missing
    label = chip.label
    record = {
        "height": values.shape[1],
        "width": values.shape[2],
        "dtype": str(values.dtype),
        **{name: column.tolist() for name, column in chip_moments(values, missing)._asdict().items()},
        "values": label.values,
        "counts": label.counts,
        "boxes": label.boxes,
        "shape": label.shape,
        "crowd": label.crowd,
        "dropped": label.dropped,
        "hidden": 0.0 if chip.pixels is None or chip.pixels.ignored is None else float(chip.pixels.ignored.mean()),
        "problem": chip.problem,
    }
    if keep:
        record["pixels"] = values.tobytes()
        record["missing"] = None if missing is None else np.packbits(missing).tobytes()
        record["label"] = label.data
    return record


def in_memory(decoder: Decoder, keep: bool) -> Store:
    """Decode a data set into memory; without `keep` only its index, and pixels are decoded whenever asked for."""
    return Store(pa.Table.from_batches(list(batches(decoder, keep))), decoder)


def write(decoder: Decoder, file: Path) -> None:
    """Decode a data set into an Arrow file and bring it to the disk."""
    with open(file, "wb") as stream:
        with pa.ipc.new_file(stream, SCHEMA) as writer:
            for batch in batches(decoder, keep=True):
                writer.write_batch(batch)
        stream.flush()
        os.fsync(stream.fileno())
