import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_geo.tasks import TASKS

TASK = TASKS["panoptic"]
THINGS = (True, False, True, False)


@pytest.fixture(scope="module")
def spec(make_spec):
    return make_spec("panoptic", ("car", "grass", "roof", "water"), (1, 4, 9, 12), isthing=THINGS)


def labels(ids, segments):
    """Segments as {id: label} or {id: (label, crowd)}."""
    listed = [(i, *(s if isinstance(s, tuple) else (s, False))) for i, s in segments.items()]
    return {
        "segment_ids": torch.as_tensor(np.asarray(ids)).long(),
        "segments": [{"id": i, "label": k, "isthing": THINGS[k - 1], "iscrowd": crowd} for i, k, crowd in listed],
    }


def patches(rng, size, n, unlabelled=0.3, crowds=0.2):
    """Rectangles on top of each other with ids that have gaps."""
    ids, segments = np.zeros(size, int), {}
    for i in rng.choice(np.arange(1, 900), n, replace=False).tolist():
        top, left = rng.integers(0, size[0]), rng.integers(0, size[1])
        ids[top : top + rng.integers(2, 14), left : left + rng.integers(2, 14)] = i
        segments[i] = (int(rng.integers(1, 5)), bool(rng.random() < crowds))
    ids[rng.random(size) < unlabelled * rng.random()] = 0
    return ids, segments


def chip(rng, size=(24, 20)):
    ids, segments = patches(rng, size, int(rng.integers(0, 9)))
    if rng.random() < 0.2:
        found, guess = patches(rng, size, int(rng.integers(0, 6)), crowds=0)
    else:  # near the truth
        found = np.roll(ids, tuple(rng.integers(-1, 2, 2)), (0, 1))
        found[rng.random(size) < 0.1] = 0
        guess = {i: int(rng.integers(1, 5)) if rng.random() < 0.2 else label for i, (label, _) in segments.items()}
    return labels(ids, segments), labels(found, guess)


def records_of(spec, data, make_target):
    return [
        TASK.record(spec, found, make_target(3 * i, tuple(truth["segment_ids"].shape), **truth), f"{i}.tif")
        for i, (truth, found) in enumerate(data)
    ]


def reference(data, classes):
    """The paper's words, pixel sets in place of counts: one class at a time, TP, FP, FN and the sum of IoUs."""
    out = []
    for k in range(1, classes + 1):
        total, tp, fp, fn, occurs = [], 0, 0, 0, False
        for truth, found in data:

            def pixels(of):
                flat = of["segment_ids"].flatten().tolist()
                return {s["id"]: {p for p, i in enumerate(flat) if i == s["id"]} for s in of["segments"]}

            true, guess = pixels(truth), pixels(found)
            void = set(range(truth["segment_ids"].numel())) - set().union(*true.values())
            crowds = [true[s["id"]] for s in truth["segments"] if s["label"] == k and s["iscrowd"]]
            ours = [true[s["id"]] for s in truth["segments"] if s["label"] == k and not s["iscrowd"] and true[s["id"]]]
            theirs = [guess[s["id"]] for s in found["segments"] if s["label"] == k and guess[s["id"]]]
            left = list(theirs)
            for segment in ours:
                for other in list(left):
                    iou = len(segment & other) / len(segment | (other - void))
                    if iou > 0.5:
                        total.append(iou)
                        left.remove(other)
                        break
                else:
                    fn += 1
            for other in left:
                fp += len(other & void.union(*crowds)) / len(other) <= 0.5
        tp = len(total)
        occurs = tp + fp + fn > 0
        out.append(
            {
                "pq": sum(total) / (tp + fp / 2 + fn / 2) if occurs else None,
                "sq": (sum(total) / tp if tp else 0.0) if occurs else None,
                "rq": tp / (tp + fp / 2 + fn / 2) if occurs else None,
                "support": tp + fn,
            }
        )
    return out


