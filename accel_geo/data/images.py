"""One image file to the tensor that a trained network takes."""

import os
from pathlib import Path

import torch
from torch import Tensor

from accel_geo.data.spec import DataSpec


def read_image(path: str | os.PathLike, spec: DataSpec) -> Tensor:
    """Read the bands that a model was trained on, resized and scaled as its DataSpec says.

    Args:
        path: a raster file.
        spec: of the model.

    Returns:
        float32 [C, H, W].

    Raises:
        FileNotFoundError: no such file.
        ValueError: it cannot be read or lacks bands.
    """
    from rasterio.errors import RasterioError

    from accel_geo.data.pixels import describe_bands, read_error, read_pixels, resize_pixels

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} not found; give a raster file such as a GeoTIFF chip")
    try:
        pixels = read_pixels(path, describe_bands(path, spec.band_indexes))
    except (RasterioError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as bands {', '.join(spec.bands)} (positions {list(spec.band_indexes)}): "
            f"{read_error(path, error)}"
        ) from None
    if spec.resize_to:
        pixels = resize_pixels(pixels, spec.resize_to)
    return torch.from_numpy(spec.scaled(pixels.values, pixels.missing))
