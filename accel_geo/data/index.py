"""The index of a store: what is known of each chip without its pixels, in columns that numpy reads where they lie."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from accel_geo.data.decoder import Chip
from accel_geo.data.statistics import Moments, chip_moments

_LISTS = {
    **{name: pa.float64() for name in Moments._fields},
    "values": pa.int64(),
    "counts": pa.int64(),
    "boxes": pa.float32(),
    "shape": pa.int32(),
    "crowd": pa.int32(),
    "bounds": pa.float64(),
}
_SINGLE = {
    "height": pa.int32(),
    "width": pa.int32(),
    "dropped": pa.int32(),
    "hidden": pa.float64(),
    "dtype": pa.string(),
    "crs": pa.string(),
    "problem": pa.string(),
}
SCHEMA = pa.schema({**{name: pa.list_(kind) for name, kind in _LISTS.items()}, **_SINGLE})
_REPEATED = ("dtype", "crs")  # a few texts, over and over


class Ragged(Sequence):
    """Lists of numbers of different lengths, one for each chip, without a Python object for each.

    `ragged[i]` is a view of an array; iterating gives plain lists, the fast way through all of them in Python.

    Attributes:
        flat: all numbers, one list after the other.
        offsets: where each list begins, and the end.
    """

    def __init__(self, flat: np.ndarray, offsets: np.ndarray) -> None:
        self.flat, self.offsets = flat, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> np.ndarray:
        return self.flat[self.offsets[position] : self.offsets[position + 1]]

    def __iter__(self) -> Iterator[list]:
        flat, offsets = self.flat.tolist(), self.offsets.tolist()
        return (flat[start:stop] for start, stop in zip(offsets, offsets[1:]))

    @property
    def lengths(self) -> np.ndarray:
        """How many numbers each list has."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> np.ndarray:
        """For each of the flat numbers the position of its list."""
        return np.repeat(np.arange(len(self)), self.lengths)


def index_batch(chips: Sequence[Chip], bands: int) -> pa.RecordBatch:
    """Return the index of some chips."""
    return pa.RecordBatch.from_pylist([_row(chip, bands) for chip in chips], schema=SCHEMA)


def _row(chip: Chip, bands: int) -> dict:
    if chip.pixels is None:
        nothing = np.zeros((bands, 0, 0), dtype=np.uint8)
        values, missing, ignored = nothing, nothing.astype(bool), None
    else:
        values, missing, ignored = chip.pixels.values, chip.pixels.missing, chip.pixels.ignored
    label = chip.label
    return {
        **chip_moments(values, missing)._asdict(),
        "values": label.values,
        "counts": label.counts,
        "boxes": label.boxes,
        "shape": label.shape,
        "crowd": label.crowd,
        "bounds": chip.footprint.bounds,
        "height": values.shape[1],
        "width": values.shape[2],
        "dropped": label.dropped,
        "hidden": 0.0 if ignored is None else float(ignored.mean()),
        "dtype": str(values.dtype),
        "crs": chip.footprint.crs,
        "problem": chip.problem,
    }


def whole(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Join the index of all chips, each column in one piece."""
    table = pa.Table.from_batches(batches).combine_chunks()
    for name in _REPEATED:
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    return table


def numbers(index: pa.Table, name: str) -> np.ndarray:
    """Return a column of numbers, a view."""
    return _view(index[name].chunk(0))


def ragged(index: pa.Table, name: str) -> Ragged:
    """Return a column of lists, a view."""
    column = index[name].chunk(0)
    return Ragged(_view(column.values), _view(column.offsets))


def texts(index: pa.Table, name: str) -> tuple[np.ndarray, list[str]]:
    """Return a column of repeated texts: for each chip the number of its text, and the texts."""
    column = index[name].chunk(0)
    return _view(column.indices), column.dictionary.to_pylist()


def _view(array: pa.Array) -> np.ndarray:
    # As `to_numpy` does it, which would import pandas.
    numbers = np.frombuffer(array.buffers()[1] or b"", dtype=array.type.to_pandas_dtype())
    return numbers[array.offset : array.offset + len(array)]


def raw(column: pa.LargeBinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all entries of a column, read-only, and where each begins.

    Asking Arrow for an entry copies it; slicing this is a view.
    """
    _, offsets, data = column.buffers()
    flat = np.frombuffer(data or b"", dtype=np.uint8)
    flat.flags.writeable = False  # Arrow calls a mapped buffer mutable; a write would end the process
    return flat, np.frombuffer(offsets, dtype=np.int64)
