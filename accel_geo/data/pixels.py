"""Pixels of one raster, or of a window of it: any band count and type, through rasterio only.

Whole rasters are opened and closed in one call; those that are read window by window stay open, see `handles`.
"""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rasterio
from rasterio.enums import ColorInterp
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from accel_geo.data.georeference import Footprint, read_footprint
from accel_geo.data.handles import GDAL_OPTIONS, Raster, describe, opened

warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)

RASTER_SUFFIXES = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2", ".mrf", ".img", ".bmp", ".webp")

_SAMPLE = 256  # pixels along a side of the windows that stand for a large raster
_LARGE = 2048**2  # pixels
_GDAL_NAME = re.compile(r"/vsi|[A-Za-z][\w+.-]+:")  # an address or DRIVER:...; a drive has one letter


class Bands(NamedTuple):
    """The bands chosen from each file.

    Attributes:
        indexes: positions in the file, from 1.
        names: one for each.
        count: bands of a file without alpha; a file with another count is refused.
        chosen: the user named the bands, so files may have any others besides.
        alpha: an alpha band, where there is one, hides pixels; False where what is tagged so is a band like any other.
        nodata: the value that means "no data", where the first file declares one.
    """

    indexes: tuple[int, ...]
    names: tuple[str, ...]
    count: int
    chosen: bool
    alpha: bool
    nodata: float | None


class Pixels(NamedTuple):
    """One decoded raster.

    Attributes:
        values: [C, H, W]; 0 where missing.
        missing: bool [C, H, W], True where a band has no data; None where nothing is missing.
        ignored: bool [H, W], True where the pixel as a whole counts as no data; None likewise.
    """

    values: np.ndarray
    missing: np.ndarray | None = None
    ignored: np.ndarray | None = None


def located(root: Path, name: str) -> str | Path:
    """Return what GDAL opens for the file of a row: below the root, or as it stands where it is no relative path.

    Args:
        root: folder of the data set.
        name: a relative or absolute path, a `/vsi...` path, an address, or the name of a subdataset.
    """
    file = root / name
    return name if _GDAL_NAME.match(name) and not file.exists() else file


def chip_name(file: str, window: Sequence[int]) -> str:
    """Return the name of a chip: its file, and for a window of a scene its column and row behind an @."""
    return f"{file}@{window[0]},{window[1]}" if window else file


def read_error(file: str | Path, error: Exception) -> str:
    """Return one line that says why a file could not be read."""
    reason = error.__cause__ if isinstance(error, RasterioError) and error.__cause__ else error  # GDAL's own words
    text = " ".join(str(reason).split())
    return text.replace(f"{file}: ", "").replace(str(file), Path(file).name)


def describe_bands(file: str | Path, bands: Sequence[int | str] | None, names: Sequence[str] = ()) -> Bands:
    """Find the bands to read from the first file of a data set.

    Args:
        file: a raster, by its path or whatever else GDAL opens.
        bands: positions from 1, or names; None takes all but alpha.
        names: band names known from metadata; used where their number fits.

    Raises:
        ValueError: a band does not exist; the message lists the bands.
    """
    with rasterio.Env(**GDAL_OPTIONS), rasterio.open(file) as source:
        colours, described = source.colorinterp, source.descriptions
        _, tagged, _, nodata = describe(source)
        # Writers tag the fourth band of any 8-bit raster as alpha; one with many values between is near infrared.
        alpha = not tagged or not _varies(_sample(source, tagged[0]))
    indexes = [i for i in range(1, len(colours) + 1) if not (alpha and i in tagged)]
    if len(names) == len(indexes):
        named = list(names)
    else:
        plain = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.palette)
        named = [described[i - 1] or (colours[i - 1].name if colours[i - 1] in plain else f"band_{i}") for i in indexes]
    by_name = {name.casefold(): i for name, i in zip(named, indexes)}
    chosen = indexes
    if bands is not None:
        chosen = []
        for band in bands:
            text = str(band).strip()
            index = by_name.get(text.casefold()) or (int(text) if text.isdecimal() else None)
            if index not in range(1, len(colours) + 1):
                have = ", ".join(f"{i} {name}" for name, i in zip(named, indexes))
                raise ValueError(f"band {band!r} is not in {file}; it has: {have}. Bands are counted from 1")
            chosen.append(index)
        if not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"bands {list(bands)} must name at least one band, and each once")
        alpha = alpha and not set(chosen) & set(tagged)  # a band that is asked for is data
    name_of = dict(zip(indexes, named))
    chosen_names = tuple(name_of.get(i, f"band_{i}") for i in chosen)
    return Bands(tuple(chosen), chosen_names, len(indexes), bands is not None, alpha, nodata)


