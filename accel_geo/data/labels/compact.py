"""The compact form of a chip's labels, and the reading that several tasks share.

It keeps the values that stand on disk; which class a value belongs to is decided when a chip is served, so that one
store serves any choice of classes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from accel_geo.data.pixels import Bands, read_error, read_label, resize_labels
from accel_geo.data.shapes import draw, shape_mask

Size = tuple[int, int]  # height, width
NO_DATA = -(2**31)  # the value of label pixels that are no data
BACKGROUND = NO_DATA + 1  # of pixels that no shape covers: 0 may be a class there (COCO categories count from 0)
INSIDE = -(2**40)  # plus a class value: what lies within an area of that class whose outline is the edge


class Label(NamedTuple):
    """The compact label of one chip.

    Attributes:
        values: class rasters: the values that occur; otherwise the value of each object, segment or label.
        counts: pixels of each of these; 1 for each box or label of a whole chip.
        boxes: x1, y1, x2, y2 of each object, one after the other.
        data: the pixels, as each task packs them.
        shape: of the array in `data` where it is not the chip's.
        crowd: positions in `values` of regions whose objects are not told apart.
        dropped: objects that cover no pixel.
    """

    values: list[int]
    counts: list[int]
    boxes: list[float] = []
    data: bytes = b""
    shape: list[int] = []
    crowd: list[int] = []
    dropped: int = 0


class Place(NamedTuple):
    """Where the files of a row lie, and what its labels must fit.

    Attributes:
        root: folder that the row's files are relative to.
        source: (H, W) of the chip on disk; None: a label raster may have any size.
        size: (H, W) that it is resized to; labels follow by nearest neighbour.
        ignored: bool [H, W] of `size`, pixels that are no data, or None.
        bands: that are read from the chip.
        things: class values whose objects are counted one by one (panoptic).
        colours: class value of each colour, where label rasters are pictures.
        scale: how many times finer sharp rasters of another size are (super-resolution); None: all are as large.
        filled: class rasters hold filled areas, whose outlines are the edges (edges).
    """

    root: Path
    source: Size | None
    size: Size
    ignored: np.ndarray | None
    bands: Bands
    things: frozenset[int] = frozenset()
    colours: Mapping[tuple[int, int, int], int] = {}
    scale: int | None = None
    filled: bool = False


def raster(place: Place, name: str) -> tuple[np.ndarray, float | None]:
    """Read a label raster of the chip's size: all bands [B, H, W], and its nodata value.

    Raises:
        ValueError: it cannot be read, or has another size; the message names it.
    """
    file = place.root / name
    try:
        values, nodata = read_label(file)
    except Exception as error:  # any driver error: the caller keeps the chip's place and names the file
        raise ValueError(f"label {name}: {read_error(file, error)}") from error
    if place.source and values.shape[1:] != place.source:
        raise ValueError(f"label {name} has {values.shape[1:]} pixels (height, width), the chip {place.source}")
    return values, nodata


def class_raster(place: Place, name: str) -> np.ndarray:
    """Read a raster of class values [H, W]; NO_DATA where it has no data.

    Raises:
        ValueError: it has several bands and no colours are known, or a colour is not known.
    """
    bands, nodata = raster(place, name)
    if len(bands) in (3, 4) and place.colours:
        return _by_colour(bands, place.colours, name)
    if len(bands) != 1:
        raise ValueError(
            f"label {name} has {len(bands)} bands; a class raster has one band of class values. For a picture in "
            "colours put a class_dict.csv with the columns name,r,g,b beside the folders"
        )
    mask = bands[0]
    if nodata:  # nodata 0 is background
        mask = np.where(mask == nodata, NO_DATA, mask.astype(np.int64))
    return mask


def _by_colour(bands: np.ndarray, colours: Mapping[tuple[int, int, int], int], name: str) -> np.ndarray:
    codes = (bands[0].astype(np.int64) << 16) | (bands[1].astype(np.int64) << 8) | bands[2].astype(np.int64)
    value_of = {(r << 16) | (g << 8) | b: value for (r, g, b), value in colours.items()}
    found, places = np.unique(codes, return_inverse=True)
    unknown = [code for code in found.tolist() if code not in value_of]
    if unknown:
        rgb = [(code >> 16, code >> 8 & 255, code & 255) for code in unknown[:5]]
        listed = ", ".join(map(str, colours))
        raise ValueError(
            f"label {name} holds the colours {rgb}, which stand for no class; known are {listed}: add them to the file of "
            "colours (class_dict.csv)"
        )
    return np.array([value_of[code] for code in found.tolist()])[places].reshape(codes.shape)


def class_pixels(row: dict, place: Place) -> np.ndarray:
    """Return the class value of each pixel [H, W] of a row, at the chip's final size.

    From its class raster, else from its shapes, of which the later ones lie on top, else from its object rasters;
    BACKGROUND where there are none, NO_DATA where there is no data.
    """
    if row["label_files"] and not row["values"]:
        mask = class_raster(place, row["label_files"][0])
    elif row["segments"]:
        shapes = [json.loads(shape) for shape in row["segments"]]
        numbers = draw(shapes, range(1, len(shapes) + 1), place.source)
        mask = np.array([BACKGROUND, *row["values"]])[numbers]
    else:
        mask = np.full(place.source, BACKGROUND)
        for value, region, left, top in objects(row, place):
            mask[top : top + region.shape[0], left : left + region.shape[1]][region] = value
    if place.size != place.source:
        mask = resize_labels(mask, place.size)
    if place.ignored is not None:
        mask = np.where(place.ignored, NO_DATA, mask.astype(np.int64))
    return mask


def pack_pixels(mask: np.ndarray, name: str) -> Label:
    """Return class values [H, W] as the values that occur, their pixels, and for each pixel the position of its value.

    Raises:
        ValueError: there are more than 256 values; the message names the label.
    """
    if mask.dtype == np.uint8:  # a histogram is much faster than sorting
        histogram = np.bincount(mask.ravel(), minlength=256)
        values = histogram.nonzero()[0]
        places = np.zeros(256, dtype=np.uint8)
        places[values] = np.arange(len(values))
        return Label(values.tolist(), histogram[values].tolist(), data=places[mask].tobytes())
    values, places, counts = np.unique(mask, return_inverse=True, return_counts=True)
    if len(values) > 256:
        raise ValueError(f"label {name} holds {len(values)} different values, more than 256 classes")
    return Label(values.tolist(), counts.tolist(), data=places.astype(np.uint8).tobytes())


def unpack_pixels(label: Label, size: Size, index_of: Mapping[int, int]) -> np.ndarray:
    """Return uint8 [H, W]: the class index of each pixel, 255 ignored.

    Args:
        label: that `pack_pixels` made.
        size: (H, W) of the chip.
        index_of: class index of each value on disk.
    """
    table = bytes(index_of[value] for value in label.values).ljust(256)  # the fastest way to look up bytes
    return np.frombuffer(bytearray(label.data).translate(table), dtype=np.uint8).reshape(size)


def label_name(row: dict) -> str:
    """Return the file that a row's label comes from, for messages."""
    return row["label_files"][0] if row["label_files"] else row["file"]


