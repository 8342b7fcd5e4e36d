"""Each detector learns four chips by heart."""

import pytest
import torch
from small_networks import mean

from accel_geo.models.rcnn import FasterRCNN, MaskRCNN
from accel_geo.models.ssd import SingleShotDetector
from accel_geo.tasks import TASKS

SIDE = 96


def chip(number, classes):
    """A noisy chip with boxes of its classes' colours, some of them cut by the edge."""
    draw = torch.Generator().manual_seed(number)
    image = torch.rand(3, SIDE, SIDE, generator=draw) * 0.3
    boxes, labels, masks = [], [], []
    for cell in torch.randperm(9, generator=draw)[:5].tolist():
        x, y = (32 * (cell % 3) + int(torch.randint(0, 8, (), generator=draw)) for cell in (cell, cell // 3))
        dx, dy = (int(torch.randint(9, 23, (), generator=draw)) for _ in range(2))
        label = int(torch.randint(classes, (), generator=draw))
        image[:, y : y + dy, x : x + dx] += 0.1 + 0.6 * (torch.arange(3) == label)[:, None, None]
        boxes.append([x, y, x + dx, y + dy])
        labels.append(label + 1)
        masks.append(torch.zeros(SIDE, SIDE, dtype=torch.bool))
        masks[-1][y : y + dy, x : x + dx] = True
    target = {"image_id": number, "key": number, "size": (SIDE, SIDE), "ignore": False, "masks": torch.stack(masks)}
    return image, target | {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "row, arguments",
    [
        (FasterRCNN, {}),
        (MaskRCNN, {}),
        (SingleShotDetector, {}),
        (SingleShotDetector, {"focal_loss": True}),
        (SingleShotDetector, {"backbone": "mobilenet_v2"}),
    ],
)
def test_four_chips(networks, row, arguments):
    torch.set_num_threads(1)
    spec = networks.spec("MaskRCNN", classes=3, task=row.task)
    model = row(spec, **{"backbone": "resnet18", "size": "small", **arguments})
    images, targets = networks.batch_of([chip(i, 3) for i in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    task, found = TASKS[row.task], 0.0
    for step in range(1, 241):
        optimizer.zero_grad()
        mean(model.train()(images, targets)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 40 == 0:
            with torch.no_grad():
                predictions = model.eval()(images, targets)
            records = [task.record(spec, p, t, f"{t['image_id']}.tif") for p, t in zip(predictions, targets)]
            found = task.metrics(spec, records)["map50"]
            print(row.__name__, arguments, step, round(found, 3))
            if found > 0.95:
                break
    assert found > 0.95
