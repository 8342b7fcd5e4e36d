"""What the benchmarks share: samples in memory, a clock in the network, the bare loop and our fit, JSON lines."""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from accel_geo.data.chips import collate
from accel_geo.data.spec import DataSpec
from accel_geo.engine import loop
from accel_geo.parallel.order import Request
from accel_geo.tasks import TASKS

LR, WEIGHT_DECAY = 1e-3, 0.01
POOL = 32  # different samples; more would only fill memory


class Samples(Dataset):
    """A split of random samples that lie in memory, so that nothing but the loop is measured."""

    def __init__(self, spec: DataSpec, count: int, first_id: int = 0) -> None:
        self.spec, self.training, self.times, self.mixup = spec, True, None, 0.0
        self.ids = list(range(first_id, first_id + count))
        self.files = [f"{i}.tif" for i in self.ids]
        self.sizes = [tuple(spec.chip_size)] * count
        generator = torch.Generator().manual_seed(first_id)
        self.pool = [_sample(spec, generator) for _ in range(min(count, POOL))]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, request: Request | int) -> dict:
        index, key, _ = request if isinstance(request, tuple) else Request(request)
        about = {"image_id": self.ids[index], "key": key, "size": self.sizes[index], "ignore": False}
        return self.pool[index % len(self.pool)] | about


def _sample(spec: DataSpec, generator: torch.Generator) -> dict:
    height, width = spec.chip_size
    classes = len(spec.classes)
    sample = {"image": torch.rand(len(spec.bands), height, width, generator=generator)}
    if spec.task == "classification":
        return sample | {"label": int(torch.randint(classes, (1,), generator=generator))}
    if spec.task == "semantic":
        return sample | {"mask": torch.randint(classes + 1, (height, width), generator=generator)}
    corners = torch.rand(8, 2, generator=generator) * torch.tensor([width, height]) * 0.7
    sides = 8 + torch.rand(8, 2, generator=generator) * torch.tensor([width, height]) * 0.2
    boxes = torch.cat([corners, corners + sides], 1).floor()
    masks = torch.zeros(len(boxes), height, width, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist()):
        mask[y1:y2, x1:x2] = True
    labels = torch.randint(1, classes + 1, (len(boxes),), generator=generator)
    return sample | {"boxes": boxes, "labels": labels, "masks": masks}


@dataclass
class MemoryData:
    """What `fit` needs of a GeoData, from memory."""

    spec: DataSpec
    train: Samples
    valid: Samples
    batch_size: int
    seed: int = 42
    num_workers: int = 0
    path: str = "memory"
    format: str = "memory"
    problems: list[str] = field(default_factory=list)

    @property
    def task(self) -> object:
        return TASKS[self.spec.task]

    def file(self, image_id: int) -> str:
        return f"{image_id}.tif"


def memory_data(task: str, size: int, batch_size: int, batches: int = 32, valid: int = 8) -> MemoryData:
    """Return random data of a task: three bands, three classes, square chips; an epoch has this many full batches."""
    spec = DataSpec(
        task=task,
        classes=("a", "b", "c"),
        class_values=(1, 2, 3),
        bands=("red", "green", "blue"),
        dtype="uint8",
        low=(0.0,) * 3,
        high=(255.0,) * 3,
        mean=(0.5,) * 3,
        std=(0.3,) * 3,
        chip_size=(size, size),
    )
    count = batch_size * batches
    return MemoryData(spec, Samples(spec, count), Samples(spec, valid, first_id=count), batch_size)


class Clock:
    """Notes when each forward pass in training begins: start, evaluation and end of a run are left out for all alike.

    Args:
        model: the network that is watched.
        warm_up: steps that do not count.
        starting: called when the first step that counts begins; `ending` when step number `steps` begins.
    """

    def __init__(
        self,
        model: nn.Module,
        warm_up: int,
        steps: int = 0,
        starting: Callable[[], None] | None = None,
        ending: Callable[[], None] | None = None,
    ) -> None:
        self.warm_up, self.stamps = warm_up, []
        self._calls = {warm_up: starting, steps - 1: ending} if starting else {}
        model.register_forward_pre_hook(self._tick)

    def _tick(self, model: nn.Module, inputs: tuple) -> None:
        if model.training:
            if self._calls and (call := self._calls.get(len(self.stamps))):
                call()
            self.stamps.append(time.perf_counter())

    def seconds_per_step(self) -> float:
        """Return the mean over the steps that count, whatever happens between them included."""
        return (self.stamps[-1] - self.stamps[self.warm_up]) / (len(self.stamps) - 1 - self.warm_up)


def bare_loop(
    model: nn.Module,
    data: MemoryData,
    steps: int,
    *,
    device: str = "cpu",
    precision: str = "no",
    samples: Dataset | None = None,
    batch_size: int | None = None,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
) -> list[float]:
    """Train as one does by hand, and return every step's loss.

    Args:
        model: a network of accel_geo's contract.
        data: the data.
        steps: optimizer steps.
        device: where to.
        precision: no, bf16 or fp16.
        samples: what this process trains on; None: all.
        batch_size: of this process; None: the data's.
        wrap: makes the module that is called, such as DDP.
    """
    cuda = device == "cuda"
    loader = DataLoader(
        samples or data.train, batch_size or data.batch_size, shuffle=True, collate_fn=collate, pin_memory=cuda
    )
    model.to(device).train()
    wrapped = wrap(model) if wrap else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    scaler = torch.amp.GradScaler(enabled=True) if precision == "fp16" else None
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    losses: list[float] = []
    while len(losses) < steps:
        for images, targets in loader:
            if cuda:
                images = images.to(device, non_blocking=True)
                targets = [{k: _to(v, device) for k, v in target.items()} for target in targets]
            optimizer.zero_grad()
            with contextlib.nullcontext() if precision == "no" else torch.autocast(device, dtype):
                loss = total_loss(wrapped(images, targets))
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


def total_loss(terms: dict) -> Tensor:
    """Return the sum of the loss terms of one process."""
    return sum(term.total / term.count for term in terms.values())


def _to(value: object, device: str) -> object:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def our_fit(model: nn.Module, data: MemoryData, steps: int, output: Path | None, **options: object) -> list[dict]:
    """Train by accel_geo's `fit` with one evaluation and one save, at the end; return its history.

    Every step must stand in the history, in memory and, with an output, on disk.
    """
    defaults = {"epochs": steps, "max_steps": steps, "eval_every": steps, "save_every": steps, "schedule": "constant"}
    with contextlib.redirect_stdout(sys.stderr):
        history = loop.fit(model, data, lr=LR, output=output, **(defaults | options))
    count = sum("loss" in record for record in history)
    assert count == steps, f"{count} of {steps} steps are in the history"
    if output is not None and (file := Path(output, "history.jsonl")).exists():
        count = sum('"loss"' in line for line in file.read_text().splitlines())
        assert count == steps, f"{count} of {steps} steps are in {file.name}"
    return history


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """Return the median over the rounds of one figure over another that was measured in the same round."""
    return round(statistics.median(a / b for a, b in zip(numerators, denominators)), 4)


def medians(seconds: dict[str, list[float]], digits: int = 6) -> dict[str, float]:
    """Return the median of each list."""
    return {name: round(statistics.median(values), digits) for name, values in seconds.items()}


def line(**values: object) -> None:
    """Print one JSON line."""
    print(json.dumps(values), flush=True)
