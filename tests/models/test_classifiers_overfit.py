"""Each network that classifies pixels or chips learns four chips by heart."""

import pytest
import torch
from small_networks import batch_of, mean, sample, spec

from accel_geo.models.deeplab import DeepLab
from accel_geo.models.feature_classifier import FeatureClassifier
from accel_geo.models.psp_net import PSPNetClassifier
from accel_geo.models.unet_classifier import UnetClassifier
from accel_geo.tasks import TASKS

SIDE = 96
PIXELS = {
    "unet": (UnetClassifier, {"size": "full"}),  # eight channels at full resolution learn a class late, by chance
    "deeplab": (DeepLab, {"output_stride": 8}),  # at 16 a corner is rounder than 0.95 allows
    "deeplab plus": (DeepLab, {"plus": True}),
    "psp": (PSPNetClassifier, {"use_unet": False}),
    "psp unet": (PSPNetClassifier, {}),
}


def chip(number):
    """A noisy chip with a square of class 1 and a disc of class 2."""
    draw = torch.Generator().manual_seed(number)
    image, mask = torch.rand(3, SIDE, SIDE, generator=draw) * 0.3, torch.zeros(SIDE, SIDE, dtype=torch.int64)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    for label, column in ((1, 26), (2, 70)):
        row, radius = (int(torch.randint(*ends, (), generator=draw)) for ends in ((28, 68), (16, 22)))
        down, across = (y - row).abs(), (x - column).abs()
        shape = down.maximum(across) <= radius if label == 1 else down**2 + across**2 <= radius**2
        mask[shape] = label
        image[:, shape] += 0.1 + 0.6 * (torch.arange(3) == label)[:, None]
    return image, {"image_id": number, "key": number, "size": (SIDE, SIDE), "ignore": False, "mask": mask}


def overfit(model, images, targets, done, steps=200, lr=3e-3):
    """Train until the metrics of the same chips are as wanted, and return them."""
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    task = TASKS[model.task]
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        mean(model.train()(images, targets)).backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 0:
            with torch.no_grad():
                predictions = model.eval()(images, targets)
            records = [task.record(model.spec, *pair, "chip") for pair in zip(predictions, targets)]
            metrics = task.metrics(model.spec, records)
            if done(metrics):
                break
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", PIXELS)
def test_pixels_overfit(kind):
    row, options = PIXELS[kind]
    model = row(spec("UnetClassifier", classes=2), **{"backbone": "resnet18", "size": "small", **options})
    metrics = overfit(model, *batch_of([chip(i) for i in range(4)]), lambda found: min(found["iou"]) > 0.95)
    assert len(metrics["iou"]) == 2 and min(metrics["iou"]) > 0.95 and metrics["miou"] > 0.95, metrics


@pytest.mark.slow
@pytest.mark.parametrize("multilabel", [False, True])
def test_chips_overfit(multilabel):
    model = FeatureClassifier(spec("FeatureClassifier", multilabel=multilabel), backbone="resnet18", size="small")
    images, targets = batch_of([sample("FeatureClassifier", i, (64, 64), (64, 64)) for i in range(4)])
    for number, target in enumerate(targets):  # each chip its own class, or its own set of classes
        label = {"labels": torch.tensor([number >> bit & 1 for bit in (0, 1, 0, 1)]).float()}
        target |= label if multilabel else {"label": number}
    metrics = overfit(model, images, targets, lambda found: found["accuracy"] == 1)
    assert metrics["accuracy"] == 1, metrics