def _sample(source: rasterio.DatasetReader, band: int) -> np.ndarray:
    # A band, or 16 windows spread over a large one.
    if source.width * source.height <= _LARGE:
        return source.read(band)
    lefts = np.linspace(0, max(source.width - _SAMPLE, 0), 4).astype(int)
    tops = np.linspace(0, max(source.height - _SAMPLE, 0), 4).astype(int)
    windows = [Window(left, top, _SAMPLE, _SAMPLE) for top in tops for left in lefts]
    return np.concatenate([source.read(band, window=window).ravel() for window in windows])


def _varies(band: np.ndarray) -> bool:
    # An alpha band is 0 or full nearly everywhere.
    return np.mean((band > 0) & (band < band.max())) > 0.25


def read_pixels(file: str | Path, bands: Bands, window: Sequence[int] | None = None) -> Pixels:
    """Read the chosen bands of a file, or of a window of it.

    A band is missing where it is NaN or infinite, has the nodata value, or where alpha or the file's mask hides the
    pixel; in 8-bit imagery only where every band has the nodata value, since a dark or bright pixel often has it in one
    band. The pixel is ignored where alpha or the mask hides it, where any band is NaN, and where every band has the
    nodata value. Beyond the edge of the raster everything is missing.

    Args:
        file: a raster, by its path or whatever else GDAL opens.
        bands: those to read.
        window: column, row, width and height of the window; empty or None reads the whole raster.

    Raises:
        ValueError: the file has other bands than the data set.
        rasterio.errors.RasterioError: the file cannot be read.
    """
    if not window:
        with rasterio.Env(**GDAL_OPTIONS), rasterio.open(file) as source:
            return _read(describe(source), bands, None)
    raster = opened(file)
    if raster.source.driver in ("JPEG", "PNG"):  # find out about damage as they read; others as they are opened
        with rasterio.Env(**GDAL_OPTIONS):
            return _read_window(raster, bands, *window)
    return _read_window(raster, bands, *window)


def read_placed(file: str | Path, bands: Bands, window: Sequence[int] | None = None) -> tuple[Pixels, Footprint]:
    """Read as `read_pixels` does, and what the pixels cover on the ground."""
    if window:
        return read_pixels(file, bands, window), read_footprint(opened(file).source, window)
    with rasterio.Env(**GDAL_OPTIONS), rasterio.open(file) as source:
        return _read(describe(source), bands, None), read_footprint(source)


def _read_window(raster: Raster, bands: Bands, left: int, top: int, width: int, height: int) -> Pixels:
    x1, y1 = max(left, 0), max(top, 0)
    x2, y2 = min(left + width, raster.source.width), min(top + height, raster.source.height)
    if (x2 - x1, y2 - y1) == (width, height):
        return _read(raster, bands, Window(left, top, width, height))
    inside = np.s_[..., y1 - top : max(y2, y1) - top, x1 - left : max(x2, x1) - left]
    if x2 <= x1 or y2 <= y1:
        found = _read(raster, bands, Window(0, 0, 1, 1))  # for the type
        return _beyond(found.values.dtype, (len(bands.indexes), height, width))
    found = _read(raster, bands, Window(x1, y1, x2 - x1, y2 - y1))
    pixels = _beyond(found.values.dtype, (len(bands.indexes), height, width))
    pixels.values[inside] = found.values
    pixels.missing[inside] = False if found.missing is None else found.missing
    pixels.ignored[inside] = False if found.ignored is None else found.ignored
    return pixels


def _beyond(dtype: np.dtype, shape: tuple[int, int, int]) -> Pixels:
    return Pixels(np.zeros(shape, dtype), np.ones(shape, dtype=bool), np.ones(shape[1:], dtype=bool))


