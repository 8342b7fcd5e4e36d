"""Footprints: neighbours stay together, a continuous grid is cut into blocks, shared ground is found."""

import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_geo.data.footprints import groups_of_footprints, leaks, sharing
from accel_geo.data.splits import group_split, random_split

UTM = "EPSG:32645"


def grid(
    columns: int, rows: int, stride: float = 256.0, size: float = 256.0, at=(300_000.0, 3_000_000.0)
) -> np.ndarray:
    x, y = (place.ravel() for place in np.meshgrid(np.arange(columns) * stride, np.arange(rows) * stride))
    return np.stack([at[0] + x, at[1] + y, at[0] + x + size, at[1] + y + size], axis=1)


def named(bounds: np.ndarray) -> list[str]:
    return [f"images/{i:06}.tif" for i in range(len(bounds))]


def groups(bounds: np.ndarray, fraction: float = 0.1, crs: str = UTM):
    return groups_of_footprints(bounds, [crs] * len(bounds), named(bounds), fraction)


def sets(names: list[str]) -> set[frozenset[int]]:
    members = defaultdict(set)
    for i, name in enumerate(names):
        members[name].add(i)
    return {frozenset(found) for found in members.values()}


def shared_part(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    return max(sides[0], 0) * max(sides[1], 0) / min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))


# ------------------------------------------------------------------------------------------------------------- groups


def test_chains_of_touching_chips_are_groups():
    row = grid(3, 1)
    places = [row, row + 2000, row + 4000, row + 6000]
    result = groups(np.concatenate(places))
    assert not result.cut and not result.notes
    assert sets(result.names) == {frozenset(range(i, i + 3)) for i in (0, 3, 6, 9)}


@pytest.mark.parametrize("gap, together", [(-50, True), (0, True), (0.4, True), (2, False), (100, False)])
def test_a_gap_below_half_a_pixel_is_touching(gap, together):
    pair = np.concatenate([grid(1, 1), grid(1, 1, at=(300_256.0 + gap, 3_000_000.0))])
    far = grid(3, 1, stride=9000, at=(500_000.0, 1.0))
    assert (len(set(groups(np.concatenate([pair, far])).names)) == 4) is together


def test_corners_touch_and_upside_down_bounds_are_understood():
    diagonal = np.concatenate([grid(1, 1), grid(1, 1, at=(300_256.0, 3_000_256.0))])
    far = grid(3, 1, stride=9000, at=(500_000.0, 1.0))
    chips = np.concatenate([diagonal, far])
    assert sets(groups(chips).names) == sets(groups(chips[:, [0, 3, 2, 1]]).names)
    assert len(set(groups(chips).names)) == 4


def test_systems_are_never_compared():
    chips = np.concatenate([grid(2, 1), grid(2, 1)])
    result = groups_of_footprints(chips, [UTM] * 2 + ["EPSG:32646"] * 2, named(chips), 0.1)
    assert sets(result.names) == {frozenset([0, 1]), frozenset([2, 3])}
    assert leaks(chips, [UTM] * 2 + ["EPSG:32646"] * 2, [0, 1], [2, 3]).pairs == 0


def test_groups_do_not_depend_on_the_order_on_disk():
    chips = np.concatenate([grid(7, 9), grid(2, 2, at=(1.0, 1.0)), np.full((2, 4), np.nan)])
    files, order = named(chips), list(range(len(chips)))
    random.Random(3).shuffle(order)
    before = groups(chips).names
    after = groups_of_footprints(chips[order], [UTM] * len(chips), [files[i] for i in order], 0.1).names
    assert after == [before[i] for i in order]


# ------------------------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("columns, rows", [(30, 30), (100, 9), (400, 1)])
def test_a_continuous_grid_is_cut_into_blocks(columns, rows):
    chips = grid(columns, rows)
    result = groups(chips)
    sizes = Counter(result.names)
    assert result.cut and 20 <= len(sizes) <= 50 and min(sizes.values()) >= 0.5 * len(chips) / len(sizes)
    assert f"{columns * rows} chips" in result.notes[0] and f"into {len(sizes)} blocks" in result.notes[0]
    for name in sizes:  # a block is a rectangle of chips
        inside = chips[[n == name for n in result.names]]
        low, high = inside.min(0)[:2], inside.max(0)[2:]
        assert len(inside) * 256**2 == (high - low).prod()
    train, valid = group_split(named(chips), result.names, 0.1, 42)
    assert 0.05 * len(chips) <= len(valid) <= 0.15 * len(chips)
    assert leaks(chips, [UTM] * len(chips), train, valid).pairs == 0
    assert sharing(chips, [UTM] * len(chips), train, valid) == [], "chips of two blocks may touch"


