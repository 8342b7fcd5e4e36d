"""The network contract, the same for each row."""

import os
import subprocess
import sys

import pytest
import torch
from small_networks import check_trains, freeze_statistics, mean

from accel_geo.models import MODELS, model_class

ROWS = tuple(MODELS)
# What a process does that knows of the models only what lies in a folder.
PREDICT = """
import sys, torch
from pathlib import Path
from accel_geo.models import from_model

torch.set_num_threads(1)
folder, found = Path(sys.argv[1]), {}
for row, images in torch.load(folder / "images.pt").items():
    with torch.no_grad():
        found[row] = from_model(folder / row).double()(images)
torch.save(found, folder / "predictions.pt")
"""


def test_every_row_is_looked_at():
    assert len(ROWS) >= 10


def check_predictions(row, predictions, size, classes, dtypes, scale):
    task = model_class(row).task
    assert predictions
    for prediction in predictions:
        assert all(tensor.isfinite().all() for tensor in prediction.values())
        if task == "classification":
            assert prediction["scores"].shape == (classes,) and prediction["scores"].dtype in dtypes
        elif task == "semantic":
            assert prediction["mask"].shape == size and prediction["mask"].dtype == torch.int64
            assert prediction["mask"].min() >= 0 and prediction["mask"].max() <= classes
            assert prediction["scores"].shape == (classes + 1, *size) and prediction["scores"].dtype in dtypes
        elif task == "edges":
            assert prediction["edges"].shape == size and prediction["edges"].dtype in dtypes
            assert prediction["edges"].min() >= 0 and prediction["edges"].max() <= 1
        elif task == "super_resolution":
            assert prediction["image_hr"].shape[-2:] == (scale * size[0], scale * size[1])
            assert prediction["image_hr"].dtype in dtypes
        else:
            n = len(prediction["boxes"])
            assert prediction["boxes"].shape == (n, 4) and prediction["boxes"].dtype in dtypes
            if task == "instances":
                assert prediction["masks"].shape == (n, *size) and prediction["masks"].dtype == torch.bool
            assert prediction["labels"].shape == (n,) and prediction["labels"].dtype == torch.int64
            assert not n or 1 <= prediction["labels"].min() <= prediction["labels"].max() <= classes
            assert (prediction["scores"].diff() <= 0).all() and prediction["scores"].dtype in dtypes
            assert (prediction["boxes"] >= 0).all() and (prediction["boxes"][:, 2:] <= torch.tensor(size[::-1])).all()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("bands, size, classes", [(1, (64, 64), 1), (3, (96, 160), 20), (8, (97, 131), 4)])
def test_trains_and_predicts(networks, row, bands, size, classes):
    model = networks.build(row, bands, classes)
    images, targets = networks.batch(row, [size] * 2, bands=bands, classes=classes)
    check_trains(model, images, targets)
    with torch.no_grad():
        check_predictions(row, model.eval()(images), size, classes, [torch.float32], networks.SCALE)


@pytest.mark.parametrize("row", ROWS)
def test_mixed_sizes_in_float64(networks, row):
    model = networks.build(row).double()
    images, targets = networks.batch(row, [(64, 64), (97, 131), (96, 60)])
    losses = check_trains(model, images.double(), targets)
    assert all(loss.total.dtype == torch.float64 for loss in losses.values())
    with torch.no_grad():
        check_predictions(row, model.eval()(images.double()), (97, 131), 4, [torch.float64], networks.SCALE)


@pytest.mark.parametrize("row", ROWS)
def test_without_objects(networks, row):
    check_trains(networks.build(row), *networks.batch(row, [(64, 64)] * 2, objects=0))


@pytest.mark.parametrize("row", ROWS)
def test_one_chip(networks, row):
    check_trains(networks.build(row), *networks.batch(row, [(64, 64)]))


@pytest.mark.parametrize("row", ROWS)
def test_only_ignored_chips(networks, row):
    model = networks.build(row)
    losses = check_trains(model, *networks.batch(row, [(64, 64)] * 2, ignore=True))
    assert all(loss.total.item() == 0 and float(loss.count) == 0 for loss in losses.values())


@pytest.mark.parametrize("row", ROWS)
def test_halves_add_up(networks, row):
    """Totals and counts of two halves are those of the whole batch, as if on two processes."""
    model = freeze_statistics(networks.build(row).double())
    sizes = [(97, 131), (64, 64), (97, 100), (80, 131), (64, 96), (97, 131)]
    pairs = [networks.sample(row, i, size, (97, 131)) for i, size in enumerate(sizes)]
    pairs[1] = networks.sample(row, 1, sizes[1], (97, 131), objects=0)
    pairs[4] = networks.sample(row, 4, sizes[4], (97, 131), ignore=True)
    pairs = [(image.double(), target) for image, target in pairs]
    whole = model(*networks.batch_of(pairs))
    halves = [model(*networks.batch_of(part)) for part in (pairs[:4], pairs[4:])]
    for name, loss in whole.items():
        assert float(loss.count) == sum(float(half[name].count) for half in halves) > 0
        total = sum(half[name].total.item() for half in halves)
        assert loss.total.item() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("row", ROWS)
def test_forward_draws_nothing_from_global_generators(networks, row):
    model = networks.build(row).train()
    images, targets = networks.batch(row, [(64, 64)] * 2)
    state = torch.get_rng_state()
    first = model(images, targets)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second = model(images, targets)
    assert all(torch.equal(first[name].total, second[name].total) for name in first)


