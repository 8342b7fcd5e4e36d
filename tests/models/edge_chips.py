"""Chips with edges that can be learnt, for the tests of edge detectors."""

import numpy as np
import torch
from scipy.ndimage import binary_dilation, binary_erosion
from small_networks import batch_of, mean

from accel_geo.data.spec import IGNORED


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
    return batch_of([sample(start + i, size, padded, **kind) for i, size in enumerate(sizes)])


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
        found, edges = found + (true & binary_dilation(guess)).sum(), edges + true.sum()
        right, predicted = right + (guess & binary_dilation(true)).sum(), predicted + guess.sum()
    precision, recall = right / predicted, found / edges
    f1 = 2 * precision * recall / (precision + recall)
    assert f1 > 0.95, (f1, precision, recall)
