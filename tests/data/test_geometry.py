"""Crops, zooms, turns and mirrorings: pixels, labels and objects of every task stay together."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d

from accel_geo.data import geometry

TASKS = ("classification", "semantic", "instances", "detection", "edges", "panoptic", "super_resolution")
SCALE = 3


def sample(task, height=24, width=20, seed=0, n=4):
    """A sample with pixels without data whose image is at least 0.5 elsewhere; objects do not overlap."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.zeros((height, width), dtype=torch.int64)
    for value in range(1, n + 1):
        y, x = int(torch.randint(height, (1,), generator=g)), int(torch.randint(width, (1,), generator=g))
        mask[y : y + 9, x : x + 5] = value
    image = 0.5 + 0.5 * torch.rand((2, height, width), generator=g)
    missing = torch.rand((2, height, width), generator=g) < 0.2
    found = {"image": image.masked_fill(missing, 0), "missing": missing}
    values = [v for v in range(1, n + 1) if (mask == v).any()]
    if task == "classification":
        return found | {"label": 1}
    if task == "semantic":
        return found | {"mask": torch.where(missing.all(0), 255, mask)}
    if task == "instances":
        masks = torch.stack([mask == v for v in values]) if values else torch.zeros((0, height, width)).bool()
        return found | {"masks": masks, "boxes": tight(masks), "labels": torch.tensor(values).long(), "mask": mask}
    if task == "detection":
        start = torch.rand((n, 2), generator=g) * torch.tensor([width, height]) * 0.9
        end = torch.minimum(start + 1 + 9 * torch.rand((n, 2), generator=g), torch.tensor([width, height]))
        return found | {"boxes": torch.cat([start, end], 1), "labels": torch.arange(1, n + 1)}
    if task == "edges":
        return found | {"edges": torch.where(missing.all(0), 255, mask % 2).to(torch.uint8)}
    if task == "panoptic":
        ids = torch.tensor([0, 7, 300, 70_000, 9])[: n + 1]
        segments = [{"id": int(ids[v]), "label": 1, "isthing": True, "iscrowd": False} for v in values]
        return found | {"segment_ids": ids[mask], "segments": segments}
    fine = 0.5 + 0.5 * torch.rand((2, SCALE * height, SCALE * width), generator=g)
    ignored = torch.rand(fine.shape[1:], generator=g) < 0.2
    fine = fine.masked_fill(ignored, 0)
    return {"image": avg_pool2d(fine, SCALE), "image_hr": fine, "ignored_hr": ignored}


def tight(masks):
    """The naive tight boxes."""
    boxes = [[x.min(), y.min(), x.max() + 1, y.max() + 1] for _, y, x in (m[None].nonzero().unbind(1) for m in masks)]
    return torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


part = st.floats(0, 1)
cut = st.tuples(st.just("crop"), part, part, part, part)
rescale = st.tuples(st.just("zoom"), part, part, part, part, st.integers(4, 30), st.integers(4, 30))
turn = st.tuples(st.just("dihedral"), st.integers(0, 7))
sizes = {"height": st.integers(6, 30), "width": st.integers(6, 30), "seed": st.integers(0, 999)}


