"""One optimizer step on one global batch: forward, reduce, backward, clip, step."""

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from accel_geo.engine.batches import Batch
from accel_geo.parallel.reduction import Loss, gather_json, sum_over_processes, world_size


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
    known = _counts_of_batch(module, parts)
    unreadable = [(t["image_id"], t["problem"]) for _, targets in parts for t in targets if t.get("problem")]
    losses: dict[str, Loss] = {}
    sums = []
    for number, (images, targets) in enumerate(parts):
        last = number == len(parts) - 1
        hold = contextlib.nullcontext() if last or not hasattr(wrapped, "no_sync") else wrapped.no_sync()
        with hold:
            with accelerator.autocast():
                losses = wrapped(images, targets)
            totals, counts, flags = _reduce(losses, [float(stop), float(len(unreadable))])
            weights = _weights(list(losses), counts, shares[number] / sum(shares), known)
            # DDP averages gradients over the processes, hence the factor.
            factors = (weights * world_size()).to(next(iter(losses.values())).total.dtype)
            accelerator.backward(sum(term.total * factor for term, factor in zip(losses.values(), factors)))
            sums.append(totals * weights)
    # Read only now, so that a GPU was not kept waiting between the forward and the backward pass.
    values = dict(zip(losses, torch.stack(sums).sum(0).tolist()))
    stopping, unread = flags.tolist()
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


def _weights(names: list[str], counts: Tensor, share: float, known: dict[str, float] | None) -> Tensor:
    """Return what each term's total is multiplied by: its share over its count; nothing counted, nothing trained."""
    whole = [(known or {}).get(name) for name in names]
    shares = torch.tensor([share if count is None else 1.0 for count in whole], dtype=counts.dtype)
    if known:
        given = torch.tensor([float("nan") if count is None else count for count in whole], dtype=counts.dtype)
        given = given.to(counts.device)
        counts = torch.where(given.isnan(), counts, given)
    return torch.where(counts > 0, shares.to(counts.device) / counts, 0.0)


def _reduce(losses: dict[str, Loss], flags: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Sum totals, counts and flags over all processes: one small all-reduce, in float64 where the device has it."""
    device = next(iter(losses.values())).total.device
    wide = torch.float32 if device.type == "mps" else torch.float64
    row = [loss.total for loss in losses.values()] + [loss.count for loss in losses.values()] + flags
    row = [torch.as_tensor(x, dtype=wide, device=device).detach().reshape(()) for x in row]
    return sum_over_processes(torch.stack(row)).split([len(losses), len(losses), len(flags)])


def _counts_of_batch(module: nn.Module, parts: list[Batch]) -> dict[str, float] | None:
    """Return the counts of the whole global batch, where there are several parts and the network can tell them."""
    if len(parts) == 1 or not hasattr(module, "loss_counts"):
        return None
    counts = module.loss_counts([target for _, targets in parts for target in targets])
    if counts is None:
        return None
    device = parts[0][0].device
    row = torch.tensor([float(v) for v in counts.values()], dtype=torch.float64).to(device)
    return dict(zip(counts, sum_over_processes(row).tolist()))


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
