"""Mixup: which sample is blended with which, and what comes of image and labels."""

from itertools import accumulate

import numpy as np
import pytest
import torch

from accel_geo import prepare_data
from accel_geo.data.mixup import mix, partner
from accel_geo.parallel.order import Request


@pytest.fixture
def folder(tmp_path, write):
    """Six grey chips of 12 px in a folder for each of two classes, brighter from chip to chip; one of 8 x 16."""
    for i in range(6):
        size = (8, 16) if i == 5 else (12, 12)
        write(tmp_path / f"set/images/{'ab'[i % 2]}/chip_{i}.tif", np.full((3, *size), 10 + 40 * i, np.uint8))
    return tmp_path / "set"


def read(folder, **options):
    return prepare_data(folder, task="classification", val_split=0, cache="memory", transforms=False, **options)


def test_partners_follow_from_the_key_alone_and_from_how_often_a_sample_occurs():
    times = [1, 4, 2, 3]
    ends = list(accumulate(times))
    assert partner(5, 0.4, 1, ends) == partner(5, 0.4, 1, ends) != partner(6, 0.4, 1, ends)
    drawn = [partner(key, 0.4, 1, ends) for key in range(1, 4001)]
    counts = np.bincount([place for place, _, _ in drawn], minlength=4)
    assert counts[1] == 0 and counts[[0, 2, 3]] / 4000 == pytest.approx(np.array([1, 2, 3]) / 6, abs=0.03)
    assert len({key for _, key, _ in drawn}) == 4000
    # The larger of the two shares of Beta(0.4, 0.4): its mean is known from the distribution.
    rng = np.random.default_rng(0).beta(0.4, 0.4, 10**6)
    shares = [share for _, _, share in drawn]
    assert min(shares) >= 0.5 and np.mean(shares) == pytest.approx(np.maximum(rng, 1 - rng).mean(), abs=0.01)
    once = range(1, 6)
    assert {partner(key, 1.0, 0, once)[0] for key in range(1, 200)} == {1, 2, 3, 4}
    assert {partner(key, 1.0, 4, once)[0] for key in range(1, 200)} == {0, 1, 2, 3}
    assert partner(3, 1.0, 0, range(1, 2))[0] == 0


def test_images_and_labels_are_blended_alike(folder):
    mixed, plain = read(folder, mixup=0.4), read(folder)
    assert mixed.train.sizes == plain.train.sizes
    seen = set()
    for index in range(6):
        for key in range(1, 30):
            sample = mixed.train[Request(index, key, (16, 16))]
            place, _, share = partner(key, 0.4, index, range(1, 7))
            ours, theirs = (plain.train[i] for i in (index, place))
            assert sample["image"].shape[1:] == (16, 16) and sample["size"] == ours["size"]
            (h, w), (height, width) = (sample["size"] for sample in (ours, theirs))
            covered = min(h, height) * min(w, width) / (h * w)
            value = ours["image"][0, 0, 0] * share + theirs["image"][0, 0, 0] * (1 - share)
            middle = sample["image"][:, h // 2, w // 2]
            assert middle.numpy() == pytest.approx(value.item(), abs=1e-6)
            corner = ours["image"][0, 0, 0].item() if covered < 1 else value.item()
            assert sample["image"][0, 0, 0].item() == pytest.approx(corner, abs=1e-6)
            weights = torch.zeros(2)
            weights[ours["label"]] += 1 - (1 - share) * covered
            weights[theirs["label"]] += (1 - share) * covered
            assert torch.allclose(sample["label_weights"], weights, atol=1e-6)
            assert sample["label"] == ours["label"] and sample["image_id"] == ours["image_id"]
            seen.add(covered)
    assert len(seen) == 3


def test_nothing_is_mixed_without_a_key_or_in_validation(folder):
    data = prepare_data(folder, task="classification", valid_match="chip_[12].tif", cache="memory", mixup=0.4)
    assert "label_weights" not in data.train[0] and data.valid.mixup == 0
    plain = prepare_data(folder, task="classification", valid_match="chip_[12].tif", cache="memory")
    for index in range(2):
        assert data.valid[Request(index, 7)]["image"].equal(plain.valid[Request(index, 7)]["image"])
        assert data.train[index]["image"].equal(plain.train[index]["image"])


def test_unreadable_chips_are_not_mixed(make_sample):
    spec, whole, broken = make_sample(), make_sample.chip(0), make_sample.chip(1) | {"ignore": True, "label": -1}
    assert mix(whole, broken, 0.6, spec)["image"].equal(whole["image"])
    assert mix(whole, broken, 0.6, spec)["label_weights"].tolist() == [1, 0, 0]
    assert mix(broken, whole, 0.6, spec)["label_weights"].tolist() == [0, 0, 0]


def test_several_labels(make_sample):
    spec = make_sample(multilabel=True)
    ours, theirs = make_sample.chip(0), make_sample.chip(1)
    ours["labels"], theirs["labels"] = torch.tensor([1.0, 1, 0]), torch.tensor([0.0, 1, 1])
    mixed = mix(ours, theirs, 0.75, spec)
    assert mixed["labels"].tolist() == [0.75, 1, 0.25] and "label_weights" not in mixed
    assert torch.allclose(mixed["image"], 0.75 * ours["image"] + 0.25 * theirs["image"])
    assert ours["labels"].tolist() == [1, 1, 0], "what is mixed stays as it was"


@pytest.fixture
def make_sample():
    from accel_geo.data.spec import DataSpec

    class Make:
        def __call__(self, **changes):
            three = (0.5,) * 3
            known = {"task": "classification", "classes": ("a", "b", "c"), "class_values": (1, 2, 3), "dtype": "uint8"}
            known |= {"bands": ("red", "green", "blue"), "low": (0.0,) * 3, "high": (255.0,) * 3, "chip_size": (4, 4)}
            return DataSpec(**known, mean=three, std=three, **changes)

        def chip(self, label):
            return {"image": torch.full((3, 4, 4), float(label)), "label": label, "ignore": False}

    return Make()


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"oversample": True}])
def test_other_tasks_refuse(masks_folder, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*classification, not for semantic"):
        prepare_data(masks_folder(), task="semantic", cache="memory", **options)


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_impossible_shares(folder, alpha):
    with pytest.raises(ValueError, match="at least 0"):
        read(folder, mixup=alpha)
