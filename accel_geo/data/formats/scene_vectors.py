"""Scenes with vectors: one or many rasters chipped by windows as they are read, labelled by the features of a file."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import shapely

from accel_geo.data.formats.rows import Rows, table
from accel_geo.data.formats.scene_shapes import (
    Features,
    Pieces,
    check_kinds,
    cut,
    in_pixels,
    read_features,
    vector_file,
)
from accel_geo.data.formats.scene_windows import Scene, Size, find_scenes, grid, within

TASKS = ("semantic", "instances", "detection", "panoptic", "edges", "classification")

# An object that a window cuts is left out of it where less is seen than this (instances, detection, panoptic).
LEAST_SEEN = 2.0  # pixels
LEAST_SHARE = 0.1  # of the object, unless it fills LEAST_FILLED of the window (a line: a tenth of its side)
LEAST_FILLED = 0.01

_OBJECTS = ("instances", "detection", "panoptic")
_REACH = 8  # pixels beyond a window from where the width of an edge may come in


def read_scenes(
    paths: str | Path | Sequence[str | Path],
    vectors: str | Path,
    *,
    task: str,
    class_column: str | None = None,
    size: Size,
    stride: int | Size | None = None,
    area: str | Path | None = None,
    buffer: float | None = None,
    keep_empty: bool = True,
) -> Rows:
    """Chip scenes by windows and find the features of each; no pixel is read.

    The windows lie on a grid from the upper left corner of each scene (see `scene_windows.grid`) and are listed row by
    row. Features are brought to each scene's CRS; where the scene or the vectors have none they are taken to share it,
    which is said, and refused if they then do not meet. Invalid polygons are repaired, a feature of several parts is
    one object, and of all that is left out the rows tell the number.

    semantic: polygons, later ones on top; lines, the pixels they touch. edges: outlines of polygons, and lines.
    instances, detection, panoptic: each feature is an object; a piece cut off by the window is left out where it has
    less than 2 pixels, or less than 10 % of the object without filling 1 % of the window (a line: a tenth of its
    side). classification: the class that covers most of the window; none leaves it unlabelled.

    Args:
        paths: a raster, a folder of rasters, or a list; each a path or whatever else GDAL opens (VRT, /vsi...). Each
            scene is a group for splits where there are several.
        vectors: GeoPackage, GeoJSON, Shapefile, a zip of one, ...; FILE|layername=NAME chooses a layer.
        task: what the labels are read for.
        class_column: column of the classes: whole numbers are class values (0 is background and negative ones are
            ignored, where pixels are labelled), texts are numbered from 1 in sorted order. None makes one class, named
            after the file.
        size: (H, W) of the windows in pixels.
        stride: from one window to the next, the size if None.
        area: a vector file; only windows that lie at least half inside its polygons count.
        buffer: distance around points and lines, in units of the scene's CRS (metres where it is projected, degrees
            where it is geographic); points need one. It makes areas of them, with outlines for edges.
        keep_empty: keep windows without any feature, as background.

    Raises:
        FileNotFoundError: a raster or vector file is not there.
        ValueError: something cannot be read, does not fit, or no feature lies in any window; the message says what.
    """
    size, stride = _checked(task, size, stride, buffer)
    root, scenes = find_scenes(paths)
    features = read_features(vectors, class_column)
    features = features if task in ("semantic", "edges") else _with_class(features)
    check_kinds(features, task, buffer)
    regions = None if area is None else _regions(area)
    rows, problems, seen = [], [], np.zeros(len(features.geometries), dtype=bool)
    for scene in scenes:
        windows = grid(scene, size, stride)
        if regions is not None:
            windows = windows[within(windows, in_pixels(regions, scene, None, problems)[0])]
        if not len(windows):
            problems.append(f"no window of {scene.name} lies at least half inside the area")
            continue
        shapes, positions = in_pixels(features, scene, buffer, problems)
        pieces = cut(shapes, windows, _REACH if task == "edges" else 0.0)
        seen[positions[pieces.features]] = True
        pieces, small = _large_enough(pieces, shapes, size) if task in _OBJECTS else (pieces, 0)
        if small:
            problems.append(f"{small} piece(s) of objects cut by windows of {scene.name} are too small: left out")
        values = features.values[positions[pieces.features]]
        labels = _covering(pieces, values) if task == "classification" else _drawn(pieces, values)
        mine = [(window, labels[i]) for i, window in enumerate(windows.tolist()) if keep_empty or i in labels]
        if len(mine) < len(windows):
            problems.append(f"{len(windows) - len(mine)} window(s) of {scene.name} without any feature were left out")
        group = scene.name if len(scenes) > 1 else ""
        rows += [{"file": scene.name, "window": window, "group": group, **label} for window, label in mine]
    _check_found(features, scenes, seen, rows, area)
    if lost := int((~seen).sum()):
        problems.append(f"{lost} of {len(seen)} feature(s) of {Path(features.file).name} lie outside all windows")
    return Rows(
        "scenes",
        task,
        root,
        table(rows),
        features.classes,
        named=features.named,
        things=frozenset(features.classes) if task == "panoptic" else frozenset(),
        sources=[Path(vector_file(file)[0]) for file in (vectors, area) if file is not None],
        problems=[*features.problems, *problems],
    )


def _checked(task: str, size: Size, stride: int | Size | None, buffer: float | None) -> tuple[Size, Size]:
    if task not in TASKS:
        raise ValueError(f"vectors over scenes cannot serve the task {task!r}; they serve {', '.join(TASKS)}")
    sizes = [(n, n) if isinstance(n, int) else tuple(n) for n in (size, size if stride is None else stride)]
    for name, pair in zip(("size", "stride"), sizes):
        if len(pair) != 2 or any(n != int(n) or n < 1 for n in pair):
            raise ValueError(f"the {name} of windows is {pair}; give two whole numbers of pixels (height, width)")
    if buffer is not None and not buffer > 0:
        raise ValueError(f"the buffer around points and lines is {buffer}; it must be above 0, in units of the CRS")
    return sizes[0], sizes[1]


def _with_class(features: Features) -> Features:
    # Objects and labels of whole chips: 0 and negative values mean background and "not known" in pixels only.
    kept = features.values > 0
    if kept.all():
        return features
    text = (
        f"{int((~kept).sum())} feature(s) of {Path(features.file).name} whose class value is not above 0 were left out"
    )
    return features._replace(
        geometries=features.geometries[kept], values=features.values[kept], problems=[*features.problems, text]
    )


def _regions(area: str | Path) -> Features:
    regions = read_features(area)
    if (shapely.get_dimensions(regions.geometries) < 2).any() or not len(regions.geometries):
        raise ValueError(f"the area {area} must hold polygons, and nothing else")
    return regions


def _large_enough(pieces: Pieces, shapes: np.ndarray, size: Size) -> tuple[Pieces, int]:
    # Without the pieces of which too little is seen, and their number; whole objects stay, however small.
    areas = shapely.get_dimensions(shapes)[pieces.features] == 2
    fills = np.where(areas, LEAST_FILLED * size[0] * size[1], 0.1 * min(size))
    small = (pieces.seen < LEAST_SEEN) | ((pieces.share < LEAST_SHARE) & (pieces.seen < fills))
    kept = ~(small & (pieces.share < 1 - 1e-9))
    return Pieces(*(part[kept] for part in pieces)), int((~kept).sum())


def _drawn(pieces: Pieces, values: np.ndarray) -> defaultdict[int, dict]:
    # The shapes of each window, in the order of the file.
    labels: defaultdict[int, dict] = defaultdict(lambda: {"values": [], "segments": []})
    texts = shapely.to_geojson(pieces.shapes)
    for window, value, text in zip(pieces.windows.tolist(), values.tolist(), texts.tolist()):
        labels[window]["values"].append(value)
        labels[window]["segments"].append(text)
    return labels


def _covering(pieces: Pieces, values: np.ndarray) -> defaultdict[int, dict]:
    # The class that covers most of each window, of equals the lower value.
    covered: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for window, value, seen in zip(pieces.windows.tolist(), values.tolist(), pieces.seen.tolist()):
        covered[window][value] += seen
    labels: defaultdict[int, dict] = defaultdict(dict)
    labels |= {w: {"values": [max(found, key=lambda value: (found[value], -value))]} for w, found in covered.items()}
    return labels


def _check_found(features: Features, scenes: list[Scene], seen: np.ndarray, rows: list[dict], area: object) -> None:
    if not len(seen):
        said = f" ({'; '.join(features.problems)})" if features.problems else ""
        raise ValueError(f"vectors {features.file} hold no feature that can be used{said}")
    if not seen.any():
        x1, y1, x2, y2 = shapely.total_bounds(features.geometries)
        left, bottom, right, top = scenes[0].bounds()
        raise ValueError(
            f"none of the {len(seen)} features of {features.file} lies in a window: they cover x {x1:.10g}..{x2:.10g}, y "
            f"{y1:.10g}..{y2:.10g} ({features.crs or 'no CRS'}), {scenes[0].name} x {left:.10g}..{right:.10g}, y "
            f"{bottom:.10g}..{top:.10g} ({scenes[0].crs or 'no CRS'})"
            f"{', and windows lie in the area ' + str(area) if area else ''}. Check that they belong together and state the "
            "right CRS"
        )
