"""What edge detectors promise alike, beyond the contract of every row."""

import edge_chips
import pytest
import torch
from small_networks import batch_of, build, freeze_statistics

from accel_geo.models import model_class

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


@rows
@pytest.mark.parametrize("over", ["image", "batch"])
def test_an_image_without_edges_teaches_where_the_batch_is_balanced(row, over):
    model = freeze_statistics(build(row, balance_over=over))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():  # layers that begin at zero see nothing
            parameter += 0.02 * torch.randn_like(parameter)
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
@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"size": "tiny"}, "'full' or 'small'"),
        ({"balance_over": "world"}, "'image'.*'batch'"),
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
