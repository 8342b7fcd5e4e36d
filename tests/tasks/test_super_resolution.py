import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from accel_geo.tasks import TASKS
from accel_geo.tasks.super_resolution import bicubic, quality

TASK = TASKS["super_resolution"]


@pytest.fixture(scope="module")
def spec(make_spec):
    return make_spec("super_resolution", (), scale=2)


def ssim(truth, image, full=False):
    return structural_similarity(
        truth,
        image,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=0,
        full=full,
    )


def chip(rng, size=(20, 24), bands=3, scale=2, ignored=0.0):
    sharp = torch.from_numpy(rng.random((bands, scale * size[0], scale * size[1])))
    hidden = torch.from_numpy(rng.random(sharp.shape[1:]) < ignored)
    coarse = torch.nn.functional.avg_pool2d(sharp, scale)
    made = sharp + torch.from_numpy(rng.normal(0, 0.1, tuple(sharp.shape)))
    return {"image": coarse, "image_hr": sharp, "ignored_hr": hidden}, {"image_hr": made}


def records_of(spec, data, make_target):
    return [
        TASK.record(spec, made, make_target(3 * i, tuple(truth["image"].shape[1:]), **truth), f"{i}.tif")
        for i, (truth, made) in enumerate(data)
    ]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), h=st.integers(6, 30), w=st.integers(6, 30), bands=st.integers(1, 5))
def test_equals_scikit_image(seed, h, w, bands, spec, make_target):
    rng = np.random.default_rng(seed)
    data = [chip(rng, (h, w), bands) for _ in range(2)]
    records = records_of(spec, data, make_target)
    expected = []
    for record, (truth, made) in zip(records, data):
        sharp, enlarged = truth["image_hr"].numpy(), bicubic(truth["image"].numpy(), 2)
        for key, image in (("prediction", made["image_hr"].numpy()), ("truth", enlarged)):
            values = peak_signal_noise_ratio(sharp, image, data_range=1.0), ssim(sharp, image)
            assert record[key]["psnr"] == pytest.approx(values[0], abs=1e-9)
            assert record[key]["ssim"] == pytest.approx(values[1], abs=1e-9)
            expected.append(values)
    metrics, (ours, bicubics) = TASK.metrics(spec, records), (np.mean(expected[i::2], 0) for i in (0, 1))
    assert [metrics["psnr"], metrics["ssim"]] == pytest.approx(ours.tolist(), abs=1e-9)
    assert [metrics["psnr_bicubic"], metrics["ssim_bicubic"]] == pytest.approx(bicubics.tolist(), abs=1e-9)
    assert metrics["psnr_gain"] == pytest.approx(ours[0] - bicubics[0], abs=1e-9)


@pytest.mark.parametrize("scale", [1, 2, 3, 4])
def test_bicubic_is_the_one_of_the_field(scale):
    """Keys' kernel with a = -0.5, as Pillow has it."""
    image = np.random.default_rng(0).random((1, 9, 7)).astype(np.float32)
    size = (7 * scale, 9 * scale)
    expected = np.asarray(Image.fromarray(image[0]).resize(size, Image.Resampling.BICUBIC))
    assert np.abs(bicubic(image, scale)[0] - expected).max() < 1e-6


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.001, 0.005, 0.02]))
def test_ignored_pixels_do_not_count(seed, share, spec, make_target):
    truth, made = chip(np.random.default_rng(seed), (30, 25), ignored=share)
    hidden = truth["ignored_hr"].numpy()
    made["image_hr"][:, hidden] = float("nan")
    (record,) = records_of(spec, [(truth, made)], make_target)
    sharp, image = truth["image_hr"].numpy(), np.nan_to_num(made["image_hr"].numpy(), nan=0.5)
    error = ((sharp - image)[:, ~hidden] ** 2).mean()
    assert record["prediction"]["psnr"] == pytest.approx(-10 * np.log10(error), abs=1e-9)
    _, similarity = ssim(sharp, image, full=True)
    windows = [
        similarity[:, y, x]
        for y in range(5, 55)
        for x in range(5, 45)
        if not hidden[y - 5 : y + 6, x - 5 : x + 6].any()
    ]
    assert record["prediction"]["ssim"] == (pytest.approx(np.mean(windows), abs=1e-9) if windows else None)


def test_identical_images_have_100_db(spec, make_target):
    truth, _ = chip(np.random.default_rng(0))
    records = records_of(spec, [(truth, {"image_hr": truth["image_hr"].clone()})], make_target)
    assert records[0]["prediction"] == {"psnr": 100.0, "ssim": pytest.approx(1.0, abs=1e-12)}
    near = truth["image_hr"] + 1e-8
    assert records_of(spec, [(truth, {"image_hr": near})], make_target)[0]["prediction"]["psnr"] == 100.0
    json.dumps(records, allow_nan=False)


