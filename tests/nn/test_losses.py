import pytest
import torch
from torch.nn import functional as F

from accel_geo.nn.losses import label_binary_cross_entropy, label_cross_entropy, pixel_cross_entropy, soft_dice


@pytest.fixture
def pixels():
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 4, 8, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    mask = torch.randint(0, 4, (3, 8, 8), generator=draw)
    mask[0, :5] = 255
    return logits, mask


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1, 0, 3], dtype=torch.float64)])
def test_pixels_agree_with_torch(pixels, weights):
    logits, mask = pixels
    loss = pixel_cross_entropy(logits, mask, weights)
    assert (loss.total / loss.count).item() == pytest.approx(
        F.cross_entropy(logits, mask, weights, ignore_index=255).item()
    )


def test_ignored_pixels_are_zero_and_in_the_graph(pixels):
    logits, mask = pixels
    for loss in (pixel_cross_entropy(logits, mask * 0 + 255), soft_dice(logits, mask * 0 + 255)):
        assert loss.total.item() == 0
        loss.total.backward()
        assert (logits.grad == 0).all()
    assert pixel_cross_entropy(logits, mask * 0 + 255).count == 0


def test_labels():
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -1, 2, 1])
    loss = label_cross_entropy(logits, labels, 0.1)
    wanted = F.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=0.1)
    assert loss.count == 3 and (loss.total / 3).item() == pytest.approx(wanted.item())
    nothing = label_cross_entropy(logits, torch.full((4,), -1))
    nothing.total.backward()
    assert nothing.count == 0 and nothing.total.item() == 0 and (logits.grad == 0).all()


def test_several_labels():
    logits = torch.randn(3, 2, requires_grad=True)
    labels = torch.tensor([[0, 1], [float("nan")] * 2, [1, 1]])
    loss = label_binary_cross_entropy(logits, labels, torch.tensor([True, False, True]))
    wanted = F.binary_cross_entropy_with_logits(logits[[0, 2]], labels[[0, 2]])
    assert loss.count == 4 and (loss.total / 4).item() == pytest.approx(wanted.item())
    loss.total.backward()
    assert logits.grad.isfinite().all() and (logits.grad[1] == 0).all()


def test_dice_of_a_perfect_prediction(pixels):
    _, mask = pixels
    logits = F.one_hot(mask.clamp(max=3), 4).movedim(-1, 1) * 100.0
    assert soft_dice(logits, mask).total.item() == pytest.approx(0, abs=1e-6)
    assert soft_dice(-logits, mask).total.item() > 0.6
