"""Keyed transforms: the same key gives the same sample; boxes, masks and pixels stay together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_geo.data import transforms
from accel_geo.data.spec import DataSpec

RGB = ("red", "green", "blue")


def spec(bands=RGB, dtype="uint8", **more):
    n = len(bands)
    numbers = {"low": (0.0,) * n, "high": (255.0,) * n, "mean": (0.4,) * n, "std": (0.2,) * n}
    return DataSpec("instances", ("a",), (1,), bands, dtype, **numbers, chip_size=(32, 32), **more)


def sample(height=24, width=24, n=4, bands=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    masks = torch.zeros((n, height, width), dtype=torch.bool)
    for mask in masks:
        y, x = int(torch.randint(height, (1,), generator=g)), int(torch.randint(width, (1,), generator=g))
        mask[y : y + 9, x : x + 5] = True
    return {
        "image": torch.rand((bands, height, width), generator=g),
        "mask": (masks * torch.arange(1, n + 1)[:, None, None]).amax(0) if n else torch.zeros((height, width)).long(),
        "masks": masks,
        "boxes": transforms.tight_boxes(masks),
        "labels": torch.arange(1, n + 1),
    }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("of", [spec(), spec(dtype="uint16"), spec(bands=tuple("abcde")), spec(map_space=False)])
def test_a_key_decides_everything(of):
    transform = transforms.training_transform(of, (16, 16))
    plain = sample(bands=len(of.bands))
    torch.manual_seed(1)
    first = transform(plain, 12345)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert same(first, transform(plain, 12345)) and torch.equal(state, torch.get_rng_state())
    others = [transform(plain, key) for key in range(1, 30)]
    assert sum(same(first, other) for other in others) == 0
    assert same(plain, sample(bands=len(of.bands))), "a transform changes no input"
    assert all(other["image"].shape[-2:] == (16, 16) for other in others)


def test_no_key_draws_nothing():
    plain = sample()
    assert same(transforms.training_transform(spec(), None)(plain, 0), plain)
    middle = transforms.training_transform(spec(), (10, 12))(plain, 0)
    assert torch.equal(middle["image"], plain["image"][:, 7:17, 6:18])
    assert same(transforms.evaluation_transform(spec())(plain, 9), plain)


@settings(max_examples=60, deadline=None)
@given(st.integers(9, 40), st.integers(9, 40), st.integers(1, 2**62), st.integers(0, 6), st.booleans())
def test_boxes_are_tight_and_no_value_appears(height, width, key, n, crop):
    plain = sample(height, width, n, seed=key % 97)
    moved = transforms.training_transform(spec(), (8, 11) if crop else None)(plain, key)
    assert torch.equal(moved["boxes"], transforms.tight_boxes(moved["masks"])) and moved["boxes"].shape[1:] == (4,)
    assert moved["masks"].flatten(1).any(1).all() and len(moved["masks"]) == len(moved["labels"]) == len(moved["boxes"])
    assert (moved["boxes"][:, 2:] > moved["boxes"][:, :2]).all()
    assert set(moved["mask"].unique().tolist()) <= set(plain["mask"].unique().tolist())
    expected = (min(height, 8), min(width, 11)) if crop else (height, width)
    assert all(moved[k].shape[-2:] == expected for k in ("image", "mask", "masks"))
    for label, mask in zip(moved["labels"], moved["masks"]):  # a mask still lies on its own label's pixels
        assert (moved["mask"][mask] >= label).all()


@pytest.mark.parametrize("which", range(8))
def test_turns_can_be_undone_and_keep_pixels_together(which):
    plain = sample()
    plain["image"][0] = plain["mask"]
    turned = transforms.dihedral(plain, which)
    assert torch.equal(turned["image"][0].long(), turned["mask"])
    inverse = {5: 6, 6: 5}.get(which, which)
    assert same(transforms.dihedral(turned, inverse), plain)
    oblong = transforms.dihedral(sample(10, 20), which)
    assert oblong["image"].shape == (3, 10, 20)


def test_the_eight_turns_differ_and_other_imagery_is_only_mirrored():
    image = torch.arange(9.0).reshape(1, 3, 3)
    turned = {tuple(transforms.dihedral({"image": image}, i)["image"].flatten().tolist()) for i in range(8)}
    assert len(turned) == 8
    flat = transforms.training_transform(spec(map_space=False), None, colour=False)
    seen = {tuple(flat({"image": image}, key)["image"].flatten().tolist()) for key in range(1, 40)}
    assert seen == {tuple(image.flatten().tolist()), tuple(image.flip(-1).flatten().tolist())}


def test_colours_change_within_bounds_and_leave_no_data_at_zero():
    plain = {"image": torch.rand(3, 8, 8), "missing": torch.zeros(3, 8, 8, dtype=torch.bool)}
    plain["missing"][:, :2] = True
    plain["image"][plain["missing"]] = 0
    for of in (spec(), spec(bands=("a", "b", "nir"), dtype="int16")):
        for key in range(1, 20):
            moved = transforms.training_transform(of, None)(plain, key)
            assert not moved["image"][moved["missing"]].any() and moved["missing"].sum() == 48
            if of.dtype == "uint8":
                assert moved["image"].min() >= 0 and moved["image"].max() <= 1


def test_a_users_function_is_keyed_too():
    def noisy(sample, key):
        return sample | {"image": sample["image"] + torch.rand(1)}

    both = transforms.then(transforms.crop_transform((8, 8)), noisy)
    assert same(both(sample(), 5), both(sample(), 5)) and not same(both(sample(), 5), both(sample(), 6))
    assert both(sample(), 0)["image"].shape == (3, 8, 8)
