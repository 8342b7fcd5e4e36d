"""COCO panoptic: annotations list the segments of a PNG, whose pixels hold the segment's id (R + 256 G + 65536 B, or one
band of numbers)."""

from collections import Counter
from pathlib import Path

from accel_geo.data.formats import boxes
from accel_geo.data.formats.rows import some
from accel_geo.data.pixels import RASTER_SUFFIXES, read_label


def is_panoptic(values: dict) -> bool:
    """Say whether a COCO file is one of segments."""
    return any("segments_info" in annotation for annotation in values["annotations"][:100])


def things(categories: list[dict], problems: list[str]) -> frozenset[int]:
    """Return the class values whose objects are counted one by one; without `isthing` a category is one of them."""
    unsaid = [str(category.get("name")) for category in categories if "isthing" not in category]
    if unsaid:
        problems.append(f"categories without isthing are taken for things: {some(unsaid)}")
    return frozenset(int(float(category["id"])) for category in categories if category.get("isthing", 1))


def labels(
    values: dict,
    root: Path,
    file: Path,
    file_of: dict[str, str],
    classes: dict[int, str],
    problems: list[str],
) -> dict[str, dict[str, list]]:
    """Return the columns label_files, values, segment_ids and crowd of each image id.

    Args:
        values: the content of the file.
        root: folder of the data set.
        file: the JSON file, for messages.
        file_of: chip of each image id, as text.
        classes: name of each category id.
        problems: what is left out is added here.

    Raises:
        ValueError: the PNGs are not found, or a segment has no id or an unknown category.
    """
    listed = {}
    for annotation in values["annotations"]:
        image, name = annotation.get("image_id"), annotation.get("file_name")
        if not isinstance(image, int | str) or not isinstance(name, str):
            raise ValueError(
                f"{file}: annotation {str(annotation)[:120]} needs an image_id and the file_name of its PNG"
            )
        if str(image) in file_of and (segments := _segments(annotation, classes, file)):
            listed[str(image)] = name, segments
    place, present = _place(root, file, listed, file_of)
    found, missing = {}, []
    for image, (name, segments) in listed.items():
        label = present.get(boxes.plain(name))
        if label is None:
            missing.append(name)
            continue
        found[image] = {
            "label_files": [f"{place}{label}"],
            "values": [value for _, value, _ in segments],
            "segment_ids": [number for number, _, _ in segments],
            "crowd": [i for i, (_, _, crowd) in enumerate(segments) if crowd],
        }
    if missing:
        problems.append(f"{len(missing)} PNG(s) of {file.name} are not on disk: {some(missing, 3)}")
    if bare := len(file_of) - len(found):
        problems.append(f"{bare} chip(s) without segments are unlabelled, nothing is learned from them")
    return found


def _segments(annotation: dict, classes: dict[int, str], file: Path) -> list[tuple[int, int, bool]]:
    # (id in the PNG, class value, crowd) of each segment.
    segments, entries = [], annotation.get("segments_info")
    if not isinstance(entries, list):
        raise ValueError(f"{file}: {annotation['file_name']} has the segments_info {entries!r}; it must be a list")
    for entry in entries:
        number, category = (entry.get("id"), entry.get("category_id")) if isinstance(entry, dict) else (None, None)
        if not isinstance(category, int) or category not in classes:
            raise ValueError(
                f"{file}: a segment of {annotation['file_name']} has category_id {category!r}, none of its categories "
                f"{some(classes) or '(none are listed)'}; add it there, or correct the segment"
            )
        if not isinstance(number, int) or not 0 <= number < 2**32:
            raise ValueError(
                f"{file}: a segment of {annotation['file_name']} has the id {number!r}; it must be a number"
            )
        segments.append((number, category, bool(entry.get("iscrowd"))))
    repeated = [number for number, count in Counter(number for number, _, _ in segments).items() if count > 1]
    if repeated:
        raise ValueError(f"{file}: {annotation['file_name']} lists the segment id {repeated[0]} twice; ids are unique")
    return segments


def _place(
    root: Path, file: Path, listed: dict[str, tuple[str, list]], file_of: dict[str, str]
) -> tuple[str, dict[str, str]]:
    # The folder of the PNGs (with a slash) and the files in it: the one named like the JSON file, else the one that has
    # the first PNG that is there. Folders of chips, masks and edges may hold files of the same names: there its pixels decide.
    if not listed:
        return "", {}
    by_folder: dict[str, dict[str, str]] = {}
    for path in boxes.listing(root, RASTER_SUFFIXES):
        parts = path.split("/")
        for depth in range(len(parts)):  # names may begin with folders
            folder, name = "/".join(parts[:depth]), "/".join(parts[depth:])
            by_folder.setdefault(f"{folder}/" if folder else "", {})[boxes.plain(name)] = name
    chips = {boxes.plain(chip) for chip in file_of.values()}
    for first, segments in listed.values():  # noqa: B007
        holding = {
            folder: files
            for folder, files in by_folder.items()
            if boxes.plain(first) in files and boxes.plain(folder + files[boxes.plain(first)]) not in chips
        }
        if holding:
            break
    same = [folder for folder in holding if folder.rstrip("/").rpartition("/")[2] == file.stem]
    fitting = same or [f for f, files in holding.items() if _fits(root / f / files[boxes.plain(first)], segments)]
    if not fitting:
        looked = some([folder or "." for folder in holding]) or "no folder that holds it"
        raise ValueError(
            f"{file}: the PNG {first} with the ids {some([number for number, _, _ in segments])} was not found; looked at "
            f"{looked}. Put the PNGs into a folder {file.stem}/ beside it"
        )
    return fitting[0], holding[fitting[0]]


def _fits(file: Path, segments: list[tuple[int, int, bool]]) -> bool:
    # The pixels hold just the ids that are listed; 0 may be unlabelled.
    import numpy as np
    from rasterio.errors import RasterioError

    try:
        bands, _ = read_label(file)
    except (RasterioError, ValueError):
        return False
    ids = sum(band.astype(np.int64) << (8 * i) for i, band in enumerate(bands[:3]))
    return set(np.unique(ids).tolist()) - {0} == {number for number, _, _ in segments} - {0}
