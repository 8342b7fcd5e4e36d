"""Splits: which chips train and which validate, as a function of names and seed alone."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from accel_geo.data.formats.rows import some
from accel_geo.parallel import keys

SPLITS = ("random",)


def random_split(files: Sequence[str], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Split at random, each chip by its name and the seed, so that a new chip hardly moves the others.

    Args:
        files: name of each chip.
        fraction: part to validate on, rounded; at least one chip where it is above 0 and there are two. One chip at
            least trains.
        seed: of the split.

    Returns:
        Positions for training and for validation, ascending.

    Raises:
        ValueError: the fraction is not in [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"val_split={fraction} must be at least 0 and below 1: the part of the chips to validate on")
    order = sorted(range(len(files)), key=lambda i: keys.fold(seed, "split", files[i]))
    number = min(max(round(len(files) * fraction), 1 if fraction else 0), len(files) - 1)
    valid = set(order[:number])
    return [i for i in range(len(files)) if i not in valid], sorted(valid)


def split_by_name(files: Sequence[str], pattern: str) -> tuple[list[int], list[int]]:
    """Validate on the chips whose name, or path in the data folder, matches a pattern such as "north_*".

    Raises:
        ValueError: no chip matches, or all do.
    """
    names = [(file, file.rsplit("/", 1)[-1]) for file in files]
    valid = [i for i, pair in enumerate(names) if any(fnmatchcase(name, pattern) for name in pair)]
    if not valid or len(valid) == len(files):
        which = "every" if valid else "no"
        raise ValueError(f"valid_match={pattern!r} matches {which} one of {len(files)} chips, such as {some(files, 3)}")
    chosen = set(valid)
    return [i for i in range(len(files)) if i not in chosen], valid
