"""The features of a vector file: read and repaired, brought to the pixels of a scene, cut by windows.

Formats are those of GDAL (GeoPackage, GeoJSON, Shapefile, a zip of one, ...). Curves become short straight lines,
heights are dropped, a feature of several parts stays one object.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import shapely
from rasterio.crs import CRS

from accel_geo.data.formats.scene_windows import Scene

MARGIN = 16  # pixels that a shape is kept beyond its window, so that no side made by cutting lies near the window


class Features(NamedTuple):
    """The usable features of one layer.

    Attributes:
        file: the file, and its layer where that was chosen.
        geometries: valid shapely geometries [N], each all points, all lines or all polygons.
        values: int64 [N], class value of each.
        classes: name of each class value, in order of values.
        named: the names stand in the data.
        crs: their coordinate reference system, or None.
        problems: what was repaired or left out, with counts.
    """

    file: str
    geometries: np.ndarray
    values: np.ndarray
    classes: dict[int, str]
    named: bool
    crs: CRS | None
    problems: list[str]


def vector_file(vectors: str | Path) -> tuple[str, str | None]:
    """Split FILE or FILE|layername=NAME, as QGIS writes it, into the file and the layer."""
    file, _, layer = str(vectors).partition("|layername=")
    return file, layer or None


def read_features(vectors: str | Path, class_column: str | None = None) -> Features:
    """Read the features of a vector file.

    Args:
        vectors: a file that GDAL reads, or FILE|layername=NAME; without a name the only layer with geometry is read.
        class_column: column of the classes. Whole numbers are class values, of which those above 0 are classes; texts
            are numbered from 1 in sorted order. None makes one class, 1, named after the file. Features without a
            class are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, or has no such layer or column; the message lists what there is.
    """
    import pyogrio

    file, layer = vector_file(vectors)
    if not Path(file).exists() and not file.startswith("/vsi") and "://" not in file:
        raise FileNotFoundError(f"vectors {file} not found; give a GeoPackage, GeoJSON or Shapefile")
    try:
        layer = _layer(file, layer, pyogrio.list_layers(file))
        if class_column is not None:
            class_column = _column(file, class_column, pyogrio.read_info(file, layer=layer)["fields"])
        columns = [] if class_column is None else [class_column]
        meta, _, data, fields = pyogrio.raw.read(file, layer=layer, columns=columns, force_2d=True)
    except pyogrio.errors.DataSourceError as error:
        reason = " ".join(str(error).split()).partition("; It might help")[0].rstrip(".")
        raise ValueError(f"vectors {file} cannot be read: {reason}; give a GeoPackage, GeoJSON or Shapefile") from None
    problems: list[str] = []
    geometries, kept = _usable(shapely.from_wkb(data, on_invalid="ignore"), Path(file).name, problems)
    if class_column is None:
        values, classes, named = np.ones(len(data), dtype=np.int64), {1: Path(file).stem}, True
    else:
        values, classed, classes, named = _classes(fields[0], f"column {class_column!r} of {file}")
        if without := int((kept & ~classed).sum()):
            problems.append(f"{without} feature(s) of {Path(file).name} have no {class_column} and were left out")
        kept &= classed
    crs = CRS.from_user_input(meta["crs"]) if meta["crs"] else None
    return Features(str(vectors), geometries[kept], values[kept], classes, named, crs, problems)


def _layer(file: str, layer: str | None, layers: np.ndarray) -> str:
    names = [name for name, kind in layers if kind is not None]
    listed = ", ".join(names) or "none"
    if layer is not None and layer not in names:
        raise ValueError(f"vectors {file} have no layer {layer!r} with geometry; there are: {listed}")
    if layer is None and len(names) != 1:
        raise ValueError(
            f"vectors {file} have {len(names)} layers with geometry ({listed}); say which one: FILE|layername=NAME"
        )
    return layer or names[0]


def _column(file: str, column: str, fields: np.ndarray) -> str:
    same = [name for name in fields if name == column] or [f for f in fields if f.casefold() == column.casefold()]
    if len(same) != 1:
        raise ValueError(f"vectors {file} have no column {column!r}; the columns are: {', '.join(fields) or 'none'}")
    return same[0]


def _usable(geometries: np.ndarray, name: str, problems: list[str]) -> tuple[np.ndarray, np.ndarray]:
    # Valid geometries of one kind of part each, and which of them can be used.
    dimensions = shapely.get_dimensions(geometries)
    geometries = _pure(geometries, dimensions)
    kept = ~(shapely.is_missing(geometries) | shapely.is_empty(geometries))
    without = int((~kept).sum())
    kept &= np.isfinite(shapely.bounds(geometries)).all(1)
    odd = len(kept) - int(kept.sum()) - without
    wrong = kept & ~shapely.is_valid(geometries)
    geometries[wrong] = _pure(shapely.make_valid(geometries[wrong]), dimensions[wrong])
    flat = wrong & shapely.is_empty(geometries)
    problems += [
        f"{count} {what}"
        for count, what in (
            (without, f"feature(s) of {name} without a geometry that can be used were left out"),
            (odd, f"feature(s) of {name} with coordinates that are no numbers were left out"),
            (int(flat.sum()), f"polygon(s) of {name} without an area were left out"),
            (int((wrong & ~flat).sum()), f"self-crossing or otherwise invalid shape(s) of {name} were repaired"),
        )
        if count
    ]
    return geometries, kept & ~flat


def _pure(geometries: np.ndarray, dimensions: np.ndarray) -> np.ndarray:
    # What is left when parts of lower dimension go: a collection may hold polygons and the lines where they touch.
    geometries = geometries.copy()
    for i in np.flatnonzero((shapely.get_type_id(geometries) == 7) | (shapely.get_dimensions(geometries) < dimensions)):
        parts = _flat(geometries[i])
        parts = parts[shapely.get_dimensions(parts) == dimensions[i]]
        make = (shapely.multipoints, shapely.multilinestrings, shapely.multipolygons)[dimensions[i]]
        geometries[i] = parts[0] if len(parts) == 1 else make(parts)
    return geometries


def _flat(geometry: shapely.Geometry) -> np.ndarray:
    parts = shapely.get_parts(geometry)
    while (shapely.get_type_id(parts) > 3).any():
        parts = shapely.get_parts(parts)
    return parts


def _classes(column: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray, dict[int, str], bool]:
    # The value of each feature, which have one, the names of the classes, and whether these stand in the data.
    values = np.zeros(len(column), dtype=np.int64)
    if column.dtype.kind in "iuf":
        classed = np.isfinite(column)
        values[classed] = column[classed].astype(np.int64)
        if len(wrong := column[classed][values[classed] != column[classed]]):
            raise ValueError(f"{where} holds {wrong[0]}; class values must be whole numbers, or texts")
        return values, classed, {n: str(n) for n in sorted(set(values.tolist())) if n > 0}, False
    texts = np.array(["" if text is None else str(text).strip() for text in column])
    names = sorted({*texts.tolist()} - {""})
    values[:] = np.searchsorted(names, texts) + 1 if names else 0
    return values, texts != "", dict(enumerate(names, 1)), True


def check_kinds(features: Features, task: str, buffer: float | None) -> None:
    """Refuse features that cannot serve a task without an area around them.

    Raises:
        ValueError: points without a buffer; for classification lines too.
    """
    counts = Counter(shapely.get_dimensions(features.geometries).tolist())
    needed = [kind for kind in (0, 1) if counts[kind] and (kind == 0 or task == "classification")]
    if buffer is None and needed:
        listed = " and ".join(f"{counts[kind]} {('points', 'lines')[kind]}" for kind in needed)
        raise ValueError(
            f"vectors {features.file} hold {listed}, which have no area; give `buffer`, the distance around them in "
            "units of the raster's CRS (metres, or degrees)"
        )
    if buffer is not None and not counts[0] and not counts[1]:
        features.problems.append("`buffer` is for points and lines; the polygons were not widened")


def shared_crs(features: Features, scene: Scene, problems: list[str]) -> CRS | None:
    """Return the CRS of features for a scene; where one of both has none, they are taken to share it.

    That is said in `problems`, and believed only where features and scene overlap.

    Raises:
        ValueError: they do not.
    """
    if features.crs is not None and scene.crs is not None:
        return features.crs
    lacking = " and ".join(
        name for name, crs in ((features.file, features.crs), (scene.name, scene.crs)) if crs is None
    )
    left, bottom, right, top = scene.bounds()
    x1, y1, x2, y2 = shapely.total_bounds(features.geometries)
    if x1 > right or x2 < left or y1 > top or y2 < bottom:
        raise ValueError(
            f"{lacking}: no coordinate reference system, and in that of the other file they do not meet: the scene "
            f"covers x {left:.10g}..{right:.10g}, y {bottom:.10g}..{top:.10g}, the vectors x {x1:.10g}..{x2:.10g}, y "
            f"{y1:.10g}..{y2:.10g}. "
            "Write the CRS into the file (gdal_edit -a_srs, ogr2ogr -a_srs, a .prj)"
        )
    other = features.crs or scene.crs
    same = f"the one of the other file, {other}, was taken" if other else "their coordinates were taken to be the same"
    problems.append(f"{lacking}: no coordinate reference system; {same}")
    return scene.crs


def in_pixels(
    features: Features, scene: Scene, buffer: float | None, problems: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Bring features to the pixels of a scene.

    Args:
        features: any, in their own CRS.
        scene: the raster.
        buffer: distance around points and lines in units of the scene's CRS, or None.
        problems: where to say what was assumed.

    Returns:
        Valid geometries in pixels of the scene, and the position of each in `features`. What lies far beyond the
        scene is left out, or cut off there.

    Raises:
        ValueError: they cannot be transformed, or a missing CRS cannot be guessed.
    """
    if not len(features.geometries):
        return features.geometries, np.zeros(0, dtype=np.int64)
    crs = shared_crs(features, scene, problems)
    geometries, positions = _near(features.geometries, scene.around(MARGIN, buffer or 0.0, crs))
    if crs != scene.crs:
        geometries = shapely.transform(geometries, lambda xy: _warped(xy, crs, scene, features.file))
    if buffer is not None:
        thin = shapely.get_dimensions(geometries) < 2
        geometries[thin] = shapely.buffer(geometries[thin], buffer)
    to_pixel = ~scene.transform
    matrix, shift = np.array([[to_pixel.a, to_pixel.b], [to_pixel.d, to_pixel.e]]), [to_pixel.c, to_pixel.f]
    geometries = shapely.transform(geometries, lambda xy: xy @ matrix.T + shift)
    valid = shapely.is_valid(geometries)  # moving points by a hair may make sides cross
    dimensions = shapely.get_dimensions(geometries)
    geometries[~valid] = shapely.make_valid(geometries[~valid])
    return _pure(geometries, dimensions), positions


