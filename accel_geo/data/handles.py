"""Open rasters for reading window by window: each thread of each process keeps its own few, and none ever travels.

A GDAL data set serves one thread at a time and does not survive a fork, so a handle is found by process and thread.
What a thread has open is closed when the thread ends, and that of the main thread at exit.
"""

import atexit
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import rasterio
from rasterio.enums import ColorInterp, MaskFlags

# Probe sidecar files one by one (listing a folder of 100,000 chips at each open is slow); damaged JPEG is an error, and
# so is PNG that is cut off: GDAL's fast way of reading it gives what lies in memory for the pixels that are lacking.
GDAL_OPTIONS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "TRUE",
    "GDAL_ERROR_ON_LIBJPEG_WARNING": "TRUE",
    "GDAL_PNG_WHOLE_IMAGE_OPTIM": "NO",
}

MOST = 8  # open rasters of one thread; each may hold several files open (a VRT and its tiles)


class Raster(NamedTuple):
    """An open raster and what each read of it needs to know: asking GDAL every time takes as long as a small read.

    Attributes:
        source: the open data set.
        alphas: positions of bands tagged as alpha, from 1.
        masks: the masks that hide whole pixels, True for one that is an alpha band.
        nodata: value of the first band that means no data; NaN and None alike mean none.
    """

    source: rasterio.DatasetReader
    alphas: tuple[int, ...]
    masks: tuple[bool, ...]
    nodata: float | None


def describe(source: rasterio.DatasetReader) -> Raster:
    """Ask an open data set what each read needs to know."""
    alphas = tuple(i for i, colour in enumerate(source.colorinterp, 1) if colour == ColorInterp.alpha)
    flags = [flags for flags in source.mask_flag_enums if MaskFlags.per_dataset in flags]
    nodata = source.nodata
    nodata = None if nodata is None or nodata != nodata else nodata
    return Raster(source, alphas, tuple({MaskFlags.alpha in f for f in flags}), nodata)


class _Handles(threading.local):
    def __init__(self) -> None:
        self.process = os.getpid()
        self.open: OrderedDict[str, Raster] = OrderedDict()


_HANDLES = _Handles()
_INHERITED: list[OrderedDict] = []  # the parent's, kept so that nothing closes them: GDAL's locks may be held


def opened(file: str | Path) -> Raster:
    """Return an open raster of the calling thread; the one that was used longest ago makes room.

    Args:
        file: a path, or whatever else GDAL opens.

    Raises:
        rasterio.errors.RasterioError: it cannot be opened.
    """
    if _HANDLES.process != os.getpid():
        _INHERITED.append(_HANDLES.open)
        _HANDLES.process, _HANDLES.open = os.getpid(), OrderedDict()
    handles, name = _HANDLES.open, str(file)
    if name in handles:
        handles.move_to_end(name)
        return handles[name]
    with rasterio.Env(**GDAL_OPTIONS):
        raster = describe(rasterio.open(file))
    while len(handles) >= MOST:
        handles.popitem(last=False)[1].source.close()
    handles[name] = raster
    return raster


@atexit.register
def close() -> None:
    """Close the rasters of the calling thread; the next read opens them anew."""
    while _HANDLES.process == os.getpid() and _HANDLES.open:
        _HANDLES.open.popitem()[1].source.close()
