"""The store: every chip of a data set decoded once, in one Arrow file that all processes and epochs map into memory.

Its record batches hold the chips as raw bytes, read through their buffers without a copy; labels are kept compact (see
labels/). The last batch holds the index (see index.py), so that opening a store reads none of the chips. The store
depends on the files and on what shapes their pixels, and on neither classes nor splits, so that runs share it.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import getitem
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accel_geo.data.building import PAYLOAD, Batches, Plan, build, payload_batch
from accel_geo.data.decoder import Chip, Decoder
from accel_geo.data.index import numbers, ragged, raw, texts, whole
from accel_geo.data.labels import Label
from accel_geo.data.pixels import Pixels
from accel_geo.data.statistics import Moments

__all__ = ["Chip", "Decoder", "Store", "in_memory", "open_store", "write"]

_ROWS = b"rows"  # in the metadata of the index: chips in a record batch


class Store:
    """The decoded chips of one data set, by their position in its rows.

    Attributes:
        index: what is known of each chip without its pixels, an Arrow table.
        heights, widths: int32 [N]; 0 of chips that cannot be read.
        values, counts, boxes, shapes, crowds: those of each chip's label, `Ragged`.
        moments: band statistics of each chip, arrays [N, C].
        problems: why a chip could not be read, by its position.
    """

    def __init__(
        self,
        index: pa.Table,
        fetch: Callable[[int], pa.RecordBatch] | None,
        decoder: Decoder | None = None,
        file: Path | None = None,
    ) -> None:
        """Hold decoded chips.

        Args:
            index: of all chips, each column in one piece.
            fetch: gives a record batch of chips by its number; None: each chip is decoded when it is asked for.
            decoder: reads the chips then.
            file: where the store lies.
        """
        self.index, self._fetch, self._decoder, self._file = index, fetch, decoder, file
        self.heights, self.widths = numbers(index, "height"), numbers(index, "width")
        self.values, self.counts, self.boxes = (ragged(index, name) for name in ("values", "counts", "boxes"))
        self.shapes, self.crowds = ragged(index, "shape"), ragged(index, "crowd")
        self.moments = Moments(*(ragged(index, name).flat.reshape(len(self), -1) for name in Moments._fields))
        self._types, names = texts(index, "dtype")
        self._dtypes = [np.dtype(name) for name in names]
        problems = index["problem"].chunk(0)
        found = pc.indices_nonzero(problems.is_valid())
        self.problems = dict(zip(found.to_pylist(), problems.take(found).to_pylist()))
        self._rows = int(index.schema.metadata[_ROWS])
        self._blocks: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # the record batches used so far

    def __len__(self) -> int:
        return len(self.heights)

    def __reduce__(self) -> tuple:
        # A store on disk travels to a worker as its path, not as its content.
        return (open_store, (self._file,)) if self._file else (Store, (self.index, self._fetch, self._decoder))

    @property
    def dtype(self) -> str:
        """The type that holds the pixels of every chip."""
        return str(np.result_type(*self.dtypes)) if self.dtypes else "uint8"

    @property
    def dtypes(self) -> set[str]:
        """The pixel types that occur."""
        return {str(self._dtypes[number]) for number in np.unique(self._types[self.heights > 0])}

    @property
    def keeps_pixels(self) -> bool:
        """Whether chips are held decoded, or decoded each time."""
        return self._fetch is not None

    def present_values(self) -> set[int]:
        """Return the values that occur in the labels of all chips."""
        return set(np.unique(self.values.flat).tolist())

    def footprints(self) -> tuple[np.ndarray, list[str]]:
        """Return left, bottom, right, top of each chip [N, 4], NaN where it is not georeferenced, and its system."""
        known = ragged(self.index, "bounds")
        bounds = np.full((len(self), 4), np.nan)
        bounds[known.lengths == 4] = known.flat.reshape(-1, 4)
        systems, names = texts(self.index, "crs")
        return bounds, [names[system] for system in systems.tolist()]

    def sizes(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """Return (H, W) of each chip, (0, 0) of those that cannot be read."""
        chosen = np.asarray(positions, dtype=np.int64)
        both = self.heights[chosen].astype(np.int64) << 32 | self.widths[chosen]
        found, which = np.unique(both, return_inverse=True)
        sizes = [(size >> 32, size & 0xFFFFFFFF) for size in found.tolist()]  # one object for each size
        return [sizes[number] for number in which.tolist()]

    def label_shapes(self, positions: Sequence[int]) -> list[Sequence[int]]:
        """Return the shape of each chip's label data where it is not the chip's, else an empty one."""
        return [self.shapes[position].tolist() for position in positions]

    def pixels(self, position: int) -> np.ndarray:
        """Return the stored pixels [C, H, W] of a chip without a copy (read-only); 0 where missing."""
        shape = (-1, self.heights[position], self.widths[position])
        return self._bytes(position, 0).view(self._dtypes[self._types[position]]).reshape(shape)

    def chip(self, position: int) -> Chip:
        """Return a chip and its compact label, or the problem it has."""
        if position in self.problems:
            return Chip(None, Label([], []), self.problems[position])
        if self._fetch is None:
            return self._decoder.chip(position)
        values, missing, data = self.pixels(position), self._bytes(position, 1), self._bytes(position, 2)
        if len(missing):
            bits = np.unpackbits(missing, count=values.size)
            missing = bits.reshape(values.shape).view(bool)
        else:
            missing = None
        lists = [column[position].tolist() for column in (self.values, self.counts, self.boxes)]
        label = Label(*lists, data, self.shapes[position].tolist(), self.crowds[position].tolist())
        return Chip(Pixels(values, missing), label)

    def _bytes(self, position: int, column: int) -> np.ndarray:
        # What a column of the payload holds of a chip, uint8, without a copy.
        number, place = divmod(position, self._rows)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = [raw(column) for column in self._fetch(number).columns]
        data, offsets = block[column]
        return data[offsets[place] : offsets[place + 1]]


def in_memory(decoder: Decoder, keep: bool, planned: Plan) -> Store:
    """Decode a data set into memory; without `keep` only its index, and pixels are decoded whenever asked for."""
    parts = list(build(decoder, keep, planned))
    index = _joined([index for index, _ in parts], planned.rows)
    return Store(index, partial(getitem, [payload for _, payload in parts]) if keep else None, decoder)


def write(file: Path, batches: Iterable[Batches], rows: int) -> None:
    """Write decoded chips to an Arrow file and bring it to the disk.

    Args:
        file: to write.
        batches: index and payload of some chips each, see `building.build`.
        rows: chips in each of them but the last.
    """
    parts = []
    with open(file, "wb") as stream:
        with pa.ipc.new_file(stream, PAYLOAD) as writer:
            for index, payload in batches:
                parts.append(index)
                writer.write_batch(payload)
            packed = pa.BufferOutputStream()
            with pa.ipc.new_stream(packed, (index := _joined(parts, rows)).schema) as inner:
                inner.write_table(index)
            writer.write_batch(payload_batch([b""], [b""], [packed.getvalue()]))
        stream.flush()
        os.fsync(stream.fileno())


def _joined(parts: Sequence[pa.RecordBatch], rows: int) -> pa.Table:
    return whole(parts).replace_schema_metadata({_ROWS: str(rows)})


def open_store(file: Path) -> Store:
    """Map a finished store file into memory.

    Raises:
        FileNotFoundError: there is none.
        pa.ArrowInvalid, OSError: it is damaged.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(file)))
    packed, _ = raw(reader.get_batch(reader.num_record_batches - 1).column("label"))
    index = pa.ipc.open_stream(pa.py_buffer(packed)).read_all()
    return Store(index, reader.get_batch, file=file)
