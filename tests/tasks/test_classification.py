import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    fbeta_score,
    multilabel_confusion_matrix,
    precision_score,
    recall_score,
)

from accel_geo.tasks import TASKS

TASK = TASKS["classification"]
NAN = {"average": None, "zero_division": np.nan}


def records_of(spec, scores, truth, make_target):
    key = "labels" if spec.multilabel else "label"
    return [
        TASK.record(spec, {"scores": torch.tensor(s)}, make_target(5 * i, **{key: t}), f"{i}.tif")
        for i, (s, t) in enumerate(zip(scores, truth))
    ]


def same(values, expected):
    assert len(values) == len(expected)
    for value, other in zip(values, expected):
        assert value is None if np.isnan(other) else value == pytest.approx(other, abs=1e-9)


@pytest.mark.filterwarnings("ignore:A single label was found")
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), classes=st.integers(1, 5))
def test_single_label_equals_scikit_learn(seed, n, classes, make_spec, make_target):
    rng = np.random.default_rng(seed)
    spec = make_spec("classification", tuple("abcde"[:classes]))
    scores, truth = rng.random((n, classes)), rng.integers(0, classes, n).tolist()
    records = records_of(spec, scores, truth, make_target)
    metrics = TASK.metrics(spec, records)
    predicted, labels = scores.argmax(1), list(range(classes))
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
    assert metrics["confusion"] == confusion_matrix(truth, predicted, labels=labels).tolist()
    for key, function in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        same(metrics[key], function(truth, predicted, labels=labels, **NAN))
    assert metrics["f1_macro"] == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-9)
    assert metrics["f1_micro"] == pytest.approx(f1_score(truth, predicted, average="micro"), abs=1e-9)
    for key, function in (("precision_mean", precision_score), ("recall_mean", recall_score)):
        same([metrics[key]], [function(truth, predicted, labels=labels, average="macro", zero_division=np.nan)])
    assert metrics["support"] == np.bincount(truth, minlength=classes).tolist()
    assert [entry["label"] for entry in TASK.predictions(records)] == [spec.class_values[i] for i in predicted]
    assert TASK.monitor_for(spec) == "accuracy"


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 20),
    classes=st.integers(2, 5),
    kind=st.sampled_from(["none", "all", "some"]),
)
def test_multi_label_equals_scikit_learn(seed, n, classes, kind, make_spec, make_target):
    rng = np.random.default_rng(seed)
    spec = make_spec("classification", tuple("abcde"[:classes]), multilabel=True)
    scores, truth = rng.random((n, classes)), rng.random((n, classes)) < 0.4
    scores, truth = {"none": (scores / 2, truth), "all": (scores, truth | True), "some": (scores, truth)}[kind]
    records = records_of(spec, scores, torch.from_numpy(truth).float(), make_target)
    metrics, predicted = TASK.metrics(spec, records), scores >= 0.5
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
    for key, function in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        same(metrics[key], function(truth, predicted, **NAN))
    same([metrics["f1_micro"]], [f1_score(truth, predicted, average="micro", zero_division=np.nan)])
    same([metrics["fbeta"]], [fbeta_score(truth, predicted, beta=2, average="micro", zero_division=np.nan)])
    same([metrics["f1_macro"]], [f1_score(truth, predicted, average="macro", zero_division=np.nan)])
    assert metrics["support"] == truth.sum(0).tolist()
    assert (TASK.confusion(spec, records) == multilabel_confusion_matrix(truth, predicted)).all()
    assert TASK.monitor_for(spec) in metrics


@pytest.mark.parametrize("multilabel", [False, True])
def test_order_json_and_ignored_chips_change_nothing(multilabel, make_spec, make_target):
    rng = np.random.default_rng(2)
    spec = make_spec("classification", multilabel=multilabel)
    truth = torch.from_numpy(rng.integers(0, 2, (9, 3))).float() if multilabel else rng.integers(0, 3, 9).tolist()
    records = records_of(spec, rng.random((9, 3)), truth, make_target)
    key, empty = ("labels", []) if multilabel else ("label", None)
    target = make_target(7, ignore=True, **{key: torch.zeros(3) if multilabel else -1})
    ignored = TASK.record(spec, {"scores": torch.rand(3)}, target, "bad.tif")
    assert ignored == {"image_id": 7, "file": "bad.tif", "truth": None, "prediction": {key: empty, "scores": []}}
    sent = json.loads(json.dumps([*records, ignored], allow_nan=False))
    assert sent == [*records, ignored]
    random.Random(0).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert [entry["image_id"] for entry in TASK.predictions(sent)] == [0, 5, 7, 10, 15, 20, 25, 30, 35, 40]