def test_chips_that_are_small_or_ignored_are_undefined(spec, make_target):
    rng = np.random.default_rng(0)
    small, hidden = chip(rng, (5, 40)), chip(rng, ignored=1.1)
    records = records_of(spec, [small, hidden], make_target)
    assert records[0]["prediction"]["ssim"] is None and records[0]["prediction"]["psnr"] > 0
    assert records[1]["prediction"] == records[1]["truth"] == {"psnr": None, "ssim": None}
    assert records[0]["truth"]["psnr"] is not None
    metrics = TASK.metrics(spec, records)
    assert metrics["psnr"] == records[0]["prediction"]["psnr"] and metrics["ssim"] is None
    nothing = TASK.metrics(spec, [])
    assert set(nothing.values()) == {None}
    for found in (metrics, nothing):
        header, rows = TASK.table(spec, found)
        assert rows[-1][0] == "network" and {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_what_is_not_finite_costs_much_and_stays_json(value, spec, make_target):
    truth, made = chip(np.random.default_rng(0))
    good = records_of(spec, [(truth, made)], make_target)[0]["prediction"]
    made["image_hr"][1, 7, 9] = value
    record = json.loads(json.dumps(records_of(spec, [(truth, made)], make_target)[0], allow_nan=False))
    assert record["prediction"]["psnr"] < -40 and record["prediction"]["ssim"] < good["ssim"]
    made["image_hr"][:] = value
    record = json.loads(json.dumps(records_of(spec, [(truth, made)], make_target)[0], allow_nan=False))
    assert record["prediction"]["psnr"] < -70 and abs(record["prediction"]["ssim"]) < 0.01


def test_padding_counts_nowhere(spec, make_target):
    truth, made = chip(np.random.default_rng(0))

    def wider(values, by, value):
        return torch.nn.functional.pad(values, (0, 4 * by, 0, 3 * by), value=value)

    more = {"image": wider(truth["image"], 1, 9.0), "image_hr": wider(truth["image_hr"], 2, 9.0)}
    more["ignored_hr"] = wider(truth["ignored_hr"], 2, True)
    plain = TASK.record(spec, made, make_target(0, (20, 24), **truth), "x")
    padded = TASK.record(spec, {"image_hr": wider(made["image_hr"], 2, 5.0)}, make_target(0, (20, 24), **more), "x")
    assert padded == plain


def test_without_the_coarse_image_bicubic_is_undefined(spec, make_target):
    truth, made = chip(np.random.default_rng(0))
    del truth["image"]
    record = TASK.record(spec, made, make_target(0, (20, 24), **truth), "x")
    metrics = TASK.metrics(spec, [record])
    assert metrics["psnr"] > 0 and metrics["psnr_bicubic"] is metrics["psnr_gain"] is metrics["ssim_bicubic"] is None


def test_predictions_and_ignored_chips(spec, make_target):
    rng = np.random.default_rng(0)
    records = records_of(spec, [chip(rng) for _ in range(3)], make_target)
    truth, made = chip(rng)
    ignored = TASK.record(spec, made, make_target(4, (20, 24), ignore=True, **truth), "bad.tif")
    assert TASK.metrics(spec, [ignored, *records]) == TASK.metrics(spec, records)
    entries = TASK.predictions([ignored, *records])
    assert entries[2] == {"image_id": 4, "file": "bad.tif", "psnr": None, "ssim": None}
    assert [list(entry) for entry in entries] == [["image_id", "file", "psnr", "ssim"]] * 4


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), shuffle=st.integers(0, 10**6))
def test_order_of_records_and_the_way_through_json_change_nothing(seed, shuffle, spec, make_target):
    rng = np.random.default_rng(seed)
    records = records_of(spec, [chip(rng, (10, 12), ignored=0.01) for _ in range(5)], make_target)
    sent = json.loads(json.dumps(records, allow_nan=False))
    assert sent == records
    random.Random(shuffle).shuffle(sent)
    assert TASK.metrics(spec, sent) == TASK.metrics(spec, records)
    assert TASK.predictions(sent) == TASK.predictions(records)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_predictions_of_any_type(dtype, spec, make_target):
    truth, made = chip(np.random.default_rng(0))
    rounded = made["image_hr"].to(dtype)
    (record,) = records_of(spec, [(truth, {"image_hr": rounded})], make_target)
    expected = peak_signal_noise_ratio(truth["image_hr"].numpy(), rounded.double().numpy(), data_range=1.0)
    assert record["prediction"]["psnr"] == pytest.approx(expected, abs=1e-9)


def test_a_prediction_of_another_size_is_refused_by_name(spec, make_target):
    truth, made = chip(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"a\.tif: the network made \[3, 20, 24\] .* is \[3, 40, 48\]"):
        TASK.record(spec, {"image_hr": truth["image"]}, make_target(0, (20, 24), **truth), "a.tif")


def test_the_truth_need_not_be_writable_or_contiguous():
    truth = np.random.default_rng(0).random((3, 40, 30)).transpose(0, 2, 1)
    truth.flags.writeable = False
    ((psnr, similarity),) = quality(truth, np.zeros((30, 40), bool), [truth])
    assert psnr == 100 and similarity == pytest.approx(1)