def _near(geometries: np.ndarray, around: tuple[float, float, float, float] | None) -> tuple[np.ndarray, np.ndarray]:
    # Far-away points may have no place in the scene's CRS at all, so they are cut off before the transformation.
    if around is None:
        return geometries.copy(), np.arange(len(geometries))
    rectangle = shapely.box(*around)
    positions = np.sort(shapely.STRtree(geometries).query(rectangle, predicate="intersects"))
    return clipped(geometries[positions], np.full(len(positions), rectangle)), positions


def _warped(points: np.ndarray, crs: CRS, scene: Scene, file: str) -> np.ndarray:
    from rasterio.warp import transform

    try:
        return np.stack(transform(crs, scene.crs, points[:, 0], points[:, 1]), axis=1)
    except Exception as error:  # GDAL's errors share no public class
        raise ValueError(
            f"vectors {file} ({crs}) cannot be transformed to the CRS of {scene.name} ({scene.crs}): {error}; check "
            "that the file states the CRS that its coordinates are in"
        ) from None


def clipped(geometries: np.ndarray, rectangles: np.ndarray) -> np.ndarray:
    """Cut each geometry by its rectangle; parts that become of lower dimension vanish."""
    inner, outer = shapely.bounds(geometries), shapely.bounds(rectangles)
    cut = ~((inner[:, :2] >= outer[:, :2]) & (inner[:, 2:] <= outer[:, 2:])).all(1)
    result = geometries.copy()
    result[cut] = shapely.intersection(geometries[cut], rectangles[cut])
    return _pure(result, shapely.get_dimensions(geometries))


