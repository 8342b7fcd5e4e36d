"""Labels of one chip: from the files or shapes that a row names to a compact form, and back to arrays.

The compact form keeps the values that stand on disk; which class a value belongs to is decided when a chip is served,
so that one store serves any choice of classes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from accel_geo.data.pixels import read_error, read_label, resize_labels

Size = tuple[int, int]  # height, width
NO_DATA = -(2**31)  # the value of label pixels that are no data


class Label(NamedTuple):
    """The compact label of one chip.

    Attributes:
        values: semantic: the values that occur; otherwise the value of each object or label.
        counts: semantic: pixels of each of these values; instances: pixels of each object; otherwise 1 each.
        boxes: instances: x1, y1, x2, y2 of each object, one after the other.
        data: semantic: for each pixel the position of its value in `values`; instances: the bits of each object
            within its box, one after the other, each beginning at a byte.
        dropped: objects that cover no pixel.
    """

    values: list[int]
    counts: list[int]
    boxes: list[int] = []
    data: bytes = b""
    dropped: int = 0


def decode(task: str, row: dict, root: Path, source: Size, size: Size, ignored: np.ndarray | None) -> Label:
    """Read the labels that a row names.

    Args:
        task: name of the task.
        row: the row, see `formats.rows`.
        root: folder that the row's files are relative to.
        source: (H, W) of the chip on disk.
        size: (H, W) that the chip is resized to; labels follow by nearest neighbour.
        ignored: bool [H, W] of `size`, pixels that are no data, or None.

    Raises:
        ValueError: a label file does not fit its chip or cannot be read; the message names it.
    """
    if task == "semantic":
        return _semantic(row, root, source, size, ignored)
    if task == "instances":
        return _instances(row, root, source, size)
    return Label(list(row["values"]), [1] * len(row["values"]))


def _raster(root: Path, name: str, source: Size) -> tuple[np.ndarray, float | None]:
    file = root / name
    try:
        values, nodata = read_label(file)
    except Exception as error:  # any driver error: the caller keeps the chip's place and names the file
        raise ValueError(f"label {name}: {read_error(file, error)}") from error
    if values.shape[1:] != source:
        raise ValueError(f"label {name} has {values.shape[1:]} pixels (height, width), the chip {source}")
    return values, nodata


def _semantic(row: dict, root: Path, source: Size, size: Size, ignored: np.ndarray | None) -> Label:
    if not row["label_files"]:
        mask = np.zeros(source, dtype=np.uint8)
    else:
        name = row["label_files"][0]
        bands, nodata = _raster(root, name, source)
        if len(bands) != 1:
            raise ValueError(f"label {name} has {len(bands)} bands; a class raster has one band of class values")
        mask = bands[0]
        if nodata:  # nodata 0 is background
            mask = np.where(mask == nodata, NO_DATA, mask.astype(np.int64))
    mask = resize_labels(mask, size) if size != source else mask
    if ignored is not None:
        mask = np.where(ignored, NO_DATA, mask.astype(np.int64))
    if mask.dtype == np.uint8:  # a histogram is much faster than sorting
        histogram = np.bincount(mask.ravel(), minlength=256)
        values = histogram.nonzero()[0]
        places = np.zeros(256, dtype=np.uint8)
        places[values] = np.arange(len(values))
        return Label(values.tolist(), histogram[values].tolist(), data=places[mask].tobytes())
    values, places, counts = np.unique(mask, return_inverse=True, return_counts=True)
    if len(values) > 256:
        raise ValueError(f"label {row['label_files'][0]} holds {len(values)} different values, more than 256 classes")
    return Label(values.tolist(), counts.tolist(), data=places.astype(np.uint8).tobytes())


def _instances(row: dict, root: Path, source: Size, size: Size) -> Label:
    objects = list(_object_masks(row, root, source))
    values, counts, boxes, data, dropped = [], [], [], [], 0
    for value, mask, left, top in objects:
        if size != source:
            full = np.zeros(source, dtype=bool)
            full[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
            mask, left, top = resize_labels(full, size), 0, 0
        rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
        if not len(rows):
            dropped += 1
            continue
        y1, y2, x1, x2 = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        tight = mask[y1:y2, x1:x2]
        values.append(value)
        counts.append(int(tight.sum()))
        boxes += [int(x1 + left), int(y1 + top), int(x2 + left), int(y2 + top)]
        data.append(np.packbits(tight).tobytes())
    return Label(values, counts, boxes, b"".join(data), dropped)


def _object_masks(row: dict, root: Path, source: Size) -> Iterator[tuple[int, np.ndarray, int, int]]:
    # Yields (class value, mask of a window, left, top) of each object.
    for name, value in zip(row["label_files"], row["values"]):
        bands, nodata = _raster(root, name, source)
        for band in bands:  # overlapping objects of a class lie in several bands
            ids = np.bincount(band.ravel()).nonzero()[0] if band.dtype == np.uint8 else np.unique(band)
            for number in ids[(ids > 0) & (ids != nodata)]:
                yield value, band == number, 0, 0
    for shape, value in zip(row["segments"], row["values"]):
        yield value, *shape_mask(json.loads(shape), source)


def shape_mask(shape: list | dict, size: Size) -> tuple[np.ndarray, int, int]:
    """Draw a COCO segmentation: a list of polygons (their union), or RLE, compressed or not.

    A pixel belongs to a polygon when its centre lies inside.

    Returns:
        The mask of the window around the object, and the window's left and top.

    Raises:
        ValueError: the RLE has another size than the chip.
    """
    if isinstance(shape, dict):
        return _decode_rle(shape, size), 0, 0
    from rasterio import Affine
    from rasterio.features import rasterize

    parts = [np.asarray(part, dtype=np.float64).reshape(-1, 2) for part in shape]
    points = np.concatenate(parts)
    left, top = np.floor(points.min(0)).clip(0).astype(int)
    right, bottom = np.minimum(np.ceil(points.max(0)).astype(int), [size[1], size[0]])
    if right <= left or bottom <= top:
        return np.zeros((0, 0), dtype=bool), 0, 0
    polygons = [{"type": "Polygon", "coordinates": [[*map(tuple, part), tuple(part[0])]]} for part in parts]
    mask = rasterize(
        [(polygon, 1) for polygon in polygons],
        out_shape=(bottom - top, right - left),
        transform=Affine.translation(left, top),
        dtype="uint8",
    )
    return mask.astype(bool), int(left), int(top)


def _decode_rle(rle: dict, size: Size) -> np.ndarray:
    height, width = (int(n) for n in rle["size"])
    if (height, width) != size:
        raise ValueError(f"an RLE segmentation has size {(height, width)} (height, width), the chip {size}")
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


def semantic_mask(label: Label, size: Size, index_of: dict[int, int]) -> np.ndarray:
    """Return int64 [H, W]: the class index of each pixel, 255 ignored.

    Args:
        label: the compact label.
        size: (H, W) of the chip.
        index_of: class index of each value on disk.
    """
    table = np.array([index_of[value] for value in label.values], dtype=np.uint8)  # looking up bytes is fastest
    return table[np.frombuffer(label.data, dtype=np.uint8)].reshape(size).astype(np.int64)


def instance_arrays(label: Label, size: Size, index_of: dict[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return boxes float32 [N, 4], labels int64 [N] and masks bool [N, H, W] of the objects whose class is kept."""
    labels = np.array([index_of[value] for value in label.values], dtype=np.int64)
    boxes = np.asarray(label.boxes, dtype=np.int64).reshape(-1, 4)
    masks = np.zeros((np.count_nonzero(labels), *size), dtype=bool)
    data, start, n = np.frombuffer(label.data, dtype=np.uint8), 0, 0
    for index, (x1, y1, x2, y2) in zip(labels, boxes.tolist()):
        pixels = (y2 - y1) * (x2 - x1)
        stop = start + (pixels + 7) // 8
        if index:
            bits = np.unpackbits(data[start:stop], count=pixels)
            masks[n, y1:y2, x1:x2] = bits.reshape(y2 - y1, x2 - x1).view(bool)
            n += 1
        start = stop
    kept = labels > 0
    return boxes[kept].astype(np.float32), labels[kept], masks
