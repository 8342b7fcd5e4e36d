"""Building a store: all chips decoded, block by block, in threads, or in processes where it takes long."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from accel_geo.data.decoder import Chip, Decoder
from accel_geo.data.index import SCHEMA, index_batch
from accel_geo.data.once import builds_here

PAYLOAD = pa.schema({name: pa.large_binary() for name in ("pixels", "missing", "label")})
_SAMPLE = 8  # chips decoded to learn what all of them take
_MOST_ROWS, _BLOCK_BYTES = 64, 2**26  # of a record batch
LONG = 5.0  # seconds of decoding from which on processes are worth their start
_MOST_UNREADABLE = 0.05

Batches = tuple[pa.RecordBatch, pa.RecordBatch | None]  # the index of some chips, and their payload


class Plan(NamedTuple):
    """What a store will take, from a few of its chips.

    Attributes:
        rows: chips in a record batch.
        bytes: size of all chips, decoded.
        seconds: to decode them, one after the other.
    """

    rows: int
    bytes: int
    seconds: float


def plan(decoder: Decoder) -> Plan:
    """Decode a few chips, spread over the data set, and conclude from them on all; windows say how large they are."""
    number = len(decoder)
    positions = sorted({number * i // _SAMPLE for i in range(_SAMPLE)})
    begun = time.perf_counter()
    sizes = [encode([decoder.chip(position)], len(decoder.bands.indexes), True)[1].nbytes for position in positions]
    each = (time.perf_counter() - begun) / len(positions)
    areas = np.array(_areas(decoder))
    total = int(areas.sum() * sum(sizes) / max(areas[positions].sum(), 1))
    rows = int(np.clip(_BLOCK_BYTES * number // max(total, 1), 1, _MOST_ROWS))
    return Plan(rows, total, each * number)


def _areas(decoder: Decoder) -> Sequence[float]:
    windows = decoder.rows.dataset["window"][:]
    if decoder.resize_to or not all(windows):
        return [1.0] * len(windows)
    return [float(width) * height for _, _, width, height in windows]


def payload_batch(pixels: Sequence, missing: Sequence, labels: Sequence) -> pa.RecordBatch:
    """Join the bytes of some chips, each column with one copy."""
    return pa.RecordBatch.from_arrays([_binary(parts) for parts in (pixels, missing, labels)], schema=PAYLOAD)


def _binary(parts: Sequence[bytes | np.ndarray | pa.Buffer]) -> pa.Array:
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    offsets = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(arrays), buffers)


def encode(chips: Sequence[Chip], bands: int, keep: bool) -> Batches:
    """Return the index of some chips, and their pixels and labels unless only the index is kept."""
    index = index_batch(chips, bands)
    if not keep:
        return index, None
    found = [chip.pixels for chip in chips]
    pixels = [b"" if p is None else np.ascontiguousarray(p.values) for p in found]
    missing = [b"" if p is None or p.missing is None else np.packbits(p.missing) for p in found]
    return index, payload_batch(pixels, missing, [chip.label.data for chip in chips])


def build(decoder: Decoder, keep: bool, planned: Plan) -> Iterator[Batches]:
    """Decode all chips, in order, with a progress bar where it takes more than a second.

    Args:
        decoder: reads them.
        keep: with their pixels, not only their index.
        planned: what they take.

    Raises:
        ValueError: more than 5 % of the chips cannot be read, and the first few are named; or a decoding process ended.
    """
    failed: list[str] = []
    number = _processes(planned)
    found = (
        _by_processes(decoder, keep, planned.rows, number) if number > 1 else _by_threads(decoder, keep, planned.rows)
    )
    # Closed here, whatever happens: left to the garbage collector, the end of a pool can meet a thread that is just being
    # started, and both wait for each other.
    with closing(found), closing(_shown(found, len(decoder))) as shown:
        for batches in shown:
            failed += batches[0]["problem"].drop_null().to_pylist()
            yield batches
    check_readable(failed, len(decoder), decoder.rows.root)


def _shown(found: Iterator[Batches], total: int) -> Iterator[Batches]:
    from tqdm import tqdm

    begun, done, bar = time.perf_counter(), 0, None
    for batches in found:
        yield batches
        done += len(batches[0])
        if bar is not None:
            bar.update(len(batches[0]))
        elif builds_here() and time.perf_counter() - begun > 1:
            seconds = 0.5 if sys.stderr.isatty() else 20.0  # between updates, on a terminal and in a log
            about = {"total": total, "initial": done, "desc": "decoding chips", "unit": "chip"}
            bar = tqdm(**about, mininterval=seconds, maxinterval=2 * seconds, dynamic_ncols=True)
    if bar is not None:
        bar.close()


def check_readable(failed: list[str], chips: int, root: Path) -> None:
    """Refuse a data set of which more than 5 % cannot be read.

    Raises:
        ValueError: it names the first few chips and their reasons.
    """
    if len(failed) > _MOST_UNREADABLE * chips:
        listed = "\n".join(f"  {problem}" for problem in failed[:5])
        raise ValueError(
            f"{len(failed)} of {chips} chips cannot be read, more than {_MOST_UNREADABLE:.0%}; the first in {root}:\n"
            f"{listed}\nRepair or remove these files, or check that the data set is of the format that it was taken for"
        )


def _processes(planned: Plan) -> int:
    # Opening files keeps Python's lock, so that threads hardly help; a daemon (a worker of a loader) has no children.
    if sys.platform != "linux" or planned.seconds < LONG or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def _by_threads(decoder: Decoder, keep: bool, rows: int) -> Iterator[Batches]:
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(decoder), rows):
            chips = list(pool.map(decoder, decoder.block(start, start + rows)))
            yield encode(chips, len(decoder.bands.indexes), keep)


def _by_processes(decoder: Decoder, keep: bool, rows: int, number: int) -> Iterator[Batches]:
    # Each process decodes every number-th block, and they take turns; a full pipe keeps a fast one from running ahead.
    context = multiprocessing.get_context("fork")
    processes, readers = [], []
    try:
        for first in range(number):
            reader, writer = context.Pipe(duplex=False)
            readers.append(reader)
            given = (decoder, keep, rows, first, number, writer, tuple(readers))
            processes.append(context.Process(target=_work, args=given, daemon=True))
            processes[-1].start()
            writer.close()
        for turn in range(-(-len(decoder) // rows)):
            try:
                parts = [readers[turn % number].recv_bytes() for _ in range(1 + keep)]
            except EOFError:
                raise ValueError(_ended(processes[turn % number])) from None
            index = pa.ipc.read_record_batch(parts[0], SCHEMA)
            yield index, pa.ipc.read_record_batch(parts[1], PAYLOAD) if keep else None
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(
    decoder: Decoder, keep: bool, rows: int, first: int, step: int, writer: Connection, readers: Sequence[Connection]
) -> None:
    import torch

    for reader in readers:
        reader.close()  # else writing would go on after the end of the process that reads
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that process ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # its pool does not survive a fork
    try:
        for start in range(first * rows, len(decoder), step * rows):
            chips = [decoder(row) for row in decoder.block(start, start + rows)]
            for batch in encode(chips, len(decoder.bands.indexes), keep)[: 1 + keep]:
                writer.send_bytes(batch.serialize())
    except BrokenPipeError:
        pass


def _ended(process: multiprocessing.Process) -> str:
    process.join(10)
    code = process.exitcode
    killed = f"was ended by signal {-code}; perhaps memory ran out" if code and code < 0 else f"ended with code {code}"
    return f"a process that decodes chips {killed}. Start again, with fewer programs beside it or more memory"
