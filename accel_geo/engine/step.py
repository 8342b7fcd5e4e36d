"""One optimizer step on one global batch: forward, reduce, backward, clip, step."""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from accel_geo.engine.batches import Batch
from accel_geo.parallel.reduction import Loss, begin_sum, gather_json, world_size

Figure = float | Tensor


@dataclass
class StepResult:
    """What one step gave, the same on all processes.

    Attributes:
        losses: value of each term over the whole global batch.
        stop: some process was asked to stop.
        unreadable: (file or id, reason) of chips of this batch that could not be read.
    """

    losses: dict[str, float]
    stop: bool
    unreadable: list[tuple[int, str]]


def training_step(
    wrapped: nn.Module,
    module: nn.Module,
    parts: list[Batch],
    shares: list[int],
    optimizer: torch.optim.Optimizer,
    accelerator: object,
    *,
    clip: float | None = None,
    stop: bool = False,
) -> StepResult:
    """Train on one global batch.

    Every term is the sum of its totals over the sum of its counts, over all processes. Its counts are those of the whole
    batch where the network can tell them from the targets (`loss_counts`), else those of each accumulation part, which
    then weighs as much as its share of the samples.

    Args:
        wrapped: the network as DDP or fully_shard wraps it.
        module: the same network, unwrapped.
        parts: this process's samples in each accumulation part.
        shares: samples of all processes in each part.
        optimizer: over the module's trainable parameters.
        accelerator: for autocast, backward and gradient scaling.
        clip: largest norm of all gradients.
        stop: this process was asked to stop.

    Raises:
        FloatingPointError: a term is not finite; on all processes, before the weights change.
    """
    optimizer.zero_grad()
    known = _begin_counts(module, parts)  # on its way while the forward pass runs
    unreadable = [(t["image_id"], t["problem"]) for _, targets in parts for t in targets if t.get("problem")]
    losses: dict[str, Loss] = {}
    rows: list[tuple[Callable[[], list[Figure]], list[Figure]]] = []
    for number, (images, targets) in enumerate(parts):
        last = number == len(parts) - 1
        hold = contextlib.nullcontext() if last or not hasattr(wrapped, "no_sync") else wrapped.no_sync()
        with hold:
            with accelerator.autocast():
                losses = wrapped(images, targets)
            row = _begin_sum(losses, [float(stop), float(len(unreadable))])
            share = shares[number] / sum(shares)
            whole = known() if known else {}
            if all(name in whole for name in losses):
                weights = [_weight(whole[name], 1.0) for name in losses]
            else:
                counts = row()[len(losses) : 2 * len(losses)]
                shared = [
                    (whole[name], 1.0) if name in whole else (count, share) for name, count in zip(losses, counts)
                ]
                weights = [_weight(count, part) for count, part in shared]
            # DDP averages gradients over the processes, hence the factor.
            first, *others = [term.total * (w * world_size()) for term, w in zip(losses.values(), weights)]
            accelerator.backward(sum(others, first))
            rows.append((row, weights))
    # Read only now, so that nobody was kept waiting between the forward and the backward pass.
    sums = [[total * weight for total, weight in zip(row(), weights)] for row, weights in rows]
    flags = rows[-1][0]()[-2:]
    *terms, stopping, unread = _read([*map(sum, zip(*sums)), *flags])
    values = dict(zip(losses, terms))
    if not all(map(math.isfinite, values.values())):
        _refuse(parts, values)
    scaler = accelerator.scaler
    if scaler is not None:
        scaler.unscale_(optimizer)
    if clip is not None:
        nn.utils.clip_grad_norm_(module.parameters(), clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    everyone = [tuple(item) for process in gather_json(unreadable) for item in process] if unread else []
    return StepResult(values, bool(stopping), everyone)


def _weight(count: Figure, share: float) -> Figure:
    """Return what a term's total is multiplied by: its share over its count; nothing counted, nothing trained."""
    if isinstance(count, Tensor):
        return torch.where(count > 0, share / count, 0.0)
    return share / count if count > 0 else 0.0


def _begin_sum(losses: dict[str, Loss], flags: list[float]) -> Callable[[], list[Figure]]:
    """Begin to sum totals, counts and flags over all processes: one small all-reduce, in float64 where there is one.

    Returns:
        A function that waits and returns them in this order: numbers on the CPU, where they are at hand, and tensors
        elsewhere, where reading them would wait.
    """
    device = next(iter(losses.values())).total.device
    row = [loss.total for loss in losses.values()] + [loss.count for loss in losses.values()] + flags
    if device.type == "cpu" and world_size() == 1:
        figures = [float(x.detach()) if isinstance(x, Tensor) else float(x) for x in row]
        return lambda: figures
    wide = torch.float32 if device.type == "mps" else torch.float64
    summed = begin_sum(torch.stack([torch.as_tensor(x, dtype=wide, device=device).detach().reshape(()) for x in row]))
    return functools.cache(lambda: summed().tolist() if device.type == "cpu" else list(summed().unbind()))


def _read(figures: list[Figure]) -> list[float]:
    """Return figures as numbers, waiting once where they are tensors."""
    return torch.stack(figures).tolist() if isinstance(figures[0], Tensor) else figures


def _begin_counts(module: nn.Module, parts: list[Batch]) -> Callable[[], dict[str, float]] | None:
    """Begin to count for the whole global batch, where the network can tell the counts from the targets.

    With one part on one process the forward pass tells them as well, and nothing is gained.
    """
    if not hasattr(module, "loss_counts") or (
        len(parts) == 1 and (world_size() == 1 or parts[0][0].device.type != "cpu")
    ):
        return None
    counts = module.loss_counts([target for _, targets in parts for target in targets])
    if counts is None:
        return None
    row = torch.tensor([float(v) for v in counts.values()], dtype=torch.float64).to(parts[0][0].device)
    summed = begin_sum(row)
    return functools.cache(lambda: dict(zip(counts, summed().tolist())))


def _refuse(parts: list[Batch], values: dict[str, float]) -> None:
    """Raise for terms that are not finite, naming the chips of this step where one alone shows it."""
    bad = {name: value for name, value in values.items() if not math.isfinite(value)}
    mine = [
        int(target["image_id"])
        for images, targets in parts
        for image, target in zip(images, targets, strict=True)
        if not image.isfinite().all()
    ]
    mine = mine or [int(target["image_id"]) for _, targets in parts for target in targets]
    raise NonFiniteLoss(bad, [i for process in gather_json(mine) for i in process])


class NonFiniteLoss(FloatingPointError):
    """A loss term is not finite.

    Attributes:
        terms: the terms and their values.
        chips: image_ids of the samples with pixels that are not finite, or of the whole batch where there are none.
    """

    def __init__(self, terms: dict[str, float], chips: list[int]) -> None:
        super().__init__(f"loss terms are not finite: {terms}")
        self.terms, self.chips = terms, chips
