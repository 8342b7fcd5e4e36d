import json
import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt

from accel_geo.tasks import TASKS
from accel_geo.tasks.edges import THRESHOLDS, TOLERANCE, Edges, dilated, thinned

TASK = TASKS["edges"]


@pytest.fixture(scope="module")
def spec(make_spec):
    return make_spec("edges", ("edge",), (1,))


def chips(seed, n, size=(40, 50), ignored=0.1, empty=0.2):
    """Lines, and probabilities that are high near some of them and noise elsewhere."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        truth = np.zeros(size, np.uint8)
        if rng.random() > empty:
            for row in rng.integers(0, size[0], 3):
                truth[row] = 1
        shift = np.roll(truth, rng.integers(-5, 6), 0)
        probability = np.clip(shift * rng.uniform(0.3, 1.1) + rng.normal(0, 0.15, size), 0, 1)
        truth[rng.random(size) < ignored] = 255
        out.append((torch.from_numpy(truth), torch.from_numpy(probability).float()))
    return out


def records_of(spec, data, make_target, task=TASK):
    return [
        task.record(spec, {"edges": p}, make_target(3 * i, tuple(truth.shape), edges=truth), f"{i}.tif")
        for i, (truth, p) in enumerate(data)
    ]


def plain_counts(truth, probability, threshold):
    """(found, edges, right, predicted) by distances, one threshold at a time."""
    valid = truth.numpy() != 255
    true, predicted = (truth.numpy() == 1) & valid, (probability.numpy() >= threshold) & valid

    def within(mask):
        return distance_transform_edt(~mask) <= TOLERANCE if mask.any() else np.zeros_like(mask)

    return np.array([(true & within(predicted)).sum(), true.sum(), (predicted & within(true)).sum(), predicted.sum()])


def plain_f1(counts):
    found, edges, right, predicted = counts
    p, r = right / predicted if predicted else 0.0, found / edges if edges else 0.0
    return 2 * p * r / (p + r) if p + r else 0.0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 5))
def test_equals_distances_one_threshold_at_a_time(seed, n, spec, make_target):
    data = chips(seed, n)
    metrics = TASK.metrics(spec, records_of(spec, data, make_target))
    table = np.array([[plain_counts(*chip, t) for t in THRESHOLDS] for chip in data])  # [n, 63, 4]
    total = table.sum(0)
    middle = total[list(THRESHOLDS).index(0.5)]
    assert metrics["support"] == [total[0, 1]]
    if not total[0, 1]:
        assert metrics["ods"] is metrics["ois"] is metrics["ap"] is metrics["f1"] is metrics["recall"] is None
        return
    assert metrics["recall"] == pytest.approx(middle[0] / middle[1], abs=1e-12)
    if middle[3]:
        assert metrics["precision"] == pytest.approx(middle[2] / middle[3], abs=1e-12)
    assert metrics["f1"] == pytest.approx(plain_f1(middle), abs=1e-12)
    every = [plain_f1(counts) for counts in total]
    assert metrics["ods"] == pytest.approx(max(every), abs=1e-12)
    best = list(THRESHOLDS).index(metrics["ods_threshold"])
    assert every[best] == metrics["ods"]
    assert metrics["ods_recall"] == total[best, 0] / total[best, 1]
    own = []
    for chip in table:
        values = np.array([plain_f1(counts) for counts in chip])
        own.append(chip[np.flatnonzero(values == values.max())[-1]])
    assert metrics["ois"] == pytest.approx(plain_f1(np.sum(own, 0)), abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 20), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_dilation_reaches_as_far_as_distances_say(seed, h, w, radius):
    mask = np.random.default_rng(seed).random((h, w)) < 0.05
    near = distance_transform_edt(~mask) <= radius if mask.any() else mask
    assert (dilated(mask, radius) == near).all()


def test_a_perfect_prediction_and_one_beyond_the_tolerance(spec, make_target):
    truth = torch.zeros(32, 32, dtype=torch.uint8)
    truth[10] = 1
    for shift, expected in ((0, 1.0), (TOLERANCE, 1.0), (TOLERANCE + 1, 0.0)):
        metrics = TASK.metrics(spec, records_of(spec, [(truth, truth.roll(shift, 0).float())], make_target))
        for name in ("precision", "recall", "f1", "ods", "ois", "ap"):
            assert metrics[name] == expected, (name, shift)


def test_average_precision_is_the_area_under_the_curve(spec, make_target):
    """A right half at 0.9; then the other half, with three wrong pixels for each right one, at 0.3."""
    truth = torch.zeros(40, 60, dtype=torch.uint8)
    truth[5] = 1
    probability = torch.zeros(40, 60)
    probability[5, :30], probability[5, 34:], probability[30, :30] = 0.9, 0.3, 0.3
    metrics = TASK.metrics(spec, records_of(spec, [(truth, probability)], make_target))
    recall = [33 / 60, 1.0]  # three pixels beyond the half are within the tolerance
    precision = [1.0, 56 / 86]
    at = np.linspace(0, 1, 101)
    line = np.where(at <= recall[0], 1, 1 + (at - recall[0]) / (1 - recall[0]) * (precision[1] - 1))
    assert metrics["ap"] == pytest.approx(line.mean(), abs=1e-12)
    probability[5, 34:] = 0  # recall ends early: the rest of the curve is zero
    metrics = TASK.metrics(spec, records_of(spec, [(truth, probability)], make_target))
    assert metrics["ap"] == pytest.approx(np.mean(at <= recall[0]), abs=1e-12)


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
    assert record["truth"]["predicted"] == record["truth"]["right"] == [12] * 63
    assert record["truth"]["found"] == [15] * 63
    assert record["prediction"]["pixels"] == {"0": 900 - 27, "1": 27}


def test_padding_counts_nowhere(spec, make_target):
    (truth, probability), *_ = chips(4, 1, size=(20, 30), ignored=0)
    padded = torch.nn.functional.pad(probability, (0, 9, 0, 5), value=1.0)
    more = torch.nn.functional.pad(truth, (0, 9, 0, 5), value=255)
    a = TASK.record(spec, {"edges": probability}, make_target(0, (20, 30), edges=truth), "x")
    b = TASK.record(spec, {"edges": padded}, make_target(0, (20, 30), edges=more), "x")
    assert a == b


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
    probability = torch.arange(65).to(dtype)[None] / 64
    truth = torch.zeros(1, 65, dtype=torch.uint8)
    (record,) = records_of(spec, [(truth, probability)], make_target)
    assert record["truth"]["predicted"] == list(range(64, 1, -1))
    assert record["prediction"]["pixels"] == {"0": 32, "1": 33}


def test_what_is_not_finite_is_no_edge(spec, make_target):
    probability = torch.tensor([[float("nan"), float("inf"), -float("inf"), -3.0, 7.0]])
    (record,) = records_of(spec, [(torch.zeros(1, 5, dtype=torch.uint8), probability)], make_target)
    assert record["truth"]["predicted"] == [1] * 63


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


def test_thick_predictions_lose_their_width_only_where_asked(spec, make_target):
    truth = torch.zeros(40, 40, dtype=torch.uint8)
    truth[20] = 1
    thick = torch.zeros(40, 40)
    thick[18:23] = 1
    a, b = (records_of(spec, [(truth, thick)], make_target, task)[0]["truth"] for task in (TASK, Edges(thin=True)))
    assert a["predicted"][0] == 200 and b["predicted"][0] == 40
    assert a["found"] == b["found"] == [40] * 63


def test_a_chip_is_quick(spec, make_target):
    rng = np.random.default_rng(0)
    truth, probability = torch.from_numpy(rng.integers(0, 2, (512, 512), dtype=np.uint8)), torch.rand(512, 512)
    target, spent = make_target(0, (512, 512), edges=truth), []
    for _ in range(3):
        start = time.perf_counter()
        TASK.record(spec, {"edges": probability}, target, "x")
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.1
