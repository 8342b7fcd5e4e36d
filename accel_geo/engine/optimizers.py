"""Optimizers, learning-rate schedules and the moving average of weights."""

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from accel_geo.parallel.sharding import copy_whole, full

SCHEDULES = ("one_cycle", "cosine", "constant", "plateau")
PLATEAU_FACTOR, PLATEAU_PATIENCE = 0.5, 3  # halve the learning rate after this many evaluations without improvement

OptimizerFactory = Callable[..., torch.optim.Optimizer]


def adamw(parameters: Iterable, lr: float, weight_decay: float = 0.01) -> torch.optim.Optimizer:
    """Return AdamW (Loshchilov & Hutter 2019), fused where the device has it: a third of the time on the CPU."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, fused=True)


def describe_factory(factory: OptimizerFactory) -> str:
    """Return an optimizer factory as text: what it calls and with which arguments."""
    function = getattr(factory, "func", factory)
    arguments = ", ".join(f"{name}={value}" for name, value in sorted(getattr(factory, "keywords", {}).items()))
    return f"{getattr(function, '__name__', type(function).__name__)}({arguments})"


def build_optimizer(module: nn.Module, factory: OptimizerFactory, lr: float) -> torch.optim.Optimizer:
    """Build the optimizer over a module's trainable parameters.

    Raises:
        ValueError: nothing is left to train.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("every parameter is frozen: nothing to train; call unfreeze() first")
    optimizer = factory(parameters, lr=lr)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def lr_factor(schedule: str, step: int, total: int) -> float:
    """Return the factor on the learning rate at one step: a pure function, so that it cannot depend on the process count.

    Args:
        schedule: one_cycle (Smith & Topin 2018: up from 1/25 over the first quarter, down to 1/1000, both by cosine),
            cosine (Loshchilov & Hutter 2017, down to 0 behind the last step), constant or plateau (both 1).
        step: optimizer step within the fit, from 0.
        total: optimizer steps of the fit.
    """
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / total))
    if schedule == "one_cycle":
        top = max(1, round(0.25 * total))
        if step < top:
            return _between(1 / 25, 1.0, step / top)
        return _between(1.0, 1 / 1000, (step - top) / max(1, total - 1 - top))
    return 1.0


def _between(a: float, b: float, progress: float) -> float:
    return b + (a - b) * 0.5 * (1 + math.cos(math.pi * progress))


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> float | list[float]:
    """Set every group's learning rate to a factor of its own; return it, or a list where there are several groups."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
    rates = [group["lr"] for group in optimizer.param_groups]
    return rates[0] if len(rates) == 1 else rates


def parameter_names(module: nn.Module) -> dict[int, str]:
    """Return the name of each parameter object, free of wrappers."""
    return {id(p): clean_name(name) for name, p in module.named_parameters()}


def clean_name(name: str) -> str:
    """Return a state's name without what DDP and torch.compile put into it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")


def optimizer_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as whole tensors named `<parameter>/<key>`; collective where it is sharded."""
    names, state = parameter_names(module), {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is not None:
                    state[f"{names[id(parameter)]}/{key}"] = full(torch.as_tensor(value))
    return state


def load_optimizer_state(optimizer: torch.optim.Optimizer, module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load what `optimizer_state` returned, by name.

    Raises:
        ValueError: the state is of other parameters.
    """
    names, by_parameter = parameter_names(module), {}
    for key, value in state.items():
        name, _, slot = key.rpartition("/")
        by_parameter.setdefault(name, {})[slot] = value
    mine = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    if by_parameter and set(by_parameter) != set(mine):
        odd = sorted(set(by_parameter) ^ set(mine))
        raise ValueError(
            f"the checkpoint's optimizer state and the trainable parameters differ in {len(odd)} names, such as {odd[0]!r}: "
            "freeze and unfreeze as in the run that wrote it"
        )
    for name, slots in by_parameter.items():
        parameter, loaded = mine[name], {}
        for slot, value in slots.items():
            if value.shape == parameter.shape:
                target = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                copy_whole(target, value)
                loaded[slot] = target
            else:
                # Step counts: a fused optimizer keeps them on the parameter's device, others on the CPU.
                fused = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
                loaded[slot] = value.to(parameter.device if fused else value.device, copy=True)
        optimizer.state[parameter] = loaded


class MovingAverage:
    """An exponential moving average of a module's weights (Polyak & Juditsky 1992); buffers are copied.

    Args:
        module: the module to follow.
        decay: weight of the past, in (0, 1).
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"--ema {decay} must lie between 0 and 1; 0.999 is usual")
        self.decay = decay
        self.module = copy.deepcopy(module).requires_grad_(False)

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the average towards the module's present weights."""
        for mine, its in zip(self.module.parameters(), module.parameters(), strict=True):
            mine.lerp_(its, 1 - self.decay)
        for mine, its in zip(self.module.buffers(), module.buffers(), strict=True):
            mine.copy_(its)
