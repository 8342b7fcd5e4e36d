import json
import random

import numpy as np
import pycocotools.mask
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.detections import SCALARS, close, records_of, reference, shaken

from accel_geo.engine.evaluation import evaluate
from accel_geo.tasks import TASKS, coco

TASK = TASKS["instances"]


def decoded(encoded):
    """The mask of a run-length encoding, by the reference implementation."""
    return pycocotools.mask.decode(encoded).astype(bool)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(64, 64), (150, 120)])
def test_equals_pycocotools(seed, size, make_spec, make_target, objects):
    spec = make_spec("instances", ("a", "b", "c", "never"))
    records = records_of(TASK, spec, objects, make_target, seed, 12, size=size)
    for record in records:  # the last class has detections but no truth
        record["truth"]["objects"] = [o for o in record["truth"]["objects"] if o["label"] != spec.class_values[3]]
    metrics = TASK.metrics(spec, records)
    stats, precision = reference(spec, records, "segm")
    for name, expected in zip(SCALARS, stats):
        assert close(metrics[name], expected), name
    for k in range(4):
        for key, values in (
            ("ap", precision[:, :, k, 0]),
            ("ap50", precision[0, :, k, 0]),
            ("ap75", precision[5, :, k, 0]),
        ):
            assert close(metrics[key][k], values[values > -1].mean() if (values > -1).any() else -1)
    assert metrics["ap"][3] is None and metrics["support"][3] == 0
    stats, precision = reference(spec, records, "bbox")
    assert close(metrics["box_map"], stats[0]) and close(metrics["box_map50"], stats[1])
    assert 0 < metrics["map50"] < 1


class Split:
    """Chips of which each names itself in its pixels, for a network that finds its prediction by the name."""

    def __init__(self, spec, targets):
        self.spec, self.targets = spec, targets
        self.ids, self.sizes = [t["image_id"] for t in targets], [t["size"] for t in targets]
        self.files = [f"{i}.tif" for i in self.ids]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, request):
        image = torch.full((3, *self.sizes[request.index]), float(request.index))
        return self.targets[request.index] | {"image": image}


class Network(torch.nn.Module):
    def __init__(self, predictions):
        super().__init__()
        self.predictions, self.weight = predictions, torch.nn.Parameter(torch.zeros(()))

    def forward(self, images):
        return [self.predictions[int(image[0, 0, 0])] for image in images]


def evaluate_in_a_world(rank, folder, network, split):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    assert dist.get_world_size() == 2
    done, task = [], TASKS["instances"]
    record = task.record
    task.record = lambda spec, prediction, target, file: (
        done.append(target["image_id"]) or record(spec, prediction, target, file)
    )
    found = evaluate(network, split, task, device=torch.device("cpu"), distributed=True)
    said = {"metrics": found.metrics, "records": found.records, "done": done}
    (folder / f"{rank}.json").write_text(json.dumps(said, allow_nan=False))
    dist.destroy_process_group()


def test_two_processes_equal_one_and_pycocotools(tmp_path, make_spec, make_target, objects):
    spec, rng, size, chips = make_spec("instances", tuple("abcd")), np.random.default_rng(3), (200, 180), 30
    truths = [objects(rng, int(rng.integers(0, 12)), 4, size, reach=160) for _ in range(chips)]
    predictions = [shaken(rng, truth, objects(rng, 4, 4, size, reach=160)) for truth in truths]
    split = Split(spec, [make_target(7 * i, size, **truth) for i, truth in enumerate(truths)])
    network = Network(predictions)
    alone = evaluate(network, split, TASK, device=torch.device("cpu"), distributed=False)
    torch.multiprocessing.start_processes(
        evaluate_in_a_world, (tmp_path, network, split), nprocs=2, start_method="fork"
    )
    main, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert main["metrics"] == other["metrics"] == alone.metrics
    assert main["records"] == alone.records and other["records"] == []
    assert main["done"] and other["done"] and sorted(main["done"] + other["done"]) == split.ids
    metrics = main["metrics"]
    stats, precision = reference(spec, main["records"], "segm")
    for name, expected in zip(SCALARS, stats):
        assert expected > 0 and metrics[name] == pytest.approx(expected, abs=1e-9), name
    boxes, box_precision = reference(spec, main["records"], "bbox")
    assert metrics["box_map"] == pytest.approx(boxes[0], abs=1e-9)
    assert metrics["box_map50"] == pytest.approx(boxes[1], abs=1e-9)
    assert metrics["box_map75"] == pytest.approx(boxes[2], abs=1e-9)
    for key, values in (
        ("ap", precision[..., 0].mean((0, 1))),
        ("ap50", precision[0, ..., 0].mean(0)),
        ("ap75", precision[5, ..., 0].mean(0)),
        ("box_ap50", box_precision[0, ..., 0].mean(0)),
    ):
        assert (values > 0).all() and metrics[key] == pytest.approx(values.tolist(), abs=1e-9)
    pixels = sum(len(p["labels"]) + len(t["labels"]) for p, t in zip(predictions, truths)) * size[0] * size[1]
    assert len(json.dumps(main["records"])) < pixels / 20, "what is kept of a chip holds no masks pixel by pixel"


