"""Paired folders for super-resolution: the same ground coarse and sharp, in files of the same names.

Folders are told by the words in their names (low and high, lr and hr, input and target, train_LR and train_HR, also
LR_bicubic/X4 beside HR); files may carry the same words, or the factor, at the end (0001x4.png and 0001.png).
"""

import re
from collections.abc import Callable
from pathlib import Path

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.rows import Rows, some, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("super_resolution",)
LAYOUT = "low/<chip> and high/<chip> (or lr and hr, input and target): the same ground, coarse and sharp"
_COARSE = {"low", "lr", "lowres", "coarse", "input", "inputs"}
_SHARP = {"high", "hr", "highres", "sharp", "fine", "target", "targets", "gt"}
_FACTOR = re.compile(r"x\d+|\d+x")
_ENDING = re.compile(rf"(?:[\W_](?:{'|'.join(_COARSE | _SHARP)})|[\W_]?x[2-8])+$")
_FURTHER = {"bicubic", "unknown", "resolution", "res", "images", "image"}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\W_]+", name.casefold()) if word]


def _rest(name: str, words: set[str]) -> tuple[str, ...] | None:
    # What is left of a folder's name without what makes it the coarse or the sharp one; None where nothing does.
    found = _words(name)
    if not words & set(found):
        return None
    return tuple(w for w in found if w not in words | _FURTHER and not _FACTOR.fullmatch(w))


def _folders(path: Path) -> list[tuple[Path, Path]]:
    # Pairs of a coarse and a sharp folder whose names are alike otherwise.
    if not path.is_dir():
        return []
    entries = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    sharp = {rest: entry for entry in entries if (rest := _rest(entry.name, _SHARP)) is not None}
    coarse = [(entry, rest) for entry in entries if (rest := _rest(entry.name, _COARSE)) in sharp]
    return [(entry, sharp[rest]) for entry, rest in coarse if entry != sharp[rest]]


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format: most files of one folder have a partner in the other.

    Folders named low and high may be classes as well; the names of their chips tell.
    """
    found = _folders(path)
    if not found or esri.metadata(path).mode:
        return False
    coarse, sharp = found[0]
    ours, theirs = _files(coarse, sharp)
    return len(ours.keys() & theirs.keys()) > 0.8 * max(len(ours), len(theirs))


def read(path: Path, task: str) -> Rows:
    """Read the rows of a pair of folders.

    Raises:
        ValueError: there are several such pairs, or the sizes of a pair are no whole multiples of each other.
    """
    found = _folders(path)
    if len(found) != 1:
        listed = ", ".join(f"{coarse.name} and {sharp.name}" for coarse, sharp in found) or "none"
        raise ValueError(f"{path} must hold one pair of a coarse and a sharp folder, found: {listed}. {LAYOUT}")
    return read_pairs(path, *found[0], task, "image_pairs")


def read_pairs(path: Path, coarse: Path, sharp: Path, task: str, name: str) -> Rows:
    """Read the rows of two folders of the same ground.

    Args:
        path: folder of the data set.
        coarse: folder of the coarse rasters.
        sharp: folder of the sharp ones; where sizes say the opposite, the two change places.
        task: "super_resolution".
        name: of the format.

    Raises:
        ValueError: two files would pair with one, no pair was found, or the sizes of a pair do not fit.
    """
    ours, theirs = _files(coarse, sharp)
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    if not pairs:
        raise ValueError(
            f"no file in {coarse} is named like one in {sharp}: there are {some(ours.values(), 3)} "
            f"and {some(theirs.values(), 3)}"
        )
    problems = []
    for folder, count in ((coarse, len(ours) - len(pairs)), (sharp, len(theirs) - len(pairs))):
        if count:
            problems.append(f"{count} file(s) in {folder.name} have no partner and were left out")
    scale = _scale(coarse / pairs[0][0], sharp / pairs[0][1])
    if scale is not None and scale < 0:
        problems.append(f"the rasters in {coarse.name} are larger than those in {sharp.name}: they are the sharp ones")
        coarse, sharp, pairs, scale = sharp, coarse, [(small, large) for large, small in pairs], -scale
    rows = [{"file": f"{coarse.name}/{a}", "label_files": [f"{sharp.name}/{b}"], **boxes.placed(a)} for a, b in pairs]
    return Rows(name, task, path, table(rows), classes={}, scale=scale, problems=problems)


def _files(coarse: Path, sharp: Path) -> tuple[dict[str, str], dict[str, str]]:
    # The files of both folders by what pairs them: their names, else their names without what tells them apart.
    listed = [boxes.listing(base, RASTER_SUFFIXES) for base in (coarse, sharp)]
    ours, theirs = (_by_key(names, boxes.stem, base) for names, base in zip(listed, (coarse, sharp)))
    if ours.keys() & theirs.keys():
        return ours, theirs
    ours, theirs = (_by_key(names, _key, base) for names, base in zip(listed, (coarse, sharp)))
    return ours, theirs


def _key(name: str) -> str:
    parts = [part for part in boxes.stem(name).split("/") if not _FACTOR.fullmatch(part)]  # LR_bicubic/X4/0001x4.png
    parts[-1:] = [_ENDING.sub("", part) for part in parts[-1:]]
    return "/".join(parts)


def _by_key(names: list[str], key: Callable[[str], str], base: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(key(name), name)) != name:
            raise ValueError(f"two files of the same ground: {base / other} and {base / name}; keep one of them")
    return found


def _scale(coarse: Path, sharp: Path) -> int | None:
    # How many times larger the sharp raster is, negative where the first one is larger; None where both are alike.
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with rasterio.open(coarse) as a, rasterio.open(sharp) as b:
            (h, w), (height, width) = a.shape, b.shape
    except RasterioError:
        return None  # the decoder names the file
    if (h, w) == (height, width):
        return None
    sign = 1 if height > h else -1
    small, large = ((h, w), (height, width)) if sign > 0 else ((height, width), (h, w))
    times = large[0] // small[0]
    if times < 2 or large != (times * small[0], times * small[1]):
        raise ValueError(
            f"{sharp} has {(height, width)} pixels (height, width), {coarse} {(h, w)}: the sharp raster must be a whole "
            "multiple of the coarse one, or as large"
        )
    return sign * times
