"""Splits: which chips train and which validate, as a function of names, groups, labels and the seed alone.

No function here looks at the order of the chips on disk: each is placed by the key of its name, or of its group's. So a
new chip hardly moves the others, and every process gets the same. Names should differ; windows of one scene need names
that say which window.
"""

import re
from collections.abc import Hashable, Sequence
from fnmatch import translate

import numpy as np

from accel_geo.data.formats.rows import some
from accel_geo.parallel import keys

# What values of a split column mean, in any case.
_NAMED = {"train": 0, "training": 0, "valid": 1, "val": 1, "validation": 1, "test": 2}

Positions = list[int]  # of chips, ascending


def random_split(files: Sequence[str], fraction: float, seed: int) -> tuple[Positions, Positions]:
    """Split at random, each chip by its name and the seed, so that a new chip hardly moves the others.

    Args:
        files: name of each chip.
        fraction: part to validate on, rounded; at least one chip where it is above 0 and there are two. One chip at
            least trains.
        seed: of the split.

    Returns:
        Positions for training and for validation, ascending. Together they are all chips, and no chip is in both.

    Raises:
        ValueError: the fraction is not in [0, 1).
    """
    number = _number(len(files), fraction)
    valid = np.zeros(len(files), dtype=bool)
    valid[_order(files, seed)[:number]] = True
    return _sides(valid)


def stratified_split(
    files: Sequence[str], labels: Sequence[Hashable], fraction: float, seed: int
) -> tuple[Positions, Positions]:
    """Split at random so that each class is split in the same proportion (largest remainder).

    Guaranteed: of a class with at least two chips one trains; the most frequent class validates as soon as any chip
    does, and every class with at least two chips where there are twice as many chips to validate on as such classes.
    The number of chips to validate on is that of `random_split`, less only where training chips of small classes would
    be lacking. Within a class, chips are chosen by name and seed.

    Args:
        files: name of each chip.
        labels: class of each chip; those of several labels may be given as a tuple, and are a class of their own.
        fraction: part to validate on, of each class as of all.
        seed: of the split.

    Returns:
        Positions for training and for validation, ascending.

    Raises:
        ValueError: the fraction is not in [0, 1).
    """
    number = _number(len(files), fraction)
    codes, names = _codes(labels)
    by_name = np.array(sorted(range(len(names)), key=lambda code: str(names[code])), dtype=np.int64)
    seats = np.empty_like(by_name)
    seats[by_name] = _seats(np.bincount(codes, minlength=len(names))[by_name], number)  # ties: the first by name
    order = _order(files, seed)
    order = order[np.argsort(codes[order], kind="stable")]  # by class, within it by key
    sorted_codes = codes[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_codes, sorted_codes)
    valid = np.zeros(len(files), dtype=bool)
    valid[order[rank < seats[sorted_codes]]] = True
    return _sides(valid)


def group_split(files: Sequence[str], groups: Sequence[str], fraction: float, seed: int) -> tuple[Positions, Positions]:
    """Split whole groups: no group is in both parts.

    Groups come in the order of their keys; each is taken to validate on that still fits into the share, and at the end
    the smallest of the others where that brings the number of chips nearer to it. So large groups may be passed over.
    Where the fraction is above 0, at least one group is on each side.

    Args:
        files: name of each chip.
        groups: group of each chip; a chip whose group is "" stands alone.
        fraction: part of all chips to validate on.
        seed: of the split.

    Returns:
        Positions for training and for validation, ascending.

    Raises:
        ValueError: there is one group only, or no chip has one; or the fraction is not in [0, 1).
    """
    number = _number(len(files), fraction)
    if not number:
        return list(range(len(files))), []
    if not any(groups):
        raise ValueError(f"no chip has a group, such as a folder or a scene, to split by; {_OTHERWISE}")
    codes, names = _codes(groups, files)
    if len(names) == 1:
        raise ValueError(f"all {len(files)} chips are of one group, {groups[0]!r}, which cannot be split; {_OTHERWISE}")
    fold = keys.folding(seed, "split", "group")
    order = np.argsort(np.fromiter((fold(*name) for name in names), np.int64, len(names)), kind="stable")
    sizes = np.bincount(codes)[order].tolist()
    chosen, taken = [], 0
    for place, size in enumerate(sizes):
        if taken + size <= number:
            chosen.append(place)
            taken += size
    taken_places = set(chosen)
    left = [place for place in range(len(sizes)) if place not in taken_places]
    smallest = min(left, key=sizes.__getitem__)
    if not chosen or (len(left) > 1 and abs(taken + sizes[smallest] - number) < number - taken):
        chosen.append(smallest)
    return _sides(np.isin(codes, order[chosen]))