def test_truth_against_itself_is_perfect(make_spec, make_target, objects):
    spec = make_spec("instances")
    rng = np.random.default_rng(0)
    records = []
    for image_id in range(4):
        truth = objects(rng, 5, 3)
        records.append(TASK.record(spec, truth | {"scores": torch.ones(5)}, make_target(image_id, **truth), "x"))
    metrics = TASK.metrics(spec, records)
    for name in ("map", "map50", "map75", "box_map", "box_map50", "box_map75"):
        assert metrics[name] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("truths, found", [(0, 0), (3, 0), (0, 3)])
def test_nothing_on_one_side(truths, found, make_spec, make_target, objects, capsys):
    spec = make_spec("instances")
    rng = np.random.default_rng(1)
    target, prediction = make_target(0, **objects(rng, truths, 3)), objects(rng, found, 3)
    metrics = TASK.metrics(spec, [TASK.record(spec, prediction, target, "0.tif")])
    assert metrics["map50"] == (0.0 if truths else None)
    assert sum(metrics["support"]) == truths
    assert len(TASK.table(spec, metrics)[1]) == (5 if truths else 4)
    assert capsys.readouterr().out == ""


def test_no_chips_at_all(make_spec):
    metrics = TASK.metrics(make_spec("instances"), [])
    assert metrics["map50"] is None and metrics["ap"] == [None] * 3 and metrics["support"] == [0] * 3


def test_ignored_chip_has_no_detections_and_counts_nowhere(make_spec, make_target, objects):
    spec = make_spec("instances")
    records = records_of(TASK, spec, objects, make_target, 5, 6)
    rng = np.random.default_rng(9)
    ignored = TASK.record(spec, objects(rng, 4, 3), make_target(3, ignore=True, **objects(rng, 0, 3)), "bad.tif")
    assert ignored == {"image_id": 3, "file": "bad.tif", "prediction": {"detections": []}, "truth": None}
    assert TASK.metrics(spec, [ignored, *records]) == TASK.metrics(spec, records)
    assert TASK.predictions([*records, ignored])[1] == {"image_id": 3, "file": "bad.tif", "detections": []}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_records_and_the_way_through_json_change_nothing(seed, shuffle, make_spec, make_target, objects):
    spec = make_spec("instances")
    records = records_of(TASK, spec, objects, make_target, seed, 5, most=4)
    sent = json.loads(json.dumps(records, allow_nan=False))
    assert sent == records
    random.Random(shuffle).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert TASK.predictions(sent) == TASK.predictions(records)
    assert [entry["image_id"] for entry in TASK.predictions(sent)] == sorted(r["image_id"] for r in records)