class Pieces(NamedTuple):
    """What windows see of features: one entry for each pair of window and feature, ordered by both.

    Attributes:
        windows: position of the window.
        features: position of the feature.
        shapes: geometry in pixels of the window, kept up to MARGIN beyond it.
        seen: area (of a line the length) within the window, in pixels.
        share: the part of the whole that is.
    """

    windows: np.ndarray
    features: np.ndarray
    shapes: np.ndarray
    seen: np.ndarray
    share: np.ndarray


def cut(geometries: np.ndarray, windows: np.ndarray, reach: float = 0.0) -> Pieces:
    """Cut geometries in pixels of a scene by windows.

    Args:
        geometries: valid ones [N].
        windows: int [M, 4]: column, row, width, height.
        reach: what lies up to so many pixels beyond a window belongs to it; what only touches it does not.
    """
    found = []
    stack = [(geometries, np.arange(len(geometries)), np.arange(len(windows)))]
    while stack:  # halves of the windows, until one row is left: a vast polygon is cut in many small steps
        shapes, positions, chosen = stack.pop()
        left, top, width, height = windows[chosen].T
        frames = shapely.box(left - MARGIN, top - MARGIN, left + width + MARGIN, top + height + MARGIN)
        around = shapely.total_bounds(frames)
        bounds = shapely.bounds(shapes)
        near = ((bounds[:, :2] <= around[2:]) & (bounds[:, 2:] >= around[:2])).all(1)
        shapes, positions = clipped(shapes[near], np.full(near.sum(), shapely.box(*around))), positions[near]
        if top.min() < top.max():
            upper = top < np.median(np.unique(top))
            stack += [(shapes, positions, chosen[upper]), (shapes, positions, chosen[~upper])]
            continue
        seen = shapely.box(left - reach, top - reach, left + width + reach, top + height + reach)
        i, w = shapely.STRtree(seen).query(shapes, predicate="intersects")
        shapes = clipped(shapes[i], frames[w])
        inside = _extent(clipped(shapes, shapely.box(left, top, left + width, top + height)[w]))
        coordinates, of = shapely.get_coordinates(shapes, return_index=True)
        shapes = shapely.set_coordinates(shapes, coordinates - windows[chosen[w], :2][of])
        found.append((chosen[w], positions[i], shapes, inside))
    pieces = [np.concatenate(part) for part in zip(*found)]
    order = np.lexsort(pieces[1::-1])
    order = order[(pieces[3] > 0)[order]] if not reach else order
    window, feature, shapes, inside = (part[order] for part in pieces)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = inside / _extent(geometries)[feature]
    return Pieces(window, feature, shapes, inside, share)


def _extent(geometries: np.ndarray) -> np.ndarray:
    return np.where(shapely.get_dimensions(geometries) == 2, shapely.area(geometries), shapely.length(geometries))