def apply(chain, x):
    for name, *numbers in chain:
        if name == "dihedral":
            x = geometry.dihedral(x, *numbers)
            continue
        height, width = x["image"].shape[-2:]
        h, w = 1 + int(numbers[2] * (height - 1)), 1 + int(numbers[3] * (width - 1))
        place = int(numbers[0] * (height - h)), int(numbers[1] * (width - w)), h, w
        x = geometry.crop(x, *place) if name == "crop" else geometry.zoom(x, *place, tuple(numbers[4:]))
    return x


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=120, deadline=None)
@given(chain=st.lists(st.one_of(cut, rescale, turn), min_size=1, max_size=4), n=st.integers(0, 4), **sizes)
def test_any_chain_keeps_a_sample_together(task, chain, n, height, width, seed):
    plain = sample(task, height, width, seed, n)
    before = copy.deepcopy(plain)
    moved = apply(chain, plain)
    assert same(plain, before), "the input is left as it was"
    assert moved.keys() == plain.keys()
    assert all(moved[k].dtype == plain[k].dtype for k in plain if isinstance(plain[k], torch.Tensor))

    height, width = moved["image"].shape[-2:]
    assert all(moved[k].shape[-2:] == (height, width) for k in geometry.SPATIAL if k in moved)
    assert all(moved[k].shape[-2:] == (SCALE * height, SCALE * width) for k in geometry.FINE if k in moved)
    for key in ("mask", "edges", "segment_ids"):
        if key in moved:
            assert set(moved[key].unique().tolist()) <= set(plain[key].unique().tolist())
    for key, no_data in geometry.NO_DATA.items():
        if no_data in moved:
            gaps = moved[no_data].expand_as(moved[key])
            data = moved[key][~gaps]
            assert not moved[key][gaps].any() and (data > 0.499).all() and (data < 1.001).all()
    if "boxes" in moved:
        assert moved["boxes"].shape == (len(moved["labels"]), 4)
        x1, y1, x2, y2 = moved["boxes"].unbind(1)
        assert (0 <= x1).all() and (x1 < x2).all() and (x2 <= width).all()
        assert (0 <= y1).all() and (y1 < y2).all() and (y2 <= height).all()
        assert set(moved["labels"].tolist()) <= set(plain["labels"].tolist())
    if "masks" in moved:
        assert torch.equal(moved["boxes"], tight(moved["masks"]))
        assert moved["labels"].tolist() == [v for v in moved["mask"].unique().tolist() if v]
        for label, mask in zip(moved["labels"], moved["masks"]):
            assert torch.equal(mask, moved["mask"] == label), "each mask lies on its own pixels"
    if "segments" in moved:
        assert {s["id"] for s in moved["segments"]} == set(moved["segment_ids"].unique().tolist()) - {0}


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=40, deadline=None)
@given(which=st.integers(0, 7), square=st.booleans(), **sizes)
def test_a_turn_and_its_inverse_restore_everything(task, which, square, height, width, seed):
    width = height if square else width
    plain = sample(task, height, width, seed)
    if task == "detection":  # so that a mirroring is exact in float32
        plain["boxes"] = (plain["boxes"] * 64).round() / 64
    turned = geometry.dihedral(plain, which)
    assert same(geometry.dihedral(turned, geometry.inverse(which, height == width)), plain)
    assert turned["image"].shape == plain["image"].shape