def test_ties_rank_in_the_order_of_the_network_and_100_remain(make_spec, make_target):
    spec = make_spec("instances")
    n = 130
    boxes = torch.stack([torch.arange(n) % 50, torch.zeros(n), torch.arange(n) % 50 + 2, torch.ones(n) * 2], 1).float()
    prediction = {"boxes": boxes, "labels": torch.arange(n) % 3 + 1, "masks": torch.ones(n, 64, 64, dtype=torch.bool)}
    prediction["scores"] = torch.full((n,), 0.5, dtype=torch.float64)
    prediction["scores"][120] = 1 / 3 + 0.5
    target = make_target(0, boxes=boxes[:0], labels=torch.zeros(0), masks=torch.zeros(0, 64, 64, dtype=torch.bool))
    found = TASK.record(spec, prediction, target, "x")["prediction"]["detections"]
    assert len(found) == 100
    assert found[0]["score"] == 1 / 3 + 0.5  # float64 to the bit
    assert [d["label"] for d in found[1:]] == [spec.class_values[i % 3] for i in range(99)]


def test_padding_is_cut_and_values_that_are_not_finite_are_no_detections(make_spec, make_target):
    spec = make_spec("instances")
    nan = float("nan")
    prediction = {
        "boxes": torch.tensor([[30.0, 10, 60, 30], [45, 45, 60, 60], [nan, 0, 5, 5], [1, 1, 9, 9]]),
        "labels": torch.tensor([2, 1, 1, 1]),
        "scores": torch.tensor([0.9, 0.8, 0.7, nan]),
        "masks": torch.ones(4, 64, 64, dtype=torch.bool),
    }
    truth = {"boxes": torch.tensor([[30.0, 10, 40, 30]]), "labels": torch.tensor([2])}
    truth["masks"] = torch.zeros(1, 64, 64, dtype=torch.bool)
    truth["masks"][0, 10:30, 30:40] = True
    record = TASK.record(spec, prediction, make_target(0, (48, 40), **truth), "x")
    (only,) = record["prediction"]["detections"]
    assert only["bbox"] == [30, 10, 10, 20] and only["label"] == 4
    assert only["segmentation"]["size"] == [48, 40] and coco.mask_area(only["segmentation"]) == 48 * 40
    (thing,) = record["truth"]["objects"]
    assert thing["area"] == 200 and decoded(thing["segmentation"]).sum() == 200


def test_detections_with_empty_masks_are_false(make_spec, make_target, objects):
    spec = make_spec("instances", ("a",))
    truth = objects(np.random.default_rng(0), 2, 1)
    prediction = truth | {"masks": torch.zeros_like(truth["masks"]), "scores": torch.ones(2)}
    metrics = TASK.metrics(spec, [TASK.record(spec, prediction, make_target(0, **truth), "x")])
    assert metrics["map50"] == 0 and metrics["box_map50"] == pytest.approx(1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_run_lengths_are_those_of_pycocotools_and_give_the_mask_back(seed, h, w, share, small):
    rng = np.random.default_rng(seed)
    mask = rng.random((h, w)) < share
    if small:  # an object with columns beside it in which nothing is
        first, last = sorted(rng.integers(0, w + 1, 2))
        mask[:, :first], mask[:, last:] = False, False
    encoded = json.loads(json.dumps(coco.encode_mask(mask)))
    assert encoded["counts"] == pycocotools.mask.encode(np.asfortranarray(mask, dtype=np.uint8))["counts"].decode()
    assert (decoded(encoded) == mask).all() and coco.mask_area(encoded) == mask.sum()


def test_a_dense_chip_evaluates(make_spec, make_target):
    """1,200 instances in one chip: masks stay run lengths."""
    spec = make_spec("instances", ("a",))
    n, size = 1200, (128, 128)
    x, y = np.arange(n) % 40 * 3, np.arange(n) // 40 * 3
    boxes = torch.from_numpy(np.stack([x, y, x + 2, y + 2], 1)).float()
    masks = torch.zeros(n, *size, dtype=torch.bool)
    for i in range(n):
        masks[i, y[i] : y[i] + 2, x[i] : x[i] + 2] = True
    truth = {"boxes": boxes, "labels": torch.ones(n, dtype=torch.int64), "masks": masks}
    record = TASK.record(spec, truth | {"scores": torch.ones(n)}, make_target(0, size, **truth), "x")
    metrics = TASK.metrics(spec, [record])
    assert metrics["support"] == [1200] and 0 < metrics["map50"] < 0.1  # 100 detections of 1,200
