"""Which class a label value belongs to: the values on disk, a choice of classes, and classes merged."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from accel_geo.data.formats.rows import Rows, some
from accel_geo.data.labels import BACKGROUND, INSIDE, NO_DATA
from accel_geo.data.spec import IGNORED

ClassChoice = Sequence[str | int] | Mapping[int, str] | None


@dataclass(frozen=True)
class Classes:
    """The classes of a run.

    Attributes:
        names: of the K classes.
        values: value on disk of each; of merged classes one of theirs.
        index_of: class index of each value on disk: 1..K, 0 for background and classes left out, 255 for no data.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    index_of: dict[int, int]


# Tasks whose labels are pixels: value 0 is background there, and negative values are no data.
PIXELS = ("semantic", "edges")


def unite(folders: Sequence[Rows]) -> tuple[Rows, list[dict[int, int]]]:
    """Unite the classes of several folders by their names.

    Returns:
        The first folder's rows with the classes of all, and for each folder the united value of each of its values
        that differs: where a name has another value than in an earlier folder, or a value another name.
    """
    classes, translations = dict(folders[0].classes), [{}]
    for rows in folders[1:]:
        translation = {}
        for value, name in rows.classes.items():
            same = next((v for v, n in classes.items() if n.casefold() == name.casefold()), None)
            if not (rows.named and folders[0].named):
                united = value
            elif same is not None:
                united = same
            else:
                united = value if value not in classes else max(classes) + 1
            classes.setdefault(united, name)
            if united != value:
                translation[value] = united
        translations.append(translation)
    closed = all(rows.closed for rows in folders)
    return replace(folders[0], classes=dict(sorted(classes.items())), closed=closed), translations


