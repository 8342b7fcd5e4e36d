"""Metadata that ArcGIS Pro writes beside exported chips. All of it is optional: what is on disk wins.

Old exports keep place-holder strings ("e.g. 256") where numbers and lists belong and name the format only in
esri_accumulated_stats.json; newer ones say more in esri_model_definition.emd. Whatever is not of the expected kind is
taken for not given.
"""

import math
import os
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from accel_geo.data.formats.rows import read_json, some
from accel_geo.data.pixels import RASTER_SUFFIXES

_FILES = ("esri_model_definition.emd", "esri_accumulated_stats.json")
_SUFFIXES = (*RASTER_SUFFIXES, ".xml", ".txt", ".json")
_NAME = re.compile(rf"\S.*?(?:{'|'.join(map(re.escape, _SUFFIXES))})(?=\s|$)", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d+(\.0*)?")


class BandStatistics(NamedTuple):
    """What the export says of one band, over the pixels of all chips.

    Attributes:
        name: of the band, or "".
        low: smallest value.
        high: largest value.
        mean: mean value.
        std: standard deviation.
    """

    name: str
    low: float
    high: float
    mean: float
    std: float


@dataclass
class Metadata:
    """What the metadata say.

    Attributes:
        mode: MetaDataMode, the name of the format; "" where it is not given.
        classes: name of each class value.
        things: values of the classes whose objects are exported one by one (Panoptic_Segmentation).
        bands: band names of the source raster.
        statistics: of each band; empty where they are not given, or not of all bands.
        map_space: False where the imagery is in image space (oblique, or without orientation).
        variable_size: chips are cut around single objects and may differ in size.
        chips: number of chips that the export counted, or None.
        files: the files that were read.
        problems: files that could not be read, and what they contradict each other in.
    """

    mode: str = ""
    classes: dict[int, str] = field(default_factory=dict)
    things: frozenset[int] = frozenset()
    bands: tuple[str, ...] = ()
    statistics: tuple[BandStatistics, ...] = ()
    map_space: bool = True
    variable_size: bool = False
    chips: int | None = None
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def metadata(path: Path) -> Metadata:
    """Read the metadata of an export folder; an empty one where there are none."""
    result = Metadata()
    if not path.is_dir():
        return result
    present = _described(path)
    lists: dict[str, dict[int, str]] = {}
    for name in _FILES:
        if name not in present:
            continue
        try:
            values = read_json(present[name])
            if not isinstance(values, dict):
                raise ValueError(f"{present[name]} holds no JSON object")
        except (ValueError, OSError) as error:
            result.problems.append(f"{error}; it is not needed and was left out")
            continue
        result.files.append(present[name])
        lists[name] = _take(values, result)
    told = [{value: name for value, name in known.items() if value} for known in lists.values() if known]
    if len(told) == 2 and told[0] != told[1]:
        listed = [", ".join(f"{value} {name}" for value, name in sorted(known.items())) for known in told]
        result.problems.append(
            f"the class lists differ: {_FILES[0]} says {listed[0]}; {_FILES[1]} says {listed[1]}; all are taken, with the "
            "names of the first"
        )
    result.files += [present[name] for name in ("map.txt", "stats.txt") if name in present]
    return result


def _take(values: dict, result: Metadata) -> dict[int, str]:
    # Adds what one file says to the result, which the file before has filled; returns the classes that it lists.
    result.mode = result.mode or _text(values.get("MetaDataMode"))
    classes = _class_list(values.get("Classes"))
    result.classes = classes | result.classes
    names = values.get("InputRastersProps")
    names = names.get("BandNames") if isinstance(names, dict) else None
    if isinstance(names, list):
        result.bands = result.bands or tuple(str(name) for name in names)
    if _text(values.get("ImageSpaceUsed")).upper() in ("PIXEL_SPACE", "IMAGE_SPACE"):
        result.map_space = False
    if _text(values.get("CropTileMode")).casefold() == "variable_size":
        result.variable_size = True
    counted = [_whole(values.get(key)) for key in ("NumTiles", "NumTilesAsDouble")]
    result.chips = next((count for count in counted if count is not None and count >= 0), result.chips)
    result.things = result.things or _instance_classes(values, result.classes)
    result.statistics = result.statistics or _statistics(values, result.bands)
    return classes


def _class_list(entries: object) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            value = _whole(entry.get("Value", entry.get("ClassValue")))
            name = entry.get("Name", entry.get("ClassName"))
            if value is not None and name is not None:
                found.setdefault(value, str(name).strip())
    return found


def _instance_classes(values: dict, classes: dict[int, str]) -> frozenset[int]:
    # A list of classes, of their values or of their names.
    entries = values.get("Panoptic_Segmentation_Instance_Classes")
    found = set(_class_list(entries))
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            value = _whole(entry)
            found.add(value if value in classes else class_value(str(entry).strip(), classes))
    return frozenset(found - {None})


def _statistics(values: dict, names: tuple[str, ...]) -> tuple[BandStatistics, ...]:
    # AllTilesStats, or the running sums of BandStatsState: M1 the mean, M2 / Num the variance.
    found = []
    for key in ("AllTilesStats", "BandStatsState"):
        entries = values.get(key)
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            entry = entry if isinstance(entry, dict) else {}
            low, high, mean, std = (_number(entry.get(name)) for name in ("Min", "Max", "Mean", "StdDev"))
            if key == "BandStatsState":
                mean, square, count = (_number(entry.get(name)) for name in ("M1", "M2", "Num"))
                std = math.sqrt(max(square, 0) / count) if square is not None and count else None
            if None in (low, high, mean, std):
                return ()
            name = entry.get("BandName", names[i] if i < len(names) else "")
            found.append(BandStatistics(str(name), low, high, mean, std))
        if found:
            break
    return tuple(found)


def _text(value: object) -> str:
    # What stands there, unless it is a place-holder.
    text = value.strip() if isinstance(value, str) else ""
    return "" if text.casefold().startswith("e.g.") else text


def _number(value: object) -> float | None:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) and abs(number) < 2**53 else None


