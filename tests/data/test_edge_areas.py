"""Class rasters for edges: lines are taken as they are, of filled areas the outlines."""

import json

import numpy as np
import pytest
from scipy.ndimage import binary_erosion

from accel_geo import prepare_data
from accel_geo.data.labels import INSIDE
from accel_geo.data.labels.edges import area_outlines
from accel_geo.data.spec import DataSpec

SIZE = 48


@pytest.fixture
def folder(tmp_path, write):
    """A function that writes chips with these masks [H, W]."""

    def make(*masks: np.ndarray):
        for i, mask in enumerate(masks):
            write(tmp_path / f"images/{i}.tif", np.full((3, *mask.shape), 9 + i, dtype=np.uint8))
            write(tmp_path / f"masks/{i}.tif", mask.astype(np.uint8))
        return tmp_path

    return make


def area(value: int = 1, top: int = 10, left: int = 0, size: int = 20) -> np.ndarray:
    mask = np.zeros((SIZE, SIZE), dtype=int)
    mask[top : top + size, left : left + size] = value
    return mask


def grid(width: int) -> np.ndarray:
    mask = np.zeros((SIZE, SIZE), dtype=int)
    mask[10 : 10 + width] = mask[30 : 30 + width] = 1
    mask[:, 20 : 20 + width] = 1
    return mask


def edges_of(root, **options):
    data = prepare_data(root, task="edges", val_split=0, cache="memory", **options)
    return data, [data.train[i]["edges"].numpy() for i in range(len(data.train))]


def said(data) -> bool:
    return any("filled areas" in problem for problem in data.problems)


def test_filled_areas_become_their_outlines(folder):
    """One pixel wide, and not along the border of the chip."""
    data, (first, second) = edges_of(folder(area(), area(3, left=14)))
    for edges, mask in ((first, area()), (second, area(3, left=14))):
        inner = binary_erosion(mask > 0, np.ones((3, 3)), border_value=1)
        assert np.array_equal(edges, (mask > 0) & ~inner)
    assert first[20, 0] == 0 and first[10, 0] == 1 and first.sum() == 19 + 19 + 20 and second.sum() == 76
    assert said(data) and any("filled areas" in p["reason"] for p in data.summary()["problems"])
    assert data.class_counts["train"]["pixels"] == [2 * SIZE**2 - 134, 134]


@pytest.mark.parametrize("width", [1, 3, 5])
def test_drawn_lines_stay_as_they_are(folder, width):
    data, (edges, _) = edges_of(folder(grid(width), np.zeros((SIZE, SIZE))))
    assert np.array_equal(edges, grid(width)) and not said(data)


@pytest.mark.parametrize(("width", "filled"), [(6, True), (9, True)])
def test_wider_ones_are_areas(folder, width, filled):
    assert said(edges_of(folder(grid(width)))[0]) == filled


def test_all_chips_of_a_folder_are_read_alike(folder):
    """A narrow area among wide ones gives its outline, whatever the limit."""
    narrow = np.zeros((SIZE, SIZE), dtype=int)
    narrow[20:23] = 1
    root = folder(narrow, area(left=20), area(left=22))
    for limit in (None, 1):
        data, found = edges_of(root, limit=limit)
        assert said(data) and found[0][[20, 22]].all() and not found[0][21].any()


def test_validation_follows_training(folder, tmp_path, write):
    root = folder(area(left=20))
    write(tmp_path / "other/images/a.tif", np.full((3, SIZE, SIZE), 9, dtype=np.uint8))
    write(tmp_path / "other/masks/a.tif", area(left=20, size=7).astype(np.uint8))
    data = prepare_data(root, task="edges", valid_path=tmp_path / "other", cache="memory")
    assert data.valid[0]["edges"].sum() == 24


def test_touching_classes_each_have_an_outline(folder):
    both = area(1, left=4) + area(2, left=24)
    _, (edges,) = edges_of(folder(both))
    assert edges[20, 23] == edges[20, 24] == 1 and edges.sum() == 152
    _, (left,) = edges_of(folder(both), classes=["1"])
    assert left[:, :24].sum() == 76 and not left[:, 24:].any()


def test_what_is_ignored_stays_ignored_within(folder):
    _, (edges,) = edges_of(folder(area(1, left=0) + area(255, left=26)))
    assert (edges[10:30, 26:46] == 255).all() and (edges == 1).sum() == 58
    _, (edges,) = edges_of(folder(area(1, left=0) + area(7, left=26)), ignore_classes=["7"])
    assert (edges[10:30, 26:46] == 255).all() and (edges == 1).sum() == 58


def test_no_data_bounds_no_area():
    mask = area(4, left=10)
    mask[:, 25:] = -3
    found = area_outlines(mask)
    assert (found[:, 25:] == -3).all() and found[15, 24] == INSIDE + 4 and found[15, 10] == 4


def test_areas_that_shrink_keep_their_outline(folder):
    _, (edges,) = edges_of(folder(area(left=14)), resize_to=SIZE // 2)
    assert edges.shape == (24, 24) and edges[5:15, 7:17].sum() == edges.sum() == 36


@pytest.mark.parametrize(("name", "filled"), [("Classified_Tiles", True), ("Classified_Tiles_edge", False)])
def test_real_exports(shared, name, filled):
    data, found = edges_of(shared / "data/esri_exports" / name)
    assert said(data) == filled
    assert 0.02 < np.mean([(edges == 1).mean() for edges in found]) < 0.04


def test_the_tolerance_is_part_of_the_data(folder):
    root = folder(grid(1))
    assert edges_of(root)[0].spec.edge_tolerance == 3
    spec = edges_of(root, edge_tolerance=2)[0].spec
    stored = json.loads(json.dumps(spec.to_json()))
    assert DataSpec.from_json(stored) == spec and spec.edge_tolerance == 2
    del stored["edge_tolerance"]  # as models were stored before
    assert DataSpec.from_json(stored).edge_tolerance == 3


@pytest.mark.parametrize("wrong", [0, -1, 50, float("nan")])
def test_a_tolerance_that_is_none(folder, wrong):
    with pytest.raises(ValueError, match="edge_tolerance=.* must be above 0 and below 50"):
        edges_of(folder(grid(1)), edge_tolerance=wrong)


def test_a_tolerance_for_other_tasks(folder):
    with pytest.raises(ValueError, match="edge_tolerance=2 is for edges, not for semantic"):
        prepare_data(folder(area()), task="semantic", edge_tolerance=2)
