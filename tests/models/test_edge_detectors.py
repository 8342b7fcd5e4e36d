"""What edge detectors promise alike, beyond the contract of every row."""

import edge_chips
import numpy as np
import pytest
import small_networks
import torch
from scipy.ndimage import gaussian_filter
from small_networks import batch_of, build, freeze_statistics

from accel_geo.models import from_model, model_class
from accel_geo.nn.backbones import pad_to_multiple
from accel_geo.nn.thinning import thinned
from accel_geo.tasks.edges import Edges

ROWS = ("HEDEdgeDetector", "BDCNEdgeDetector")
rows = pytest.mark.parametrize("row", ROWS)


@rows
def test_halves_add_up_with_all_maps_of_a_vgg(row):
    """Totals and counts of two halves are those of the whole batch, as if on two processes."""
    model = build(row, backbone="vgg11").double().train()
    sizes = [(49, 70), (34, 34), (49, 51), (40, 70)]
    pairs = [edge_chips.sample(i, size, (49, 70), empty=i == 1, ignore=i == 3) for i, size in enumerate(sizes)]
    pairs = [(image.double(), target) for image, target in pairs]
    whole = model(*batch_of(pairs))
    halves = [model(*batch_of(part)) for part in (pairs[:3], pairs[3:])]
    for name, loss in whole.items():
        assert float(loss.count) == sum(float(half[name].count) for half in halves) > 0
        total = sum(half[name].total.item() for half in halves)
        assert abs(loss.total.item() - total) <= 1e-12 * abs(total)


def seeing(model):
    """The model with other weights than those that begin at zero and see nothing."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


@rows
@pytest.mark.parametrize("over", ["image", "batch"])
def test_an_image_without_edges_teaches_where_the_batch_is_balanced(row, over):
    model = freeze_statistics(seeing(build(row, balance_over=over)))
    pairs = [edge_chips.sample(0, (64, 64)), edge_chips.sample(1, (64, 64), empty=True)]
    images, targets = batch_of(pairs)
    before = model(images, targets)
    images[1] = 1 - images[1]
    after = model(images, targets)
    for name in before:
        assert torch.equal(before[name].total, after[name].total) == (over == "image"), name
    counts = {name: float(loss.count) for name, loss in before.items()}
    assert model.loss_counts(targets) == (counts if over == "image" else None)


@rows
def test_the_mean_of_all_maps(row):
    """Xie & Tu's final output; the fused map is one of them."""
    model = seeing(build(row, output="mean")).eval()
    images, _ = edge_chips.batch([(49, 70)] * 2)
    with torch.no_grad():
        mean = torch.stack([found["edges"] for found in model(images)])
        maps = model.edge_maps(pad_to_multiple(model.normalize(images), model.backbone.strides[-1]), (49, 70))
        model.output = "fuse"
        fused = torch.stack([found["edges"] for found in model(images)])
    every = torch.cat([logits.sigmoid() for logits in maps.values()], 1)
    assert every.shape[1] == len(model.backbone.strides) * (2 if row == "BDCNEdgeDetector" else 1) + 1
    torch.testing.assert_close(mean, every.mean(1))
    torch.testing.assert_close(fused, maps["fuse"][:, 0].sigmoid())
    assert (mean - fused).abs().max() > 1e-4


@rows
def test_thin_predictions(row, tmp_path):
    model = seeing(build(row, thin=True)).double().eval()
    images, targets = edge_chips.batch([(49, 70)])
    with torch.no_grad():
        thin = model(images.double())[0]["edges"]
        model.thin = False
        whole = model(images.double())[0]["edges"]
    assert thin.dtype == whole.dtype and np.array_equal(thin.numpy(), thinned(whole.numpy()))
    assert 0 < (thin > 0).sum() < 0.4 * whole.numel() < (whole > 0).sum()
    again = from_model(model.save(tmp_path / "model"))
    assert again.arguments["thin"] is True and (again.predict(images[0])["edges"] == 0).any()
    assert all(torch.isfinite(loss.total) for loss in model.train()(images.double(), targets).values())


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_what_is_thin_measures_as_what_is_not(noise):
    """The metric thins: once more changes little."""
    task, spec = Edges(), small_networks.spec("HEDEdgeDetector")
    records = {"whole": [], "thin": []}
    for number in range(6):
        _, target = edge_chips.sample(number, (64, 96))
        draw = np.random.default_rng(number).standard_normal((64, 96))
        blurred = gaussian_filter((target["edges"].numpy() == 1).astype(float), 1)
        wide = (blurred / blurred.max() + 3 * noise * gaussian_filter(draw, 1)).clip(0, 1)
        for name, edges in (("whole", wide), ("thin", thinned(wide))):
            records[name].append(task.record(spec, {"edges": edges}, target, f"{number}.tif"))
    whole, thin = (task.metrics(spec, found) for found in records.values())
    assert 0.8 < whole["ods"] < 1
    for name in ("ods", "ois", "ap", "f1"):
        assert thin[name] == pytest.approx(whole[name], abs=0.03), name


@rows
@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"size": "tiny"}, "'full' or 'small'"),
        ({"balance_over": "world"}, "one of image, batch"),
        ({"output": "sides"}, "one of fuse, mean"),
        ({"thin": 1}, "True or False"),
        ({"backbone": "vgg61"}, "vgg16"),
        ({"backbone": "timm:shvit_s1"}, "two scales at least"),
    ],
)
def test_what_cannot_be_is_refused(row, wrong, message):
    with pytest.raises(ValueError, match=message):
        build(row, **wrong)
    assert "vgg16" in model_class(row).backbones()


@pytest.mark.slow
@pytest.mark.parametrize("row, steps", zip(ROWS, (200, 150)))
def test_overfits_four_chips(row, steps):
    edge_chips.check_overfits(build(row, backbone="vgg11_bn"), steps=steps, lr=3e-3)