def column_split(
    files: Sequence[str], values: Sequence[object], fraction: float, seed: int
) -> tuple[Positions, Positions, Positions]:
    """Split by a column: its values are the names of the splits, or groups.

    Values train, training, valid, val, validation and test (in any case) are taken as they stand. Where none says what
    to validate on, that part is drawn from the training chips as `random_split` does; chips to test on are never
    touched. Other values are groups, see `group_split`, and there is nothing to test on.

    Args:
        files: name of each chip.
        values: the column; empty ones (None or "") are groups of one chip.
        fraction: part to validate on, where the column does not say.
        seed: of the split.

    Returns:
        Positions for training, for validation and for testing, ascending.

    Raises:
        ValueError: names of splits are mixed with other values, no chip trains, or there is one group only.
    """
    texts = ["" if value is None else str(value).strip() for value in values]
    side_of = {text: _NAMED.get(text.casefold()) for text in set(texts)}
    others = sorted(text for text, side in side_of.items() if side is None)
    if len(others) == len(side_of):
        return *group_split(files, texts, fraction, seed), []
    if others:
        number = sum(side_of[text] is None for text in texts)
        raise ValueError(
            f"the column to split by names splits, but {number} of {len(texts)} chips have other values "
            f"({some(map(repr, others))}), such as {some((f for f, t in zip(files, texts) if side_of[t] is None), 3)}; "
            f"allowed are {', '.join(_NAMED)} in any case: correct the values or leave those chips out"
        )
    sides: tuple[Positions, ...] = ([], [], [])
    for position, text in enumerate(texts):
        sides[side_of[text]].append(position)
    train, valid, test = sides
    if not train:
        raise ValueError(
            f"the column to split by has no chip to train on: its values are {some(side_of)}; {_OTHERWISE}"
        )
    if not valid:
        parts = random_split([files[i] for i in train], fraction, seed)
        train, valid = ([train[i] for i in part] for part in parts)
    return train, valid, test


def split_by_name(files: Sequence[str], pattern: str) -> tuple[Positions, Positions]:
    """Validate on the chips whose name, or path in the data folder, matches a pattern such as "north_*".

    Raises:
        ValueError: no chip matches, or all do.
    """
    matches = re.compile(translate(pattern)).match
    valid = [i for i, file in enumerate(files) if matches(file.rsplit("/", 1)[-1]) or matches(file)]
    if not valid or len(valid) == len(files):
        which = "every" if valid else "no"
        raise ValueError(f"valid_match={pattern!r} matches {which} one of {len(files)} chips, such as {some(files, 3)}")
    chosen = set(valid)
    return [i for i in range(len(files)) if i not in chosen], valid


_OTHERWISE = (
    'split by "random" or by a column ("column:NAME"), name what to validate on (valid_match="PATTERN" of file names, '
    "valid_path=FOLDER), or validate on nothing (val_split=0)"
)


def _number(chips: int, fraction: float) -> int:
    # How many chips validate.
    if not 0 <= fraction < 1:
        raise ValueError(f"val_split={fraction} must be at least 0 and below 1: the part of the chips to validate on")
    return max(min(max(round(chips * fraction), 1 if fraction else 0), chips - 1), 0)


def _order(files: Sequence[str], seed: int) -> np.ndarray:
    # Positions in the order of the chips' keys.
    fold = keys.folding(seed, "split")
    return np.argsort(np.fromiter(map(fold, files), np.int64, len(files)), kind="stable")


def _sides(valid: np.ndarray) -> tuple[Positions, Positions]:
    return np.flatnonzero(~valid).tolist(), np.flatnonzero(valid).tolist()


def _codes(values: Sequence[Hashable], alone: Sequence[str] | None = None) -> tuple[np.ndarray, list[tuple]]:
    # A number for each value, and the values as tuples. With `alone`, an empty value is one of its own, by that name.
    number_of: dict[tuple, int] = {}
    if alone is None:
        codes = [number_of.setdefault((value,), len(number_of)) for value in values]
    else:
        named = ((value,) if value else ("", name) for value, name in zip(values, alone))
        codes = [number_of.setdefault(name, len(number_of)) for name in named]
    return np.array(codes, dtype=np.int64), list(number_of)


def _seats(sizes: np.ndarray, number: int) -> np.ndarray:
    # How many chips of each class validate, by largest remainder between what each must have and what it can spare.
    quotas = sizes * (number / max(sizes.sum(), 1))
    least = ((sizes > 1) & (2 * np.count_nonzero(sizes > 1) <= number)).astype(np.int64)
    most = np.maximum(sizes - 1, 0)
    if most.sum() < number:
        most = np.where(sizes == 1, 1, most)  # classes of one chip go to validation before others lose their last one
    number = min(number, int(most.sum()))
    seats = np.clip(np.floor(quotas).astype(np.int64), least, most)
    while lacking := number - int(seats.sum()):
        step = 1 if lacking > 0 else -1
        free = np.flatnonzero(seats < most if lacking > 0 else seats > least)
        wanted = free[np.lexsort((-sizes[free], -step * (quotas - seats)[free]))]
        seats[wanted[: abs(lacking)]] += step
    return seats
