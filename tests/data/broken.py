"""Bad input as tables: good small folders in each format, ways to break them, and what must come of it.

A case either is refused (ValueError or FileNotFoundError, whose message holds some words: the file and the way out), or
is read: the problems hold some words, and every chip that the case does not touch keeps its pixels and labels.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import rasterio
import torch

from accel_geo import prepare_data
from accel_geo.geodata import GeoData

CHIPS, SIZE = 21, 12  # one chip that cannot be read is less than 5 %
NAMES = [f"c{i:02}" for i in range(CHIPS)]
BAD = "c07"  # the chip that cases break
CLASSES = ("road", "roof")  # values 1 and 3 where the format has values
SQUARES = [(2, 3, 9, 4 + i % 5) for i in range(CHIPS)]  # x1, y1, x2, y2 of the object of each chip


Change = Callable[[Path], object]


def itself(root: Path) -> Path:
    """The folder as it is: nothing is changed, or nothing else is read."""
    return root


class Case(NamedTuple):
    """One row of a table.

    Attributes:
        name: of the test.
        change: breaks a copy of the good folder.
        said: words of the message, or of the problems.
        options: of prepare_data, for the broken and the good folder alike.
        refused: an error is expected.
        lost: stems of chips whose samples may change or vanish.
        at: what to read, from the folder.
    """

    name: str
    change: Change
    said: tuple[str, ...]
    options: dict
    refused: bool
    lost: tuple[str, ...] = ()
    at: Change = itself


def refused(name: str, change: Change, *said: str, at: Change = itself, **options) -> Case:
    """A case that must be refused with a message that holds these words."""
    return Case(name, change, said, options, True, at=at)


def told(name: str, change: Change, *said: str, lost: Iterable[str] = (BAD,), at: Change = itself, **options) -> Case:
    """A case that must be read, with problems that hold these words; only the `lost` chips may differ."""
    return Case(name, change, said, options, False, tuple(lost), at)


def read(root: object, **options) -> GeoData:
    """All chips of a folder to train on, as they are."""
    return prepare_data(root, **{"val_split": 0, "transforms": False, "cache": "memory", **options})


def samples(data: GeoData) -> dict[str, dict]:
    """The samples by the stem of their chip, with names of classes instead of their indexes."""
    names = np.full(256, "ignored", dtype=object)
    names[: len(data.spec.classes) + 1] = "", *data.spec.classes
    found = {}
    for split in data.splits.values():
        for i, file in enumerate(split.files):
            sample = {key: value for key, value in split[i].items() if key not in ("image_id", "key", "ignore")}
            for key in ("mask", "labels") if data.spec.task != "classification" else ():
                if key in sample:
                    sample[key] = names[sample[key].numpy()].tolist()
            if "label" in sample:
                sample["label"] = names[sample["label"] + 1]
            if "segments" in sample:
                sample["segments"] = [{**s, "label": names[s["label"]]} for s in sample["segments"]]
            if data.spec.multilabel:
                sample["labels"] = names[1 + sample["labels"].numpy().nonzero()[0]].tolist()
            found[file if "@" in file else Path(file).stem] = sample  # windows of a scene by their place
    return found


def same(one: object, other: object) -> bool:
    """Say whether two samples, or parts of them, are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def check(case: Case, root: Path, good: dict[str, dict]) -> None:
    """Break a copy of a good folder and compare what comes of it with what must.

    Args:
        case: what to do.
        root: the copy.
        good: the samples of the folder before.
    """
    case.change(root)
    path = case.at(root)
    if case.refused:
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            read(path, **case.options)
        said = str(error.value)
    else:
        data = read(path, **case.options)
        said = "\n".join(data.problems)
        found = samples(data)
        assert found, "no chip is left"
        for name, sample in good.items():
            if name not in case.lost:
                assert same(sample, found[name]), f"{name} has changed"
    for words in case.said:
        assert words in said, f"{words!r} is not in: {said}"


def write(file: Path, pixels: np.ndarray, **profile) -> Path:
    """Write an array [H, W] or [C, H, W] as a raster and make its folders."""
    pixels = np.asarray(pixels)
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    file.parent.mkdir(parents=True, exist_ok=True)
    driver = {".png": "PNG", ".jpg": "JPEG"}.get(file.suffix.lower(), "GTiff")
    shape = {"count": len(pixels), "height": pixels.shape[1], "width": pixels.shape[2], "dtype": pixels.dtype}
    with rasterio.open(file, "w", driver=driver, **shape, **profile) as raster:
        raster.write(pixels)
    return file


