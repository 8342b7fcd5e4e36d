"""Where on the ground a chip lies, as far as its file says so."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rasterio import DatasetReader


class Footprint(NamedTuple):
    """What a chip covers.

    Attributes:
        bounds: left, bottom, right, top in the units of its coordinate reference system; empty where the file is not
            georeferenced.
        crs: "EPSG:32645", or "WKT:" and a hash of what defines the system; "" where there is none.
    """

    bounds: tuple[float, ...] = ()
    crs: str = ""


def read_footprint(source: "DatasetReader", window: Sequence[int] | None = None) -> Footprint:
    """Return what an open raster, or a window of it, covers.

    Args:
        source: the raster. An identity transform counts as none.
        window: column, row, width, height in its pixels.
    """
    transform = source.transform
    if transform.is_identity:
        return Footprint()
    column, row, width, height = window or (0, 0, source.width, source.height)
    a, b, c, d, e, f = transform[:6]
    corners = [(x, y) for x in (column, column + width) for y in (row, row + height)]
    xs, ys = [a * x + b * y + c for x, y in corners], [d * x + e * y + f for x, y in corners]
    crs = source.crs
    return Footprint((min(xs), min(ys), max(xs), max(ys)), _name(crs.wkt) if crs else "")


@lru_cache(maxsize=64)  # looking up the number of a system takes long, and a data set has one or a few
def _name(wkt: str) -> str:
    from rasterio.crs import CRS

    number = CRS.from_wkt(wkt).to_epsg()
    return f"EPSG:{number}" if number else f"WKT:{blake2b(wkt.encode(), digest_size=6).hexdigest()}"
