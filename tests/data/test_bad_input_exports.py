"""Bad exports: object rasters, labels of whole chips, folders of classes, pairs, panoptic."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from broken import BAD, CLASSES, NAMES, SIZE, check, cut, image, itself, mask, put, refused, told, write, xml


def chip(root: Path) -> Path:
    return next((root / "images").glob(f"{BAD}.*"))


def objects(root: Path, name: str = BAD, kind: str = "roof") -> Path:
    return root / "labels" / kind / f"{name}.tif"


def emptied(root: Path) -> None:
    for i, name in enumerate(NAMES):
        write(objects(root, name, CLASSES[i % 2]), 0 * mask(i))


OBJECT = f"label labels/roof/{BAD}.tif"
RCNN = [
    told("an object raster cut off", lambda r: cut(objects(r)), OBJECT),
    told("an object raster of another size", lambda r: write(objects(r), np.ones((5, 5), np.uint8)), OBJECT),
    told(
        "fractions of objects",
        lambda r: write(objects(r), np.full((SIZE, SIZE), 1.5, np.float32)),
        OBJECT,
        "whole numbers",
    ),
    told("negative object numbers", lambda r: write(objects(r), np.full((SIZE, SIZE), -3, np.int16))),
    told("NaN for object numbers", lambda r: write(objects(r), np.full((SIZE, SIZE), np.nan, np.float32))),
    told("huge object numbers", lambda r: write(objects(r), np.where(mask(7), 2**31 - 1, 0).astype(np.int32)), lost=()),
    told("several bands of objects", lambda r: write(objects(r), np.stack([mask(7), mask(8), mask(9)]))),
    told("no object raster", lambda r: objects(r).unlink(), "1 chip(s) without a label file, kept as background"),
    told("an object raster without a chip", lambda r: chip(r).unlink(), "1 label file(s) without a chip"),
    told(
        "a class folder that the metadata do not know",
        lambda r: write(r / "labels" / "Größe x" / f"{BAD}.tif", mask(7)),
        "Größe x is no class of the metadata",
    ),
    told("an empty class folder", lambda r: (r / "labels" / "nothing").mkdir(), lost=()),
    told("all chips empty", emptied, "no training chip holds the class road, roof", lost=NAMES),
    told(
        "every label missing, with a class list",
        lambda r: [shutil.rmtree(r / "labels" / c) for c in CLASSES],
        "21 chip(s) without a label file",
        lost=NAMES,
    ),
]


def tile(root: Path, name: str = BAD) -> Path:
    return root / "labels" / f"{name}.xml"


LABELLED = [
    refused(
        "two labels of one chip",
        lambda r: put(tile(r), xml((1,), (3,))),
        f"labels/{BAD}.xml",
        "2 classes",
        "MultiLabeled_Tiles",
    ),
    refused("a class that is not listed", lambda r: put(tile(r), xml((77,))), BAD, "value 77", "road (1), roof (3)"),
    refused("broken XML", lambda r: cut(tile(r)), f"labels/{BAD}.xml", "no valid XML"),
    told(
        "no label of a chip",
        lambda r: tile(r).unlink(),
        "1 chip(s) without a label",
        "1 chip(s) without a label of the chosen classes were left out",
    ),
    told("a label without a name", lambda r: put(tile(r), xml(("",))), "1 chip(s) without a label"),
    told("a chip cut off", lambda r: cut(chip(r)), f"counts nothing: images/{BAD}.tif"),
    refused("every label missing", lambda r: [tile(r, n).unlink() for n in NAMES], "no chip of", "Check its labels"),
]
SEVERAL = [
    refused("a class that is not listed, of several", lambda r: put(tile(r), xml(("1,99",))), BAD, "value 99"),
    told("empty and repeated labels", lambda r: put(tile(r), xml(("1,,1, ",)))),
    told(
        "none of several labels",
        lambda r: tile(r).unlink(),
        "1 chip(s) without a label, they count as chips of no class",
    ),
]
FOLDERS = [
    told("a chip cut off in a class", lambda r: cut(r / "roof" / f"{BAD}.png", 0.3), f"counts nothing: roof/{BAD}.png"),
    told("an empty class", lambda r: (r / "trees").mkdir(), lost=()),
    told("a class of one chip", lambda r: write(r / "trees, Größe" / "z.png", image(3)), lost=()),
    told(
        "the same name in two classes",
        lambda r: shutil.copy(r / "road" / "c00.png", r / "roof" / "c00.png"),
        lost=("c00",),
    ),
    refused(
        "no class at all", lambda r: [shutil.rmtree(r / c) for c in CLASSES], "It is empty", "Formats that would do"
    ),
]

PAIRS = [
    told(
        "a sharp raster that is no multiple",
        lambda r: write(r / "images2" / f"{BAD}.tif", image(1)[:, :7, :7]),
        f"images2/{BAD}.tif has (7, 7)",
        "2 times finer",
    ),
    told("a sharp raster cut off", lambda r: cut(r / "images2" / f"{BAD}.tif"), f"label images2/{BAD}.tif"),
    told(
        "a sharp raster of one band",
        lambda r: write(r / "images2" / f"{BAD}.tif", np.ones((1, 24, 24), np.uint8)),
        f"images2/{BAD}.tif",
        "1 band(s)",
    ),
    told(
        "a sharp raster that is three times finer",
        lambda r: write(r / "images2" / f"{BAD}.tif", np.ones((3, 36, 36), np.uint8)),
        f"images2/{BAD}.tif has (36, 36)",
        "2 times finer",
    ),
    told("a sharp raster as large as the coarse one", lambda r: write(r / "images2" / f"{BAD}.tif", image(7))),
    told(
        "fewer sharp rasters",
        lambda r: [(r / "images2" / f"{n}.tif").unlink() for n in NAMES[7:9]],
        "2 file(s) in images have no partner",
        lost=NAMES[7:9],
    ),
    told("fewer coarse rasters", lambda r: chip(r).unlink(), "1 file(s) in images2 have no partner"),
    refused(
        "no multiple from the first one on",
        lambda r: [write(r / "images2" / f"{n}.tif", np.ones((3, 30, 31), np.uint8)) for n in NAMES],
        "images2/c00.tif has (30, 31)",
        "whole multiple",
    ),
    refused(
        "no pair at all",
        lambda r: (r / "images2" / "z.tif", [f.rename(f.with_name(f"z{f.name}")) for f in (r / "images2").iterdir()]),
        "images2",
        "is named like",
    ),
    refused("another scale than that of the pairs", itself, "scale=4", "2 times finer", scale=4),
]
SINGLE = [
    refused(
        "chips smaller than one coarse pixel",
        lambda r: write(chip(r), image(7)[:, :1, :9]),
        f"{BAD}.tif",
        "a smaller scale",
        scale=2,
    ),
    refused("crops smaller than one coarse pixel", itself, "21 chip(s)", "larger chip_size", chip_size=3),
    refused("a scale larger than all chips", itself, "21 chip(s)", "a smaller scale", scale=13),
]
PANOPTIC = [
    told("a class raster cut off", lambda r: cut(r / "labels" / f"{BAD}.tif"), f"label labels/{BAD}.tif"),
    told("objects cut off", lambda r: cut(r / "labels2" / "roof" / f"{BAD}.tif"), f"label labels2/roof/{BAD}.tif"),
    told("no objects", lambda r: (r / "labels2" / "roof" / f"{BAD}.tif").unlink()),
    told("no class raster", lambda r: (r / "labels" / f"{BAD}.tif").unlink()),
    told(
        "no label at all",
        lambda r: [f.unlink() for f in r.glob(f"labels*/**/{BAD}.tif")],
        "1 chip(s) without a label file, kept as unlabelled",
    ),
    refused(
        "a value that is no class",
        lambda r: write(r / "labels" / f"{BAD}.tif", np.full((SIZE, SIZE), 77, np.uint8)),
        f"labels/{BAD}.tif",
        "value 77",
    ),
    told("no class list", lambda r: (r / "esri_model_definition.emd").unlink(), lost=NAMES),
    refused(
        "no class list, and classes that do not show",
        lambda r: [
            (r / "esri_model_definition.emd").unlink(),
            *(write(r / "labels" / f"{n}.tif", 0 * mask(0)) for n in NAMES),
        ],
        "labels2/roof",
        "Add an esri_model_definition.emd",
    ),
]


TABLES = {
    "rcnn": RCNN,
    "labelled": LABELLED,
    "several": SEVERAL,
    "folders": FOLDERS,
    "pairs": PAIRS,
    "single": SINGLE,
    "panoptic": PANOPTIC,
}


@pytest.mark.parametrize(
    "folder, case",
    [(folder, case) for folder, table in TABLES.items() for case in table],
    ids=lambda value: getattr(value, "name", value),
)
def test_exports(folder, case, good):
    check(case, *good(folder, case))