@pytest.mark.parametrize("multilabel", [False, True])
def test_confusion_is_drawn(multilabel, make_spec, make_target):
    spec = make_spec("classification", multilabel=multilabel)
    truth = torch.eye(3)[[0, 1, 1, 2]] if multilabel else [0, 1, 1, 2]
    records = records_of(spec, np.eye(3)[[0, 1, 2, 2]], truth, make_target)
    counts = TASK.confusion(spec, records)
    figure = TASK.confusion_figure(spec, counts)
    assert [axes.get_title() for axes in figure.axes][-1] == (
        "tree" if multilabel else "share of the truth, in per cent"
    )
    assert len(figure.axes) == (3 if multilabel else 1)
    (road,) = counts[1:2]
    assert road.tolist() == ([[2, 0], [1, 1]] if multilabel else [0, 1, 1])
    ((caption, png),) = TASK.charts(spec, records)
    assert caption == "Confusion of chips" and png.startswith(b"\x89PNG")


@pytest.mark.parametrize("multilabel", [False, True])
def test_no_chips_are_undefined(multilabel, make_spec):
    spec = make_spec("classification", multilabel=multilabel)
    metrics = TASK.metrics(spec, [])
    assert metrics["accuracy"] is None and metrics["f1_micro"] is None and metrics["f1"] == [None] * 3
    header, rows = TASK.table(spec, metrics)
    assert [row[0] for row in rows] == ["house", "road", "tree", "all"] and {len(r) for r in rows} == {len(header)}


def test_ties_go_to_the_first_class_and_scores_that_are_not_finite_lose(make_spec, make_target):
    spec = make_spec("classification")
    nan, inf = float("nan"), float("inf")
    scores = [[0.5, 0.5, 0.0], [nan, 0.1, 0.2], [0.2, inf, 0.1], [nan, nan, nan]]
    entries = TASK.predictions(records_of(spec, scores, [0, 1, 2, 0], make_target))
    assert [entry["label"] for entry in entries] == [1, 9, 1, 1]
    assert entries[1]["scores"][0] is None
    json.dumps(entries, allow_nan=False)


def test_scores_are_kept_to_the_bit(make_spec, make_target):
    spec = make_spec("classification")
    scores = np.random.default_rng(0).random((1, 3))
    assert TASK.predictions(records_of(spec, scores, [0], make_target))[0]["scores"] == scores[0].tolist()


def test_half_precision_scores(make_spec, make_target):
    spec = make_spec("classification")
    for dtype in (torch.bfloat16, torch.float16):
        scores = {"scores": torch.tensor([0.25, 0.5, 0.25], dtype=dtype)}
        record = TASK.record(spec, scores, make_target(0, label=1), "x")
        assert record["prediction"] == {"label": 4, "scores": [0.25, 0.5, 0.25]}


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_hardest_chips_have_the_highest_loss(multilabel, make_spec, make_target):
    rng = np.random.default_rng(4)
    spec, n = make_spec("classification", multilabel=multilabel), 12
    scores = rng.dirichlet(np.ones(3), n)
    truth = torch.from_numpy(rng.integers(0, 2, (n, 3))).float() if multilabel else rng.integers(0, 3, n).tolist()
    records = records_of(spec, scores, truth, make_target)
    there = np.array(truth) > 0.5 if multilabel else np.eye(3, dtype=bool)[truth]
    losses = -np.log(np.where(there, scores, 1 - scores if multilabel else 1)).sum(1)
    ignored = TASK.record(spec, {"scores": torch.rand(3)}, make_target(99, ignore=True), "bad.tif")
    assert TASK.hardest(spec, [ignored, *records[::-1]], 4) == [5 * i for i in np.argsort(-losses)[:4].tolist()]
    broken = records_of(spec, np.array([[np.nan] * 3]), truth[:1], make_target)
    assert TASK.hardest(spec, [*records[1:], *broken], 1) == [0] or multilabel and not there[0].any()
    assert len(TASK.hardest(spec, records, 100)) == n and TASK.hardest(spec, [], 3) == []


@pytest.mark.parametrize("truth", [[0, 0, 0], [1, 1, 1], [1, 0, 1]])
@pytest.mark.parametrize("predicted", [[0, 0, 0], [1, 1, 1], [1, 1, 0]])
def test_one_class_that_may_be_absent_is_a_yes_or_no(truth, predicted, make_spec, make_target):
    """scikit-learn reads a single column as a class of its own, hence its binary figures."""
    spec = make_spec("classification", ("house",), multilabel=True)
    records = records_of(spec, np.array(predicted)[:, None], torch.tensor(truth)[:, None].float(), make_target)
    metrics, options = TASK.metrics(spec, records), {"zero_division": np.nan}
    for key, function in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        same(metrics[key], [function(truth, predicted, **options)])
    same([metrics["f1_micro"]], [f1_score(truth, predicted, **options)])
    same([metrics["fbeta"]], [fbeta_score(truth, predicted, beta=2, **options)])
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
