"""What lies beside YOLO labels: data.yaml (names, train, val, test), or a list of class names as plain text."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats import boxes

LISTS = ("classes.txt", "obj.names", "names.txt")  # may lie among the labels


class Lists(NamedTuple):
    """What lies beside the labels.

    Attributes:
        names: of each class index; empty where there is no list.
        where: the file that holds them.
        settings: all of data.yaml, as plain text.
        files: that were read.
        problems: what contradicts itself.
    """

    names: dict[int, str]
    where: str
    settings: dict
    files: list[Path]
    problems: list[str]


def class_lists(root: Path, labels: list[str]) -> Lists:
    """Read the class names: of data.yaml in the folder or the one above, else of classes.txt there or among the labels.

    Args:
        root: the folder of the data set.
        labels: folders of the labels, relative to it.

    Raises:
        ValueError: a YAML file is none, or its names are no list.
    """
    settings, files, problems = {}, [], []
    above = [root.resolve().parent] if root.resolve().name.casefold() in boxes.SPLITS else []  # train/ of a data set
    for file in [p / name for p in (root, *above) for name in boxes.listing(p, (".yaml", ".yml"), deep=False)]:
        values = _yaml(file)
        if isinstance(values, dict) and "names" in values:
            settings, files = values, [file]
            break
    names = _names(settings["names"], files[0]) if files else {}
    if str(settings.get("nc") or len(names)) != str(len(names)):
        problems.append(f"{files[0].name} counts {settings['nc']} classes and names {len(names)}: the names count")
    if names:
        return Lists(names, files[0].name, settings, files, problems)
    for place in (root, *(root / folder for folder in labels), *above):
        for name in LISTS:
            if (place / name).is_file():
                lines = boxes.read_text(place / name).rstrip().splitlines()
                names = {i: line.strip() or str(i) for i, line in enumerate(lines)}
                return Lists(names, name, settings, [*files, place / name], problems)
    return Lists({}, "", settings, files, problems)


def _yaml(file: Path) -> object:
    import yaml

    try:
        return yaml.load(boxes.read_text(file), Loader=yaml.BaseLoader)  # all plain text: no, 1e3 and so on are names
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no valid YAML, correct or delete it: {' '.join(str(error).split())}") from error


def _names(names: object, file: Path) -> dict[int, str]:
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not all(boxes.whole(str(index)) is not None for index in names):
        raise ValueError(f"{file}: names must be a list, or {{index: name}}; found {str(names)[:120]}")
    return {int(index): str(name).strip() for index, name in names.items()}


def splits(settings: dict, root: Path, files: list[str]) -> dict[str, str]:
    """Return the split of the files that `train`, `val` and `test` of data.yaml name, unless several name the same.

    Args:
        settings: all of data.yaml.
        root: the folder of the data set.
        files: the chips, relative to it.
    """
    given: dict[str, set[str]] = {}
    for key in ("train", "val", "test"):
        entries = settings.get(key) or []
        for entry in [entries] if isinstance(entries, str) else entries:
            given.setdefault(str(entry), set()).add(key)
    found: dict[str, str] = {}
    for entry, keys in given.items():
        if len(keys) == 1:
            found |= dict.fromkeys(_named(entry, root, files), boxes.SPLITS[keys.pop()])
    return found


def _named(entry: str, root: Path, files: list[str]) -> Iterable[str]:
    # The files in a folder, or in a list of files; the folders that a path begins with may be lost.
    parts = [part for part in entry.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    for start in range(len(parts)):
        place = "/".join(parts[start:])
        if (root / place).is_dir():
            return [file for file in files if file.startswith(f"{place}/")]
        if (root / place).is_file():
            finder = boxes.Finder(files)
            lines = boxes.read_text(root / place).splitlines()
            return [file for line in lines if line.strip() and (file := finder.find(line.strip()))]
        if parts[start].casefold() in boxes.SPLITS:
            break  # what follows is no folder of this split alone
    return []
