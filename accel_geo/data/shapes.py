"""Vector shapes and run lengths to pixels: masks of single objects, class values, outlines.

A shape is what a JSON text of a row's `segments` holds, in pixels of the chip (x to the right, y downwards, the first
pixel from 0 to 1): a COCO list of polygons, a COCO RLE object, or a GeoJSON Polygon, MultiPolygon, LineString,
MultiLineString or GeometryCollection of these. A pixel belongs to a polygon when its centre lies inside, and to a line
when the line touches it. Shapes may reach beyond the chip.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

Size = tuple[int, int]  # height, width
Shape = list | dict


def shape_mask(shape: Shape, size: Size) -> tuple[np.ndarray, int, int]:
    """Draw one shape.

    Args:
        shape: see above; the parts of a list or a Multi... geometry are united.
        size: (H, W) of the chip.

    Returns:
        bool [h, w] of a window around the object, within the chip, and the window's left and top; 0 x 0 pixels where
        nothing lies in the chip.

    Raises:
        ValueError: the RLE has another size than the chip, or the geometry is of another type.
    """
    if _is_rle(shape):
        return _decode_rle(shape, size), 0, 0
    parts = _parts(shape)
    left, top, right, bottom = _window(parts, size)
    if right <= left or bottom <= top:
        return np.zeros((0, 0), dtype=bool), 0, 0
    mask = np.zeros((bottom - top, right - left), dtype=np.uint8)
    _burn([(part, 1) for part in parts], mask, left, top)
    return mask.view(bool), left, top


def draw(shapes: Sequence[Shape], values: Sequence[int], size: Size) -> np.ndarray:
    """Return int64 [H, W]: the value of the last shape that covers each pixel, 0 elsewhere.

    Args:
        shapes: the shapes, see above.
        values: the value of each.
        size: (H, W) of the chip.

    Raises:
        ValueError: as `shape_mask`.
    """
    place = np.zeros(size, dtype=np.int32)  # of the shape on top, from 1
    for rle, run in groupby(enumerate(shapes, 1), key=lambda item: _is_rle(item[1])):
        if rle:
            for n, shape in run:
                place[_decode_rle(shape, size)] = n
        else:  # one call for many shapes: a call costs more than drawing one of them
            _burn([(part, n) for n, shape in run for part in _parts(shape)], place)
    return np.array([0, *values], dtype=np.int64)[place]


def outlines(shapes: Sequence[Shape], size: Size, width: int = 1) -> np.ndarray:
    """Draw the outlines of polygons and run lengths, and lines as they are.

    Sides of polygons that run along the chip's border are taken for cuts, not for outlines, and are not drawn; nor is
    what lies beyond the border.

    Args:
        shapes: the shapes, see above.
        size: (H, W) of the chip.
        width: 1 draws every pixel that a line touches; more, the pixels whose centre lies within width / 2 of it.

    Returns:
        bool [H, W].

    Raises:
        ValueError: as `shape_mask`, or the width is below 1.
    """
    if width < 1:
        raise ValueError(f"edges are at least 1 pixel wide, not {width}")
    lines = []
    for shape in shapes:
        for part in _parts(_traced(shape, size)):
            if part["type"] == "LineString":
                lines.append(part["coordinates"])
            else:
                lines += [side for ring in part["coordinates"] for side in _sides(ring, size)]
    mask = np.zeros(size, dtype=np.uint8)
    if lines:
        geometry = {"type": "MultiLineString", "coordinates": lines}
        if width > 1:
            from shapely.geometry import mapping, shape

            geometry = mapping(shape(geometry).buffer(width / 2))
        _burn([(part, 1) for part in _parts(geometry)], mask)
    return mask.view(bool)


def _is_rle(shape: Shape) -> bool:
    return isinstance(shape, dict) and "counts" in shape


def _parts(shape: Shape) -> list[dict]:
    # GeoJSON Polygons and LineStrings that make up a shape; each by itself, since GDAL fills the rings of a
    # MultiPolygon by the even-odd rule, which leaves a hole where two parts overlap.
    if isinstance(shape, list):
        rings = [np.asarray(part, dtype=np.float64).reshape(-1, 2).tolist() for part in shape]
        return [{"type": "Polygon", "coordinates": [[*ring, ring[0]]]} for ring in rings if len(ring) >= 3]
    kind = shape.get("type")
    if kind in ("Polygon", "LineString"):
        parts = [shape]
    elif kind in ("MultiPolygon", "MultiLineString"):
        parts = [{"type": kind[5:], "coordinates": coordinates} for coordinates in shape["coordinates"]]
    elif kind == "GeometryCollection":
        return [part for geometry in shape["geometries"] for part in _parts(geometry)]
    else:
        raise ValueError(
            f"a shape of type {kind!r} cannot be drawn; use polygons, lines, a COCO list of polygons or COCO RLE "
            "(give points an area around them)"
        )
    return [part for part in parts if len(_outer(part)) >= (4 if part["type"] == "Polygon" else 2)]


def _outer(part: dict) -> list:
    coordinates = part["coordinates"]
    if part["type"] == "Polygon":
        return coordinates[0] if coordinates else []
    return coordinates


def _window(parts: list[dict], size: Size) -> tuple[int, int, int, int]:
    # left, top, right, bottom of the pixels that the parts may cover.
    points = [point[:2] for part in parts for point in _outer(part)]
    if not points:
        return 0, 0, 0, 0
    points = np.floor(np.asarray(points, dtype=np.float64)).clip(-1, max(size)).astype(int)
    (left, top), (right, bottom) = points.min(0).clip(0), np.minimum(points.max(0) + 1, size[::-1])
    return int(left), int(top), int(right), int(bottom)


def _burn(parts: list[tuple[dict, int]], out: np.ndarray, left: int = 0, top: int = 0) -> None:
    # Burns parts with their values into an array whose first pixel lies at (left, top).
    from rasterio import Affine
    from rasterio.features import rasterize

    for line, run in groupby(parts, key=lambda part: part[0]["type"] == "LineString"):
        rasterize(list(run), out=out, transform=Affine.translation(left, top), all_touched=line)


def _sides(ring: list, size: Size) -> list[list]:
    # The sides of a ring that do not run along the border of the chip.
    points = np.asarray([point[:2] for point in ring], dtype=np.float64)
    sides = np.stack([points[:-1], points[1:]], axis=1)
    cut = ((sides == 0) | (sides == np.array(size[::-1]))) & (sides[:, :1] == sides[:, 1:])
    return sides[~cut.all(1).any(1)].tolist()


def _traced(shape: Shape, size: Size) -> Shape:
    # Run lengths become polygons along the sides of pixels.
    if not _is_rle(shape):
        return shape
    from rasterio.features import shapes

    mask = _decode_rle(shape, size)
    found = [geometry for geometry, _ in shapes(mask.astype(np.uint8), mask=mask)]
    return {"type": "GeometryCollection", "geometries": found}


def _decode_rle(rle: dict, size: Size) -> np.ndarray:
    height, width = (int(n) for n in rle["size"])
    if (height, width) != tuple(size):
        raise ValueError(f"an RLE segmentation has size {(height, width)} (height, width), the chip {tuple(size)}")
    counts = rle["counts"]
    runs = counts if isinstance(counts, list) else _decompress(counts)
    if sum(runs) != height * width or min(runs, default=0) < 0:
        raise ValueError(f"an RLE segmentation covers {sum(runs)} pixels, the chip has {height * width}")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T


def _decompress(text: str) -> list[int]:
    # COCO's compressed counts: 5 bits a character from 48 on, bit 6 continues, from the third run on differences.
    runs, number, shift = [], 0, 0
    for character in text:
        bits = ord(character) - 48
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << shift
        runs.append(number + (runs[-2] if len(runs) > 2 else 0))
        number, shift = 0, 0
    return runs
