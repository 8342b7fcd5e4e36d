import pytest
import torch
from torch.nn import functional as F

from accel_geo.nn import losses
from accel_geo.nn.losses import (
    PixelLoss,
    label_binary_cross_entropy,
    label_cross_entropy,
    pixel_cross_entropy,
    pixel_focal,
    soft_dice,
)


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
    nothing = mask * 0 + 255
    for loss in (
        pixel_cross_entropy(logits, nothing),
        pixel_focal(logits, nothing, 2.0),
        soft_dice(logits, nothing),
        soft_dice(logits, nothing, average="macro"),
    ):
        logits.grad = None
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


def written_out_dice(logits, mask, first_class, average):
    probability, (both, truth, predicted) = logits.softmax(1).movedim(1, -1)[mask != 255], ([], [], [])
    labels = mask[mask != 255]
    for label in range(first_class, logits.shape[1]):
        both.append(probability[labels == label, label].sum())
        truth.append((labels == label).sum())
        predicted.append(probability[:, label].sum())
    if average == "micro":
        return 1 - 2 * sum(both) / (sum(truth) + sum(predicted))
    found = [1 - 2 * b / (t + p) for b, t, p in zip(both, truth, predicted) if t > 0]
    return sum(found) / len(found)


@pytest.mark.parametrize("first_class", [0, 1])
@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("absent", [None, 2])
def test_dice_as_written(pixels, average, first_class, absent):
    logits, mask = pixels
    if absent is not None:
        mask[mask == absent] = 3
    loss = soft_dice(logits, mask, first_class, average)
    assert loss.count == 1
    wanted = written_out_dice(logits, mask, first_class, average)
    assert loss.total.item() == pytest.approx(wanted.item(), rel=1e-12)
    found, expected = (torch.autograd.grad(value, logits)[0] for value in (loss.total, wanted))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_dice_is_one_of_the_sums_over_processes(pixels, monkeypatch, average):
    """Each process hands its sums to the global sum, and computes from what comes back alone."""
    logits, mask = pixels
    whole, handed = soft_dice(logits, mask, average=average).total, []
    monkeypatch.setattr(losses, "global_sum", lambda x: handed.append(x) or x)
    for part in (slice(0, 2), slice(2, 3)):
        soft_dice(logits[part], mask[part], average=average)
    total = sum(handed)
    monkeypatch.setattr(losses, "global_sum", lambda x: total)
    assert soft_dice(logits[:1], mask[:1], average=average).total.item() == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1, 0, 3], dtype=torch.float64)])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_as_written(pixels, weights, gamma):
    logits, mask = pixels
    loss = pixel_focal(logits, mask, gamma, weights)
    probability, labels = logits.softmax(1).movedim(1, -1)[mask != 255], mask[mask != 255]
    p = probability[torch.arange(len(labels)), labels]
    alpha = torch.ones(4, dtype=torch.float64) if weights is None else weights
    wanted = (-alpha[labels] * (1 - p) ** gamma * p.log()).sum()
    assert loss.total.item() == pytest.approx(wanted.item(), rel=1e-9)
    assert float(loss.count) == pytest.approx(float(alpha[labels].sum()))
    if gamma == 0:
        assert loss.total.item() == pytest.approx(pixel_cross_entropy(logits, mask, weights).total.item(), rel=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_of_certain_pixels_is_flat(gamma):
    logits = torch.tensor([1e4, -1e4]).view(1, 2, 1, 1).requires_grad_()
    for label in (0, 1):
        logits.grad = None
        pixel_focal(logits, torch.tensor([[[label]]]), gamma).total.backward()
        assert logits.grad.isfinite().all()


def test_pixel_loss_mixes_its_terms(pixels):
    logits, mask = pixels
    loss = PixelLoss(4, focal_loss=True, gamma=1.5, dice_loss_fraction=0.3, dice_loss_average="macro")
    terms = loss(logits, mask)
    focal, dice = pixel_focal(logits, mask, 1.5), soft_dice(logits, mask, average="macro")
    assert list(terms) == ["focal", "dice"] and not loss.state_dict()
    assert terms["focal"].total.item() == pytest.approx(0.7 * focal.total.item())
    assert terms["dice"].total.item() == pytest.approx(0.3 * dice.total.item())
    assert loss.count(mask) == float(terms["focal"].count) == int((mask != 255).sum())


def test_pixel_loss_without_background(pixels):
    logits, mask = pixels
    loss = PixelLoss(4, dice_loss_fraction=0.5, ignore_background=True, class_weights=[9, 1, 2, 3]).double()
    terms, sparse = loss(logits, mask), mask.masked_fill(mask == 0, 255)
    weights = torch.tensor([9, 1, 2, 3], dtype=torch.float64)
    wanted = F.cross_entropy(logits, sparse, weights, ignore_index=255, reduction="sum") / 2
    assert terms["cross_entropy"].total.item() == pytest.approx(wanted.item())
    assert float(terms["cross_entropy"].count) == float(weights[sparse[sparse != 255]].sum())
    assert terms["dice"].total.item() == pytest.approx(soft_dice(logits, sparse, 1).total.item() / 2)


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1, 0.25, 3], dtype=torch.float64)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_by_weight_agree_with_labels_by_index(weights, smoothing):
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    labels = torch.tensor([0, 3, -1, 2, 2, 1])
    shares = F.one_hot(labels.clamp(min=0), 4).double() * (labels != -1)[:, None]
    by_index, by_weight = (label_cross_entropy(logits, given, smoothing, weights) for given in (labels, shares))
    torch.testing.assert_close(by_index.total, by_weight.total, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_index.count.double(), by_weight.count, rtol=1e-12, atol=0)
    mean = F.cross_entropy(logits, labels, weights, ignore_index=-1, label_smoothing=smoothing)
    torch.testing.assert_close(by_index.total / by_index.count, mean, rtol=1e-12, atol=0)
    # Mixed: the terms of both labels in their shares (Zhang et al. 2018), class weights in the same ones.
    other = torch.tensor([1, 3, -1, 0, 1, 2])
    mixed = 0.7 * shares + 0.3 * F.one_hot(other.clamp(min=0), 4).double() * (labels != -1)[:, None]
    there = label_cross_entropy(logits, other, smoothing, weights)
    found = label_cross_entropy(logits, mixed, smoothing, weights)
    torch.testing.assert_close(found.total, 0.7 * by_index.total + 0.3 * there.total, rtol=1e-12, atol=0)
    assert found.count.item() == pytest.approx(0.7 * by_index.count.item() + 0.3 * there.count.item(), rel=1e-12)


def test_what_stands_in_ignored_mixed_samples_does_not_matter():
    logits = torch.randn(3, 4, dtype=torch.float64)
    logits[1] = float("nan")
    logits.requires_grad_()
    loss = label_cross_entropy(logits, torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0.5, 0.5, 0, 0]]))
    loss.total.backward()
    assert loss.count == 2 and loss.total.isfinite() and logits.grad.isfinite().all()
    nothing = label_cross_entropy(logits, torch.zeros(3, 4))
    nothing.total.backward()
    assert nothing.count == 0 and nothing.total == 0


def test_positive_weights_agree_with_torch():
    draw = torch.Generator().manual_seed(3)
    logits, labels = torch.randn(5, 3, generator=draw), torch.rand(5, 3, generator=draw)
    weights, keep = torch.tensor([1.0, 4, 0.5]), torch.tensor([True, True, False, True, True])
    loss = label_binary_cross_entropy(logits, labels, keep, weights)
    mean = F.binary_cross_entropy_with_logits(logits[keep], labels[keep], pos_weight=weights)
    torch.testing.assert_close(loss.total / loss.count, mean)
