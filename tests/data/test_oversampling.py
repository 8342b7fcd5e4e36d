"""Oversampling: how often chips occur, and the order and keys of their occurrences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_geo import prepare_data
from accel_geo.data.oversampling import occurrences
from accel_geo.parallel.keys import fold
from accel_geo.parallel.order import EpochOrder, epoch_length


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=6), seed=st.integers(0, 100))
def test_classes_become_equal(counts, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.eye(len(counts), dtype=bool), counts, axis=0))
    times = np.array(occurrences(labels, seed))
    assert occurrences(labels, seed) == times.tolist()
    for column, count in zip(labels.T, counts):
        mine = times[column]
        assert mine.sum() == (max(counts) if count else 0)
        assert not count or mine.max() - mine.min() <= 1


@settings(deadline=None)
@given(n=st.integers(1, 60), classes=st.integers(1, 6), seed=st.integers(0, 100))
def test_several_labels_reach_the_largest(n, classes, seed):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, classes)) < rng.uniform(0.02, 0.5, classes)
    times = np.array(occurrences(labels, seed))
    assert times.min() >= 1 and (times[~labels.any(1)] == 1).all()
    assert (labels.T @ times >= labels.sum(0).max())[labels.any(0)].all()


def orders(times, processes, batch_size=7, accumulate=2, sizes=None):
    ids, n = [10 * i for i in range(len(times))], len(times)
    options = {"batch_size": batch_size, "accumulate": accumulate, "seed": 42, "fit": 0, "processes": processes}
    return [EpochOrder(ids, sizes or [(8, 8)] * n, rank=rank, times=times, **options) for rank in range(processes)]


TIMES = [1, 3, 1, 1, 2, 5, 1, 1, 1, 4]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_occurrence_once_with_a_key_of_its_own_on_any_process_count(processes):
    alone = list(orders(TIMES, 1, accumulate=1)[0])
    requests = [request for batch in alone for request in batch]
    for index, count in enumerate(TIMES):
        keys = {request.key for request in requests if request.index == index}
        assert keys == {fold(42, 0, 0, 10 * index, number) for number in range(count)} and len(keys) == count
    assert len(requests) == sum(TIMES) == 20 and [len(batch) for batch in alone] == [7, 7, 6]
    shared = [list(order) for order in orders(TIMES, processes)]
    assert {len(order) for order in orders(TIMES, processes)} == {6}
    for number, batch in enumerate(alone):
        parts = (2 * number, 2 * number + 1)
        assert [request for part in parts for lists in shared for request in lists[part]] == batch
        cut = orders(TIMES, processes)[0].shares(number)
        assert cut == [[len(lists[part]) for lists in shared] for part in parts]


def test_samples_that_occur_once_are_the_plain_order():
    plain = EpochOrder([5, 6, 7], [(8, 8)] * 3, batch_size=2, accumulate=1, seed=42, fit=0, rank=0, processes=1)
    times = EpochOrder(
        [5, 6, 7], [(8, 8)] * 3, batch_size=2, accumulate=1, seed=42, fit=0, rank=0, processes=1, times=[1, 1, 1]
    )
    assert list(plain) == list(times) and len(plain) == len(times)


def test_padding_is_that_of_the_batch():
    sizes = [(8, 8)] * 9 + [(4, 12)]
    for batch in orders(TIMES, 1, accumulate=1, sizes=sizes)[0]:
        wide = any(request.index == 9 for request in batch)
        narrow = any(request.index != 9 for request in batch)
        assert {request.pad for request in batch} == {(8, 12) if wide and narrow else None}


def test_data(tmp_path, write):
    for i in range(30):
        write(tmp_path / f"set/images/{'a' if i < 3 else 'b'}/chip_{i:02}.tif", np.full((3, 8, 8), 8 * i, np.uint8))
    (tmp_path / "set/images/a/chip_02.tif").write_bytes(b"not an image")
    options = {"task": "classification", "valid_match": "chip_1*", "cache": "memory"}
    data = prepare_data(tmp_path / "set", oversample=True, **options)
    once = prepare_data(tmp_path / "set", **options)
    assert data.train.times[2] == 1, "a chip that cannot be read is not repeated"
    assert sorted(data.train.times[:2]) == [8, 9] and data.train.times[3:] == [1] * 17
    assert epoch_length(data.train) == 35 and epoch_length(once.train) == 20 == len(data.train)
    assert data.valid.times is None and data.train.ids == once.train.ids
    assert "20 to train (35 samples an epoch), 10 to validate" in data.describe()
