"""From a split to batches on the device: loading ahead, pinned memory, copies that overlap with work."""

import itertools
import multiprocessing
import pickle
import sys
import time
import types
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from accel_geo.data.chips import collate

MOST_SENT = 2**28  # bytes of the data that each loading process gets a copy of

Batch = tuple[Tensor, list[dict]]


class Loader:
    """Loads the batches that a sampler of request lists asks for, onto a device.

    Args:
        chips: a split.
        sampler: yields lists of requests; asked anew at each iteration.
        device: where batches go.
        dtype: floating dtype of images and targets.
        workers: loading processes, kept over iterations; 0 loads in this process.
    """

    def __init__(self, chips: Dataset, sampler: object, device: torch.device, dtype: torch.dtype, workers: int) -> None:
        self.device, self.dtype = device, dtype
        self.waited = 0.0  # seconds spent waiting for data since `take_wait`
        self.loader = DataLoader(
            chips,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=workers,
            multiprocessing_context=_context(chips) if workers else None,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # else every iteration would draw from the global one
        )

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; on a GPU the copy of the next one runs while the caller works on this one."""
        batches = map(self._move, self._timed())
        return self._ahead(batches) if self.device.type == "cuda" else batches

    def _ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Copy one batch ahead on a stream of its own."""
        copies = torch.cuda.Stream(self.device)

        def copy() -> Batch | None:
            with torch.cuda.stream(copies):
                return next(batches, None)

        ahead = copy()
        while ahead is not None:
            work = torch.cuda.current_stream(self.device)
            work.wait_stream(copies)
            images, targets = ahead
            for value in [images, *(v for target in targets for v in target.values() if isinstance(v, Tensor))]:
                value.record_stream(work)  # its memory must not be reused by a copy while the work is pending
            ahead = copy()
            yield images, targets

    def take_wait(self) -> float:
        """Return the seconds waited for data since the last call."""
        waited, self.waited = self.waited, 0.0
        return waited

    def _timed(self) -> Iterator[Batch]:
        batches = iter(self.loader)
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def _move(self, batch: Batch) -> Batch:
        if self.device.type == "cpu" and self.dtype == torch.float32:
            return batch  # as it was loaded
        images, targets = batch
        return self._tensor(images), [{k: self._tensor(v) for k, v in target.items()} for target in targets]

    def _tensor(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        dtype = self.dtype if value.is_floating_point() else value.dtype
        return value.to(self.device, dtype, non_blocking=True)


class _Worker(multiprocessing.context.ForkServerProcess):
    """A process of a server, without the script that runs here: it would be run again, once for each worker."""

    @staticmethod
    def _Popen(process: multiprocessing.Process) -> object:  # noqa: N802  multiprocessing's name
        script, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            return multiprocessing.context.ForkServerProcess._Popen(process)
        finally:
            sys.modules["__main__"] = script


class _Scan:
    """A file for pickling that keeps nothing, and refuses what had better not be sent."""

    size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if b"__main__" in bytes(data) or self.size > MOST_SENT:
            raise pickle.PicklingError("to be inherited")


class _Server(multiprocessing.context.ForkServerContext):
    Process = _Worker


def _context(chips: Dataset) -> multiprocessing.context.BaseContext | None:
    """Return how loading processes start.

    Beside the threads of training a fork may copy a lock that one of them holds, and then the worker waits for ever:
    seen once in some thousand forks. So workers are forked from a server that has loaded the modules and runs no
    threads. But only a fork of this process inherits what cannot be sent, such as a lambda or what the script that runs
    here or a notebook defines, and shares what would be large to send, such as chips that are kept in memory.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    try:
        pickle.Pickler(_Scan()).dump(chips)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    context = _Server()
    context.set_forkserver_preload(["accel_geo.data.chips", "accel_geo.data.formats", "datasets"])
    return context


def in_parts(batches: Iterator[Batch], parts: int) -> Iterator[list[Batch]]:
    """Group the accumulation parts of each global batch."""
    while group := list(itertools.islice(batches, parts)):
        yield group
