"""P2: draws are functions of a key; nothing is streamed and no generator is left changed."""

import random
import subprocess
import sys

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel_geo.parallel.keys import fold, folding_each, generator, scope

parts = st.lists(st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=8)), max_size=5)


def test_fold_is_the_same_everywhere_and_for_ever():
    """The figures are frozen: another hash would change every run that is resumed."""
    assert fold(42, 0, 1, "order") == 3115840272881452305
    assert fold() == 8238016292129134938
    code = "from accel_geo.parallel.keys import fold; print(fold(42, 0, 1, 'order'))"
    for seed in ("0", "1"):
        out = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PATH": ""}, capture_output=True, text=True
        )
        assert out.stdout.strip() == str(fold(42, 0, 1, "order")), out.stderr


@given(parts, parts)
def test_different_keys_fold_differently(a, b):
    assert 0 <= fold(*a) < 2**63
    assert (fold(*a) == fold(*b)) == (a == b) or "\x1f" in "".join(map(str, a + b))


def test_order_and_kind_of_the_parts_matter():
    assert len({fold(1, 2), fold(2, 1), fold(12), fold("1", 2), fold(1, 2, 0), fold("12")}) == 6


def test_generators_of_one_key_agree_and_of_two_do_not():
    first, again, other = (torch.rand(8, generator=generator(*key)) for key in (("a", 1), ("a", 1), ("a", 2)))
    assert first.equal(again) and not first.equal(other)


def test_a_scope_seeds_and_restores_every_global_generator():
    def draw():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()

    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = [draw(), draw()]
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    seen = [draw()]
    with scope(7, "site"):
        within = draw()
        with scope(8):
            draw()
        after_inner = draw()
    seen.append(draw())
    assert seen == expected
    with scope(7, "site"):
        assert draw() == within and draw() == after_inner
    assert within not in seen
    try:
        with scope(9):
            raise KeyError
    except KeyError:
        pass
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    assert draw() == expected[0]


def test_a_scope_leaves_the_generator_of_an_accelerator_alone(monkeypatch):
    """torch.manual_seed would seed the GPUs too, and never restore them."""
    monkeypatch.setattr(torch, "manual_seed", lambda seed: (_ for _ in ()).throw(AssertionError("seeded everything")))
    with scope(1):
        torch.rand(1)


@given(st.lists(st.integers(-(10**12), 10**12), max_size=5))
def test_many_keys_at_once_are_the_same_keys(numbers):
    assert folding_each((42, 0, "a"), (0,))(numbers) == [fold(42, 0, "a", n, 0) for n in numbers]
    assert folding_each(("%",), ("50 %",))(numbers) == [fold("%", n, "50 %") for n in numbers]
    assert folding_each(())(numbers) == [fold(n) for n in numbers]
