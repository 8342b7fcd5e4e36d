"""The decoder: reads the chips of rows from their files, and says what they depend on."""

import hashlib
import io
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from accel_geo.data.georeference import Footprint
from accel_geo.data.labels import KINDS, Label, Place
from accel_geo.data.pixels import Bands, Pixels, chip_name, located, read_error, read_placed, resize_pixels

if TYPE_CHECKING:
    from accel_geo.data.formats.rows import Rows  # formats may keep files in the cache, which knows the decoder

VERSION = 5  # raise it whenever what is stored of a chip changes: older stores are then left alone
_NO_MATTER = ("group", "attributes")  # columns of rows that shape no pixel
_SLICE = 65_536  # files looked at at a time, so that memory stays small


class Chip(NamedTuple):
    """One decoded chip: its pixels [C, H, W] and compact label, or the reason why there are none.

    What it covers on the ground stands here as long as it is not stored; then it is in the index.
    """

    pixels: Pixels | None
    label: Label
    problem: str | None = None
    footprint: Footprint = Footprint()


@dataclass
class Decoder:
    """Reads the chips of rows from their files. It holds no open file, so that workers may carry it."""

    rows: "Rows"
    bands: Bands
    resize_to: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.rows.dataset)

    def __call__(self, row: dict) -> Chip:
        """Read one chip and its label; whatever is wrong with them becomes its problem."""
        rows = self.rows
        file = located(rows.root, row["file"])
        try:
            pixels, footprint = read_placed(file, self.bands, row["window"])
            source = pixels.values.shape[1:]
            if self.resize_to:
                pixels = resize_pixels(pixels, self.resize_to)
            size = pixels.values.shape[1:]
            about = (rows.things, rows.colours, rows.scale, rows.filled)
            place = Place(rows.root, source, size, pixels.ignored, self.bands, *about)
            label = KINDS[rows.task].decode(row, place)
        except Exception as error:  # a bad file may raise anything; the chip keeps its place and is named
            return Chip(None, Label([], []), f"{chip_name(row['file'], row['window'])}: {read_error(file, error)}")
        return Chip(pixels, label, footprint=footprint)

    def chip(self, position: int) -> Chip:
        """Read the chip of a row."""
        return self(self.rows.dataset[int(position)])

    def block(self, start: int, stop: int) -> list[dict]:
        """Return some rows."""
        block = self.rows.dataset[start : min(stop, len(self))]
        return [dict(zip(block, values)) for values in zip(*block.values())]

    def manifest(self, verify: bool = False) -> str:
        """Return the key of the decoded chips: a hash of the rows, the state of every file, and what shapes the pixels.

        Args:
            verify: hash the content of the files instead of their sizes and times.
        """
        dataset, root = self.rows.dataset, self.rows.root.resolve()
        table = dataset.with_format("arrow")[:]
        table = table.drop_columns([name for name in _NO_MATTER if name in table.column_names])
        options = [VERSION, str(root), self.rows.task, self.bands, self.resize_to, len(self)]
        options += [sorted(self.rows.things), sorted(self.rows.colours.items()), self.rows.scale]
        options += ["filled"] if self.rows.filled else []
        found = hashlib.blake2b(json.dumps(options).encode(), digest_size=12)
        with pa.ipc.new_stream(_Hashing(found), table.schema.remove_metadata()) as stream:
            stream.write_table(table.replace_schema_metadata(None).combine_chunks())
        labels = pc.list_flatten(table["label_files"])
        files = pc.unique(pa.chunked_array([*table["file"].chunks, *labels.chunks]))
        for start in range(0, len(files), _SLICE):
            names = [name for name in files.slice(start, _SLICE).to_pylist() if name]
            states = _states([os.path.join(root, name) for name in names], verify)
            text = "".join(f"{name}\0{state}\n" for name, state in zip(names, states))
            found.update(text.encode(errors="surrogateescape"))
        return found.hexdigest()


class _Hashing(io.RawIOBase):
    """A file that keeps nothing but the hash of what is written to it."""

    def __init__(self, found: "hashlib.blake2b") -> None:
        self.found = found

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:
        self.found.update(data)
        return len(data)


def _states(files: list[str], verify: bool) -> Iterable[str]:
    if not verify:
        return map(_state, files)
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(_content, files))


def _state(file: str) -> str:
    # What GDAL opens by itself (/vsi...) cannot be looked at, and counts as unchanged.
    try:
        status = os.stat(file)
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _content(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "blake2b").hexdigest()
    except OSError:
        return ""
