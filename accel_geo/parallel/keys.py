"""Keyed randomness: every draw is a function of what it is for, never of what was drawn before.

A key is a tuple of plain values such as (seed, fit, epoch, sample, occurrence, site). The same key gives the same draws
on any process, in any worker, after any resume; no generator state is ever stored.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def fold(*parts: int | str) -> int:
    """Fold the parts of a key into one stable integer.

    Args:
        parts: integers and strings; the order matters, and 1 and "1" differ.

    Returns:
        An integer in [0, 2**63), the same on every machine and in every Python.
    """
    return folding()(*parts)


def folding(*first: int | str) -> Callable[..., int]:
    """Return `fold` with the first parts of the key given: cheaper where many keys begin alike."""
    begun = hashlib.blake2b(digest_size=8)
    begun.update(_text(first) + b"\x1f" if first else b"")

    def finish(*rest: int | str) -> int:
        state = begun.copy()
        state.update(_text(rest))
        return int.from_bytes(state.digest(), "big") >> 1

    return finish


def folding_each(first: Sequence[int | str], last: Sequence[int | str] = ()) -> Callable[[Iterable[int]], list[int]]:
    """Return a function that gives `fold(*first, number, *last)` of each number: cheap enough for a million samples."""
    begun = hashlib.blake2b(_text(first) + b"\x1f" if first else b"", digest_size=8)
    text = b"i%d" + (b"\x1f" + _text(last) if last else b"").replace(b"%", b"%%")

    def finish(numbers: Iterable[int]) -> list[int]:
        result = []
        for number in numbers:
            state = begun.copy()
            state.update(text % number)
            result.append(int.from_bytes(state.digest(), "big") >> 1)
        return result

    return finish


def _text(parts: Sequence[int | str]) -> bytes:
    return "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts).encode()


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by the key."""
    return torch.Generator().manual_seed(fold(*parts))


@contextmanager
def scope(*parts: int | str) -> Iterator[None]:
    """Seed the global generators of torch (CPU), numpy and random by the key, and restore them on leaving.

    For library code that draws from global generators (torchvision's transforms, dropout on the CPU).
    """
    seed = fold(*parts)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.random.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
