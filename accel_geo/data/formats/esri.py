"""Metadata that ArcGIS Pro writes beside exported chips. All of it is optional: what is on disk wins."""

from dataclasses import dataclass, field
from pathlib import Path

from accel_geo.data.formats.rows import read_json

_FILES = ("esri_model_definition.emd", "esri_accumulated_stats.json")


@dataclass
class Metadata:
    """What the metadata say.

    Attributes:
        mode: MetaDataMode, the name of the format; "" where it is not given.
        classes: name of each class value.
        bands: band names of the source raster.
        map_space: False where the imagery is in image space (oblique, or without orientation).
        chips: number of chips that the export counted, or None.
        files: the files that were read.
        problems: files that could not be read.
    """

    mode: str = ""
    classes: dict[int, str] = field(default_factory=dict)
    bands: tuple[str, ...] = ()
    map_space: bool = True
    chips: int | None = None
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def metadata(path: Path) -> Metadata:
    """Read the metadata of an export folder; an empty one where there are none."""
    result = Metadata()
    if not path.is_dir():
        return result
    present = {entry.name.casefold(): entry for entry in path.iterdir()}
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
        _take(values, result)
    result.files += [present[name] for name in ("map.txt", "stats.txt") if name in present]
    return result


def _take(values: dict, result: Metadata) -> None:
    result.mode = result.mode or str(values.get("MetaDataMode") or "")
    for entry in values.get("Classes") or []:
        value, name = entry.get("Value", entry.get("ClassValue")), entry.get("Name", entry.get("ClassName"))
        if str(value).lstrip("-").isdecimal() and name is not None:
            result.classes.setdefault(int(value), str(name).strip())
    names = (values.get("InputRastersProps") or {}).get("BandNames") or []
    result.bands = result.bands or tuple(str(name) for name in names)
    if str(values.get("ImageSpaceUsed") or "MAP_SPACE").upper() != "MAP_SPACE":
        result.map_space = False
    if isinstance(values.get("NumTiles"), int):
        result.chips = values["NumTiles"]


def is_export(path: Path) -> bool:
    """Say whether any of the metadata files lies in the folder."""
    names = {entry.name.casefold() for entry in path.iterdir()} if path.is_dir() else set()
    return bool(names & {*_FILES, "map.txt", "stats.txt"})


def disagreements(meta: Metadata, chips: int) -> list[str]:
    """Return what to tell where the metadata could not be read or disagree with the number of chips on disk."""
    if meta.chips is None or meta.chips == chips:
        return meta.problems
    return [*meta.problems, f"the metadata count {meta.chips} chips, {chips} are on disk: what is on disk was read"]


def class_value(name: str, classes: dict[int, str]) -> int | None:
    """Return the class value that a folder name stands for; None where no class fits.

    Export tools replace blanks in folder names, and some write the value instead of the name.
    """

    def plain(text: str) -> str:
        return "_".join(text.casefold().replace("-", "_").replace("_", " ").split())

    for same in (str, str.casefold, plain):
        for value, known in classes.items():
            if same(known) == same(name):
                return value
    return int(name) if name.lstrip("-").isdecimal() and int(name) in classes else None
