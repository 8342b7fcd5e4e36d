"""Learning-rate range test (Smith 2017): one answer, agreed by all processes, from losses over the global batch."""

import math

import torch
from torch import nn

from accel_geo.engine.batches import Loader, in_parts
from accel_geo.engine.optimizers import OptimizerFactory, build_optimizer
from accel_geo.engine.step import NonFiniteLoss, training_step
from accel_geo.parallel import order
from accel_geo.parallel.reduction import world_size

SMOOTHING = 0.9
DIVERGED = 4.0  # times the lowest smoothed loss


def find_lr(
    model: nn.Module,
    data: object,
    accelerator: object,
    factory: OptimizerFactory,
    *,
    batch_size: int,
    accumulate: int,
    seed: int,
    dtype: torch.dtype,
    lowest: float = 1e-6,
    highest: float = 1.0,
    steps: int = 100,
) -> tuple[float, list[tuple[float, float]]]:
    """Train with a learning rate that grows exponentially, and put everything back as it was; collective.

    Returns:
        The suggested rate, where the smoothed loss falls most steeply, and the curve as (rate, smoothed loss).
    """
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    sampler = order.EpochOrder(
        data.train.ids,
        data.train.sizes,
        batch_size=batch_size,
        accumulate=accumulate,
        seed=seed,
        fit=-1,
        rank=accelerator.process_index,
        processes=world_size(),
        times=data.train.times,
    )
    loader = Loader(data.train, sampler, accelerator.device, dtype, data.num_workers)
    wrapped = accelerator.prepare_model(model)
    optimizer = build_optimizer(model, factory, lowest)
    curve: list[tuple[float, float]] = []
    smoothed, epoch = 0.0, 0
    model.train()
    try:
        while len(curve) < steps and not _diverged(curve):
            sampler.start(epoch)
            for batch, parts in enumerate(in_parts(iter(loader), accumulate)):
                rate = lowest * (highest / lowest) ** (len(curve) / (steps - 1))
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] / lowest * rate
                shares = [sum(share) for share in sampler.shares(batch)]
                losses = training_step(wrapped, model, parts, shares, optimizer, accelerator).losses
                smoothed = SMOOTHING * smoothed + (1 - SMOOTHING) * sum(losses.values())
                curve.append((rate, smoothed / (1 - SMOOTHING ** (len(curve) + 1))))
                if len(curve) == steps or _diverged(curve):
                    break
            epoch += 1
    except NonFiniteLoss:
        if not curve:
            raise
    finally:
        accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
        model.zero_grad()
        model.load_state_dict(before)
    return suggest(curve), curve


def _diverged(curve: list[tuple[float, float]]) -> bool:
    losses = [loss for _, loss in curve]
    return len(curve) > 10 and (not math.isfinite(losses[-1]) or losses[-1] > DIVERGED * min(losses))


def suggest(curve: list[tuple[float, float]]) -> float:
    """Return the rate at which the smoothed loss falls most steeply over five neighbouring steps.

    Steps are one factor apart, so differences of losses compare slopes over the logarithm of the rate. Differences
    that rounding could decide are ties, and the lower rate wins: all process counts find the same.
    """
    losses = [loss for _, loss in curve]
    reach = 2
    slopes = [losses[i + reach] - losses[i - reach] for i in range(reach, len(losses) - reach)]
    if not slopes:
        return curve[0][0]
    lowest = min(slopes)
    scale = max(abs(loss) for loss in losses)
    return next(curve[i + reach][0] for i, slope in enumerate(slopes) if slope <= lowest + 1e-6 * scale)