def is_export(path: Path) -> bool:
    """Say whether any of the metadata files lies in the folder."""
    return path.is_dir() and bool(_described(path))


def _described(path: Path) -> dict[str, Path]:
    # The metadata files by their names in lower case. As text: a folder may hold 100,000 chips besides.
    wanted = {*_FILES, "map.txt", "stats.txt"}
    return {lower: path / name for name in os.listdir(path) if (lower := name.casefold()) in wanted}


def disagreements(meta: Metadata, chips: int) -> list[str]:
    """Return what to tell where the metadata could not be read or disagree with what is on disk.

    Args:
        meta: the metadata; its map.txt, where there is one, is read here.
        chips: number of chips on disk.
    """
    problems = list(meta.problems)
    if meta.chips is not None and meta.chips != chips:
        problems.append(f"the metadata count {meta.chips} chips, {chips} are on disk: what is on disk was read")
    listing = next((file for file in meta.files if file.name.casefold() == "map.txt"), None)
    return problems + (_map_problems(listing, chips) if listing else [])


def map_lines(file: Path) -> list[tuple[str, ...]]:
    """Read map.txt: the chip and the label files of each line, with forward slashes."""
    text = file.read_bytes().decode("utf-8-sig", errors="replace").replace("\\", "/")
    return [names for line in text.splitlines() if (names := _names(line))]


def _names(line: str) -> tuple[str, ...]:
    # Blanks separate names, and may be part of them.
    words = line.split()
    plain = all(word.lower().endswith(_SUFFIXES) for word in words)
    return tuple(words if plain else _NAME.findall(line))


def _map_problems(file: Path, chips: int) -> list[str]:
    try:
        lines = map_lines(file)
    except OSError as error:
        return [f"{file} cannot be read ({error}); it is not needed and was left out"]
    problems = []
    if repeated := len(lines) - len(set(lines)):
        problems.append(f"map.txt repeats {repeated} line(s), which count once")
    present = _files_below(file.parent)
    missing = [name for name in dict.fromkeys(name for line in lines for name in line) if _plain(name) not in present]
    if missing:
        problems.append(f"map.txt names {len(missing)} file(s) that are not on disk: {some(missing, 3)}")
    listed = len({line[0] for line in lines} - set(missing))
    if lines and listed < chips:
        problems.append(f"map.txt names {listed} of {chips} chips: all were read")
    return problems


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().removeprefix("./")


def _files_below(root: Path) -> set[str]:
    # All at once: asking for every file of many takes long, and their names may differ in case.
    found = set()
    for place, _, names in os.walk(root):
        base = os.path.relpath(place, root).replace(os.sep, "/")
        found.update(_plain(f"{base}/{name}") for name in names)
    return found


def class_value(name: str, classes: dict[int, str]) -> int | None:
    """Return the class value that a folder's or an object's name stands for; None where no class fits.

    Export tools replace blanks in folder names, and some write the value instead of the name.
    """

    def plain(text: str) -> str:
        return "_".join(text.casefold().replace("-", "_").replace("_", " ").split())

    for same in (str, str.casefold, plain):
        for value, known in classes.items():
            if same(known) == same(name):
                return value
    return int(float(name)) if _INTEGER.fullmatch(name) and int(float(name)) in classes else None
