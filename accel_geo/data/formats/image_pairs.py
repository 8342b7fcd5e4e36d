"""Paired folders for super-resolution: the same ground coarse and sharp, in files of the same names.

Folders are told by the words in their names (low and high, lr and hr, input and target, train_LR and train_HR, also
LR_bicubic/X4 beside HR); files may carry the same words, or the factor, at the end (0001x4.png and 0001.png).
"""

import re
from pathlib import Path

from accel_geo.data.formats import esri
from accel_geo.data.formats.rows import Rows, rasters, relative, some, stem, table

TASKS = ("super_resolution",)
LAYOUT = "low/<chip> and high/<chip> (or lr and hr, input and target): the same ground, coarse and sharp"
_COARSE = {"low", "lr", "lowres", "coarse", "input", "inputs"}
_SHARP = {"high", "hr", "highres", "sharp", "fine", "target", "targets", "gt"}
_FACTOR = re.compile(r"x\d+|\d+x")
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
    """Say whether a folder is in this format."""
    if not path.is_dir() or esri.metadata(path).mode:
        return False
    return any(rasters(coarse) and rasters(sharp) for coarse, sharp in _folders(path))


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


def plain_stem(file: Path, base: Path) -> str:
    """Return what pairs a coarse with a sharp file: the stem without words such as _lr, _hr or x4 at its end."""
    name = stem(file, base)
    words = "|".join(sorted(_COARSE | _SHARP, key=len, reverse=True))
    parts = [part for part in name.split("/") if not _FACTOR.fullmatch(part)]  # LR_bicubic/X4/0001x4.png
    parts[-1] = re.sub(rf"(?:[\W_](?:{words})|[\W_]?(?<=\d)x[2-9]|[\W_]x\d+)+$", "", parts[-1]) or parts[-1]
    return "/".join(parts)


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
    ours, theirs = _by_stem(coarse), _by_stem(sharp)
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    if not pairs:
        raise ValueError(
            f"no file in {coarse} is named like one in {sharp}: there are {some([f.name for f in ours.values()], 3)} "
            f"and {some([f.name for f in theirs.values()], 3)}"
        )
    problems = []
    for folder, count in ((coarse, len(ours) - len(pairs)), (sharp, len(theirs) - len(pairs))):
        if count:
            problems.append(f"{count} file(s) in {folder.name} have no partner and were left out")
    scale = _scale(*pairs[0])
    if scale is not None and scale < 0:
        problems.append(f"the rasters in {coarse.name} are larger than those in {sharp.name}: they are the sharp ones")
        pairs, scale = [(small, large) for large, small in pairs], -scale
    rows = [{"file": relative(a, path), "label_files": [relative(b, path)]} for a, b in pairs]
    return Rows(name, task, path, table(rows), classes={}, scale=scale, problems=problems)


def _by_stem(base: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in rasters(base):
        other = found.setdefault(plain_stem(file, base), file)
        if other != file:
            raise ValueError(f"two files of one name: {other} and {file}; keep one of them")
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
