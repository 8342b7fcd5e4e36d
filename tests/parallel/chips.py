"""Small folders of chips with labels, easy to learn: bright rectangles of two classes on dark, noisy ground."""

import json
from pathlib import Path

import numpy as np
import rasterio
from scipy.ndimage import binary_erosion

COLOURS = {1: (220, 90, 60), 3: (70, 120, 230)}  # class values on disk, with a gap


def write_chips(
    root: Path,
    task: str,
    n: int,
    *,
    size: int = 48,
    sizes: tuple[tuple[int, int], ...] | None = None,
    empty: tuple[int, ...] = (),
    nodata: tuple[int, ...] = (),
    unreadable: tuple[int, ...] = (),
    several: bool = False,
    seed: int = 0,
) -> Path:
    """Write n chips in a format that serves the task: COCO, image_masks, folders of classes, label files, images alone.

    Args:
        root: the folder to make.
        task: what the labels are read for.
        n: chips.
        size: side of a chip.
        sizes: (H, W) by turns, instead.
        empty: chips without any object.
        nodata: chips without any valid pixel.
        unreadable: chips that are no image.
        several: chips of classification have any number of labels, in files beside the images.
        seed: of what is drawn.
    """
    rng = np.random.default_rng(seed)
    images, annotations, one_kind = [], [], task == "classification" and not several
    for i in range(n):
        height, width = sizes[i % len(sizes)] if sizes else (size, size)
        image = rng.integers(20, 70, (3, height, width)).astype(np.uint8)
        mask = np.zeros((height, width), np.uint8)
        name = f"chip_{i:03}.tif"
        kind = (1, 3)[i % 2]
        for k in range(0 if i in empty else 1 if one_kind else 1 + i % 3):
            value = kind if one_kind else (1, 3)[(i + k) % 2]
            h, w = rng.integers(12, 22, 2)
            y, x = rng.integers(0, height - h), rng.integers(0, width - w)
            noise = rng.integers(-15, 15, (3, h, w))
            image[:, y : y + h, x : x + w] = np.clip(np.array(COLOURS[value])[:, None, None] + noise, 1, 255)
            mask[y : y + h, x : x + w] = value
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": i,
                    "category_id": value,
                    "iscrowd": 0,
                    "segmentation": [[float(c) for c in corners]],
                    "bbox": [float(x), float(y), float(w), float(h)],
                    "area": float(w * h),
                }
            )
        if i in nodata:
            image[:] = 0
        images.append({"id": i, "file_name": name, "width": width, "height": height})
        folder = root / "images" / (f"kind_{kind}" if one_kind else "")
        write_raster(folder / name, image, nodata=0 if nodata else None)
        if several:
            found = "".join(f"<object><name>kind_{value}</name></object>" for value in np.unique(mask[mask > 0]))
            (root / "labels").mkdir(exist_ok=True)
            (root / "labels" / name).with_suffix(".xml").write_text(f"<annotation>{found}</annotation>")
        if task == "semantic":
            write_raster(root / "masks" / name, mask[None])
        if task == "edges":
            write_raster(root / "edges" / name, ((mask > 0) & ~binary_erosion(mask > 0)).astype(np.uint8)[None])
        if i in unreadable:
            (folder / name).write_bytes(b"not an image")
    if task in ("instances", "detection"):
        categories = [{"id": value, "name": f"kind_{value}"} for value in COLOURS]
        labels = {"images": images, "annotations": annotations, "categories": categories}
        (root / "instances.json").write_text(json.dumps(labels))
    return root


def write_raster(file: Path, pixels: np.ndarray, **profile: object) -> None:
    """Write pixels [C, H, W] as GeoTIFF."""
    file.parent.mkdir(parents=True, exist_ok=True)
    count, height, width = pixels.shape
    where = {"transform": rasterio.Affine(0.5, 0, 5e5, 0, -0.5, 5e6), "crs": "EPSG:32633"}
    shape = {"count": count, "height": height, "width": width, "dtype": pixels.dtype}
    with rasterio.open(file, "w", driver="GTiff", **shape, **where, **profile) as raster:
        raster.write(pixels)
