import json
import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from accel_geo.nn.thinning import thinned
from accel_geo.tasks import TASKS
from accel_geo.tasks.edge_matching import match
from accel_geo.tasks.edges import THRESHOLDS

TASK = TASKS["edges"]
TOLERANCE = 3


@pytest.fixture(scope="module")
def spec(make_spec):
    return make_spec("edges", ("edge",), (1,))


def chips(seed, n, size=(24, 30), ignored=0.1, empty=0.2):
    """Lines, and probabilities that are high near some of them and noise elsewhere."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        truth = np.zeros(size, np.uint8)
        if rng.random() > empty:
            for row in rng.integers(0, size[0], 2):
                truth[row, rng.integers(0, 10) :] = 1
        shift = np.roll(truth, rng.integers(-5, 6), 0)
        probability = np.clip(shift * rng.uniform(0.3, 1.1) + rng.normal(0, 0.15, size), 0, 1)
        truth[rng.random(size) < ignored] = 255
        out.append((torch.from_numpy(truth), torch.from_numpy(probability).float()))
    return out


def records_of(spec, data, make_target):
    return [
        TASK.record(spec, {"edges": p}, make_target(3 * i, tuple(truth.shape), edges=truth), f"{i}.tif")
        for i, (truth, p) in enumerate(data)
    ]


def assigned(predicted, true, tolerance):
    """How many pixels an optimal assignment matches."""
    far = np.hypot(*(np.nonzero(predicted)[i][:, None] - np.nonzero(true)[i] for i in (0, 1))) > tolerance
    return int((~far[linear_sum_assignment(far.astype(float))]).sum())


def bsds_f(r, p):
    return 2 * p * r / (p + r + (p + r == 0))


def bsds_counts(truth, probability, tolerance):
    """(matched, edges, predicted) of each threshold, of thinned maps."""
    thin, valid = thinned(probability), truth != 255
    true = thinned(truth == 1) > 0
    maps = [(thin >= t) & valid for t in THRESHOLDS]
    return np.array([(assigned(m, true, tolerance), true.sum(), m.sum()) for m in maps])


def bsds(chips, tolerance):
    """ODS with its recall, precision and threshold, OIS and AP: the benchmark's collect_eval_bdry, written out."""
    per_chip = [bsds_counts(t.numpy(), p.numpy(), tolerance) for t, p in chips]
    matched, edges, predicted = np.sum(per_chip, 0).T
    r, p = matched / (edges + (edges == 0)), matched / (predicted + (predicted == 0))
    best = (bsds_f(r[0], p[0]), r[0], p[0], THRESHOLDS[0])
    for i in range(1, len(THRESHOLDS)):
        for d in np.linspace(0, 1, 100):
            here = [values[i] * d + values[i - 1] * (1 - d) for values in (r, p, THRESHOLDS)]
            if (f := bsds_f(*here[:2])) > best[0]:
                best = (f, *here)
    own = np.zeros(3)
    for m, e, n in (counts.T for counts in per_chip):
        f = bsds_f(m / (e + (e == 0)), m / (n + (n == 0)))
        own += np.array([m, e, n])[:, np.flatnonzero(f == f.max())[-1]]
    ois = bsds_f(own[0] / own[1], own[0] / max(own[2], 1))
    area, highest = 0.0, {}
    for recall, precision in zip(r, p):  # unique() keeps the last of equal recalls, that of the highest threshold
        highest[recall] = precision
    points = sorted(highest)
    for at in np.arange(101) / 100 if len(points) > 1 else ():
        if points[0] <= at <= points[-1]:
            area += np.interp(at, points, [highest[point] for point in points]) * 0.01
    return {"ods": best[0], "ods_recall": best[1], "ods_precision": best[2], "ods_threshold": best[3], "ois": ois,
            "ap": area, "recall": r[31], "f1": bsds_f(r[31], p[31])}  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 3), tolerance=st.sampled_from([1.0, 1.5, 3.0]))
