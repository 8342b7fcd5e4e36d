"""Where stores live, and who builds them: the first process of each machine; the others wait for the finished file."""

import os
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from accel_geo.data import room
from accel_geo.data.building import build, plan
from accel_geo.data.decoder import Decoder
from accel_geo.data.once import builds_here, make_once
from accel_geo.data.store import Store, in_memory, open_store, write

MODES = ("auto", "disk", "memory", "off")
_REPLACING = 60.0  # seconds that the builder may take to remove a damaged store


def cache_folder() -> Path:
    """Return the folder of stores: ACCEL_GEO_CACHE, else ~/.cache/accel_geo; it may not exist yet."""
    return Path(os.environ.get("ACCEL_GEO_CACHE") or Path.home() / ".cache" / "accel_geo").expanduser() / "chips"


def prepare_store(decoder: Decoder, cache: str, verify: bool = False) -> tuple[Store, str]:
    """Open the store of a data set, decoding it first where that has not been done.

    Afterwards the stores that were used longest ago make room, where all together take more than they may: see
    `room.allowed`. One that was used within the last day stays.

    Args:
        decoder: reads the chips.
        cache: "disk", "memory" (every process decodes for itself), "off" (pixels are decoded each time), or "auto":
            disk; where that cannot be written or the chips are too large for it, memory; where they would take more
            than a quarter of what is free there, off.
        verify: know the files by their content instead of their sizes and times.

    Returns:
        The store, and a note where "auto" had to fall back or stores were deleted.

    Raises:
        ValueError: too many chips cannot be read, or the process that builds the store died.
        OSError: the disk cannot be written and `cache` is "disk".
    """
    if cache in ("memory", "off"):
        return in_memory(decoder, cache == "memory", plan(decoder)), ""
    try:
        return _on_disk(decoder, verify, careful=cache == "auto")
    except OSError as error:
        note = f"the store cannot be written to {cache_folder()} ({error.strerror or error})"
        if cache == "disk":
            raise OSError(f"{note}; make room there, point ACCEL_GEO_CACHE elsewhere, or use cache='memory'") from error
    planned, free = plan(decoder), room.free_memory()
    if planned.bytes <= free / 4:
        return in_memory(decoder, True, planned), f"{note}: the chips are kept in memory"
    note += f", nor kept in memory ({room.text(planned.bytes)} of {room.text(free)} free; a quarter may be used)"
    return in_memory(decoder, False, planned), f"{note}: chips are decoded each time"


def _on_disk(decoder: Decoder, verify: bool, careful: bool) -> tuple[Store, str]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file, notes = folder / f"{decoder.manifest(verify)}.arrow", []

    def decode(temporary: Path) -> None:
        planned = plan(decoder)
        notes.append(room.make(folder, planned.bytes))
        if careful and (reason := room.lacking(folder, planned.bytes)):
            raise OSError(reason)
        with closing(build(decoder, True, planned)) as batches:
            write(temporary, batches, planned.rows)

    store, begun = _open(file), time.time()
    while store is None and file.exists() and not builds_here():  # damaged: the first process removes it
        if time.time() - begun > _REPLACING:
            raise ValueError(f"{file} is damaged; remove it and start again")
        time.sleep(0.1)
        store = _open(file)
    if store is None:
        if builds_here():
            file.unlink(missing_ok=True)
        make_once(file, decode)
        store = open_store(file)
        if builds_here():
            notes.append(room.make(folder, 0, keep=file))
    return store, "; ".join(filter(None, notes))


def _open(file: Path) -> Store | None:
    try:
        store = open_store(file)
    except (OSError, ValueError, KeyError, IndexError, pa.ArrowException):  # not there, or damaged
        return None
    room.touch(file)
    return store
