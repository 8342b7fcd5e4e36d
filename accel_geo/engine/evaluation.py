"""Exact evaluation: each chip once, on any number of processes, reduced from the records of single chips."""

import contextlib
import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from accel_geo.engine.batches import Loader
from accel_geo.parallel.order import evaluation_chunks
from accel_geo.parallel.reduction import broadcast_json, gather_bytes, gather_json, is_main, rank, world_size
from accel_geo.parallel.watch import busy

CHUNK = 8  # chips in one forward pass: fixed, so that a chip is computed in the same company on any process count


@dataclass
class Evaluation:
    """What an evaluation found.

    Attributes:
        metrics: values, lists per class, None where undefined; the same on all processes.
        records: one JSON-able record for each chip in order of image_id; empty on processes other than the main one.
        unreadable: problems by image_id of chips that could not be read and count in no metric.
    """

    metrics: dict[str, object]
    records: list[dict]
    unreadable: dict[int, str]


class _Chunks:
    """The requests of this process, as a batch sampler."""

    def __init__(self, sizes: list[tuple[int, int]], rank: int, processes: int) -> None:
        self.chunks = list(evaluation_chunks(sizes, CHUNK, lambda number: number % processes == rank))

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> object:
        return iter(self.chunks)


@torch.no_grad()
def evaluate(
    module: nn.Module,
    chips: object,
    task: object,
    *,
    device: torch.device,
    distributed: bool,
    sharded: bool = False,
    autocast: object = None,
    workers: int = 0,
) -> Evaluation:
    """Evaluate a network on a split.

    Args:
        module: in any mode, which it gets back; not wrapped.
        chips: the split.
        task: the task, for records and metrics.
        device: where the module is.
        distributed: share the chips over all processes (collective); else this process does them all.
        sharded: the module's forward pass is collective, so that every process must do all chips.
        autocast: makes the context of a forward pass, such as `accelerator.autocast`.
        workers: loading processes.
    """
    share = distributed and not sharded
    sampler = _Chunks(chips.sizes, rank() if share else 0, world_size() if share else 1)
    dtype = next(module.parameters()).dtype
    training = module.training
    module.eval()
    files = dict(zip(chips.ids, chips.files))
    records, unreadable = [], []
    try:
        for images, targets in Loader(chips, sampler, device, dtype, min(workers, len(sampler))):
            with autocast() if autocast else torch.no_grad():
                predictions = module(images)
            for image, prediction, target in zip(images, predictions, targets, strict=True):
                file = files[target["image_id"]]
                if target.get("problem"):
                    unreadable.append([target["image_id"], target["problem"]])
                if task.needs_image:
                    target = {**target, "image": image}
                records.append(task.record(chips.spec, _to_cpu(prediction), _to_cpu(target), file))
    finally:
        module.train(training)
    metrics = None
    with _without_collector():
        if share:
            records = _gather_on_main(records)
            unreadable = [item for part in gather_json(unreadable) for item in part]
        if is_main() or not distributed:
            records.sort(key=lambda record: record["image_id"])
            with busy():
                metrics = task.metrics(chips.spec, records)
    if distributed:
        metrics = broadcast_json(metrics)
        records = records if is_main() else []
    return Evaluation(metrics, records, dict(sorted(unreadable)))


def _gather_on_main(records: list[dict]) -> list[dict]:
    """Return the records of all processes on the main one, nothing on the others."""
    texts = gather_bytes(b"" if is_main() else json.dumps(records).encode())
    return records + [record for text in texts if text for record in json.loads(text)] if is_main() else []


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from looking again and again at what grows here: many small dicts without cycles."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _to_cpu(values: dict) -> dict:
    return {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in values.items()}