def test_equals_the_benchmark_written_out(seed, n, tolerance, make_spec, make_target):
    data = chips(seed, n)
    spec = make_spec("edges", ("edge",), (1,), edge_tolerance=tolerance)
    metrics = TASK.metrics(spec, records_of(spec, data, make_target))
    if not metrics["support"][0]:
        assert metrics["ods"] is metrics["ois"] is metrics["ap"] is metrics["f1"] is metrics["recall"] is None
        return
    expected = bsds(data, tolerance)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.integers(1, 14), st.sampled_from([0.5, 1, 1.5, 2, 3, 4.3]))
@settings(max_examples=40, deadline=None)
def test_as_many_are_matched_at_every_level_as_an_optimal_assignment_has(seed, h, w, tolerance):
    rng = np.random.default_rng(seed)
    levels = rng.integers(1, 6, (h, w)) * (rng.random((h, w)) < rng.random())
    truth = rng.random((h, w)) < rng.random()
    matched = match(levels, truth, tolerance)
    assert not matched[levels == 0].any()
    for level in range(1, 6):
        found = np.count_nonzero(matched & (levels >= level))
        assert found == assigned(levels >= level, truth, tolerance)


def test_a_perfect_prediction_and_one_beyond_the_tolerance(spec, make_target):
    truth = torch.zeros(32, 32, dtype=torch.uint8)
    truth[10] = 1
    for shift, expected in ((0, 1.0), (TOLERANCE, 1.0), (TOLERANCE + 1, 0.0)):
        metrics = TASK.metrics(spec, records_of(spec, [(truth, truth.roll(shift, 0).float())], make_target))
        for name in ("precision", "recall", "f1", "ods", "ois"):
            assert metrics[name] == expected, (name, shift)
        assert metrics["ap"] == 0  # one recall makes no curve


def test_the_tolerance_is_that_of_the_data(make_spec, make_target):
    truth = torch.zeros(32, 32, dtype=torch.uint8)
    truth[10] = 1
    for tolerance, expected in ((1.5, 0.0), (2.0, 1.0)):
        wide = make_spec("edges", ("edge",), (1,), edge_tolerance=tolerance)
        metrics = TASK.metrics(wide, records_of(wide, [(truth, truth.roll(2, 0).float())], make_target))
        assert metrics["f1"] == expected


def f1(spec, make_target, truth, probability):
    chip = torch.from_numpy(truth.astype(np.uint8)), torch.from_numpy(probability.astype(np.float32))
    return TASK.metrics(spec, records_of(spec, [chip], make_target))


def line(distance=0, width=1, shape=(48, 64)):
    mask = np.zeros(shape, dtype=bool)
    top = 20 + distance - width // 2
    mask[top : top + width] = True
    return mask


def test_dots_find_no_line(spec, make_target):
    dots = np.zeros((48, 64))
    dots[20, 3::7] = 1
    found = f1(spec, make_target, line(), dots)
    assert found["precision"] == 1 and found["recall"] == 9 / 64


def test_a_band_is_its_middle_line(spec, make_target):
    assert f1(spec, make_target, line(), line(width=7))["f1"] == 1
    assert f1(spec, make_target, line(), line(distance=4, width=7))["f1"] == 0  # though it touches the line


def test_two_lines_for_one_are_half_wrong(spec, make_target):
    two = line(-3) | line(3)
    found = f1(spec, make_target, line(), two)
    assert (found["precision"], found["recall"]) == (0.5, 1)
    found = f1(spec, make_target, two, line())
    assert (found["precision"], found["recall"]) == (1, 0.5)


@pytest.mark.parametrize("slope", [(1, 0), (0, 1), (1, 1), (2, 1), (1, -3)])
def test_the_middle_of_a_wide_truth_is_right(spec, make_target, slope):
    y, x = np.mgrid[:81, :81] - 40
    distance = np.abs(slope[0] * y + slope[1] * x) / np.hypot(*slope)
    for width in (3, 4):
        assert f1(spec, make_target, distance <= width / 2, distance <= 0.5)["f1"] > 0.95


