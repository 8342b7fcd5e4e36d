"""From a split to batches on the device: loading ahead, pinned memory, copies that overlap with work."""

import itertools
import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from accel_geo.data.chips import collate
from accel_geo.engine.loading import loading_context

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
            multiprocessing_context=loading_context(chips) if workers else None,
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


def in_parts(batches: Iterator[Batch], parts: int) -> Iterator[list[Batch]]:
    """Group the accumulation parts of each global batch."""
    while group := list(itertools.islice(batches, parts)):
        yield group
