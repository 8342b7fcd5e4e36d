"""One image, a file or an array, to the tensor that a trained network takes."""

import os
import re
from pathlib import Path

import numpy as np
import rasterio
import torch
from rasterio.errors import RasterioError
from torch import Tensor

from accel_geo.data.handles import GDAL_OPTIONS, describe
from accel_geo.data.pixels import Pixels, array_pixels, describe_bands, read_error, read_pixels, resize_pixels
from accel_geo.data.spec import DataSpec

_COUNTED = re.compile(r"(band|layer)?[ _]?\d+", re.IGNORECASE)  # a name that says no more than a position


def read_image(path: str | os.PathLike, spec: DataSpec) -> Tensor:
    """Read the bands that a model was trained on, resized and scaled as its DataSpec says.

    Bands are taken by name where the file describes its bands so; else from the same positions as in training, in a file
    of as many bands as there, or of any number where training chose bands; else by the names of colours.

    Args:
        path: a raster file.
        spec: of the model.

    Returns:
        float32 [C, H, W].

    Raises:
        FileNotFoundError: no such file.
        ValueError: it cannot be read, has other bands than the model was trained on, or 8-bit pixels where that was
            trained on wider ones, or the other way round.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder; name its rasters: {path}/*.tif, in Python sorted(Path(...).glob('*.tif'))"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} not found; give a raster file such as a GeoTIFF chip")
    try:
        places, found = _find_bands(path, spec)
        pixels = None if places is None else read_pixels(path, describe_bands(path, places))
    except (RasterioError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as bands {', '.join(spec.bands)} (positions {list(spec.band_indexes)}): "
            f"{read_error(path, error)}"
        ) from None
    taken = f"the model takes {_bands(spec.bands)} of {spec.dtype}"
    if pixels is None:
        raise ValueError(
            f"{path} has {found}, but {taken}, and was trained on files without others. Write a raster of those bands in "
            "this order (gdal_translate -b), describe the bands by these names, or predict an array [C, H, W] of them"
        )
    if not _same_width(pixels.values.dtype, spec):
        raise ValueError(
            f"{path} has {found}, but {taken}: such values mean something else. Give pixels in the units of the training "
            f"data, as a raster of {spec.dtype} or an array [C, H, W]"
        )
    return _scaled(pixels, spec)


def array_image(values: np.ndarray, spec: DataSpec) -> Tensor:
    """Resize and scale pixels in memory as `read_image` does those of a file.

    Args:
        values: [C, H, W] of the bands that the model was trained on, as they are on disk; NaN and the nodata value of the
            training files are no data.
        spec: of the model.

    Returns:
        float32 [C, H, W].

    Raises:
        ValueError: another shape; 8-bit pixels where the model was trained on wider ones, or the other way round; floats
            where it was trained on whole numbers.
    """
    taken = f"must be [{len(spec.bands)}, H, W] of the bands {', '.join(spec.bands)}"
    if values.ndim != 3 or values.shape[0] != len(spec.bands) or not values.size:
        raise ValueError(f"the array is {values.dtype} {list(values.shape)}, but {taken}")
    trained = np.dtype(spec.dtype).kind
    if values.dtype.kind not in ("iu" if trained in "iu" else "iuf") or not _same_width(values.dtype, spec):
        raise ValueError(
            f"the array is {values.dtype}, but the model was trained on pixels of {spec.dtype}: give them in those units, "
            f"as array.astype({spec.dtype!r}); what is scaled already is given as a tensor"
        )
    return _scaled(array_pixels(values, spec.nodata), spec)


def _find_bands(path: Path, spec: DataSpec) -> tuple[list[int] | None, str]:
    # The positions of the trained bands in a file, None where it tells none; and what bands it has, in words.
    bands = describe_bands(path, None)
    with rasterio.Env(**GDAL_OPTIONS), rasterio.open(path) as source:
        count, alphas = source.count, describe(source).alphas
        # Surer than the colours, which are red, green and blue by default.
        described = {i: name for i, name in enumerate(source.descriptions, 1) if name}
        dtypes = ", ".join(dict.fromkeys(source.dtypes))
    names = dict(zip(bands.indexes, bands.names))
    wanted = [name.casefold() for name in spec.bands]

    def named(own: dict[int, str]) -> list[int] | None:
        own = {i: name.casefold() for i, name in own.items() if not _COUNTED.fullmatch(name)}
        found = [i for name in wanted for i, other in own.items() if other == name]
        return found if [own[i] for i in found] == wanted else None  # each of them once

    placed = list(spec.band_indexes) if not spec.all_bands or len(wanted) in (count, count - len(alphas)) else None
    reached = placed if max(spec.band_indexes, default=0) <= count else None
    ways = (named(described), reached, named(names), placed)
    listed = [names.get(i, "alpha") for i in range(1, count + 1)]
    return next((way for way in ways if way is not None), None), f"{_bands(listed)} of {dtypes}"


def _bands(names: list[str] | tuple[str, ...]) -> str:
    return f"{len(names)} band(s) ({', '.join(names)})"


def _same_width(dtype: np.dtype, spec: DataSpec) -> bool:
    # 8-bit pixels are brightness for the eye, wider ones measurements, unless training had both.
    return str(dtype) in spec.file_dtypes or (dtype.itemsize == 1) == (np.dtype(spec.dtype).itemsize == 1)


def _scaled(pixels: Pixels, spec: DataSpec) -> Tensor:
    if spec.resize_to:
        pixels = resize_pixels(pixels, spec.resize_to)
    return torch.from_numpy(spec.scaled(pixels.values, pixels.missing))
