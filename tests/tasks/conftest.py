import numpy as np
import pytest
import torch

from accel_geo.data.spec import DataSpec


@pytest.fixture(scope="session")
def make_spec():
    def make(task, classes=("house", "road", "tree"), values=None, **changes):
        k = len(classes)
        return DataSpec(
            **{
                "task": task,
                "classes": tuple(classes),
                "class_values": tuple(values or (1, 4, 9, 12, 20)[:k]),
                "bands": ("red", "green", "blue"),
                "dtype": "uint8",
                "low": (0.0,) * 3,
                "high": (255.0,) * 3,
                "mean": (0.5,) * 3,
                "std": (0.2,) * 3,
                "chip_size": (64, 64),
                **changes,
            }
        )

    return make


@pytest.fixture(scope="session")
def make_target():
    def make(image_id=0, size=(64, 64), ignore=False, **labels):
        target = {"image_id": image_id, "key": 0, "size": size, "ignore": ignore}
        return target | ({"problem": f"{image_id}.tif: unreadable"} if ignore else {}) | labels

    return make


@pytest.fixture(scope="session")
def objects():
    """Ellipses in random places: boxes, labels, masks as tensors, and scores with many ties."""

    def make(rng, n, classes, size=(64, 64), reach=40):
        h, w = size
        corner = rng.uniform(0, [w - 8, h - 8], (n, 2))
        boxes = np.concatenate([corner, np.minimum(corner + rng.uniform(3, reach, (n, 2)), [w, h])], 1)
        middle, radius = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
        y, x = np.mgrid[:h, :w] + 0.5
        part = [(grid - middle[:, i, None, None]) / radius[:, i, None, None] for i, grid in enumerate((x, y))]
        return {
            "boxes": torch.from_numpy(boxes).float(),
            "labels": torch.from_numpy(rng.integers(1, classes + 1, n)),
            "masks": torch.from_numpy(part[0] ** 2 + part[1] ** 2 <= 1),
            "scores": torch.from_numpy(np.round(rng.random(n), 1)),
        }

    return make
