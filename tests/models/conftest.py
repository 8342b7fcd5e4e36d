import pytest
import torch

from accel_geo.data.spec import DataSpec
from accel_geo.models import model_class

BANDS = ("red", "green", "blue", "nir", "swir1", "swir2", "thermal", "height")
TASKS = {"MaskRCNN": "instances", "UnetClassifier": "semantic", "FeatureClassifier": "classification"}


def spec(row, bands=3, classes=4, **changes):
    names = ("pan",) if bands == 1 else BANDS[:bands]
    return DataSpec(
        **{
            "task": TASKS[row],
            "classes": tuple(f"class {i}" for i in range(classes)),
            "class_values": tuple(range(1, classes + 1)),
            "bands": names,
            "dtype": "uint8",
            "low": (0.0,) * bands,
            "high": (255.0,) * bands,
            "mean": (0.4,) * bands,
            "std": (0.2,) * bands,
            "chip_size": (64, 64),
            **changes,
        }
    )


def build(row, bands=3, classes=4, changes=None, **arguments):
    arguments = {"backbone": "resnet18", "size": "small", **arguments}
    return model_class(row)(spec(row, bands, classes, **(changes or {})), **arguments)


def sample(row, number, size, padded, bands=3, classes=4, objects=5, ignore=False, multilabel=False):
    """An image and its target: `size` is valid, the rest of `padded` is padding."""
    draw = torch.Generator().manual_seed(number)
    (h, w), (height, width) = size, padded
    image = torch.zeros(bands, height, width)
    image[:, :h, :w] = torch.rand(bands, h, w, generator=draw)
    target = {"image_id": number, "key": 1000 + number, "size": size, "ignore": ignore}
    if row == "MaskRCNN":
        boxes, labels, masks = [], [], torch.zeros(0 if ignore else objects, height, width, dtype=torch.bool)
        for mask in masks:
            x, y = (int(torch.randint(0, side - 22, (), generator=draw)) for side in (w, h))
            dx, dy = (int(torch.randint(6, 22, (), generator=draw)) for _ in range(2))
            boxes.append([x, y, x + dx, y + dy])
            labels.append(int(torch.randint(1, classes + 1, (), generator=draw)))
            mask[y : y + dy, x : x + dx] = True
        target["boxes"] = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
        target["labels"] = torch.tensor(labels, dtype=torch.int64)
        target["masks"] = masks
    elif row == "UnetClassifier":
        target["mask"] = torch.full((height, width), 255)
        if not ignore:
            # half of each chip is unlabelled in uneven shares
            labelled = torch.rand(h, w, generator=draw) < number % 5 / 5 + 0.1
            classes_ = torch.randint(0, classes + 1, (h, w), generator=draw) * (objects > 0)
            target["mask"][:h, :w] = torch.where(labelled, classes_, 255)
    elif multilabel:
        target["labels"] = torch.randint(0, 2, (classes,), generator=draw).float()
    else:
        target["label"] = -1 if ignore else int(torch.randint(0, classes, (), generator=draw))
    return image, target


def batch(row, sizes, padded=None, start=0, **arguments):
    padded = padded or tuple(map(max, zip(*sizes)))
    pairs = [sample(row, start + i, size, padded, **arguments) for i, size in enumerate(sizes)]
    return torch.stack([image for image, _ in pairs]), [target for _, target in pairs]


def batch_of(pairs):
    return torch.stack([image for image, _ in pairs]), [target for _, target in pairs]


class Networks:
    rows = tuple(TASKS)
    spec, build, sample, batch, batch_of = map(staticmethod, (spec, build, sample, batch, batch_of))


@pytest.fixture(scope="session")
def networks():
    """Small networks of each row, and batches for them."""
    return Networks