def test_what_predicts_the_truth_is_right(spec, make_target):
    """Outlines of every pixel that they touch have more pixels than length, corners and crossings."""
    from accel_geo.data.shapes import outlines

    squares = [[[10, 12, 40, 18, 35, 50, 8, 44]], [[30, 30, 60, 33, 55, 61]], [[2, 2, 20, 2, 20, 9, 2, 9]]]
    truth = outlines(squares, (64, 64))
    found = f1(spec, make_target, truth, truth)
    assert found["f1"] == found["ods"] == 1 and found["support"][0] > 150


def test_average_precision_is_the_area_under_the_curve(spec, make_target):
    """A right half at 0.9; then the other half, and as many wrong pixels far away, at 0.3."""
    truth = torch.zeros(40, 60, dtype=torch.uint8)
    truth[5] = 1
    probability = torch.zeros(40, 60)
    probability[5, :30], probability[5, 30:], probability[30, :30] = 0.9, 0.3, 0.3
    (record,) = records_of(spec, [(truth, probability)], make_target)
    edges, (predicted, matched) = record["truth"]["edges"], (record["truth"][k] for k in ("predicted", "matched"))
    assert edges == 60 and {*zip(predicted, matched)} == {(90, 60), (30, 30), (0, 0)}
    at = np.arange(101) / 100
    expected = np.interp(at, [0, 0.5, 1], [0, 1, 60 / 90]).sum() * 0.01  # nothing at 1 - 1/64: precision 0 at recall 0
    assert TASK.metrics(spec, [record])["ap"] == pytest.approx(expected, abs=1e-12)


def test_nothing_on_one_side(spec, make_target):
    blank, line = torch.zeros(20, 20, dtype=torch.uint8), torch.zeros(20, 20, dtype=torch.uint8)
    line[3] = 1
    metrics = TASK.metrics(spec, records_of(spec, [(line, blank.float())], make_target))
    assert metrics["precision"] is None and metrics["recall"] == metrics["f1"] == metrics["ods"] == metrics["ap"] == 0
    metrics = TASK.metrics(spec, records_of(spec, [(blank, line.float())], make_target))
    assert metrics["precision"] == 0 and metrics["recall"] is metrics["f1"] is metrics["ods"] is None
    nothing = TASK.metrics(spec, [])
    assert nothing["ods"] is None and nothing["support"] == [0]
    for found in (metrics, nothing):
        header, rows = TASK.table(spec, found)
        assert {len(row) for row in rows} == {len(header)} and rows[-1][-1] == "-"


def test_a_chip_without_edges_takes_its_fewest_false_pixels_for_ois(spec, make_target):
    blank, line = torch.zeros(20, 20, dtype=torch.uint8), torch.zeros(20, 20, dtype=torch.uint8)
    line[3] = 1
    data = [(line, line.float() * 0.4), (blank, line.float() * 0.9)]
    metrics = TASK.metrics(spec, records_of(spec, data, make_target))
    assert metrics["ois"] == 1.0 and metrics["ods"] == pytest.approx(2 / 3)


def test_ignored_pixels_are_neither_truth_nor_prediction(spec, make_target):
    truth = torch.zeros(30, 30, dtype=torch.uint8)
    truth[5] = 1
    truth[:, 15:] = 255
    probability = torch.zeros(30, 30)
    probability[20, 15:], probability[5, :12] = 1.0, 1.0
    (record,) = records_of(spec, [(truth, probability)], make_target)
    assert record["truth"]["edges"] == 15
    assert record["truth"]["predicted"] == record["truth"]["matched"] == [12] * 63
    assert record["prediction"]["pixels"] == {"0": 900 - 27, "1": 27}


def test_padding_counts_nowhere(spec, make_target):
    (truth, probability), *_ = chips(4, 1, size=(20, 30), ignored=0)
    padded = torch.nn.functional.pad(probability, (0, 9, 0, 5), value=1.0)
    more = torch.nn.functional.pad(truth, (0, 9, 0, 5), value=255)
    a = TASK.record(spec, {"edges": probability}, make_target(0, (20, 30), edges=truth), "x")
    b = TASK.record(spec, {"edges": padded}, make_target(0, (20, 30), edges=more), "x")
    assert a == b


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 2)])
@pytest.mark.parametrize("value", [0, 1, 255])
def test_tiny_chips(size, value, spec, make_target):
    truth = torch.full(size, value, dtype=torch.uint8)
    (record,) = records_of(spec, [(truth, torch.ones(size))], make_target)
    counts = record["truth"]
    assert counts["matched"] == [min(counts["edges"], n) for n in counts["predicted"]]
    if value == 255:
        assert counts == {"edges": 0, "predicted": [0] * 63, "matched": [0] * 63}