def test_blocks_of_a_small_grid_are_no_larger_than_the_share():
    sizes = Counter(groups(grid(8, 6)).names).values()
    assert max(sizes) <= 6 and min(sizes) >= 2
    sizes = Counter(groups(grid(20, 20), fraction=0.3).names).values()
    assert min(sizes) >= 12, "where there is room, about 4 x 4 chips"


def test_a_stretch_along_a_diagonal_is_cut_too():
    chips = grid(1, 1) + 100 * np.arange(600)[:, None]
    assert 20 <= len(set(groups(chips).names)) <= 50


def test_two_large_scenes_are_cut_and_small_ones_left():
    chips = np.concatenate([grid(10, 10), grid(10, 10, at=(1.0, 1.0)), grid(3, 3, at=(9000.0, 9000.0))])
    result = groups(chips)
    assert frozenset(range(200, 209)) in sets(result.names) and len(result.notes) == 2
    assert all(max(found) < 100 or min(found) >= 100 for found in sets(result.names)), "no block over two scenes"


def test_one_place_seen_many_times_is_one_group():
    chips = np.repeat(grid(1, 1), 40, axis=0)
    result = groups(chips)
    assert len(set(result.names)) == 1 and not result.cut
    with pytest.raises(ValueError, match="one group"):
        group_split(named(chips), result.names, 0.1, 1)


def test_overlapping_chips_at_the_seams_are_found():
    chips = grid(24, 24, stride=128)
    result = groups(chips)
    train, valid = group_split(named(chips), result.names, 0.1, 42)
    shared = sharing(chips, [UTM] * len(chips), train, valid)
    assert shared == [i for i in train if any(shared_part(chips[i], chips[j]) > 0 for j in valid)] and shared
    kept = sorted(set(train) - set(shared))
    assert len(kept) > 0.8 * len(train) and leaks(chips, [UTM] * len(chips), kept, valid).pairs == 0


# ------------------------------------------------------------------------------------------- chips without a place


def test_chips_without_georeference_are_grouped_by_folder():
    nowhere = np.full((6, 4), np.nan)
    files = [f"images/{place}/{i}.png" for place in "ab" for i in range(3)]
    result = groups_of_footprints(nowhere, [""] * 6, files, 0.2)
    assert sets(result.names) == {frozenset([0, 1, 2]), frozenset([3, 4, 5])} and "6 of 6 chips" in result.notes[0]
    for names, folders in [(files, False), ([f"images/{i}.png" for i in range(6)], True)]:
        with pytest.raises(ValueError, match="no chip is georeferenced .*column:NAME.*valid_match.*valid_path"):
            groups_of_footprints(nowhere, [""] * 6, names, 0.2, folders=folders)
    mixed = np.concatenate([nowhere[:2], grid(4, 1, stride=5000)])
    result = groups_of_footprints(mixed, ["", ""] + [UTM] * 4, files, 0.2)
    assert len(set(result.names)) == 5 and "2 of 6 chips" in result.notes[0]


# --------------------------------------------------------------------------------------------------------------- leaks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 6)), min_size=2, max_size=40))
def test_leaks_and_sharing_are_what_comparing_all_pairs_finds(squares):
    chips = np.array([[x, y, x + size, y + size] for x, y, size in squares], dtype=float)
    train, valid = list(range(0, len(chips), 2)), list(range(1, len(chips), 2))
    crs = [UTM] * len(chips)
    for share in (0.01, 0.4):
        expected = [(i, j) for i in train for j in valid if shared_part(chips[i], chips[j]) > share]
        found = leaks(chips, crs, train, valid, share=share)
        assert found.pairs == len(expected)
        assert (found.train, found.valid) == (len({i for i, _ in expected}), len({j for _, j in expected}))
        parts = [part for _, _, part in found.examples]
        assert len(parts) == min(3, len({(tuple(chips[i]), tuple(chips[j])) for i, j in expected}))
        assert parts == sorted(parts, reverse=True)
        for i, j, part in found.examples:
            assert (i, j) in expected and part == pytest.approx(shared_part(chips[i], chips[j]))
    assert sharing(chips, crs, train, valid) == [
        i for i in train if any(shared_part(chips[i], chips[j]) > 0 for j in valid)
    ]