def test_counts_that_the_targets_tell_are_those_of_the_losses(networks):
    looked_at = []
    for row in ROWS:
        pairs = [networks.sample(row, i, (64, 64), (64, 64), ignore=i == 2) for i in range(4)]
        images, targets = networks.batch_of(pairs)
        model = networks.build(row).train()
        if (counts := model.loss_counts(targets)) is not None:
            losses = model(images, targets)
            assert counts == {name: float(loss.count) for name, loss in losses.items()}, row
            looked_at.append(row)
    assert len(looked_at) >= 8


@pytest.mark.parametrize("row", ROWS)
def test_freeze_and_unfreeze(networks, row):
    model = networks.build(row)
    images, targets = networks.batch(row, [(64, 64)] * 2)
    model.freeze()
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen and all(name.startswith("backbone.") for name in frozen)
    assert len(frozen) < len(list(model.parameters()))
    statistics = {name: b.clone() for part in model.backbone_modules() for name, b in part.named_buffers()}
    mean(model.train()(images, targets)).backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
    assert all(
        torch.equal(statistics[name], b) for part in model.backbone_modules() for name, b in part.named_buffers()
    )
    model.unfreeze()
    assert all(p.requires_grad for p in model.parameters())
    assert all(part.training for part in model.backbone_modules())
    check_trains(model, images, targets)


@pytest.mark.parametrize("row", ROWS)
def test_timm_backbone(networks, row):
    model = networks.build(row, bands=4, backbone="timm:mobilenetv3_small_050")
    check_trains(model, *networks.batch(row, [(64, 64)] * 2, bands=4))


def check_backbones(networks, row, names):
    """Each builds a network that predicts from four bands."""
    images, _ = networks.batch(row, [(64, 64)], bands=4)
    for name in names:
        model = networks.build(row, bands=4, backbone=name).eval()
        with torch.no_grad():
            check_predictions(row, model(images), (64, 64), 4, [torch.float32], networks.SCALE)


@pytest.fixture
def undrawn(monkeypatch):
    """Networks whose weights are all zero, where only their shapes matter: billions need not be drawn."""

    def zero(tensor, *args, **kwargs):
        return tensor.detach().zero_()

    for name in ("uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_"):
        monkeypatch.setattr(torch.nn.init, name, zero)


@pytest.mark.parametrize("row", ROWS)
def test_listed_backbones_fit(networks, undrawn, row):
    light = {"resnet18", "mobilenet_v3_small", "regnet_y_400mf", "efficientnet_b0", "densenet121"}
    assert light <= set(model_class(row).backbones())
    check_backbones(networks, row, sorted(light))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_all_listed_backbones_fit(networks, undrawn, row):
    names = model_class(row).backbones()
    assert len(names) > 50
    check_backbones(networks, row, names)


# One that keeps all its resolutions to the end: what leads only to feature maps that a row does not look at is left out.
UNDILATED = {"DeepLab": {"keep_dilation": False, "aux_loss": False}}


@pytest.mark.parametrize(
    "row",
    [row if row in ("FeatureClassifier", "DeepLab") else pytest.param(row, marks=pytest.mark.slow) for row in ROWS],
)
def test_backbone_of_many_ends(networks, row):
    model = networks.build(row, backbone="timm:hrnet_w18_small", **UNDILATED.get(row, {}))
    check_trains(model, *networks.batch(row, [(64, 64)] * 2))


@pytest.mark.parametrize("row", ROWS)
def test_wrong_arguments_are_refused(networks, row):
    with pytest.raises(ValueError, match="resnet34"):
        networks.build(row, backbone="resnet43")
    with pytest.raises(ValueError, match="'full' or 'small'"):
        networks.build(row, size="tiny")
    with pytest.raises(ValueError, match="does"):
        networks.build(row, changes={"task": "panoptic"})


@pytest.mark.parametrize("row", ROWS)
def test_arguments_rebuild_the_network(networks, row):
    import json

    first = networks.build(row)
    arguments = json.loads(json.dumps(first.arguments))
    second = type(first)(first.spec, **arguments)
    assert second.arguments == arguments
    second.load_state_dict(first.state_dict())


def test_saved_models_predict_the_same_in_a_new_process(networks, tmp_path):
    images, here = {}, {}
    for row in ROWS:
        model = networks.build(row)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():  # layers that begin at zero would predict a constant
                parameter += 0.02 * torch.randn(parameter.shape, generator=draw)
            model.train()(*networks.batch(row, [(64, 64)] * 2))  # moves the statistics of batch normalisation
        model.save(tmp_path / row)
        images[row] = networks.batch(row, [(50, 70)] * 2)[0].double()
        with torch.no_grad():  # in float64: what threads do to rounding is no part of the weights
            here[row] = model.double().eval()(images[row])
    torch.save(images, tmp_path / "images.pt")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PREDICT, str(tmp_path)], check=True, env=environment, timeout=300)
    there = torch.load(tmp_path / "predictions.pt")
    assert len(there) == len(ROWS)
    for row, predictions in here.items():
        for mine, theirs in zip(predictions, there[row], strict=True):
            assert set(mine) == set(theirs) and any(tensor.float().std() > 0 for tensor in mine.values()), row
            for name, tensor in mine.items():
                torch.testing.assert_close(theirs[name], tensor, rtol=1e-6, atol=1e-6, msg=f"{row}: {name}")


@pytest.mark.parametrize("row", ROWS)
def test_bfloat16_autocast(networks, row):
    model = networks.build(row)
    images, targets = networks.batch(row, [(64, 96)] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        losses = check_trains(model, images, targets)
    exact = networks.build(row).train()(images, targets)
    for name, loss in losses.items():
        assert loss.total.dtype == torch.float32
        assert loss.total.item() == pytest.approx(exact[name].total.item(), rel=0.2, abs=0.5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        predictions = model.eval()(images)
    assert len(predictions) == 2
    check_predictions(row, predictions, (64, 96), 4, [torch.float32], networks.SCALE)
