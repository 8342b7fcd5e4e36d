"""Batch normalisation over all processes: torch's own on one process, the same on several, and what it replaces."""

import copy

import pytest
import torch
from parallel.compare import figure_differences
from torch import nn

from accel_geo.parallel.batch_norm import GlobalBatchNorm, convert

COUNTS = pytest.mark.parametrize(
    "processes", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)


@COUNTS
@pytest.mark.parametrize("shape", [[7, 3, 5, 4], [5, 3, 1, 1]])
def test_training_is_the_same_on_any_process_count(worlds, processes, shape):
    """Uneven shares; three steps: losses, weights, running statistics, and their counts."""
    alone = worlds[1].run("batch_norm", seed=3, shape=shape)[0]
    for said in worlds[processes].run("batch_norm", seed=3, shape=shape):
        assert figure_differences(alone, said, 1e-11, {k: 1e-2 for k in ()}) == []
    assert alone["state"]["layers.1.num_batches_tracked"] == 3
    assert alone["losses"][0] != alone["losses"][2] and alone["state"]["layers.1.running_mean"] != [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_process_computes_what_torch_computes(dtype, momentum):
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(3, momentum=momentum, dtype=dtype)
    nn.init.normal_(theirs.weight)
    ours = convert(copy.deepcopy(theirs))
    assert isinstance(ours, GlobalBatchNorm) and ours.state_dict().keys() == theirs.state_dict().keys()
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5, dtype=dtype, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        a, b = theirs(x), ours(y)
        a.square().sum().backward(), b.square().sum().backward()
        assert torch.allclose(a, b) and torch.allclose(x.grad, y.grad, atol=1e-6)
        for name, value in theirs.state_dict().items():
            assert torch.allclose(value.double(), ours.state_dict()[name].double()), name
    assert torch.allclose(theirs.eval()(x), ours.eval()(x))


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d, (1, 3)), (nn.BatchNorm2d, (1, 3, 1, 1)), (nn.BatchNorm3d, (1, 3, 1, 1, 1))]
)
def test_a_single_value_is_normalised_by_the_running_statistics_and_leaves_them(layer, shape):
    ours = convert(layer(3))
    ours.running_mean.fill_(2.0), ours.running_var.fill_(4.0)
    before = copy.deepcopy(ours.state_dict())
    out = ours(torch.full(shape, 6.0))
    assert torch.allclose(out, torch.full(shape, 2.0), atol=1e-4)
    assert all(before[name].equal(value) for name, value in ours.state_dict().items())
    with pytest.raises(ValueError, match="larger batches or chips"):
        convert(layer(3, track_running_stats=False))(torch.ones(shape))


def test_conversion_keeps_names_values_order_and_frozen_layers():
    import timm
    from torchvision.ops import FrozenBatchNorm2d

    network = timm.create_model("test_efficientnet", num_classes=5).eval()
    network.frozen = FrozenBatchNorm2d(4)
    names, kinds = list(network.state_dict()), {type(m).__name__ for m in network.modules()}
    assert "BatchNormAct2d" in kinds, "timm's fused layers are among them"
    x = torch.randn(2, 3, 64, 64)
    parameters = [id(p) for p in network.parameters()]
    before = network(x)
    converted = convert(network)
    assert converted is network and list(network.state_dict()) == names
    assert [id(p) for p in network.parameters()] == parameters
    assert torch.allclose(network(x), before, atol=1e-6)
    assert isinstance(network.frozen, FrozenBatchNorm2d)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
    assert sum(isinstance(m, GlobalBatchNorm) for m in network.modules()) > 5
    assert convert(network) is network and not network.training


def test_eval_mode_and_frozen_affine_parameters():
    ours = convert(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False)))
    ours[1].eval()
    before = ours[1].running_mean.clone()
    ours(torch.randn(2, 3, 4, 4)).sum().backward()
    assert ours[1].running_mean.equal(before) and ours[0].weight.grad is not None