def test_ignored_chip_counts_nowhere(spec, make_target):
    records = records_of(spec, chips(1, 3), make_target)
    target = make_target(4, ignore=True, edges=torch.full((8, 8), 255, dtype=torch.uint8))
    ignored = TASK.record(spec, {"edges": torch.ones(8, 8)}, target, "bad.tif")
    assert ignored == {"image_id": 4, "file": "bad.tif", "prediction": {"pixels": {}}, "truth": None}
    assert TASK.metrics(spec, [ignored, *records]) == TASK.metrics(spec, records)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_records_and_the_way_through_json_change_nothing(seed, shuffle, spec, make_target):
    records = records_of(spec, chips(seed, 5), make_target)
    sent = json.loads(json.dumps(records, allow_nan=False))
    assert sent == records
    random.Random(shuffle).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert TASK.predictions(sent) == TASK.predictions(records)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_thresholds_are_exact_in_every_type(dtype, spec, make_target):
    probability = torch.zeros(5, 65, dtype=dtype)
    probability[2] = torch.arange(65).to(dtype) / 64
    truth = torch.zeros(5, 65, dtype=torch.uint8)
    (record,) = records_of(spec, [(truth, probability)], make_target)
    assert record["truth"]["predicted"] == list(range(64, 1, -1))
    assert record["prediction"]["pixels"] == {"0": 4 * 65 + 32, "1": 33}


def test_what_is_not_finite_is_no_edge(spec, make_target):
    probability = torch.tensor([[float("nan"), float("inf"), -float("inf"), -3.0, 7.0]])
    (record,) = records_of(spec, [(torch.zeros(1, 5, dtype=torch.uint8), probability)], make_target)
    assert record["prediction"]["pixels"] == {"0": 4, "1": 1} and record["truth"]["predicted"] == [1] * 63


def test_other_values_are_refused_by_name(spec, make_target):
    truth = torch.full((4, 4), 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"odd\.tif: the truth holds the value 2; allowed are 0, 1 and 255"):
        TASK.record(spec, {"edges": torch.zeros(4, 4)}, make_target(0, (4, 4), edges=truth), "odd.tif")


@pytest.mark.parametrize("slope", [(1, 0), (0, 1), (1, 1), (1, -1), (2, 1)])
@pytest.mark.parametrize("width", [1, 4, 5])
def test_thinning_leaves_the_middle_of_a_line(slope, width):
    y, x = np.mgrid[:81, :81] - 40
    distance = np.abs(slope[0] * y + slope[1] * x) / np.hypot(*slope)
    thin = thinned((distance <= width / 2).astype(float)) > 0
    inner = thin[20:61, 20:61]
    lines = inner.sum(0 if slope[0] >= abs(slope[1]) else 1)
    assert lines.min() >= 1 and lines.max() <= 2 and (distance[20:61, 20:61][inner] <= 1).all()


def test_thinning_again_changes_little():
    """Predictions may have been thinned by the network."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:96, :96]
    circle = np.exp(-((np.hypot(y - 50, x - 44) - 30) ** 2) / 4) + 0.05 * rng.random((96, 96))
    once = thinned(circle)
    twice = thinned(once)
    assert ((once >= 0.5) & (twice == 0)).sum() < 0.05 * (once >= 0.5).sum()
    assert (twice[twice > 0] == once[twice > 0]).all()


def test_a_chip_is_quick(spec, make_target):
    rng = np.random.default_rng(0)
    truth = torch.from_numpy((rng.random((256, 256)) < 0.1).astype(np.uint8))
    target, spent = make_target(0, (256, 256), edges=truth), []
    for _ in range(3):
        start = time.process_time()
        TASK.record(spec, {"edges": torch.rand(256, 256)}, target, "x")
        spent.append(time.process_time() - start)
    assert min(spent) < 1