def _read(raster: Raster, bands: Bands, window: Window | None) -> Pixels:
    source, alphas, masks, nodata = raster
    count = source.count - (len(alphas) if bands.alpha else 0)
    if count != bands.count and (not bands.chosen or max(bands.indexes) > source.count):
        raise ValueError(f"it has {count} band(s), the first chip has {bands.count}")
    values = source.read(list(bands.indexes), window=window)
    if values.dtype.kind == "c":
        raise ValueError(f"pixels of type {values.dtype} are not supported; write the parts as two bands")
    missing, ignored = _without_data(values, nodata)
    if any(bands.alpha or not alpha for alpha in masks):
        hidden = source.read_masks(1, window=window) == 0
        if hidden.any():
            missing = np.repeat(hidden[None], len(values), 0) if missing is None else missing | hidden
    return _blanked(values, missing, ignored)


def array_pixels(values: np.ndarray, nodata: float | None) -> Pixels:
    """Return pixels [C, H, W] in memory as those of a file with this nodata value would be read."""
    return _blanked(values.copy(), *_without_data(values, nodata))


def _without_data(values: np.ndarray, nodata: float | None) -> tuple[np.ndarray | None, np.ndarray | None]:
    # Where bands are missing by their own values, and where NaN makes the pixel as a whole ignored.
    missing = ignored = None
    if values.dtype.kind == "f":
        missing = ~np.isfinite(values)
        ignored = missing.any(0)
    elif nodata is not None and nodata.is_integer():
        nodata = int(nodata)  # compared without making floats of all pixels
    if nodata is not None:
        without = values == nodata
        if values.dtype.itemsize == 1:  # 0 or 255 in one band alone is a dark or bright pixel
            without = np.repeat(without.all(0)[None], len(values), 0)
        missing = without if missing is None else missing | without
    return missing, ignored


def _blanked(values: np.ndarray, missing: np.ndarray | None, ignored: np.ndarray | None) -> Pixels:
    if missing is None or not missing.any():
        return Pixels(values)
    np.copyto(values, 0, where=missing)
    nowhere = missing.all(0)
    return Pixels(values, missing, nowhere if ignored is None else nowhere | ignored)


def read_label(file: Path) -> tuple[np.ndarray, float | None]:
    """Read a raster of labels: all bands [B, H, W] as whole numbers, and its nodata value.

    Raises:
        ValueError: it holds other numbers.
        rasterio.errors.RasterioError: the file cannot be read.
    """
    with rasterio.Env(**GDAL_OPTIONS), rasterio.open(file) as source:
        values, nodata = source.read(), source.nodata
    if values.dtype.kind in "fc" or values.dtype == np.uint64:
        known = np.where(np.isfinite(values), values, -1.0)
        odd = known[(known != np.trunc(known.real)) | (abs(known) > 2**53)]
        if odd.size:
            raise ValueError(f"label values must be whole numbers up to 2^53; found {odd[0]}")
        values = known.real.astype(np.int64)
    return values, nodata


def nearest_index(old: int, new: int) -> np.ndarray:
    """Return for each of `new` positions the nearest of `old` positions, by pixel centres."""
    return np.minimum(((np.arange(new) + 0.5) * old / new).astype(np.int64), old - 1)


def resize_labels(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize the last two dimensions by nearest neighbour: no new value appears."""
    height, width = values.shape[-2:]
    return values[..., nearest_index(height, size[0])[:, None], nearest_index(width, size[1])]


def resize_pixels(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize pixels bilinearly (averaging when they shrink), without mixing in missing ones; the type is kept."""
    import torch
    from torch.nn.functional import interpolate

    def smooth(array: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(array.astype(np.float64))[None]
        return interpolate(tensor, size=size, mode="bilinear", antialias=True, align_corners=False)[0].numpy()

    values, missing, ignored = pixels
    if values.shape[-2:] == tuple(size):
        return pixels
    if missing is None:
        result = smooth(values)
    else:
        weight = smooth(~missing)
        result = smooth(values) / np.maximum(weight, 1e-9)
        missing, ignored = weight < 0.5, resize_labels(ignored, size)
        result[missing] = 0
    if np.issubdtype(values.dtype, np.integer):
        limits = np.iinfo(values.dtype)
        result = np.rint(result).clip(limits.min, limits.max)
    return Pixels(result.astype(values.dtype), missing, ignored)
