"""Schedules, the optimizer's state by name, and the moving average."""

import functools

import pytest
import torch
from torch import nn

from accel_geo.engine import optimizers as o


@pytest.mark.parametrize("total", [1, 2, 3, 20, 100])
def test_one_cycle(total):
    rates = [o.lr_factor("one_cycle", step, total) for step in range(total)]
    top = max(1, round(total / 4))
    assert rates[0] == pytest.approx(1 / 25) and all(0 < rate <= 1 for rate in rates)
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    if total > 2:
        assert rates[top] == 1.0 and rates[-1] == pytest.approx(1 / 1000)


def test_cosine_constant_and_plateau():
    rates = [o.lr_factor("cosine", step, 10) for step in range(10)]
    assert rates[0] == 1 and rates[5] == pytest.approx(0.5) and rates == sorted(rates, reverse=True) and rates[-1] > 0
    assert {o.lr_factor(kind, step, 10) for kind in ("constant", "plateau") for step in range(10)} == {1.0}
    assert set(o.SCHEDULES) == {"one_cycle", "cosine", "constant", "plateau"}


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        module(torch.full((2, 3), 0.5 + step)).square().sum().backward()
        optimizer.step()


def test_each_group_follows_the_schedule_from_its_own_rate():
    def factory(parameters, lr):
        a, b, *rest = parameters
        return torch.optim.SGD([{"params": [a, b]}, {"params": rest, "lr": lr / 10}], lr=lr)

    optimizer = o.build_optimizer(net(), factory, 1.0)
    assert o.set_lr(optimizer, 0.5) == [0.5, 0.05]
    assert o.set_lr(o.build_optimizer(net(), o.adamw, 1.0), 0.5) == 0.5


def test_a_wholly_frozen_network_is_refused():
    with pytest.raises(ValueError, match="frozen.*unfreeze"):
        o.build_optimizer(net().requires_grad_(False), o.adamw, 1.0)


FACTORIES = {
    "fused AdamW": o.adamw,
    "AdamW": torch.optim.AdamW,
    "amsgrad": functools.partial(torch.optim.AdamW, amsgrad=True),
    "SGD": functools.partial(torch.optim.SGD, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": functools.partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "NAdam": torch.optim.NAdam,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_state_goes_through_safetensors_by_name(tmp_path, name):
    from safetensors.torch import load_file, save_file

    factory = FACTORIES[name]
    first, second = net(), net()
    a = o.build_optimizer(first, factory, 1e-2)
    train(first, a, 3)
    state = o.optimizer_state(a, first)
    assert {key.rpartition("/")[0] for key in state} == set(dict(first.named_parameters()))
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "o.safetensors")
    second.load_state_dict(first.state_dict())
    b = o.build_optimizer(second, factory, 1e-2)
    o.load_optimizer_state(b, second, load_file(tmp_path / "o.safetensors"))
    train(first, a, 2), train(second, b, 2)
    assert all(x.equal(y) for x, y in zip(first.state_dict().values(), second.state_dict().values()))


def test_state_of_other_parameters_is_refused():
    module = net()
    optimizer = o.build_optimizer(module, o.adamw, 1e-2)
    train(module, optimizer, 1)
    state = o.optimizer_state(optimizer, module)
    frozen = net()
    frozen[0].requires_grad_(False)
    with pytest.raises(ValueError, match="differ in 2 names.*0.bias.*freeze and unfreeze"):
        o.load_optimizer_state(o.build_optimizer(frozen, o.adamw, 1e-2), frozen, state)


def test_names_without_wrappers():
    compiled = torch.compile(net(), backend="eager")
    assert sorted(o.parameter_names(compiled).values()) == sorted(dict(net().named_parameters()))
    assert o.clean_name("module.head._orig_mod.weight") == "head.weight"


def test_a_moving_average_follows_weights_and_copies_buffers():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = o.MovingAverage(module, 0.75)
    start = module[0].weight.detach().clone()
    with torch.no_grad():
        module[0].weight.add_(4.0)
        module[1].running_mean.fill_(3.0)
    average.update(module)
    assert torch.allclose(average.module[0].weight, start + 1.0)
    assert average.module[1].running_mean.equal(module[1].running_mean)
    assert not any(p.requires_grad for p in average.module.parameters()) and module[0].weight.requires_grad
    for decay in (0, 1, 1.5):
        with pytest.raises(ValueError, match="--ema"):
            o.MovingAverage(module, decay)
