"""Small networks of every row, batches for them by the kind of label that they learn, and what tests do with both."""

import torch
from torch import nn
from torchvision.models.detection.image_list import ImageList

from accel_geo.data.spec import DataSpec
from accel_geo.models import MODELS, model_class

BANDS = ("red", "green", "blue", "nir", "swir1", "swir2", "thermal", "height")
TASKS = {row: model_class(row).task for row in MODELS}
# What makes a row small where its own smallest size is not enough.
ARGUMENTS = {"SuperResolution": {"backbone": None, "inner_channel": 16}}
SCALE = 2


def spec(row, bands=3, classes=4, **changes):
    names = ("pan",) if bands == 1 else BANDS[:bands]
    task = TASKS[row]
    classes = {"edges": 1, "super_resolution": 0}.get(task, classes)
    return DataSpec(
        **{
            "task": task,
            "classes": ("edge",) if task == "edges" else tuple(f"class {i}" for i in range(classes)),
            "class_values": tuple(range(1, classes + 1)),
            "bands": names,
            "dtype": "uint8",
            "low": (0.0,) * bands,
            "high": (255.0,) * bands,
            "mean": (0.4,) * bands,
            "std": (0.2,) * bands,
            "chip_size": (64, 64),
            "scale": SCALE if task == "super_resolution" else 1,
            **changes,
        }
    )


def build(row, bands=3, classes=4, changes=None, **arguments):
    arguments = {"backbone": "resnet18", "size": "small", **ARGUMENTS.get(row, {}), **arguments}
    return model_class(row)(spec(row, bands, classes, **(changes or {})), **arguments)


def sample(row, number, size, padded, bands=3, classes=4, objects=5, ignore=False, multilabel=False):
    """An image and its target: `size` is valid, the rest of `padded` is padding."""
    draw = torch.Generator().manual_seed(number)
    (h, w), (height, width) = size, padded
    image = torch.zeros(bands, height, width)
    image[:, :h, :w] = torch.rand(bands, h, w, generator=draw)
    target = {"image_id": number, "key": 1000 + number, "size": size, "ignore": ignore}
    return image, target | LABELS[TASKS[row]](
        draw, size, padded, bands, classes, 0 if ignore else objects, ignore, multilabel
    )


def _rectangles(draw, size, padded, bands, classes, objects, ignore, multilabel):
    boxes, labels, masks = [], [], torch.zeros(objects, *padded, dtype=torch.bool)
    for mask in masks:
        x, y = (int(torch.randint(0, side - 22, (), generator=draw)) for side in size[::-1])
        dx, dy = (int(torch.randint(6, 22, (), generator=draw)) for _ in range(2))
        boxes.append([x, y, x + dx, y + dy])
        labels.append(int(torch.randint(1, classes + 1, (), generator=draw)))
        mask[y : y + dy, x : x + dx] = True
    boxes = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    return {"boxes": boxes, "labels": torch.tensor(labels, dtype=torch.int64), "masks": masks}


def _boxes(*arguments):
    return {key: value for key, value in _rectangles(*arguments).items() if key != "masks"}


def _pixels(draw, size, padded, bands, classes, objects, ignore, multilabel):
    mask = torch.full(padded, 255)
    if not ignore:
        # a part of each chip is unlabelled, in uneven shares
        labelled = torch.rand(*size, generator=draw) < torch.rand((), generator=draw) * 0.8 + 0.1
        values = torch.randint(0, classes + 1, size, generator=draw) * (objects > 0)
        mask[: size[0], : size[1]] = torch.where(labelled, values, 255)
    return {"mask": mask}


def _edges(draw, size, padded, bands, classes, *rest):
    return {"edges": _pixels(draw, size, padded, bands, 1, *rest)["mask"].to(torch.uint8)}


def _label(draw, size, padded, bands, classes, objects, ignore, multilabel):
    if multilabel:
        return {"labels": torch.randint(0, 2, (classes,), generator=draw).float()}
    return {"label": -1 if ignore else int(torch.randint(0, classes, (), generator=draw))}


def _sharp(draw, size, padded, bands, classes, objects, ignore, multilabel):
    sharp, ignored = (torch.zeros(bands, *(SCALE * n for n in padded)), torch.ones([SCALE * n for n in padded]).bool())
    if not ignore:
        h, w = (SCALE * n for n in size)
        sharp[:, :h, :w] = torch.rand(bands, h, w, generator=draw)
        ignored[:h, :w] = torch.rand(h, w, generator=draw) < 0.3
    return {"image_hr": sharp, "ignored_hr": ignored}


LABELS = {
    "instances": _rectangles,
    "detection": _boxes,
    "semantic": _pixels,
    "edges": _edges,
    "classification": _label,
    "super_resolution": _sharp,
}


def batch(row, sizes, padded=None, start=0, objects=5, **arguments):
    """A batch of samples; `objects` of each, or a list with their number in each image."""
    padded = padded or tuple(map(max, zip(*sizes)))
    counts = [objects] * len(sizes) if isinstance(objects, int) else objects
    pairs = [
        sample(row, start + i, size, padded, objects=count, **arguments)
        for i, (size, count) in enumerate(zip(sizes, counts, strict=True))
    ]
    return batch_of(pairs)


def batch_of(pairs):
    return torch.stack([image for image, _ in pairs]), [target for _, target in pairs]


def mean(losses):
    return sum(loss.total / max(float(loss.count), 1.0) for loss in losses.values())


def freeze_statistics(model):
    """Set training mode, but keep the statistics of batch normalisation."""
    for module in model.train().modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def check_trains(model, images, targets):
    """Finite terms, and a finite gradient for each parameter."""
    model.zero_grad()
    losses = model.train()(images, targets)
    assert losses and all(torch.isfinite(loss.total) and float(loss.count) >= 0 for loss in losses.values())
    mean(losses).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    return losses


class AsTheyAre(nn.Module):
    """In place of torchvision's resizing and normalising transform."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, targets):
        return ImageList(self.model.normalize(torch.stack(images)), [tuple(i.shape[-2:]) for i in images]), targets

    def postprocess(self, result, *sizes):
        return result