def average(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else None


def close(value, expected):
    return value is None if expected is None else value == pytest.approx(expected, abs=1e-12)


def same_as_the_paper(spec, data, make_target):
    metrics = TASK.metrics(spec, records_of(spec, data, make_target))
    expected = reference(data, 4)
    for key in ("pq", "sq", "rq"):
        per_class = [values[key] for values in expected]
        assert all(close(a, b) for a, b in zip(metrics[f"class_{key}"], per_class, strict=True)), key
        assert close(metrics[key], average(per_class))
        assert close(metrics[f"{key}_things"], average(per_class[::2]))
        assert close(metrics[f"{key}_stuff"], average(per_class[1::2]))
    assert metrics["support"] == [values["support"] for values in expected]
    return metrics


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 4))
def test_equals_the_definition_of_the_paper(seed, n, spec, make_target):
    rng = np.random.default_rng(seed)
    same_as_the_paper(spec, [chip(rng) for _ in range(n)], make_target)


def test_truth_against_itself_is_perfect(spec, make_target):
    ids, segments = patches(np.random.default_rng(0), (40, 40), 12, crowds=0)
    metrics = same_as_the_paper(spec, [(labels(ids, segments), labels(ids, segments))], make_target)
    assert metrics["pq"] == metrics["sq"] == metrics["rq"] == metrics["pq_things"] == metrics["pq_stuff"] == 1.0


@pytest.mark.parametrize("truth, found", [({}, {}), ({7: 1}, {}), ({}, {7: 1}), ({7: (1, True)}, {}), ({7: 2}, {7: 4})])
def test_nothing_on_one_side(truth, found, spec, make_target):
    ids = np.zeros((6, 6), int)
    ids[:3] = 7
    data = [(labels(ids * bool(truth), truth), labels(ids * bool(found), found))]
    metrics = same_as_the_paper(spec, data, make_target)
    # With nothing labelled, a prediction is on unlabelled ground alone: neither right nor wrong.
    assert metrics["pq"] == (0.0 if truth in ({7: 1}, {7: 2}) else None)
    header, rows = TASK.table(spec, metrics)
    assert [row[0] for row in rows] == [*spec.classes, "all things", "all stuff", "all"]
    assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("share, wrong", [(4, 1), (5, 1), (6, 0)])
@pytest.mark.parametrize("ground", [{}, {5: (1, True)}])
def test_predictions_mostly_on_void_or_crowd_are_not_wrong(share, wrong, ground, spec, make_target):
    true, found = np.zeros((1, 30), int), np.zeros((1, 30), int)
    true[0, :20], true[0, 20:] = 3, next(iter(ground), 0)
    found[0, 20 - (10 - share) : 20 + share] = 8  # so many of ten pixels
    data = [(labels(true, {3: 4, **ground}), labels(found, {8: 1}))]
    same_as_the_paper(spec, data, make_target)
    (record,) = records_of(spec, data, make_target)
    assert record["truth"]["classes"] == [[1, [], 1, 0]] * wrong + [[4, [], 0, 1]]


def test_a_crowd_of_another_class_excuses_nothing(spec, make_target):
    true, found = np.full((4, 4), 5), np.full((4, 4), 8)
    (record,) = records_of(spec, [(labels(true, {5: (3, True)}), labels(found, {8: 1}))], make_target)
    assert record["truth"]["classes"] == [[1, [], 1, 0]]


def test_unlabelled_pixels_do_not_lower_an_iou_and_half_is_no_match(spec, make_target):
    true, found = np.zeros((1, 12), int), np.zeros((1, 12), int)
    true[0, :4], found[0, :8] = 3, 6
    (record,) = records_of(spec, [(labels(true, {3: 1}), labels(found, {6: 1}))], make_target)
    assert record["truth"]["classes"] == [[1, [1.0], 0, 0]]
    true[0, 4:8] = 2  # now an IoU of exactly 0.5
    (record,) = records_of(spec, [(labels(true, {3: 1, 2: 2}), labels(found, {6: 1}))], make_target)
    assert record["truth"]["classes"] == [[1, [], 1, 1], [2, [], 0, 1]]


