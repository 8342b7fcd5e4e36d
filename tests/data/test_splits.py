"""Splits: disjoint, whole, sized as said, and blind to the order of the chips on disk."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_geo.data import splits

FILES = [f"images/{place}/{i:03}.tif" for place in "abcdefghij" for i in range(10)]
PLACES = [file.split("/")[1] for file in FILES]


def chosen(files, *sides) -> tuple[set[str], ...]:
    return tuple({files[i] for i in side} for side in sides)


@pytest.mark.parametrize("kind", ["random", "stratified", "group", "column"])
def test_a_split_is_whole_ascending_seeded_and_blind_to_order(kind):
    further = {"random": [], "stratified": [[ord(p) % 3 for p in PLACES]], "group": [PLACES], "column": [PLACES]}[kind]
    split = getattr(splits, f"{kind}_split")
    sides = split(FILES, *further, 0.3, 42)
    assert sorted(i for side in sides for i in side) == list(range(100)) and all(s == sorted(s) for s in sides)
    assert len(sides[1]) == 30 and all(isinstance(i, int) for i in sides[1])
    order = list(range(100))
    random.Random(1).shuffle(order)
    mixed = [[values[i] for i in order] for values in (FILES, *further)]
    assert chosen(mixed[0], *split(*mixed, 0.3, 42)) == chosen(FILES, *sides)
    assert chosen(FILES, *split(FILES, *further, 0.3, 43)) != chosen(FILES, *sides)


@pytest.mark.parametrize("fraction, number", [(0, 0), (0.001, 1), (0.1, 10), (0.25, 25), (0.999, 99)])
def test_how_many_validate(fraction, number):
    assert len(splits.random_split(FILES, fraction, 1)[1]) == number
    assert len(splits.stratified_split(FILES, [0] * 100, fraction, 1)[1]) == number


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5])
def test_a_fraction_that_is_none_is_refused(fraction):
    for split, *further in [(splits.random_split,), (splits.group_split, PLACES), (splits.stratified_split, PLACES)]:
        with pytest.raises(ValueError, match=f"val_split={fraction}"):
            split(FILES, *further, fraction, 0)


def test_one_chip_trains_and_none_is_no_error():
    assert splits.random_split(["a"], 0.5, 0) == ([0], []) and splits.random_split([], 0.5, 0) == ([], [])
    assert splits.stratified_split(["a"], ["x"], 0.5, 0) == ([0], [])
    assert splits.stratified_split([], [], 0.5, 0) == ([], []) and splits.group_split([], [], 0.5, 0) == ([], [])


def test_a_new_chip_hardly_moves_the_others():
    for split, further in [(splits.random_split, []), (splits.group_split, [PLACES])]:
        before = chosen(FILES, *split(FILES, *further, 0.2, 7))
        after = chosen(["new", *FILES], *split(["new", *FILES], *([["a", *g] for g in further]), 0.2, 7))
        assert len(before[1] & after[1]) >= 0.9 * len(before[1]) - 1


# ------------------------------------------------------------------------------------------------------- stratified


def test_stratified_shares_by_largest_remainder():
    labels = ["roof"] * 60 + ["road"] * 25 + ["tree"] * 15
    assert Counter(labels[i] for i in splits.stratified_split(FILES, labels, 0.1, 3)[1]) == {
        "roof": 6,
        "road": 3,  # of 2.5 and 1.5 the more frequent is rounded up
        "tree": 1,
    }


def test_many_equal_classes_differ_by_one_chip_at_most():
    files, labels = [f"{i % 97}/{i}.tif" for i in range(5003)], [i % 11 for i in range(5003)]
    counts = Counter(labels[i] for i in splits.stratified_split(files, labels, 0.1, 1)[1])
    assert sum(counts.values()) == 500 and set(counts.values()) == {45, 46}


def test_small_classes_train_and_the_frequent_validate():
    labels = [0] * 90 + [1] * 4 + [2] * 2 + [3] * 2 + [4, 5]
    train, valid = splits.stratified_split(FILES, labels, 0.1, 3)
    found = Counter(labels[i] for i in valid)
    assert found == {0: 7, 1: 1, 2: 1, 3: 1}, "one of each that can spare it; classes of one chip train"
    assert {labels[i] for i in train} == set(range(6))
    found = Counter(labels[i] for i in splits.stratified_split(FILES, labels, 0.03, 3)[1])
    assert found == {0: 3}, "three chips cannot validate four classes: they are shared as the classes are"
    train, valid = splits.stratified_split(FILES, labels, 0.99, 3)
    assert Counter(labels[i] for i in train) == {0: 1, 1: 1, 2: 1, 3: 1}, "no class of two chips loses its last one"
    assert len(splits.stratified_split(FILES, list(range(100)), 0.5, 3)[1]) == 50, "all classes of one chip"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.floats(0, 0.99), st.integers(0, 3))
def test_stratified_always_keeps_its_word(labels, fraction, seed):
    files = [f"c{i}" for i in range(len(labels))]
    train, valid = splits.stratified_split(files, labels, fraction, seed)
    number = len(splits.random_split(files, fraction, seed)[1])
    total, trains, validates = Counter(labels), Counter(labels[i] for i in train), Counter(labels[i] for i in valid)
    assert sorted(train + valid) == list(range(len(files))) and len(valid) <= number
    lasting = [label for label, n in total.items() if n > 1]
    assert all(trains[label] for label in lasting)
    assert len(valid) == number or all(trains[label] == 1 for label in lasting)
    if valid:
        assert any(validates[label] for label, n in total.items() if n == max(total.values()))
    if number >= 2 * len(lasting):
        assert all(validates[label] for label in lasting)
    elif sum(n - 1 for n in total.values()) >= number:
        least = {label: min(int(n * number / len(labels)), n - 1) for label, n in total.items()}
        assert all(least[label] <= validates[label] <= least[label] + 1 for label in total)


# ------------------------------------------------------------------------------------------------------------ groups


def test_groups_stay_whole_and_meet_the_share():
    train, valid = splits.group_split(FILES, PLACES, 0.3, 42)
    assert len(valid) == 30 and not {PLACES[i] for i in train} & {PLACES[i] for i in valid}
    sizes = {"large": 50, "middle": 30, "small": 20}
    groups = [name for name, n in sizes.items() for _ in range(n)]
    for fraction, number in [(0.2, 20), (0.3, 30), (0.05, 20)]:
        assert len(splits.group_split(FILES, groups, fraction, 1)[1]) == number
    assert splits.group_split(FILES, groups, 0, 1) == (list(range(100)), [])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40), st.floats(0.01, 0.99), st.integers(0, 3))
def test_group_split_always_keeps_its_word(groups, fraction, seed):
    files = [f"c{i}" for i in range(len(groups))]
    if len(set(groups)) == 1:
        with pytest.raises(ValueError, match="one group"):
            splits.group_split(files, groups, fraction, seed)
        return
    train, valid = splits.group_split(files, groups, fraction, seed)
    sizes = sorted(Counter(groups).values())
    assert train and valid and not {groups[i] for i in train} & {groups[i] for i in valid}
    number = len(splits.random_split(files, fraction, seed)[1])
    assert number - sizes[-1] <= len(valid) <= number + sizes[0]


def test_chips_without_a_group_stand_alone():
    groups = ["a"] * 50 + [""] * 50
    train, valid = splits.group_split(FILES, groups, 0.1, 5)
    assert len(valid) == 10 and all(i >= 50 for i in valid)
    for none, message in [([""] * 100, "no chip has a group"), (["a"] * 100, "all 100 chips are of one group, 'a'")]:
        with pytest.raises(ValueError, match=message) as error:
            splits.group_split(FILES, none, 0.1, 5)
        assert all(way in str(error.value) for way in ("random", "column:NAME", "valid_match", "valid_path"))


# ------------------------------------------------------------------------------------------------------------ columns


def test_a_column_that_names_the_splits():
    values = ["Train", "TRAINING", "val", "Valid", " validation ", "test", "TEST"]
    assert splits.column_split(FILES[:7], values, 0.1, 1) == ([0, 1], [2, 3, 4], [5, 6])


def test_without_a_name_for_validation_it_is_drawn_from_training():
    values = ["test" if i % 2 else "train" for i in range(100)]
    train, valid, test = splits.column_split(FILES, values, 0.2, 1)
    assert len(valid) == 10 and test == list(range(1, 100, 2)) and sorted(train + valid) == list(range(0, 100, 2))
    even = [FILES[i] for i in range(0, 100, 2)]
    assert chosen(FILES, valid) == chosen(even, splits.random_split(even, 0.2, 1)[1])
    assert splits.column_split(FILES, values, 0, 1)[1] == []


def test_a_column_of_groups():
    years = [2018 + i % 5 for i in range(100)]
    train, valid, test = splits.column_split(FILES, years, 0.2, 1)
    assert len(valid) == 20 and test == [] and not {years[i] for i in train} & {years[i] for i in valid}
    assert len(splits.column_split(FILES, [None] * 99 + ["x"], 0.2, 1)[1]) == 20


@pytest.mark.parametrize(
    "values, message",
    [
        (["train", "val", "north", None], r"2 of 4 chips have other values \('', 'north'\), such as .*002.tif"),
        (["test"] * 4, "no chip to train on: its values are test"),
        (["val"] * 4, "no chip to train on"),
        (["north"] * 4, "one group, 'north'"),
        ([None] * 4, "no chip has a group"),
    ],
)
def test_columns_that_cannot_serve(values, message):
    with pytest.raises(ValueError, match=message):
        splits.column_split(FILES[:4], values, 0.25, 1)


# ------------------------------------------------------------------------------------------------------------- names


def test_names():
    assert splits.split_by_name(FILES, "00[01].tif")[1] == [i for i in range(100) if i % 10 < 2]
    assert splits.split_by_name(FILES, "images/c/*")[1] == list(range(20, 30))
    for wrong, message in [("b_*", "no one of 100"), ("*", "every one of 100")]:
        with pytest.raises(ValueError, match=message):
            splits.split_by_name(FILES, wrong)
