"""The order of samples and how a batch is cut: functions of (seed, fit, epoch), never of the process count.

An epoch's n samples are cut into ceil(n / batch_size) batches whose sizes differ by at most one; a batch is cut into
accumulation parts, and each part over the processes. Slices may be uneven; nothing is dropped or repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from accel_geo.parallel.keys import folding, folding_each, generator


class Request(NamedTuple):
    """Which sample to load, and how.

    Attributes:
        index: position in the split.
        key: root of all keyed randomness of this sample at this occurrence; 0 draws nothing.
        pad: (H, W) to pad to, the same for the whole global batch; None pads nothing.
    """

    index: int
    key: int = 0
    pad: tuple[int, int] | None = None


def permutation(n: int, seed: int, fit: int, epoch: int) -> list[int]:
    """Return the order of n samples in one epoch."""
    return torch.randperm(n, generator=generator(seed, fit, epoch, "order")).tolist()


def cut(n: int, parts: int) -> list[slice]:
    """Cut n items into consecutive slices whose sizes differ by at most one, larger ones first."""
    small, larger = divmod(n, parts)
    edges = [0]
    for part in range(parts):
        edges.append(edges[-1] + small + (part < larger))
    return [slice(a, b) for a, b in zip(edges[:-1], edges[1:])]


def batch_count(n: int, batch_size: int) -> int:
    """Return the number of batches, hence of optimizer steps, in an epoch of n samples."""
    return -(-n // batch_size)


def epoch_length(chips: object) -> int:
    """Return the number of samples in an epoch of a split: its chips, each as often as its `times` say."""
    return sum(chips.times) if chips.times else len(chips)


def check_cut(n: int, batch_size: int, accumulate: int, processes: int) -> None:
    """Refuse a cut that would leave a process without a sample.

    Raises:
        ValueError: the smallest accumulation part has fewer samples than there are processes.
    """
    if n < 1:
        raise ValueError("the training split is empty: nothing to train on; lower --val-split or give more chips")
    if batch_size < 1 or accumulate < 1:
        raise ValueError(f"--batch-size {batch_size} and --accumulate {accumulate} must be at least 1")
    smallest_batch = n // batch_count(n, batch_size)
    smallest_part = smallest_batch // accumulate
    if smallest_part < processes:
        raise ValueError(
            f"{n} training chips in batches of at most {batch_size} (smallest {smallest_batch}), cut into {accumulate} "
            f"accumulation part(s), leave {smallest_part} sample(s) for {processes} process(es). Use a larger "
            "--batch-size, or --per-device-batch-size N with --scale-lr linear, a smaller --accumulate, or fewer processes"
        )


class EpochOrder:
    """Yields this process's requests of an epoch, one list for each accumulation part of each batch.

    Used as the batch sampler of a DataLoader; `start(epoch, batch)` sets where the next iteration begins.

    Args:
        ids: image_id of each sample of the split.
        sizes: (H, W) of each sample before padding.
        batch_size: samples in a global batch.
        accumulate: parts of a batch.
        seed: seed of the run.
        fit: number of the fit.
        rank: this process.
        processes: all processes.
        times: how often each sample of the split occurs in an epoch, at least once, each time with a key of its own;
            None: once.
    """

    def __init__(
        self,
        ids: list[int],
        sizes: list[tuple[int, int]],
        *,
        batch_size: int,
        accumulate: int,
        seed: int,
        fit: int,
        rank: int,
        processes: int,
        times: Sequence[int] | None = None,
    ) -> None:
        # Where samples occur several times: position and number of each occurrence, the first ones as if alone.
        self.occurrences: list[tuple[int, int]] | None = None
        if times is not None:
            self.occurrences = [(i, 0) for i in range(len(ids))]
            self.occurrences += [(i, number) for i, n in enumerate(times) for number in range(1, n)]
            ids, sizes = ([column[i] for i, _ in self.occurrences] for column in (ids, sizes))
        self.ids, self.sizes = ids, sizes
        self.batch_size, self.accumulate = batch_size, accumulate
        self.seed, self.fit, self.rank, self.processes = seed, fit, rank, processes
        self.epoch, self.batch = 0, 0

    def start(self, epoch: int, batch: int = 0) -> None:
        """Let the next iteration begin at this batch of this epoch."""
        self.epoch, self.batch = epoch, batch

    def batches(self, epoch: int, first: int = 0) -> Iterator[list[int]]:
        """Yield the samples of every global batch of an epoch, by their place in `ids`, from batch number `first` on."""
        n = len(self.ids)
        order, count = permutation(n, self.seed, self.fit, epoch), batch_count(n, self.batch_size)
        small, larger = divmod(n, count)
        for batch in range(first, count):  # as `cut` does it, one slice at a time
            start = batch * small + min(batch, larger)
            yield order[start : start + small + (batch < larger)]

    def shares(self, batch: int) -> list[list[int]]:
        """Return how many samples each process has in each part of a batch, the same in every epoch: [part][process]."""
        n = len(self.ids)
        small, larger = divmod(n, batch_count(n, self.batch_size))
        size = small + (batch < larger)
        return [
            [share.stop - share.start for share in cut(part.stop - part.start, self.processes)]
            for part in cut(size, self.accumulate)
        ]

    def __len__(self) -> int:
        return (batch_count(len(self.ids), self.batch_size) - self.batch) * self.accumulate

    def __iter__(self) -> Iterator[list[Request]]:
        root = self.seed, self.fit, self.epoch
        keys, key_of = folding_each(root, (0,)), folding(*root)
        alike = len(set(self.sizes)) == 1
        mine: dict[int, list[slice]] = {}  # of a batch of this size; there are two sizes
        for batch in self.batches(self.epoch, self.batch):
            pad = None if alike else self.padded_size(batch)
            for share in mine.get(len(batch)) or mine.setdefault(len(batch), self._mine(len(batch))):
                positions = batch[share]
                if self.occurrences is None:
                    yield [Request(i, key, pad) for i, key in zip(positions, keys([self.ids[i] for i in positions]))]
                else:
                    chosen = [(self.ids[i], *self.occurrences[i]) for i in positions]
                    yield [Request(i, key_of(image_id, number), pad) for image_id, i, number in chosen]

    def _mine(self, size: int) -> list[slice]:
        # What this process takes of each part of a batch.
        shares = []
        for part in cut(size, self.accumulate):
            share = cut(part.stop - part.start, self.processes)[self.rank]
            shares.append(slice(part.start + share.start, part.start + share.stop))
        return shares

    def padded_size(self, batch: list[int]) -> tuple[int, int] | None:
        """Return the size that a whole global batch is padded to, or None where all sizes agree."""
        sizes = {self.sizes[i] for i in batch}
        return None if len(sizes) == 1 else (max(h for h, _ in sizes), max(w for _, w in sizes))


def evaluation_chunks(
    sizes: list[tuple[int, int]], chunk: int, place: Callable[[int], bool]
) -> Iterator[list[Request]]:
    """Yield the requests of an exact evaluation, chunk by chunk, for the chunks that `place` gives to this process.

    A chunk holds consecutive samples of one size. What is in it does not depend on the process count, so that a sample
    is computed in the same company, hence to the same bit, everywhere.
    """
    number, requests = 0, []
    for index, size in enumerate(sizes):
        if requests and (len(requests) == chunk or sizes[requests[0].index] != size):
            if place(number):
                yield requests
            number, requests = number + 1, []
        requests.append(Request(index))
    if requests and place(number):
        yield requests
