"""Presets and users' transforms: the same key gives the same sample; boxes, masks and pixels stay together."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import RandomHorizontalFlip as OldFlip
from torchvision.transforms import v2

from accel_geo.data import colour, geometry, transforms
from accel_geo.data.spec import DataSpec
from accel_geo.parallel import keys

RGB = ("red", "green", "blue")


def spec(bands=RGB, dtype="uint8", task="instances", **more):
    n = len(bands)
    numbers = {"low": (0.0,) * n, "high": (255.0,) * n, "mean": (0.4,) * n, "std": (0.2,) * n}
    return DataSpec(task, ("a",), (1,), bands, dtype, **numbers, chip_size=(32, 32), **more)


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
    assert same(transforms.dihedral(turned, geometry.inverse(which)), plain)
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


def test_without_a_crop_the_preset_draws_as_it_always_did():
    plain = sample()
    for key in range(1, 12):
        draw = torch.rand(5, generator=keys.generator(key, "transform")).tolist()
        turned = transforms.dihedral(plain, int(draw[2] * 8))
        expected = colour.brightness_contrast(turned, 0.8 + 0.4 * draw[3], 0.75 + 0.5 * draw[4])
        for size in (None, (24, 24), (99, 99)):  # a crop that cuts nothing does not zoom either
            assert same(transforms.training_transform(spec(), size)(plain, key), expected)


def test_bands_get_a_little_noise_of_their_own():
    of = spec(bands=tuple("abcd"), dtype="int16", map_space=False, task="semantic")
    plain = {"image": torch.rand(4, 33, 31)}
    seen = transforms.training_transform(of, None)(plain, 2)["image"]
    turned = transforms.training_transform(of, None, colour=False)(plain, 2)
    gained = colour.band_gain(turned, of, keys.generator(2, "bands"))
    noise = seen - gained["image"]
    assert torch.equal(seen, colour.band_noise(gained, of, keys.generator(2, "noise"))["image"])
    most = colour.NOISE * of.std[0]
    assert (
        noise.abs().max() <= most * 1.001
        and abs(noise.std() / most - 3**-0.5) < 0.02
        and noise.mean().abs() < most / 20
    )
    assert abs(np.corrcoef(noise.flatten(1).numpy())[0, 1]) < 0.1


def ramp(height=48, width=48):
    """A sample whose image holds the row and the column of each pixel."""
    return {"image": torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).float()}


def steps(transform, plain, n=60):
    """How far apart rows and columns lie in the middle of what a transform makes, over many keys."""
    seen = [transform(plain, key)["image"][:, 8:10, 8:10] for key in range(1, n)]
    return torch.tensor([[abs(x[0, 1, 0] - x[0, 0, 0]), abs(x[1, 0, 1] - x[1, 0, 0])] for x in seen])


def test_crops_are_shown_at_several_scales_within_the_chip():
    of = spec(bands=("a", "b"), task="semantic", map_space=False)
    free = steps(transforms.training_transform(of, (20, 20), colour=False), ramp())
    assert (free[:, 0] - free[:, 1]).abs().max() < 0.01, "the aspect is kept"
    assert 0.79 < free.min() < 0.88 and 1.15 < free.max() < 1.26, "1 / 1.25 to 1 / 0.8"
    bound = steps(transforms.training_transform(of, (20, 20), colour=False), ramp(20, 48))
    assert (bound < 1.01).all() and bound.min() < 0.9, "a chip no higher than the crop is only enlarged"
    exact = steps(transforms.training_transform(of, (48, 48), colour=False), ramp())
    assert (exact == 1).all(), "a chip that is not cropped is not zoomed"


@settings(max_examples=60, deadline=None)
@given(*[st.integers(4, 60)] * 4, st.integers(0, 2**62))
def test_the_size_is_the_smaller_of_chip_and_crop(height, width, wanted_height, wanted_width, key):
    moved = transforms.training_transform(spec(), (wanted_height, wanted_width))(sample(height, width), key)
    assert moved["image"].shape[-2:] == (min(height, wanted_height), min(width, wanted_width)) == moved["mask"].shape


def test_super_resolution_is_moved_but_neither_zoomed_nor_coloured():
    fine = torch.rand(3, 96, 96)
    plain = {"image": torch.nn.functional.avg_pool2d(fine, 4), "image_hr": fine, "ignored_hr": fine[0] > 2}
    values = set(plain["image"].flatten().tolist())
    for key in range(1, 12):
        moved = transforms.training_transform(spec(task="super_resolution"), (16, 12))(plain, key)
        assert set(moved["image"].flatten().tolist()) <= values
        assert torch.allclose(torch.nn.functional.avg_pool2d(moved["image_hr"], 4), moved["image"], atol=1e-6)
        assert moved["ignored_hr"].shape == (64, 48)


def test_presets_and_users_transforms_can_be_sent_to_a_worker():
    chain = v2.Compose([v2.RandomRotation(30), v2.ColorJitter(0.2)])
    for transform in (
        transforms.training_transform(spec(), (16, 16)),
        transforms.evaluation_transform(spec()),
        transforms.then(transforms.crop_transform((16, 16)), chain),
    ):
        assert same(pickle.loads(pickle.dumps(transform))(sample(), 7), transform(sample(), 7))


def test_a_users_function_is_keyed_too():
    def noisy(sample, key):
        return sample | {"image": sample["image"] + torch.rand(1)}

    both = transforms.then(transforms.crop_transform((8, 8)), noisy)
    assert same(both(sample(), 5), both(sample(), 5)) and not same(both(sample(), 5), both(sample(), 6))
    assert both(sample(), 0)["image"].shape == (3, 8, 8)


# A turn by 45 degrees brings in the corners from outside, with several kinds of fill.
FILLS = (0, 255, 1, {tv_tensors.Image: 0.5, tv_tensors.Mask: 2}, {tv_tensors.Image: [0.1, 0.2, 0.3], "others": 7})


@pytest.mark.parametrize("fill", FILLS)
def test_what_torchvision_turns_in_is_ignored_whatever_its_fill(fill):
    turn = transforms.then(None, v2.RandomRotation((45, 45), fill=fill))
    inside = torch.ones(24, 24, dtype=torch.bool)
    ids = torch.full((24, 24), 2**24 + 1)  # more than float32 holds exactly
    ids[:12] = 2**24 + 3
    segments = [{"id": i, "label": 1, "isthing": True} for i in (2**24 + 1, 2**24 + 3)]
    plain = {
        "image": torch.rand(3, 24, 24),
        "mask": torch.full((24, 24), 3),
        "edges": torch.ones(24, 24, dtype=torch.uint8),
        "segment_ids": ids,
        "segments": segments,
        "masks": inside[None],
        "boxes": torch.tensor([[0.0, 0, 24, 24]]),
        "labels": torch.ones(1).long(),
    }
    moved = turn(plain, 5)
    outside = moved["mask"] == 255
    assert outside[0, 0] and outside[-1, -1] and not outside[12, 12] and 50 < outside.sum() < 200
    assert (moved["mask"][~outside] == 3).all() and torch.equal(moved["edges"] == 255, outside)
    assert torch.equal(moved["segment_ids"] == 0, outside) and moved["segments"] == segments
    assert set(moved["segment_ids"].unique().tolist()) == {0, 2**24 + 1, 2**24 + 3}
    assert torch.equal(moved["masks"][0], ~outside)
    assert all(moved[k].dtype == plain[k].dtype and type(moved[k]) is torch.Tensor for k in plain if k != "segments")


CHAINS = {
    "rotation": v2.RandomRotation(90),
    "affine": v2.RandomAffine(20, (0.3, 0.3), (0.7, 1.4), 10),
    "perspective": v2.RandomPerspective(0.6, p=1),
    "elastic": v2.ElasticTransform(40.0),
    "crop": v2.RandomResizedCrop((24, 24)),
    "padding": v2.RandomCrop((24, 24), padding=9, fill=1),
    "sanitized": v2.Compose([v2.RandomCrop((12, 12)), v2.Resize((24, 24)), v2.SanitizeBoundingBoxes()]),
    "zoom out": v2.Compose([v2.RandomZoomOut(fill=1, p=1), v2.Resize((24, 24))]),
    "boxes": v2.Compose([v2.RandomIoUCrop(), v2.Resize((24, 24)), v2.ConvertBoundingBoxFormat("CXCYWH")]),
    "colour": v2.Compose([v2.RandomPhotometricDistort(p=1), v2.GaussianBlur(3), v2.ToDtype(torch.uint8, scale=True)]),
}


@pytest.mark.parametrize("name", CHAINS)
@settings(max_examples=12, deadline=None)
@given(key=st.integers(1, 2**62), n=st.integers(0, 6), seed=st.integers(0, 99))
def test_torchvisions_transforms_keep_a_sample_together(name, key, n, seed):
    plain = sample(n=n, seed=seed)
    missing = torch.rand(3, 24, 24) < 0.3
    plain |= {"missing": missing, "image": (0.5 + plain["image"] / 2).masked_fill(missing, 0)}
    transform = transforms.then(None, CHAINS[name])
    moved = transform(plain, key)
    assert same(moved, transform(plain, key))
    assert moved.keys() == plain.keys() and all(moved[k].dtype == plain[k].dtype for k in plain)
    assert moved["image"].shape == (3, 24, 24) and not moved["image"][moved["missing"]].any()
    assert moved["missing"].shape == (3, 24, 24)
    assert len(moved["masks"]) == len(moved["labels"]) and torch.equal(
        moved["boxes"], transforms.tight_boxes(moved["masks"])
    )
    assert moved["masks"].flatten(1).any(1).all()
    assert set(moved["mask"].unique().tolist()) <= {*plain["mask"].unique().tolist(), 255}
    for label, mask in zip(moved["labels"], moved["masks"]):
        assert (moved["mask"][mask] >= label).all() and (moved["mask"][mask] < 255).all()

    boxes = {k: plain[k] for k in ("image", "boxes", "labels", "missing")}
    boxes["boxes"] = boxes["boxes"] + 0.25
    found = transform(boxes, key)
    x1, y1, x2, y2 = found["boxes"].unbind(1)
    assert len(found["boxes"]) == len(found["labels"]) <= n and found["missing"].shape == (3, 24, 24)
    assert (x1 >= 0).all() and (x2 - x1 >= 1).all() and (x2 <= 24).all() and (y2 - y1 >= 1).all() and (y2 <= 24).all()


def test_marks_of_no_data_follow_their_pixels():
    missing = torch.zeros(3, 24, 24, dtype=torch.bool)
    missing[0, :, :5], missing[1, :3] = True, True
    plain = {"image": torch.ones(3, 24, 24).masked_fill(missing, 0), "missing": missing, "label": 2}
    moved = transforms.then(None, v2.Compose([v2.RandomHorizontalFlip(p=1), v2.ColorJitter(contrast=0.5)]))(plain, 3)
    assert torch.equal(moved["missing"], missing.flip(-1)) and moved["label"] == 2
    assert torch.equal(moved["image"] == 0, moved["missing"])


def test_global_generators_are_left_as_they_were():
    def states():
        return torch.get_rng_state().tolist(), [*map(str, np.random.get_state())], random.getstate()

    def draws(sample, key):
        return sample | {"image": sample["image"] + torch.rand(1) + np.random.rand() + random.random()}

    before = states()
    for transform in (
        transforms.training_transform(spec(), (16, 16)),
        transforms.training_transform(spec(bands=RGB, dtype="int16"), (16, 16)),
        transforms.then(None, draws),
        transforms.then(None, v2.RandomAffine(30)),
    ):
        assert not same(transform(sample(), 5), transform(sample(), 6))
        assert states() == before


def test_occurrences_of_a_sample_differ_and_no_key_leaves_it_out():
    transform = transforms.then(transforms.crop_transform((16, 16)), v2.RandomResizedCrop((16, 16)))
    seen = [transform(sample(), keys.fold(42, 0, 1, 7, occurrence)) for occurrence in range(6)]
    assert all(not same(a, b) for i, a in enumerate(seen) for b in seen[:i])
    assert same(transform(sample(), 0), transforms.crop_transform((16, 16))(sample(), 0))


def test_torchvision_moves_both_images_of_super_resolution_or_refuses():
    fine = torch.rand(3, 48, 48)
    ignored = torch.zeros(48, 48, dtype=torch.bool)
    ignored[:5] = True
    fine[:, ignored] = 0
    plain = {"image": torch.nn.functional.avg_pool2d(fine, 2), "image_hr": fine, "ignored_hr": ignored}
    flips = transforms.then(
        None, v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.ColorJitter((0.6, 0.9))])
    )
    turned = set()
    for key in range(1, 20):
        moved = flips(plain, key)
        assert torch.allclose(torch.nn.functional.avg_pool2d(moved["image_hr"], 2), moved["image"], atol=1e-5)
        assert not moved["image_hr"][:, moved["ignored_hr"]].any() and moved["ignored_hr"].sum() == ignored.sum()
        turned.add(tuple(moved["ignored_hr"][:, 0].tolist()))
    assert len(turned) == 2
    for other in (v2.RandomRotation((30, 30)), v2.RandomCrop((12, 12)), v2.Resize((24, 24))):
        with pytest.raises(ValueError, match="coarse and the fine image"):
            transforms.then(None, other)(plain, 3)


def test_classification_takes_transforms_that_refuse_labels_with_pixels():
    plain = {"image": torch.rand(3, 24, 24), "labels": torch.tensor([1.0, 0.0])}
    chain = v2.Compose([v2.ToDtype(torch.uint8, scale=True), v2.RandAugment()])
    moved = transforms.then(None, chain)(plain, 4)
    assert moved["image"].dtype == torch.float32 and moved["image"].max() <= 1 and not same(moved, plain)
    assert torch.equal(moved["labels"], plain["labels"])


class Wrong(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, sample):
        return self.change(sample)


@pytest.mark.parametrize(
    "transform, message",
    [
        (Wrong(lambda s: s["image"]), "Wrong returned Image; a module takes a dict"),
        (Wrong(lambda s: {"image": s["image"]}), r"returned a dict of \['image'\]"),
        (Wrong(lambda s: s | {"image": s["image"][:, :5]}), r"an image of \(5, 24\) .* but masks of \(24, 24\)"),
        (Wrong(lambda s: s | {"labels": s["labels"][:1]}), "left 4 masks but 1 labels; a v2.SanitizeBoundingBoxes"),
    ],
)
def test_a_module_that_returns_something_else_is_told(transform, message):
    with pytest.raises(ValueError, match=message):
        transforms.then(None, transform)(sample(), 1)


def test_torchvisions_old_transforms_and_huge_chips_are_refused():
    with pytest.raises(
        ValueError, match="RandomHorizontalFlip is of torchvision.transforms, .*torchvision.transforms.v2"
    ):
        transforms.then(None, OldFlip())
    huge = {"image": torch.zeros(1, 1).expand(1, 5000, 4000), "mask": torch.zeros(1, 1).expand(5000, 4000)}
    with pytest.raises(ValueError, match=r"\(5000, 4000\).*chip_size"):
        transforms.then(None, v2.RandomRotation(3))(huge, 1)


def test_as_many_boxes_as_rows_confuse_no_mask():
    boxes = torch.tensor([[x, y, x + 4.0, y + 4.0] for y in (0, 6, 20) for x in range(0, 24, 3)]).clamp(max=24)
    missing = torch.zeros(3, 24, 24, dtype=torch.bool)
    missing[:, 2] = True
    plain = {"image": torch.ones(3, 24, 24).masked_fill(missing, 0), "missing": missing}
    plain |= {"boxes": boxes, "labels": torch.arange(24)}
    chain = v2.Compose([v2.Pad((0, 8, 0, 0)), v2.CenterCrop((24, 24)), v2.SanitizeBoundingBoxes(min_size=3)])
    moved = transforms.then(None, chain)(plain, 1)
    assert 0 < len(moved["boxes"]) == len(moved["labels"]) < 24
    assert torch.equal(moved["missing"].nonzero()[:, 1].unique(), torch.tensor([6]))
