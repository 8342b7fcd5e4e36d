"""Which chips of all folders train, validate and test: gathers what the rules of splits.py need, and checks the result."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from accel_geo.data import footprints, splits
from accel_geo.data.formats.rows import some
from accel_geo.data.source import Source

SPLITS = ("train", "valid", "test")
_ROLES = {"train": 0, "valid": 1, "test": 2}


class Rule(NamedTuple):
    """How to split.

    Attributes:
        fraction: part of the chips to validate on.
        by: "random", "group", "column:NAME", or None: the split that the data bring along, else random.
        match: validate on the chips whose names match this pattern instead.
        stratify: keep the share of each class; None: where a chip has one class.
        seed: of the split.
    """

    fraction: float
    by: str | None
    match: str | None
    stratify: bool | None
    seed: int


def divide(
    sources: Sequence[Source], kept: Sequence[Sequence[int]], rule: Rule, problems: list[str]
) -> list[list[list[int]]]:
    """Divide the chips.

    Folders with a role are that split as a whole; the chips of all others are divided together.

    Args:
        sources: the folders.
        kept: the chips of each to use.
        rule: how to split.
        problems: what is left out, or leaks, is added here.

    Returns:
        For training, validation and testing the positions in each folder.

    Raises:
        ValueError: the rule does not fit these chips, or nothing is left to train on.
    """
    result: list[list[list[int]]] = [[[] for _ in sources] for _ in SPLITS]
    for number, source in enumerate(sources):
        if source.role:
            result[_ROLES[source.role]][number] = list(kept[number])
    free = [(number, position) for number, source in enumerate(sources) if not source.role for position in kept[number]]
    if not any(kept):
        raise ValueError(
            f"no chip of {sources[0].rows.root} is left: none has a label of a class that was chosen. Check its labels, or "
            "choose other classes"
        )
    if any(source.role == "valid" for source in sources):
        sides = [free, [], []]
    else:
        if not free:  # one folder to train on, one to test on: validation comes from the first
            free = [(n, p) for n, source in enumerate(sources) if source.role == "train" for p in kept[n]]
            result[0] = [[] for _ in sources]
        sides = [[free[i] for i in side] for side in _sides(sources, free, rule, problems)]
    for side, chosen in zip(result, sides):
        for number, position in chosen:
            side[number].append(position)
    if not any(result[0]):
        raise ValueError(f"no chip is left to train on: {some(source.rows.root for source in sources)}")
    _tell_leaks(sources, result, problems)
    return result


def _sides(
    sources: Sequence[Source], free: list[tuple[int, int]], rule: Rule, problems: list[str]
) -> Sequence[list[int]]:
    names = [sources[number].names[position] for number, position in free]
    if rule.match:
        return splits.split_by_name(names, rule.match)
    if rule.by == "group":
        return _by_group(sources, free, names, rule, problems)
    column = rule.by.removeprefix("column:") if rule.by and rule.by.startswith("column:") else None
    if column is not None:
        return splits.column_split(names, _column(sources, free, column), rule.fraction, rule.seed)
    if rule.by is None:
        own = _column(sources, free, "split", needed=False)
        if own is not None and len(set(own)) > 1:
            return splits.column_split(names, own, rule.fraction, rule.seed)
    single = sources[0].rows.task == "classification" and not sources[0].rows.multilabel
    if single if rule.stratify is None else rule.stratify:
        labels = [tuple(np.unique(sources[number].store.values[position]).tolist()) for number, position in free]
        return splits.stratified_split(names, labels, rule.fraction, rule.seed)
    return splits.random_split(names, rule.fraction, rule.seed)


def _column(
    sources: Sequence[Source], free: list[tuple[int, int]], column: str, needed: bool = True
) -> list[object] | None:
    # The value of a column for each chip; where it is not needed, None unless every chip has one.
    texts = [source.rows.dataset["attributes"][:] for source in sources]
    parsed = [[json.loads(text) if text else {} for text in column_texts] for column_texts in texts]
    values = [parsed[number][position].get(column) for number, position in free]
    if not needed:
        return None if any(value is None for value in values) else values
    if all(value is None for value in values):
        known = sorted({name for rows in parsed for row in rows for name in row})
        raise ValueError(
            f"split_by='column:{column}': no chip has that column; there are {', '.join(known) or 'none'}. Columns come "
            "from CSV files, tables of vectors and data sets, and from the folders train/, valid/, test/ as 'split'"
        )
    return values


def _by_group(
    sources: Sequence[Source], free: list[tuple[int, int]], names: list[str], rule: Rule, problems: list[str]
) -> Sequence[list[int]]:
    own = [source.rows.dataset["group"][:] for source in sources]
    groups = [f"{number}:{own[number][position]}" if own[number][position] else "" for number, position in free]
    if len(sources) > 1 and not any(groups):
        groups = [str(number) for number, _ in free]
    if len(set(groups)) > 1:
        return splits.group_split(names, groups, rule.fraction, rule.seed)
    bounds, crs = _bounds(sources, free)
    # Folders are classes, not places, in classification.
    places = sources[0].rows.task != "classification"
    found = footprints.groups_of_footprints(bounds, crs, names, rule.fraction, folders=places)
    problems += found.notes
    train, valid = splits.group_split(names, found.names, rule.fraction, rule.seed)
    beside = set(footprints.sharing(bounds, crs, train, valid)) if found.cut else set()
    if beside:
        problems.append(
            f"{len(beside)} training chip(s) that overlap a validation chip were left out, so that nothing that is "
            f"validated on was seen: {some([names[i] for i in sorted(beside)], 3)}"
        )
    return [i for i in train if i not in beside], valid


def _bounds(sources: Sequence[Source], chosen: list[tuple[int, int]]) -> tuple[np.ndarray, list[str]]:
    # Footprints [N, 4], NaN where a chip is not georeferenced, and their reference systems.
    tables = [source.store.footprints() for source in sources]
    bounds = np.array([tables[number][0][position] for number, position in chosen], dtype=np.float64).reshape(-1, 4)
    return bounds, [tables[number][1][position] for number, position in chosen]


def _tell_leaks(sources: Sequence[Source], result: list[list[list[int]]], problems: list[str]) -> None:
    # Chips that show the same ground in training and in another split.
    sides = [[(n, p) for n, positions in enumerate(side) for p in positions] for side in result]
    if len(sources) > 1:  # else each chip is in one split
        trained, *others = ({_name(sources, chip) for chip in side} for side in sides)
        for name, held in zip(("validation", "test"), others):
            if same := sorted(trained & held):
                problems.append(
                    f"{len(same)} {name} chip(s) are training chips too ({some(same, 2)}): figures will be too good; give "
                    "other folders"
                )
    everything = [chip for side in sides for chip in side]
    bounds, crs = _bounds(sources, everything)
    if np.isnan(bounds).all():
        return
    ends = np.cumsum([0, *map(len, sides)])
    for name, begin, end in zip(("validation", "test"), ends[1:], ends[2:]):
        leaks = footprints.leaks(bounds, crs, list(range(ends[1])), list(range(begin, end)))
        if leaks.pairs:
            shown = [
                f"{_name(sources, everything[a])} and {_name(sources, everything[b])}" for a, b, _ in leaks.examples
            ]
            problems.append(
                f"{leaks.valid} of {end - begin} {name} chip(s) show ground that training chips show too "
                f"({some(shown, 2)}): figures will be too good; split_by='group' keeps neighbours together"
            )


def _name(sources: Sequence[Source], chip: tuple[int, int]) -> str:
    return sources[chip[0]].names[chip[1]]


def index_tables(translations: Sequence[Mapping[int, int]], index_of: dict[int, int]) -> list[dict[int, int]]:
    """Return the class index of each value on disk for each folder, where folders number their classes differently."""
    tables = []
    for translation in translations:
        own = dict(index_of)
        for value, united in translation.items():
            own[value] = index_of[united]
        tables.append(own)
    return tables