def objects(row: dict, place: Place) -> Iterator[tuple[int, np.ndarray, int, int]]:
    """Yield each object of a row: class value, bool mask of a window of the chip on disk, and its left and top."""
    for name, value in zip(row["label_files"], row["values"]):
        bands, nodata = raster(place, name)
        for band in bands:  # overlapping objects of a class lie in several bands
            ids = np.bincount(band.ravel()).nonzero()[0] if band.dtype == np.uint8 else np.unique(band)
            for number in ids[(ids > 0) & (ids != nodata)]:
                yield value, band == number, 0, 0
    for shape, value in zip(row["segments"], row["values"]):
        yield value, *shape_mask(json.loads(shape), place.source)


def tight_objects(row: dict, place: Place) -> Iterator[tuple[int, np.ndarray | None, int, int]]:
    """Yield each object at the chip's final size, its mask cut to its tight box; None where it covers no pixel."""
    for value, mask, left, top in objects(row, place):
        if place.size != place.source:
            full = np.zeros(place.source, dtype=bool)
            full[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
            mask, left, top = resize_labels(full, place.size), 0, 0
        rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
        if not len(rows):
            yield value, None, 0, 0
            continue
        x1, y1 = int(columns[0]), int(rows[0])
        yield value, mask[y1 : rows[-1] + 1, x1 : columns[-1] + 1], left + x1, top + y1