def put(file: Path, content: str | bytes | dict | list) -> Path:
    """Write bytes, a text or JSON, and make the folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(content) if isinstance(content, dict | list) else content
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def cut(file: Path, keep: float = 0.6) -> Path:
    """Leave the first part of a file only."""
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    return file


def image(i: int, bands: int = 3) -> np.ndarray:
    """The pixels of a chip, uint8."""
    return np.random.default_rng(i).integers(1, 200, (bands, SIZE, SIZE)).astype(np.uint8)


def mask(i: int) -> np.ndarray:
    """Class values of a chip: its object has the value 1 or 3."""
    x1, y1, x2, y2 = SQUARES[i]
    values = np.zeros((SIZE, SIZE), dtype=np.uint8)
    values[y1:y2, x1:x2] = 1 + 2 * (i % 2)
    return values


def xml(*objects: tuple) -> str:
    """A VOC label file with objects of (name, x1, y1, x2, y2)."""
    sides = ("xmin", "ymin", "xmax", "ymax")
    parts = []
    for name, *box in objects:
        corners = "".join(f"<{side}>{at}</{side}>" for side, at in zip(sides, box))
        parts.append(f"<object><name>{name}</name>" + (f"<bndbox>{corners}</bndbox>" if box else "") + "</object>")
    return f"<annotation>{''.join(parts)}</annotation>"


def _images(root: Path, suffix: str = ".tif") -> None:
    for i, name in enumerate(NAMES):
        write(root / "images" / f"{name}{suffix}", image(i))


def _emd(root: Path, mode: str, **further) -> None:
    classes = [{"Value": 1, "Name": "road", "Color": [1, 2, 3]}, {"Value": 3, "Name": "roof", "Color": [4, 5, 6]}]
    put(root / "esri_model_definition.emd", {"MetaDataMode": mode, "Classes": classes, "NumTiles": CHIPS, **further})


def masks(root: Path) -> None:
    _images(root)
    for i, name in enumerate(NAMES):
        write(root / "masks" / f"{name}.tif", mask(i))


def tiles(root: Path) -> None:
    _images(root)
    _emd(root, "Classified_Tiles")
    for i, name in enumerate(NAMES):
        write(root / "labels" / f"{name}.tif", mask(i))
    put(root / "map.txt", "".join(f"images\\{name}.tif  labels\\{name}.tif \r\n" for name in NAMES))


def voc(root: Path) -> None:
    _images(root)
    for i, name in enumerate(NAMES):
        put(root / "labels" / f"{name}.xml", xml((CLASSES[i % 2], *SQUARES[i])))


def kitti(root: Path) -> None:
    _images(root)
    for i, name in enumerate(NAMES):
        box = " ".join(map(str, SQUARES[i]))
        put(root / "labels" / f"{name}.txt", f"{CLASSES[i % 2]} 0.0 0 0.0 {box} 0 0 0 0 0 0 0\n")


def yolo(root: Path) -> None:
    _images(root, ".png")
    put(root / "data.yaml", "train: images\nval: images\nnc: 2\nnames: [road, roof]\n")
    for i, name in enumerate(NAMES):
        x1, y1, x2, y2 = (n / SIZE for n in SQUARES[i])
        put(root / "labels" / f"{name}.txt", f"{i % 2} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n")


def csv(root: Path) -> None:
    for i, name in enumerate(NAMES):
        write(root / f"{name}.png", image(i))
    lines = [f"{n}.png,{','.join(map(str, SQUARES[i]))},{CLASSES[i % 2]}" for i, n in enumerate(NAMES)]
    put(root / "boxes.csv", "\n".join(["image_path,xmin,ymin,xmax,ymax,label", *lines, ""]))


def coco(root: Path) -> None:
    _images(root, ".png")
    images = [{"id": 100 + i, "file_name": f"{n}.png", "width": SIZE, "height": SIZE} for i, n in enumerate(NAMES)]
    annotations = []
    for i, (x1, y1, x2, y2) in enumerate(SQUARES):
        outline = [x1, y1, x2, y1, x2, y2, x1, y2]
        further = {"segmentation": [outline], "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
        annotations.append({"id": i, "image_id": 100 + i, "category_id": 1 + 2 * (i % 2), **further})
    categories = [{"id": 1, "name": "road"}, {"id": 3, "name": "roof"}]
    put(root / "instances.json", {"images": images, "annotations": annotations, "categories": categories})


def segments(root: Path) -> None:
    _images(root, ".png")
    images = [{"id": i, "file_name": f"{n}.png"} for i, n in enumerate(NAMES)]
    annotations = []
    for i, name in enumerate(NAMES):
        ids = np.stack([np.where(mask(i) > 0, 7, 5), np.zeros((SIZE, SIZE), int), np.zeros((SIZE, SIZE), int)])
        write(root / "panoptic" / f"{name}.png", ids.astype(np.uint8))
        info = [{"id": 7, "category_id": 1}, {"id": 5, "category_id": 3}]
        annotations.append({"image_id": i, "file_name": f"{name}.png", "segments_info": info})
    categories = [{"id": 1, "name": "roof", "isthing": 1}, {"id": 3, "name": "grass", "isthing": 0}]
    put(root / "panoptic.json", {"images": images, "annotations": annotations, "categories": categories})


def rcnn(root: Path) -> None:
    _images(root)
    _emd(root, "RCNN_Masks")
    for i, name in enumerate(NAMES):
        write(root / "labels" / CLASSES[i % 2] / f"{name}.tif", (mask(i) > 0).astype(np.uint8))


def labelled(root: Path) -> None:
    _images(root)
    _emd(root, "Labeled_Tiles")
    for i, name in enumerate(NAMES):
        put(root / "labels" / f"{name}.xml", xml((1 + 2 * (i % 2),)))


def several(root: Path) -> None:
    _images(root)
    _emd(root, "MultiLabeled_Tiles")
    for i, name in enumerate(NAMES):
        put(root / "labels" / f"{name}.xml", xml(("1,3" if i % 3 == 0 else 1 + 2 * (i % 2),)))


def folders(root: Path) -> None:
    for i, name in enumerate(NAMES):
        write(root / CLASSES[i % 2] / f"{name}.png", image(i))


def pairs(root: Path) -> None:
    _images(root)
    _emd(root, "Export_Tiles")
    for i, name in enumerate(NAMES):
        write(root / "images2" / f"{name}.tif", image(i).repeat(2, 1).repeat(2, 2))


def single(root: Path) -> None:
    _images(root)
    _emd(root, "Export_Tiles")


def panoptic(root: Path) -> None:
    _images(root)
    things = [{"Value": 3, "Name": "roof", "Color": [4, 5, 6]}]
    _emd(root, "Panoptic_Segmentation", Panoptic_Segmentation_Instance_Classes=things)
    for i, name in enumerate(NAMES):
        write(root / "labels" / f"{name}.tif", np.where(mask(i) > 0, 3, 1).astype(np.uint8))
        write(root / "labels2" / "roof" / f"{name}.tif", (mask(i) > 0).astype(np.uint8))


def scene(root: Path) -> None:
    """A scene of nine windows of 12 px, one of which is left without a feature."""
    place = {"crs": "EPSG:32645", "transform": rasterio.Affine(1, 0, 600_000, 0, -1, 4_000_000)}
    pixels = np.random.default_rng(0).integers(1, 200, (3, 36, 36)).astype(np.uint8)
    write(root / "scene.tif", pixels, **place)
    boxes = [(12 * (i % 3) + 2, 12 * (i // 3) + 3, 12 * (i % 3) + 9, 12 * (i // 3) + 8) for i in range(8)]
    features = [feature(ring(*box), CLASSES[i % 2], i) for i, box in enumerate(boxes)]
    put(root / "labels.geojson", collection(features))


def ring(x1: float, y1: float, x2: float, y2: float) -> dict:
    """A rectangle of the scene, by its pixels."""
    corners = ((x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1))
    return {"type": "Polygon", "coordinates": [[[600_000 + x, 4_000_000 - y] for x, y in corners]]}


def feature(geometry: dict | None, kind: object, number: int = 1) -> dict:
    return {"type": "Feature", "geometry": geometry, "properties": {"kind": kind, "number": number}}


def collection(features: list[dict], crs: int | None = 32645) -> dict:
    """A GeoJSON; without a system its coordinates are degrees."""
    named = {"crs": {"type": "name", "properties": {"name": f"urn:ogc:def:crs:EPSG::{crs}"}}} if crs else {}
    return {"type": "FeatureCollection", **named, "features": features}


GOOD = {
    make.__name__: make
    for make in (
        masks,
        tiles,
        voc,
        kitti,
        yolo,
        csv,
        coco,
        segments,
        rcnn,
        labelled,
        several,
        folders,
        pairs,
        single,
        panoptic,
        scene,
    )
}