def test_a_leak_is_told_with_names():
    chips = grid(10, 1, stride=128)
    train, valid = [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]
    found = leaks(chips, [UTM] * 10, train, valid)
    assert (found.pairs, found.train, found.valid) == (1, 1, 1)
    text = found.text(named(chips))
    assert "images/000004.tif and images/000005.tif (50%)" in text and 'Split by "group"' in text
    assert leaks(chips, [UTM] * 10, train, []).text(named(chips)) == ""
    assert leaks(np.full((10, 4), np.nan), [""] * 10, train, valid).pairs == 0


def test_dates_of_one_place_are_counted_without_comparing_each():
    chips = np.concatenate([np.repeat(grid(1, 1), 4000, axis=0), grid(1, 1, at=(1.0, 1.0))])
    train, valid = list(range(0, 4001, 2)), list(range(1, 4001, 2))
    found = leaks(chips, [UTM] * 4001, train, valid)
    assert (found.pairs, found.train, found.valid) == (4_000_000, 2000, 2000) and found.examples[0][2] == 1


def test_many_overlapping_chips_are_compared_in_seconds():
    chips = np.random.default_rng(0).uniform(0, 100 * 64, (20_000, 2))
    chips = np.hstack([chips, chips + 256])
    train, valid = random_split(named(chips), 0.1, 1)
    some = leaks(chips, [UTM] * 20_000, train[:500], valid[:500])
    expected = sum(shared_part(chips[i], chips[j]) > 0.01 for i in train[:500] for j in valid[:500])
    assert some.pairs == expected > 100
    assert leaks(chips, [UTM] * 20_000, train, valid).valid == 2000


# --------------------------------------------------------------------------------------------------------- real chips


def placed(folder: Path, pattern: str) -> tuple[list[str], np.ndarray, list[str]]:
    files, bounds, crs = sorted(folder.glob(pattern)), [], []
    for file in files:
        with rasterio.open(file) as raster:
            bounds.append(tuple(raster.bounds) if raster.crs else (np.nan,) * 4)
            crs.append(raster.crs.to_string() if raster.crs else "")
    return [file.relative_to(folder).as_posix() for file in files], np.array(bounds), crs


def test_the_chips_of_banepa_are_one_grid(shared):
    files, bounds, crs = placed(shared / "data" / "banepa_oam_osm", "images/*.tif")
    result = groups_of_footprints(bounds, crs, files, 0.1)
    assert len(files) == 48 and result.cut and len(set(result.names)) >= 8
    train, valid = group_split(files, result.names, 0.1, 42)
    assert 3 <= len(valid) <= 6 and leaks(bounds, crs, *random_split(files, 0.3, 1)).pairs == 0, "its chips only touch"
    assert sharing(bounds, crs, train, valid) == []


@pytest.mark.parametrize(
    "name, pattern", [("RCNN_Masks", "*.tif"), ("Labeled_Tiles", "*.jpg"), ("Imagenet", "*/*.tif")]
)
def test_exports_whose_chips_overlap(shared, name, pattern):
    files, bounds, crs = placed(shared / "data" / "esri_exports" / name, f"images/{pattern}")
    alone = [leaks(bounds, crs, *random_split(files, 0.3, seed)).pairs for seed in range(5)]
    result = groups_of_footprints(bounds, crs, files, 0.3)
    whole = [leaks(bounds, crs, *group_split(files, result.names, 0.3, seed)).pairs for seed in range(5)]
    assert any(alone) and not any(whole) and not result.cut


def test_an_export_without_georeference_says_what_to_give(shared):
    files, bounds, crs = placed(shared / "data" / "esri_exports" / "YOLO", "images/*.jpg")
    with pytest.raises(ValueError, match="no chip is georeferenced"):
        groups_of_footprints(bounds, crs, files, 0.1)
