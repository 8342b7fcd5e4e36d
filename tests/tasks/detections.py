"""Detections near the truth, and what pycocotools says of their records."""

import contextlib
import io

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

SCALARS = ("map", "map50", "map75", "map_small", "map_medium", "map_large")


def shaken(rng, truth, extra):
    """Detections near the truth, some with a wrong class, and some out of nowhere."""
    n = len(truth["labels"])
    masks = [np.roll(mask.numpy(), tuple(rng.integers(-3, 4, 2)), (0, 1)) for mask in truth["masks"]]
    wrong = rng.random(n) < 0.2
    return {
        "boxes": torch.cat([truth["boxes"] + torch.from_numpy(rng.normal(0, 2, (n, 4))).float(), extra["boxes"]]),
        "labels": torch.cat([torch.where(torch.from_numpy(wrong), 1, truth["labels"]), extra["labels"]]),
        "masks": torch.cat([torch.from_numpy(np.array(masks)).reshape(-1, *truth["masks"].shape[1:]), extra["masks"]]),
        "scores": torch.from_numpy(np.round(rng.random(n + len(extra["labels"])), 1)),
    }


def records_of(task, spec, objects, make_target, seed, chips, most=8, size=(64, 64)):
    rng = np.random.default_rng(seed)
    records = []
    for i in range(chips):
        truth = objects(rng, int(rng.integers(0, most)), len(spec.classes), size)
        prediction = shaken(rng, truth, objects(rng, int(rng.integers(0, 5)), len(spec.classes), size))
        records.append(task.record(spec, prediction, make_target(7 * i, size, **truth), f"{i}.tif"))
    return records


def reference(spec, records, kind):
    """pycocotools' statistics and precisions."""
    index = {value: i for i, value in enumerate(spec.class_values, start=1)}
    truth, found = [], []
    for number, record in enumerate(records):
        for thing in record["truth"]["objects"]:
            entry = {**thing, "image_id": number, "category_id": index[thing["label"]], "iscrowd": 0}
            truth.append(entry | {"id": len(truth) + 1})
        for thing in record["prediction"]["detections"]:
            entry = {"image_id": number, "category_id": index[thing["label"]], "score": thing["score"]}
            found.append(
                entry | ({"bbox": thing["bbox"]} if kind == "bbox" else {"segmentation": thing["segmentation"]})
            )
    images = [
        dict(zip(("height", "width"), record["truth"]["size"]), id=number) for number, record in enumerate(records)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = {"images": images, "annotations": truth, "categories": [{"id": i} for i in index.values()]}
        data.createIndex()
        results = data.loadRes(found) if found else COCO()  # loadRes wants at least one
        evaluation = COCOeval(data, results, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats, evaluation.eval["precision"][..., -1]


def close(value, expected):
    return value is None if expected == -1 else value == pytest.approx(expected, abs=1e-9)
