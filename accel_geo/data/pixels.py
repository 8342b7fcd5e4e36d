"""Pixels of one raster: any band count and type, through rasterio only. Handles are opened and closed in one call."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rasterio
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import NotGeoreferencedWarning

warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)

RASTER_SUFFIXES = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2", ".mrf", ".img", ".bmp", ".webp")

# Probe sidecar files one by one (listing a folder of 100,000 chips at each open is slow); damaged JPEG is an error.
_GDAL = {"GDAL_DISABLE_READDIR_ON_OPEN": "TRUE", "GDAL_ERROR_ON_LIBJPEG_WARNING": "TRUE"}


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


def read_error(file: Path, error: Exception) -> str:
    """Return one line that says why a file could not be read."""
    text = " ".join(str(error.__cause__ or error).split())
    return text.replace(f"{file}: ", "").replace(str(file), file.name)


def describe_bands(file: Path, bands: Sequence[int | str] | None, names: Sequence[str] = ()) -> Bands:
    """Find the bands to read from the first file of a data set.

    Args:
        file: a raster.
        bands: positions from 1, or names; None takes all but alpha.
        names: band names known from metadata; used where their number fits.

    Raises:
        ValueError: a band does not exist; the message lists the bands.
    """
    with rasterio.Env(**_GDAL), rasterio.open(file) as source:
        colours, nodata = source.colorinterp, source.nodata
        described = source.descriptions
        tagged = _alphas(source)
        # Writers tag the fourth band of any 8-bit raster as alpha; one with many values between is near infrared.
        alpha = not tagged or not _varies(source.read(tagged[0]))
    indexes = [i for i in range(1, len(colours) + 1) if not (alpha and i in tagged)]
    if len(names) == len(indexes):
        named = list(names)
    else:
        plain = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
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
    if nodata is not None and np.isnan(nodata):
        nodata = None  # NaN is no data anyway
    chosen_names = tuple(name_of.get(i, f"band_{i}") for i in chosen)
    return Bands(tuple(chosen), chosen_names, len(indexes), bands is not None, alpha, nodata)


def _alphas(source: rasterio.DatasetReader) -> list[int]:
    return [i for i, colour in enumerate(source.colorinterp, 1) if colour == ColorInterp.alpha]


def _varies(band: np.ndarray) -> bool:
    # An alpha band is 0 or full nearly everywhere.
    return np.mean((band > 0) & (band < band.max())) > 0.25


def read_pixels(file: Path, bands: Bands) -> Pixels:
    """Read the chosen bands of a file.

    A band is missing where it is NaN or infinite, has the nodata value, or where alpha or the file's mask hides the
    pixel. The pixel is ignored where alpha or the mask hides it, where any band is NaN, and where every band has the
    nodata value: in 8-bit imagery with nodata 0 a dark pixel often has it in one band.

    Raises:
        ValueError: the file has other bands than the data set.
        rasterio.errors.RasterioError: the file cannot be read.
    """
    with rasterio.Env(**_GDAL), rasterio.open(file) as source:
        count = source.count - (len(_alphas(source)) if bands.alpha else 0)
        if count != bands.count and (not bands.chosen or max(bands.indexes) > source.count):
            raise ValueError(f"it has {count} band(s), the first chip has {bands.count}")
        values = source.read(list(bands.indexes))
        if np.iscomplexobj(values):
            raise ValueError(f"pixels of type {values.dtype} are not supported; write the parts as two bands")
        missing = np.zeros(values.shape, dtype=bool)
        ignored = np.zeros(values.shape[1:], dtype=bool)
        if np.issubdtype(values.dtype, np.floating):
            missing |= ~np.isfinite(values)
            ignored |= missing.any(0)
        if source.nodata is not None and not np.isnan(source.nodata):
            missing |= values == source.nodata
        masked = [flags for flags in source.mask_flag_enums if MaskFlags.per_dataset in flags]
        if any(bands.alpha or MaskFlags.alpha not in flags for flags in masked):
            missing |= source.dataset_mask() == 0
        ignored |= missing.all(0)
    if not missing.any():
        return Pixels(values)
    values[missing] = 0
    return Pixels(values, missing, ignored)


def read_label(file: Path) -> tuple[np.ndarray, float | None]:
    """Read a raster of labels: all bands [B, H, W] as whole numbers, and its nodata value.

    Raises:
        ValueError: it holds fractions.
        rasterio.errors.RasterioError: the file cannot be read.
    """
    with rasterio.Env(**_GDAL), rasterio.open(file) as source:
        values, nodata = source.read(), source.nodata
    if np.issubdtype(values.dtype, np.floating):
        holes = ~np.isfinite(values)
        whole = np.where(holes, -1, values).astype(np.int64)
        if (whole != values)[~holes].any():
            raise ValueError(f"label {file.name} holds fractions; label values must be whole numbers")
        values = whole
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