@settings(max_examples=80, deadline=None)
@given(chain=st.lists(st.one_of(cut, turn), min_size=1, max_size=4), **sizes)
def test_the_fine_image_stays_over_the_coarse_one(chain, height, width, seed):
    moved = apply(chain, sample("super_resolution", height, width, seed))
    assert torch.allclose(avg_pool2d(moved["image_hr"], SCALE), moved["image"], atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(crop=cut, which=st.integers(0, 7), **sizes)
def test_boxes_of_detection_move_with_the_pixels_and_enough_stays_visible(crop, which, height, width, seed):
    plain = geometry.dihedral(sample("detection", height, width, seed, 6), which)
    moved = apply([crop], plain)
    h, w = moved["image"].shape[-2:]
    top, left = int(crop[1] * (height - h)), int(crop[2] * (width - w))
    if (h, w) == (height, width):
        assert same(moved, plain)
        return
    expected = {}
    for label, (x1, y1, x2, y2) in zip(plain["labels"].tolist(), plain["boxes"].double().tolist()):
        a, b, c, d = max(x1 - left, 0), max(y1 - top, 0), min(x2 - left, w), min(y2 - top, h)
        seen = (c - a) * (d - b) / ((x2 - x1) * (y2 - y1))
        if min(c - a, d - b) > 1.001 and seen > 0.2501:
            expected[label] = [a, b, c, d]
        else:
            assert min(c - a, d - b) > 0.999 and seen > 0.2499 or label not in moved["labels"].tolist()
    found = dict(zip(moved["labels"].tolist(), moved["boxes"]))
    assert expected.keys() <= found.keys()
    assert all(
        torch.allclose(found[label].double(), torch.tensor(box).double(), atol=1e-4) for label, box in expected.items()
    )


def test_the_limits_of_what_stays_of_a_box():
    boxes = torch.tensor([[-3, 0, 1, 4], [-3.1, 0, 1, 4], [2, 2, 2.99, 9], [2, 2, 3, 9], [20, 20, 30, 30.0]])
    kept = geometry.clipped(boxes, torch.arange(5), (16, 16))
    assert kept["labels"].tolist() == [0, 3], "a quarter stays, a hair less or 0.99 px does not"
    assert kept["boxes"].tolist() == [[0, 0, 1, 4], [2, 2, 3, 9]]
    none = geometry.clipped(boxes[:0], torch.arange(0), (16, 16))
    assert none["boxes"].shape == (0, 4) and none["boxes"].dtype == torch.float32


@settings(max_examples=80, deadline=None)
@given(
    top=st.integers(0, 9),
    left=st.integers(0, 9),
    height=st.integers(5, 20),
    width=st.integers(5, 20),
    size=st.tuples(st.integers(4, 34), st.integers(4, 34)),
)
def test_a_zoom_puts_images_labels_and_boxes_in_the_same_place(top, left, height, width, size):
    rows, columns = torch.meshgrid(torch.arange(30), torch.arange(30), indexing="ij")
    fine = torch.stack(torch.meshgrid(torch.arange(60), torch.arange(60), indexing="ij")).float()
    box = torch.tensor([[left, top, left + width, top + height]], dtype=torch.float32)
    plain = {"image": torch.stack([rows, columns]).float(), "mask": rows * 30 + columns, "image_hr": fine}
    moved = geometry.zoom(plain | {"boxes": box, "labels": torch.ones(1)}, top, left, height, width, size)
    assert moved["boxes"].tolist() == [[0, 0, size[1], size[0]]], "the window itself becomes the whole"

    down, right = height / size[0], width / size[1]
    y, x = top + (torch.arange(size[0]) + 0.5).double() * down, left + (torch.arange(size[1]) + 0.5).double() * right
    rows, columns = ((2 * torch.arange(n) + 1) * of // (2 * n) for n, of in zip(size, (height, width)))
    expected = (top + rows)[:, None] * 30 + left + columns
    assert torch.equal(moved["mask"], expected), "labels: the pixel under the centre"
    within = (slice(None), *(slice(2, -2) if n > 4 and max(down, right) < 1.4 else slice(0, 0) for n in size))
    ramp = torch.stack(torch.meshgrid(y - 0.5, x - 0.5, indexing="ij"))
    clamped = torch.stack([ramp[0].clamp(top, top + height - 1), ramp[1].clamp(left, left + width - 1)]).float()
    assert torch.allclose(moved["image"][within], clamped[within], atol=1e-3), "images: between the pixels around it"
    doubled = moved["image_hr"].shape[-2:]
    assert doubled == (2 * size[0], 2 * size[1])
    inner = avg_pool2d(moved["image_hr"], 2)[within]
    assert torch.allclose((inner - 0.5) / 2, moved["image"][within], atol=0.3), "and the fine image over it"


def test_strong_shrinking_averages_and_leaves_out_what_has_no_data():
    image = torch.ones((1, 40, 40))
    image[:, :, ::2] = 0
    assert (geometry.zoom({"image": image}, 0, 0, 40, 40, (8, 8))["image"] - 0.5).abs().max() < 0.1
    gap = {"image": image, "missing": image == 0}
    assert torch.allclose(geometry.zoom(gap, 0, 0, 40, 40, (9, 9))["image"].amax(), torch.tensor(1.0))


def test_thin_edges_stay_closed_when_they_shrink():
    edges = torch.zeros((30, 30), dtype=torch.uint8)
    edges[11], edges[:, 17], edges[:4, :4] = 1, 1, 255
    small = geometry.zoom({"image": torch.zeros(1, 30, 30), "edges": edges}, 0, 0, 30, 30, (24, 24))["edges"]
    assert (small == 1).any(1)[5:].all() and (small == 1).any(0)[5:].all(), "no row and no column lost its line"
    assert (small[:3, :3] == 255).all() and set(small.unique().tolist()) == {0, 1, 255}
    large = geometry.zoom({"image": torch.zeros(1, 30, 30), "edges": edges}, 5, 5, 20, 20, (25, 25))["edges"]
    assert set(large.unique().tolist()) == {0, 1} and (large == 1).any(1).all()


@settings(max_examples=50, deadline=None)
@given(st.tuples(part, part), *[st.integers(1, 40)] * 4)
def test_windows_lie_within_the_chip(draw, height, width, wanted_height, wanted_width):
    draw = [min(d, 0.999999) for d in draw]
    top, left, h, w = geometry.window((height, width), (wanted_height, wanted_width), draw)
    assert (h, w) == (min(height, wanted_height), min(width, wanted_width))
    assert 0 <= top <= height - h and 0 <= left <= width - w


def test_ids_are_found_whatever_their_size():
    for ids in ([0, 3, 5], [0, 3, 2**24 + 1, 2**40]):
        assert geometry.present_ids(torch.tensor(ids).repeat(4, 2)) == set(ids)
