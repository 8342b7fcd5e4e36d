"""Scenes, and the windows that they are chipped by."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rasterio import Affine
from rasterio.crs import CRS

from accel_geo.data.formats.rows import rasters, relative, some
from accel_geo.data.pixels import located, read_error

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Scene:
    """One raster that is chipped by windows; no pixel has been read.

    Attributes:
        name: path relative to the root, or what GDAL opens.
        width, height: in pixels.
        bands: number of bands without alpha.
        transform: from pixels to coordinates of the CRS.
        crs: or None.
    """

    name: str
    width: int
    height: int
    bands: int
    transform: Affine
    crs: CRS | None

    def bounds(self, margin: float = 0.0) -> tuple[float, float, float, float]:
        """Return left, bottom, right, top in the CRS, `margin` pixels wider on each side."""
        columns, rows = (-margin, self.width + margin), (-margin, self.height + margin)
        x, y = zip(*(self.transform * (column, row) for column in columns for row in rows))
        return min(x), min(y), max(x), max(y)

    def around(self, margin: float, buffer: float, crs: CRS | None) -> tuple[float, float, float, float] | None:
        """Return a generous rectangle around the scene in another CRS, or None where that has none.

        Args:
            margin: pixels beyond the scene that belong to it.
            buffer: distance beyond it likewise, in units of the scene's CRS.
            crs: of the rectangle.
        """
        from rasterio.warp import transform_bounds

        left, bottom, right, top = self.bounds(margin)
        bounds = left - buffer, bottom - buffer, right + buffer, top + buffer
        if crs != self.crs:
            try:
                bounds = transform_bounds(self.crs, crs, *bounds)
            except Exception:  # GDAL's errors share no public class; without a rectangle all features are looked at
                return None
        left, bottom, right, top = bounds
        if not np.isfinite(bounds).all() or left > right:  # across the antimeridian
            return None
        wide, high = 0.05 * (right - left), 0.05 * (top - bottom)
        return left - wide, bottom - high, right + wide, top + high


def find_scenes(paths: str | Path | Sequence[str | Path]) -> tuple[Path, list[Scene]]:
    """Open rasters for what their windows depend on.

    Args:
        paths: a raster, a folder of rasters, or several rasters; each a path or whatever else GDAL opens.

    Returns:
        The folder that the scenes' names are relative to, and the scenes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: one cannot be opened, has no map position of its own, or another number of bands than the first.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise ValueError("no scene was given; give a raster, a folder of rasters, or a list")
    if len(given) == 1 and Path(given[0]).is_dir():
        root = Path(given[0])
        given = rasters(root)
        if not given:
            raise ValueError(f"{root} holds no rasters; give a folder of GeoTIFFs, or a raster itself")
    else:
        local = [Path(path) for path in given if isinstance(located(Path(), str(path)), Path)]
        for file in local:
            if not file.exists():
                raise FileNotFoundError(f"scene {file} not found; give a raster, a folder of rasters or a GDAL path")
        root = _common(local)
    names = [name if isinstance(name := located(Path(), str(path)), str) else relative(name, root) for path in given]
    if len(set(names)) < len(names):
        raise ValueError(f"a scene is given twice: {some(sorted({n for n in names if names.count(n) > 1}), 3)}")
    scenes = [_scene(root, name) for name in names]
    others = [f"{scene.name} ({scene.bands})" for scene in scenes if scene.bands != scenes[0].bands]
    if others:
        raise ValueError(
            f"scenes must have the same bands; {scenes[0].name} has {scenes[0].bands}, others have not: {some(others)}"
        )
    return root, scenes


def _common(files: list[Path]) -> Path:
    parents = [file.absolute().parent for file in files]
    if not parents:
        return Path()
    shared = [*parents[0].parents][::-1] + [parents[0]]
    return max((p for p in shared if all(q.is_relative_to(p) for q in parents)), key=lambda p: len(p.parts))


def _scene(root: Path, name: str) -> Scene:
    import rasterio
    from rasterio.errors import RasterioError

    from accel_geo.data.handles import GDAL_OPTIONS, describe

    file = located(root, name)
    try:
        with rasterio.Env(**GDAL_OPTIONS), rasterio.open(file) as source:
            bands = source.count - len(describe(source).alphas)
            placed = not source.transform.is_identity or source.crs is not None
            tied = bool(source.gcps[0] or source.rpcs)
            scene = Scene(name, source.width, source.height, bands, source.transform, source.crs)
    except RasterioError as error:
        raise ValueError(f"scene {file} cannot be read: {read_error(file, error)}") from None
    if tied and not placed:
        raise ValueError(
            f"scene {file} lies on the map by control points or RPCs only; rectify it first (gdalwarp), so that pixels "
            "and coordinates match"
        )
    return scene


def grid(scene: Scene, size: Size, stride: Size | None = None) -> np.ndarray:
    """Return the windows of a scene, row by row from its upper left corner: int64 [N, 4] column, row, width, height.

    Where the last window of a row or column would reach beyond the scene it is moved inside, and so overlaps the one
    before. Only a scene smaller than a window is reached beyond; there is no data there.

    Args:
        scene: the raster.
        size: (H, W) of the windows.
        stride: (H, W) from one window to the next; None leaves neither gaps nor overlaps. With gaps no window is added
            at the end.
    """
    (height, width), (down, right) = size, stride or size
    tops, lefts = _starts(scene.height, height, down), _starts(scene.width, width, right)
    return np.array([(left, top, width, height) for top in tops for left in lefts], dtype=np.int64)


def _starts(length: int, size: int, stride: int) -> np.ndarray:
    last = max(length - size, 0)
    starts = np.arange(0, last + 1, stride)
    return np.append(starts, last) if stride <= size and starts[-1] < last else starts


def within(windows: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Say which windows lie at least half inside areas.

    Args:
        windows: [N, 4].
        areas: valid polygons in pixels of the scene.
    """
    import shapely

    area = shapely.union_all(areas)
    shapely.prepare(area)
    left, top, width, height = windows.T
    boxes = shapely.box(left, top, left + width, top + height)
    share = shapely.contains_properly(area, boxes).astype(float)
    near = np.flatnonzero(shapely.intersects(area, boxes) & (share == 0))
    share[near] = shapely.area(shapely.intersection(boxes[near], area)) / (width * height)[near]
    return share >= 0.5
