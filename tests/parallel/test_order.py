"""The order of samples and how batches are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_geo.parallel.order import EpochOrder, batch_count, check_cut, cut, evaluation_chunks, permutation

counts = st.integers(1, 60)


def orders(n, processes, batch_size, accumulate=1, fit=0, seed=42, sizes=None):
    return [
        EpochOrder(
            [10 * i for i in range(n)],
            sizes or [(8, 8)] * n,
            batch_size=batch_size,
            accumulate=accumulate,
            seed=seed,
            fit=fit,
            rank=rank,
            processes=processes,
        )
        for rank in range(processes)
    ]


@given(counts, st.integers(1, 12))
def test_cut_is_whole_balanced_and_larger_first(n, parts):
    sizes = [s.stop - s.start for s in cut(n, parts)]
    assert [i for s in cut(n, parts) for i in range(n)[s]] == list(range(n))
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True) and len(sizes) == parts


@settings(deadline=None)
@given(n=st.integers(4, 60), batch_size=st.integers(1, 20), accumulate=st.integers(1, 3), processes=st.integers(1, 4))
def test_every_sample_once_in_balanced_batches_on_any_process_count(n, batch_size, accumulate, processes):
    try:
        check_cut(n, batch_size, accumulate, processes)
    except ValueError:
        assert (n // batch_count(n, batch_size)) // accumulate < processes
        return
    alone = list(orders(n, 1, batch_size)[0])
    assert sorted(r.index for batch in alone for r in batch) == list(range(n))
    sizes = [len(batch) for batch in alone]
    assert len(sizes) == batch_count(n, batch_size) and max(sizes) <= batch_size and max(sizes) - min(sizes) <= 1

    shared = [list(order) for order in orders(n, processes, batch_size, accumulate)]
    assert {len(lists) for lists in shared} == {len(sizes) * accumulate}
    assert all(requests for lists in shared for requests in lists), "no process is ever without a sample"
    for number, batch in enumerate(alone):
        parts = range(number * accumulate, (number + 1) * accumulate)
        together = [request for part in parts for lists in shared for request in lists[part]]
        assert together == batch, "the same samples, with the same keys, in the same order"
        shares = orders(n, processes, batch_size, accumulate)[0].shares(number)
        assert shares == [[len(lists[part]) for lists in shared] for part in parts]


def test_order_depends_on_seed_fit_and_epoch_alone():
    assert permutation(20, 42, 0, 0) == permutation(20, 42, 0, 0)
    assert len({tuple(permutation(20, *key)) for key in ((42, 0, 0), (43, 0, 0), (42, 1, 0), (42, 0, 1))}) == 4


def test_keys_differ_by_sample_epoch_and_fit_and_not_by_position():
    order, later = orders(6, 1, 4)[0], orders(6, 1, 3, fit=1)[0]
    first = {r.index: r.key for batch in order for r in batch}
    order.start(1)
    second = {r.index: r.key for batch in order for r in batch}
    third = {r.index: r.key for batch in later for r in batch}
    assert len({*first.values(), *second.values(), *third.values()}) == 18
    assert {r.index: r.key for batch in orders(6, 1, 2)[0] for r in batch} == first


def test_an_epoch_can_begin_anywhere():
    order = orders(10, 2, 4, accumulate=2)[1]
    whole = list(order)
    order.start(0, 2)
    assert list(order) == whole[4:] and len(order) == 2


def test_padding_is_that_of_the_global_batch():
    sizes = [(8, 8), (6, 10), (8, 8), (12, 4), (8, 8), (5, 5)]
    whole = list(orders(6, 1, 6, sizes=sizes)[0])
    assert {r.pad for batch in whole for r in batch} == {(12, 10)}
    assert {r.pad for order in orders(6, 3, 6, sizes=sizes) for batch in order for r in batch} == {(12, 10)}
    assert {r.pad for batch in orders(6, 1, 6)[0] for r in batch} == {None}


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_evaluation_takes_each_sample_once_in_the_same_company(processes):
    sizes = [(8, 8)] * 5 + [(6, 6)] * 2 + [(8, 8)] * 4
    alone = list(evaluation_chunks(sizes, 3, lambda number: True))
    assert [r.index for chunk in alone for r in chunk] == list(range(11)) and {r.pad for c in alone for r in c} == {
        None
    }
    assert all(len(chunk) <= 3 and len({sizes[r.index] for r in chunk}) == 1 for chunk in alone)
    shared = [list(evaluation_chunks(sizes, 3, lambda n, r=rank: n % processes == r)) for rank in range(processes)]
    assert sorted((c for chunks in shared for c in chunks), key=lambda c: c[0].index) == alone


def test_too_few_samples_name_the_ways_out():
    with pytest.raises(ValueError, match="--batch-size.*--per-device-batch-size.*--scale-lr"):
        check_cut(100, 3, 1, 4)
    with pytest.raises(ValueError, match="smaller --accumulate"):
        check_cut(100, 8, 4, 4)
    with pytest.raises(ValueError, match="7 training chips.*smallest 3"):
        check_cut(7, 4, 1, 4)
    with pytest.raises(ValueError, match="empty"):
        check_cut(0, 4, 1, 1)
    check_cut(8, 4, 1, 4)
