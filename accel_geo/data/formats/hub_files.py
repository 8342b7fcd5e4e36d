"""The images of a `datasets` data set as files: encoded ones as they are, arrays as GeoTIFF of any bands and type."""

import io
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

_MAGIC = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"II+\0": ".tif",
    b"MM\0+": ".tif",
    b"\0\0\0\x0cjP  ": ".jp2",
    b"\xff\x4f\xff\x51": ".jp2",
    b"BM": ".bmp",
}


class Content(NamedTuple):
    """What is to stand in a file: bytes and the suffix of their format; or the file where they already stand."""

    data: bytes
    suffix: str
    file: Path | None = None
    name: str = ""


def content(value: object, dtype: str | None = None, mask: bool = False) -> Content:
    """Return the content of an image's file.

    Args:
        value: {"bytes", "path"} of an Image column that is not decoded, encoded bytes, a PIL image, or an array or
            nested list [H, W], [C, H, W] or [H, W, C] (the last where it has fewer entries than the first).
        dtype: type of an array's pixels; None takes what it has.
        mask: the values of its pixels mean classes.

    Raises:
        ValueError: it is none of these.
        FileNotFoundError: the path of an image leads nowhere.
    """
    if isinstance(value, dict):
        path = str(value.get("path") or "")
        name = Path(path.split("::")[0]).stem
        if value.get("bytes") is not None:
            return _encoded(value["bytes"], mask)._replace(name=name)
        if os.path.isfile(path):
            return Content(b"", "", Path(path).absolute())
        return _encoded(_fetched(path), mask)._replace(name=name)
    if isinstance(value, bytes):
        return _encoded(value, mask)
    if hasattr(value, "getbands"):
        return _of_pillow(value, mask)
    return Content(_geotiff(np.asarray(value, dtype=dtype)), ".tif")


def _encoded(data: bytes, mask: bool) -> Content:
    suffix = next((suffix for magic, suffix in _MAGIC.items() if data.startswith(magic)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        suffix = ".webp"
    if suffix:
        return Content(data, suffix)
    from PIL import Image, UnidentifiedImageError

    try:
        return _of_pillow(Image.open(io.BytesIO(data)), mask)
    except (UnidentifiedImageError, OSError):
        return Content(data, ".bin")  # kept as it is: reading it names the chip as one that cannot be read


def _of_pillow(image: object, mask: bool) -> Content:
    if image.mode == "P" and not mask:
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    if image.mode in ("L", "LA", "P", "RGB", "RGBA", "I;16"):
        stream = io.BytesIO()
        image.save(stream, "PNG")
        return Content(stream.getvalue(), ".png")
    if image.mode in ("1", "F", "I"):
        return Content(_geotiff(np.asarray(image)), ".tif")
    return _of_pillow(image.convert("RGB"), mask)


def _fetched(path: str) -> bytes:
    # A file inside an archive, or on a server, as streamed data sets name them.
    import fsspec

    if "://" not in path:
        raise FileNotFoundError(f"the image {path!r} of the data set is not there, and the data set does not hold it")
    with fsspec.open(path, "rb") as stream:
        return stream.read()


def _geotiff(array: np.ndarray) -> bytes:
    from rasterio.io import MemoryFile

    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.dtype.kind not in "biuf" or not array.size:
        raise ValueError(
            f"an array of shape {array.shape} and type {array.dtype} is no image: it must be [H, W], [C, H, W]"
        )
    if array.shape[-1] < array.shape[0]:
        array = np.moveaxis(array, -1, 0)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype == np.float16:
        array = array.astype(np.float32)
    elif array.dtype.itemsize == 8 and array.dtype.kind in "iu":  # what plain Python numbers become
        fits = array.min() >= -(2**31) and array.max() < 2**31
        array = array.astype(np.int32 if fits else np.float64)
    count, height, width = array.shape
    profile = {"count": count, "height": height, "width": width, "dtype": array.dtype.name}
    if count > 3:
        profile |= {"photometric": "MINISBLACK", "alpha": "NO"}  # else GDAL calls the fourth band alpha
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", compress="deflate", zlevel=1, **profile) as raster:
            raster.write(array)
        return bytes(memory.getbuffer())