def test_predictions_name_class_values_areas_and_boxes_without_padding(spec, make_target):
    found = np.zeros((10, 10), int)
    found[2:5, 1:4], found[2:5, 8:], found[0] = 40, 40, 7
    found[9, 9], found[5, 5] = 12, 99
    prediction = labels(found, {40: 3, 7: 2, 12: 1, 50: 1})  # 12 lies in the padding, 50 nowhere, 99 is not listed
    for segment, score in zip(prediction["segments"], (torch.tensor(0.5, dtype=torch.bfloat16), 0.25, 1, float("nan"))):
        segment["score"] = score
    target = make_target(5, (8, 9), **labels(np.zeros((10, 10)), {}))
    assert TASK.predictions([TASK.record(spec, prediction, target, "a.tif")]) == [
        {
            "image_id": 5,
            "file": "a.tif",
            "segments": [
                {"id": 7, "label": 4, "isthing": False, "score": 0.25, "area": 9, "bbox": [0, 0, 9, 1]},
                {"id": 40, "label": 9, "isthing": True, "score": 0.5, "area": 12, "bbox": [1, 2, 8, 3]},
            ],
        }
    ]


def test_padding_counts_nowhere(spec, make_target):
    truth, found = chip(np.random.default_rng(8))

    def wider(of):
        return of | {"segment_ids": torch.nn.functional.pad(of["segment_ids"], (0, 9, 0, 4), value=3)}

    plain = TASK.record(spec, found, make_target(0, (24, 20), **truth), "x")
    assert plain["truth"]["classes"]
    more = truth | {"segment_ids": torch.nn.functional.pad(truth["segment_ids"], (0, 9, 0, 4))}
    assert TASK.record(spec, wider(found), make_target(0, (24, 20), **more), "x") == plain


def test_no_chips_and_ignored_chips(spec, make_target):
    assert TASK.metrics(spec, [])["pq"] is None and TASK.metrics(spec, [])["class_pq"] == [None] * 4
    rng = np.random.default_rng(3)
    records = records_of(spec, [chip(rng) for _ in range(3)], make_target)
    truth, found = chip(rng)
    ignored = TASK.record(spec, found, make_target(4, (24, 20), ignore=True, **truth), "bad.tif")
    assert ignored == {"image_id": 4, "file": "bad.tif", "prediction": {"segments": []}, "truth": None}
    assert TASK.metrics(spec, [ignored, *records]) == TASK.metrics(spec, records)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_records_and_the_way_through_json_change_nothing(seed, shuffle, spec, make_target):
    rng = np.random.default_rng(seed)
    records = records_of(spec, [chip(rng) for _ in range(5)], make_target)
    sent = json.loads(json.dumps(records, allow_nan=False))
    assert sent == records
    random.Random(shuffle).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert TASK.predictions(sent) == TASK.predictions(records)


def test_unknown_labels_are_refused_by_name(spec, make_target):
    found = {"segment_ids": torch.ones(4, 4).long(), "segments": [{"id": 1, "label": 5, "isthing": True}]}
    with pytest.raises(ValueError, match=r"a\.tif: the prediction holds labels 5\.\.5; allowed are 1\.\.4"):
        TASK.record(spec, found, make_target(0, (4, 4), **labels(np.zeros((4, 4)), {})), "a.tif")


def test_one_kind_alone_leaves_the_other_undefined(make_spec, make_target):
    spec = make_spec("panoptic", ("car",), (1,), isthing=(True,))
    ids = np.full((4, 4), 2)
    metrics = TASK.metrics(spec, records_of(spec, [(labels(ids, {2: 1}), labels(ids, {2: 1}))], make_target))
    assert metrics["pq"] == metrics["pq_things"] == 1.0 and metrics["pq_stuff"] is None
    assert math.isclose(metrics["class_sq"][0], 1)