def choose(
    rows: Rows,
    present: Iterable[int],
    problems: list[str],
    *,
    classes: ClassChoice = None,
    mapping: Mapping | None = None,
    ignore_classes: Sequence[str | int] = (),
) -> Classes:
    """Settle the classes.

    Args:
        rows: the data set, with the classes that its format knows.
        present: all values that occur in the labels.
        problems: what is left out or odd is added here.
        classes: names or values of the classes to keep, in any order (others become background); names for the values
            where the data give none, in ascending order of the values, or as {value: name} or "value=name".
        mapping: {old: new}: classes, by name or value, that become the class `new`.
        ignore_classes: names or values whose pixels count nowhere, 0 for background; objects and labels of them are
            left out.

    Raises:
        ValueError: a class does not exist, or there is none.
    """
    if rows.task == "super_resolution":
        return Classes((), (), {})
    present, pixels = set(present), rows.task in PIXELS
    inside = {value: value - INSIDE for value in present if value < INSIDE // 2}
    present -= set(inside)
    index_of = {NO_DATA: IGNORED, BACKGROUND: 0}
    known = dict(rows.classes)
    if pixels:
        negative = sorted(value for value in present if value < 0 and value not in index_of)
        index_of |= {value: IGNORED for value in negative}
        if negative:
            problems.append(f"label pixels of negative value ({some(negative)}) are ignored")
    if pixels and not rows.zero_is_class:
        index_of[0] = 0
        known.pop(0, None)
    if not rows.closed:
        found = sorted(value for value in present if value > 0 or (value == 0 and rows.zero_is_class))
        if pixels and len(found) > 1 and 255 in found and 255 not in known:
            index_of[IGNORED] = IGNORED  # beside classes it means "ignore", alone it is the class of a binary mask
            found.remove(255)
            problems.append("label pixels of value 255 are ignored")
        known = {value: known.get(value, str(value)) for value in found}
    ignored = {_value(entry, known, "ignore_classes", also=index_of) for entry in ignore_classes}
    if classes is not None and not classes:
        raise ValueError(f"classes={classes!r} keeps none; the classes are {_listed(known)}")
    known, kept = _chosen(known, rows, classes, special=index_of)
    kept = [value for value in kept if value not in ignored]
    if not kept and known:
        raise ValueError(f"no class of {rows.root} is left: classes and ignore_classes leave out all, {_listed(known)}")
    if not kept:
        where = " where the chips have data (see their nodata value)" if NO_DATA in present else ""
        raise ValueError(
            f"{rows.root} ({rows.format}) has no classes: no label value besides background was found{where}. Check that "
            "these are the labels of its chips"
        )
    left_out = [f"{known[value]} ({value})" for value in known if value not in kept and value not in ignored]
    if left_out:
        single = rows.task == "classification" and not rows.multilabel
        fate = "with their chips" if single else "as background" if rows.task != "classification" else "not their chips"
        problems.append(f"classes left out, {fate}: {', '.join(left_out)}")
    if len(kept) >= IGNORED and pixels:
        raise ValueError(
            f"{rows.root} has {len(kept)} classes; at most {IGNORED - 1} are possible. Keep some (classes), merge them "
            "(class_mapping), or check that these files are class rasters"
        )
    names = Counter(rows.classes[value] for value in kept if value in rows.classes)
    if twice := [name for name, number in names.items() if number > 1]:
        problems.append(f"several class values have the same name and count as one class: {some(twice)}")
    groups = _merged({value: known[value] for value in kept}, mapping or {})
    for number, values in enumerate(groups.values(), 1):
        index_of |= {value: number for value in values}
    index_of |= {value: 0 for value in known if value not in kept}
    index_of |= {value: IGNORED if pixels else 0 for value in ignored}
    index_of |= {code: IGNORED if index_of.get(value) == IGNORED else 0 for code, value in inside.items()}
    chosen = Classes(tuple(groups), tuple(values[0] for values in groups.values()), index_of)
    return _edges(chosen) if rows.task == "edges" else chosen


def _edges(chosen: Classes) -> Classes:
    # An edge is an edge, whatever class it belongs to.
    index_of = {value: min(index, 1) if index != IGNORED else IGNORED for value, index in chosen.index_of.items()}
    return Classes(("edge",), (1,), index_of)


def _chosen(
    known: dict[int, str], rows: Rows, classes: ClassChoice, special: Collection[int]
) -> tuple[dict[int, str], list[int]]:
    # The names of all values, and the values to keep; `special` values, such as background, are allowed by number.
    if classes is None:
        return known, list(known)
    if isinstance(classes, str):
        classes = [part.strip() for part in classes.split(",")]
    if not isinstance(classes, Mapping) and all("=" in str(entry) for entry in classes):
        classes = dict(str(entry).split("=", 1) for entry in classes)
    if isinstance(classes, Mapping):
        # values that the format does not list may be in files that are not read now
        values = special if rows.closed else {int(key) for key in classes if str(key).strip().isdecimal()}
        renamed = {_value(key, known, "classes", also=values): str(name).strip() for key, name in classes.items()}
        return known | renamed, sorted(renamed)
    entries = [str(entry).strip() for entry in classes]
    matches = [_find(entry, known) for entry in entries]
    if not rows.named and not any(value is not None for value in matches) and len(entries) == len(known):
        return dict(zip(known, entries)), list(known)
    for entry, value in zip(entries, matches):
        if value is None:
            hint = "" if rows.named else "; name all of them in this order, or say VALUE=NAME"
            raise ValueError(f"class {entry!r} does not exist; the classes are {_listed(known)}{hint}")
    return known, sorted(set(matches))


def _merged(known: dict[int, str], mapping: Mapping) -> dict[str, list[int]]:
    # New name -> values, in ascending order of the first value, which is the value that predictions carry.
    target = {}
    for old, new in mapping.items():
        value = _find(str(old).strip(), known)
        if value is None:
            raise ValueError(f"class_mapping: {old!r} is no class; the classes are {_listed(known)}")
        target[value] = str(new).strip()
    groups: dict[str, list[int]] = {}
    for value in sorted(known, key=lambda v: (target.get(v, known[v]) != known[v], v)):
        groups.setdefault(target.get(value, known[value]), []).append(value)
    return dict(sorted(groups.items(), key=lambda item: item[1][0]))


def _find(entry: str, known: dict[int, str]) -> int | None:
    by_name = {name.casefold(): value for value, name in known.items()}
    if entry.casefold() in by_name:
        return by_name[entry.casefold()]
    return int(entry) if entry.lstrip("-").isdecimal() and int(entry) in known else None


def _value(key: str | int, known: dict[int, str], option: str, also: Collection[int]) -> int:
    # The value of a class that is known, or one of other values that are allowed.
    key = str(key).strip()
    value = _find(key, known)
    if value is None and key.lstrip("-").isdecimal() and int(key) in also:
        value = int(key)
    if value is None:
        raise ValueError(f"{option}: class {key!r} does not exist; the classes are {_listed(known)}")
    return value


def _listed(known: dict[int, str]) -> str:
    return ", ".join(f"{name} ({value})" if name != str(value) else name for value, name in known.items()) or "none"
