import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, jaccard_score, precision_score, recall_score

from accel_geo.tasks import TASKS

TASK = TASKS["semantic"]
NAN = {"average": None, "zero_division": np.nan}


def chips(seed, n, classes, size=(12, 10), ignored=0.2, absent=()):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        truth = rng.integers(0, classes + 1, size)
        predicted = np.where(rng.random(size) < 0.6, truth, rng.integers(0, classes + 1, size))
        for label in absent:
            truth[truth == label] = 0
            predicted[predicted == label] = 0
        truth = np.where(rng.random(size) < ignored, 255, truth)
        out.append((torch.from_numpy(truth), torch.from_numpy(predicted)))
    return out


def records_of(spec, data, make_target):
    return [
        TASK.record(spec, {"mask": predicted}, make_target(3 * i, tuple(truth.shape), mask=truth), f"{i}.tif")
        for i, (truth, predicted) in enumerate(data)
    ]


def flat(data):
    truth, predicted = (torch.cat([pair[i].flatten() for pair in data]).numpy() for i in (0, 1))
    return truth[truth != 255], predicted[truth != 255]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 5), classes=st.integers(1, 5), data=st.data())
def test_equals_scikit_learn(seed, n, classes, data, make_spec, make_target):
    absent = data.draw(st.sets(st.integers(1, classes)))
    spec = make_spec("semantic", tuple("abcde"[:classes]))
    sample = chips(seed, n, classes, absent=absent)
    records = records_of(spec, sample, make_target)
    metrics = TASK.metrics(spec, records)
    truth, predicted = flat(sample)
    labels = list(range(classes + 1))
    iou = jaccard_score(truth, predicted, labels=labels, average=None, zero_division=0)
    iou = [np.nan if not ((truth == k) | (predicted == k)).any() else value for k, value in enumerate(iou)]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
    assert metrics["miou"] == pytest.approx(np.nanmean(iou), abs=1e-12)
    assert metrics["iou_background"] == pytest.approx(iou[0], abs=1e-12)
    for key, function in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        for value, expected in zip(metrics[key], function(truth, predicted, labels=labels[1:], **NAN)):
            assert value is None if np.isnan(expected) else value == pytest.approx(expected, abs=1e-9)
    for value, expected in zip(metrics["iou"], iou[1:]):
        assert value is None if np.isnan(expected) else value == pytest.approx(expected, abs=1e-9)
    for label, value in enumerate(metrics["dice"], 1):  # scikit-learn has none: as Dice defined it
        hits, either = (
            ((truth == label) & (predicted == label)).sum(),
            (truth == label).sum() + (predicted == label).sum(),
        )
        assert value is None if not either else value == pytest.approx(2 * hits / either, abs=1e-9)
    assert (TASK.confusion(spec, records) == confusion_matrix(truth, predicted, labels=labels)).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_records_and_the_way_through_json_change_nothing(seed, shuffle, make_spec, make_target):
    spec = make_spec("semantic")
    records = records_of(spec, chips(seed, 6, 3), make_target)
    sent = json.loads(json.dumps(records, allow_nan=False))
    assert sent == records
    random.Random(shuffle).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert TASK.predictions(sent) == TASK.predictions(records)


def test_pixels_are_counted_by_value_without_padding(make_spec, make_target):
    spec = make_spec("semantic")
    predicted = torch.full((8, 8), 3)
    predicted[:4, :5], predicted[0, 0] = 2, 0
    truth = torch.full((8, 8), 255)
    record = TASK.record(spec, {"mask": predicted}, make_target(5, (4, 6), mask=truth), "a.tif")
    assert TASK.predictions([record]) == [{"image_id": 5, "file": "a.tif", "pixels": {"0": 1, "4": 19, "9": 4}}]
    assert record["truth"] == {"confusion": []}


def test_nothing_labelled_and_no_chips_are_undefined(make_spec, make_target):
    spec = make_spec("semantic")
    blank = [(torch.full((4, 4), 255), torch.zeros(4, 4, dtype=torch.int64))]
    for records in ([], records_of(spec, blank, make_target)):
        metrics = TASK.metrics(spec, records)
        assert metrics["miou"] is None and metrics["accuracy"] is None and metrics["iou"] == [None] * 3
        assert TASK.table(spec, metrics)[1][-1][1] == "-"


def test_ignored_chip_counts_nowhere(make_spec, make_target):
    spec = make_spec("semantic")
    records = records_of(spec, chips(1, 3, 3), make_target)
    target = make_target(4, ignore=True, mask=torch.full((64, 64), 255))
    ignored = TASK.record(spec, {"mask": torch.ones(64, 64, dtype=torch.int64)}, target, "bad.tif")
    assert ignored["truth"] is None and ignored["prediction"] == {"pixels": {}}
    assert TASK.metrics(spec, [ignored, *records]) == TASK.metrics(spec, records)


def test_ignored_background_counts_nowhere(make_spec, make_target):
    spec = make_spec("semantic", ("a", "b"), ignore_background=True)
    truth = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 255]])
    predicted = torch.tensor([[1, 2, 1, 2], [2, 2, 2, 1]])
    metrics = TASK.metrics(spec, records_of(spec, [(truth, predicted)], make_target))
    assert metrics["accuracy"] == 4 / 5 and metrics["iou"] == [1 / 2, 3 / 4]
    assert metrics["miou"] == metrics["miou_no_background"] == 5 / 8 and metrics["iou_background"] is None


def test_unknown_labels_are_refused_by_name(make_spec, make_target):
    spec = make_spec("semantic")
    truth, predicted = torch.full((2, 2), 4), torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"odd\.tif: the truth holds labels 4\.\.4; allowed are 0\.\.3 and 255"):
        TASK.record(spec, {"mask": predicted}, make_target(0, (2, 2), mask=truth), "odd.tif")
