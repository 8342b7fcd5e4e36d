"""Chips with edges for the tests of edge detectors, and what these have in common."""

import numpy as np
import torch
from scipy.ndimage import binary_erosion

from accel_geo.data.spec import IGNORED, DataSpec
from accel_geo.tasks.edges import dilated

BANDS = ("red", "green", "blue", "nir", "swir1", "swir2", "thermal", "height")


def spec(bands=3, **changes):
    return DataSpec(
        **{
            "task": "edges",
            "classes": ("edge",),
            "class_values": (1,),
            "bands": ("pan",) if bands == 1 else BANDS[:bands],
            "dtype": "uint8",
            "low": (0.0,) * bands,
            "high": (255.0,) * bands,
            "mean": (0.4,) * bands,
            "std": (0.2,) * bands,
            "chip_size": (64, 64),
            **changes,
        }
    )


def sample(number, size, padded=None, bands=3, empty=False, ignore=False):
    """Bright rectangles on dark ground and their outlines; part is ignored, and what lies beyond `size`."""
    rng = np.random.default_rng(number)
    height, width = padded or size
    image, inside = rng.normal(0.2, 0.05, (bands, height, width)), np.zeros((height, width), bool)
    edges = np.zeros((height, width), np.uint8)
    for _ in range(0 if empty else 3):
        h, w = rng.integers(12, 28, 2)
        y, x = rng.integers(1, size[0] - h - 1), rng.integers(1, size[1] - w - 1)
        inside[y : y + h, x : x + w] = True
    image[:, inside] += 0.6
    edges[inside & ~binary_erosion(inside, np.ones((3, 3), bool))] = 1
    edges[:4] = IGNORED
    image[:, size[0] :], image[:, :, size[1] :] = 0, 0
    edges[size[0] :], edges[:, size[1] :] = IGNORED, IGNORED
    if ignore:
        edges[:] = IGNORED
    target = {"image_id": number, "key": number, "size": size, "ignore": ignore, "edges": torch.from_numpy(edges)}
    return torch.from_numpy(image).float(), target


def batch(sizes, padded=None, start=0, **kind):
    padded = padded or tuple(map(max, zip(*sizes)))
    pairs = [sample(start + i, size, padded, **kind) for i, size in enumerate(sizes)]
    return stack(pairs)


def stack(pairs):
    return torch.stack([image for image, _ in pairs]), [target for _, target in pairs]


def mean(losses):
    return sum(loss.total / max(float(loss.count), 1.0) for loss in losses.values())


def check_contract(build):
    """What each edge detector must do; `build(bands, **arguments)` makes a small one."""
    for bands, size in [(1, (64, 64)), (3, (96, 160)), (8, (97, 131))]:
        model = build(bands)
        losses = check_trains(model, *batch([size] * 2, bands=bands))
        assert all(float(loss.count) > 0 and loss.total.item() > 0 for loss in losses.values())
        with torch.no_grad():
            for prediction in model.eval()(batch([size] * 2, bands=bands)[0]):
                assert set(prediction) == {"edges"} and prediction["edges"].shape == size
                assert prediction["edges"].dtype == torch.float32
                assert ((prediction["edges"] > 0) & (prediction["edges"] < 1)).all()
    model = build(3)
    # nothing to find, nothing labelled, one chip alone
    check_trains(model, *batch([(64, 64)] * 2, empty=True))
    check_trains(model, *batch([(64, 64)]))
    losses = check_trains(model, *batch([(64, 64)] * 2, ignore=True))
    assert all(loss.total.item() == 0 and float(loss.count) == 0 for loss in losses.values())
    images, targets = batch([(64, 64)] * 2)
    losses = model(images, targets)
    assert model.loss_counts(targets) == {name: float(loss.count) for name, loss in losses.items()}


def check_trains(model, images, targets):
    """Finite terms, and a finite gradient for each parameter."""
    model.zero_grad()
    losses = model.train()(images, targets)
    assert losses and all(torch.isfinite(loss.total) and float(loss.count) >= 0 for loss in losses.values())
    mean(losses).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    return losses


def check_halves_add_up(model):
    """Totals and counts of two halves are those of the whole batch, as if on two processes."""
    model = model.double().train()
    sizes = [(49, 70), (34, 34), (49, 51), (40, 70)]
    pairs = [sample(i, size, (49, 70), empty=i == 1, ignore=i == 3) for i, size in enumerate(sizes)]
    pairs = [(image.double(), target) for image, target in pairs]
    whole = model(*stack(pairs))
    halves = [model(*stack(part)) for part in (pairs[:3], pairs[3:])]
    for name, loss in whole.items():
        assert float(loss.count) == sum(float(half[name].count) for half in halves) > 0
        total = sum(half[name].total.item() for half in halves)
        assert abs(loss.total.item() - total) <= 1e-12 * abs(total)


def check_overfits(model, steps, lr):
    """Four chips are learnt almost to the pixel."""
    images, targets = batch([(64, 64)] * 4)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        mean(model(images, targets)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        predictions = model.eval()(images)
    found = edges = right = predicted = 0
    for prediction, target in zip(predictions, targets):
        truth = target["edges"].numpy()
        guess = ((prediction["edges"].numpy() >= 0.5) & (truth != IGNORED)).astype(np.uint8)
        true = (truth == 1).astype(np.uint8)
        found, edges = found + (true & dilated(guess, 1)).sum(), edges + true.sum()
        right, predicted = right + (guess & dilated(true, 1)).sum(), predicted + guess.sum()
    precision, recall = right / predicted, found / edges
    f1 = 2 * precision * recall / (precision + recall)
    assert f1 > 0.95, (f1, precision, recall)
