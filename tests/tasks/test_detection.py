import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.detections import SCALARS, close, records_of, reference

from accel_geo.tasks import TASKS

TASK = TASKS["detection"]


def same_as_pycocotools(spec, records):
    metrics = TASK.metrics(spec, records)
    stats, precision = reference(spec, records, "bbox")
    for name, expected in zip(SCALARS, stats):
        assert close(metrics[name], expected), name
    for k in range(len(spec.classes)):
        for key, values in (
            ("ap", precision[:, :, k, 0]),
            ("ap50", precision[0, :, k, 0]),
            ("ap75", precision[5, :, k, 0]),
        ):
            assert close(metrics[key][k], values[values > -1].mean() if (values > -1).any() else -1)
    return metrics


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", ["a", "abcd"])
@pytest.mark.parametrize("size", [(64, 64), (150, 120)])
def test_equals_pycocotools(seed, classes, size, make_spec, make_target, objects):
    spec = make_spec("detection", tuple(classes))
    records = records_of(TASK, spec, objects, make_target, seed, 12, size=size)
    metrics = same_as_pycocotools(spec, records)
    assert 0 < metrics["map50"] < 1 and metrics["map_small"] is not None
    assert metrics["support"] == [
        sum(thing["label"] == value for record in records for thing in record["truth"]["objects"])
        for value in spec.class_values
    ]


@pytest.mark.parametrize("truths, found", [(0, 0), (3, 0), (0, 3)])
def test_nothing_on_one_side(truths, found, make_spec, make_target, objects, capsys):
    spec, rng = make_spec("detection"), np.random.default_rng(1)
    target, prediction = make_target(0, **objects(rng, truths, 3)), objects(rng, found, 3)
    metrics = same_as_pycocotools(spec, [TASK.record(spec, prediction, target, "0.tif")])
    assert metrics["map50"] == (0.0 if truths else None) and sum(metrics["support"]) == truths
    header, rows = TASK.table(spec, metrics)
    small = ["all below 32² px"] if truths else []
    assert [row[0] for row in rows] == [*spec.classes, *small, "all"] and {len(row) for row in rows} == {len(header)}
    assert capsys.readouterr().out == ""


def test_without_a_chip_that_counts_all_is_undefined(make_spec, make_target, objects):
    spec, rng = make_spec("detection"), np.random.default_rng(2)
    target = make_target(3, ignore=True, **objects(rng, 0, 3))
    ignored = TASK.record(spec, objects(rng, 4, 3), target, "bad.tif")
    assert ignored == {"image_id": 3, "file": "bad.tif", "prediction": {"detections": []}, "truth": None}
    for records in ([], [ignored]):
        metrics = TASK.metrics(spec, records)
        assert metrics["map50"] is None and metrics["ap"] == [None] * 3 and metrics["support"] == [0] * 3
        assert TASK.charts(spec, records) == []
    records = records_of(TASK, spec, objects, make_target, 5, 6)
    assert TASK.metrics(spec, [ignored, *records]) == TASK.metrics(spec, records)


def test_truth_against_itself_is_perfect_with_fractions_of_pixels(make_spec, make_target):
    spec = make_spec("detection", ("a",))
    truth = {"boxes": torch.tensor([[0.25, 1.5, 7.75, 9.0], [30, 30, 30.5, 30.5]]), "labels": torch.ones(2).long()}
    record = TASK.record(spec, truth | {"scores": torch.tensor([0.4, 0.3])}, make_target(0, **truth), "x")
    assert record["truth"]["objects"][0] == {"label": 1, "bbox": [0.25, 1.5, 7.5, 7.5], "area": 56.25}
    assert list(record["prediction"]["detections"][0]) == ["label", "score", "bbox"]
    metrics = TASK.metrics(spec, [record])
    assert metrics["map"] == pytest.approx(1) and metrics["map_small"] == pytest.approx(1)
    assert metrics["map_large"] is None


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_records_and_the_way_through_json_change_nothing(seed, shuffle, make_spec, make_target, objects):
    spec = make_spec("detection")
    records = records_of(TASK, spec, objects, make_target, seed, 5, most=4)
    sent = json.loads(json.dumps(records, allow_nan=False))
    assert sent == records
    random.Random(shuffle).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert TASK.predictions(sent) == TASK.predictions(records)
    assert [entry["image_id"] for entry in TASK.predictions(sent)] == [0, 7, 14, 21, 28]


def test_padding_is_cut_and_values_that_are_not_finite_are_no_detections(make_spec, make_target):
    spec, nan = make_spec("detection"), float("nan")
    prediction = {
        "boxes": torch.tensor([[30.0, 10, 60, 30], [45, 45, 60, 60], [nan, 0, 5, 5], [1, 1, 9, 9]]),
        "labels": torch.tensor([2, 1, 1, 1]),
        "scores": torch.tensor([0.9, 0.8, 0.7, nan]),
    }
    truth = {"boxes": torch.tensor([[30.0, 10, 40, 30]]), "labels": torch.tensor([2])}
    record = TASK.record(spec, prediction, make_target(0, (48, 40), **truth), "x")
    assert [(d["bbox"], d["label"]) for d in record["prediction"]["detections"]] == [([30, 10, 10, 20], 4)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype, make_spec, make_target, objects):
    spec, truth = make_spec("detection"), objects(np.random.default_rng(0), 4, 3)
    prediction = {"boxes": truth["boxes"].round().to(dtype), "scores": torch.full((4,), 0.75, dtype=dtype)}
    record = TASK.record(spec, prediction | {"labels": truth["labels"]}, make_target(0, **truth), "x")
    assert [d["score"] for d in record["prediction"]["detections"]] == [0.75] * 4
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("label", [0, 4])
def test_unknown_labels_are_refused_by_name(label, make_spec, make_target):
    spec = make_spec("detection")
    one = {"boxes": torch.tensor([[1.0, 1, 5, 5]]), "labels": torch.tensor([1])}
    prediction = one | {"labels": torch.tensor([label]), "scores": torch.ones(1)}
    with pytest.raises(
        ValueError, match=rf"a\.tif: the prediction holds labels {label}\.\.{label}; allowed are 1\.\.3"
    ):
        TASK.record(spec, prediction, make_target(0, **one), "a.tif")
