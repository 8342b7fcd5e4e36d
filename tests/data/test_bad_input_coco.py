"""Bad COCO files, of objects and of segments."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from broken import BAD, NAMES, SIZE, check, cut, image, put, refused, told, write


def edited(change, name: str = "instances.json"):
    """A change of what a JSON file holds."""

    def edit(root: Path) -> None:
        values = json.loads((root / name).read_text())
        values = change(values) or values
        put(root / name, values)

    return edit


def annotation(**values):
    """A change of the annotation of the bad chip; None removes a key."""

    def change(values_: dict) -> None:
        mine = values_["annotations"][7]
        mine.update(values)
        for key in [key for key, value in values.items() if value is None]:
            del mine[key]

    return edited(change)


def outline(*points):
    return annotation(segmentation=[list(points)])


def chip(root: Path, name: str = BAD) -> Path:
    return next((root / "images").glob(f"{name}.*"))


NOTE = "instances.json: annotation 7"
COCO = [
    refused(
        "a category with an empty name",
        edited(lambda v: v["categories"][0].update(name=" ")),
        "instances.json",
        "a name",
    ),
    refused(
        "JSON cut off",
        lambda r: cut(r / "instances.json", 0.9),
        "instances.json is no valid JSON",
        "Formats that would do",
    ),
    refused(
        "JSON of no bytes",
        lambda r: cut(r / "instances.json", 0),
        "instances.json is no valid JSON",
        "Formats that would do",
    ),
    refused(
        "a list at the top", edited(lambda v: [v]), "instances.json is no COCO file", "images, annotations, categories"
    ),
    refused("annotations that are no list", edited(lambda v: v | {"annotations": {}}), "instances.json", "annotations"),
    refused(
        "an annotation that is no object",
        edited(lambda v: v["annotations"].append(5)),
        "instances.json",
        "annotations",
        "{...}",
    ),
    told(
        "a byte-order mark in JSON",
        lambda r: put(r / "instances.json", (r / "instances.json").read_text().encode("utf-8-sig")),
        lost=(),
    ),
    told(
        "JSON in UTF-16",
        lambda r: put(r / "instances.json", (r / "instances.json").read_text().encode("utf-16")),
        lost=(),
    ),
    refused("a category that is not listed", annotation(category_id=99), NOTE, "99", "1, 3", "add it there"),
    told("a category as text", annotation(category_id="3"), lost=()),
    refused(
        "a category without a name",
        edited(lambda v: v["categories"].append({"id": 9})),
        "instances.json",
        "needs an id",
        "a name",
    ),
    refused(
        "one id for two categories",
        edited(lambda v: v["categories"].append({"id": 3, "name": "tree"})),
        "instances.json",
        "use two ids",
    ),
    told(
        "two ids for one name",
        edited(lambda v: v["categories"].append({"id": 4, "name": "roof"})),
        "the same name",
        lost=(),
    ),
    refused("no categories", edited(lambda v: v | {"categories": []}), "instances.json", "none of its categories"),
    refused(
        "an image listed twice",
        edited(lambda v: v["images"].append(dict(v["images"][7]))),
        "instances.json",
        f"{BAD}.png",
        "listed twice",
    ),
    refused(
        "one file under two ids",
        edited(lambda v: v["images"].append(v["images"][7] | {"id": 999})),
        "instances.json",
        "listed twice",
    ),
    refused(
        "an image without a name",
        edited(lambda v: v["images"][7].pop("file_name") and None),
        "instances.json",
        "file_name",
    ),
    told("an image id as text", annotation(image_id="107"), lost=()),
    refused("an image id that is no number", annotation(image_id=107.5), NOTE, "image_id 107.5"),
    told(
        "an annotation of an image that is not listed",
        annotation(image_id=5555),
        "1 annotation(s) of an image that is not listed",
    ),
    refused("an annotation without an image", annotation(image_id=None), NOTE, "image_id"),
    told(
        "an image that is not on disk",
        lambda r: chip(r).unlink(),
        "1 image(s) of instances.json are not on disk",
        f"{BAD}.png",
    ),
    told(
        "an image that is not listed",
        lambda r: write(r / "images" / "zz.png", image(1)),
        "1 chip(s) on disk are not listed",
        "zz.png",
        lost=(),
    ),
    told("no annotation", edited(lambda v: v["annotations"].pop(7) and None)),
    told("no annotations but one", edited(lambda v: v | {"annotations": v["annotations"][:1]}), lost=NAMES[1:]),
    told("no annotations", edited(lambda v: v | {"annotations": []}), lost=NAMES),
    told("a polygon that crosses itself", outline(1, 1, 9, 9, 9, 1, 1, 9)),
    told(
        "a polygon outside the chip", outline(50, 50, 60, 50, 60, 60), "1 object(s) that cover no pixel", f"{BAD}.png"
    ),
    told("a polygon far beyond the chip", outline(-1e9, -1e9, 1e9, -1e9, 1e9, 1e9, -1e9, 1e9)),
    told("a polygon of two points", outline(1, 1, 9, 9), "1 annotation(s) without a usable segmentation"),
    told("an odd number of coordinates", outline(1, 1, 9, 1, 9, 9, 5), "1 annotation(s) without a usable segmentation"),
    told("points on a line", outline(1, 5.2, 5, 5.2, 9, 5.2), "1 object(s) that cover no pixel"),
    refused("NaN in a polygon", outline(1, 1, float("nan"), 1, 9, 9), NOTE, "finite numbers"),
    refused("text in a polygon", outline(1, 1, "9", 1, 9, 9), NOTE, "finite numbers"),
    refused("null in a polygon", outline(1, 1, None, 1, 9, 9), NOTE, "finite numbers"),
    told("no segmentation", annotation(segmentation=None), "1 annotation(s) without a usable segmentation"),
    told("a crowd", annotation(iscrowd=1), "1 crowd annotation(s)"),
    told(
        "RLE of another size",
        annotation(segmentation={"size": [5, 5], "counts": [0, 25]}),
        f"counts nothing: images/{BAD}.png",
        "RLE",
    ),
    told(
        "RLE of too few runs",
        annotation(segmentation={"size": [SIZE, SIZE], "counts": [3, 4]}),
        f"images/{BAD}.png",
        "RLE",
    ),
    told(
        "RLE that is no text of one",
        annotation(segmentation={"size": [SIZE, SIZE], "counts": "\x7f\u20ac!!"}),
        f"images/{BAD}.png",
    ),
    refused(
        "RLE with negative runs",
        annotation(segmentation={"size": [SIZE, SIZE], "counts": [-4, 148]}),
        NOTE,
        "run lengths are",
    ),
    told(
        "RLE without a size",
        annotation(segmentation={"counts": [0, 144]}),
        "1 annotation(s) without a usable segmentation",
    ),
    refused(
        "RLE with words", annotation(segmentation={"size": ["a", None], "counts": [0, 144]}), NOTE, "run lengths are"
    ),
    told("a polygon that is a number", annotation(segmentation=5), "1 annotation(s) without a usable segmentation"),
    refused("a box of three numbers", annotation(bbox=[1, 2, 3]), NOTE, "x, y, width, height", task="detection"),
    refused("NaN in a bbox", annotation(bbox=[1, 2, float("nan"), 3]), NOTE, "finite numbers", task="detection"),
    told(
        "a negative width of a bbox",
        annotation(bbox=[5, 5, -2, 3]),
        "1 object(s) that cover no pixel",
        task="detection",
    ),
    told(
        "a bbox outside the chip", annotation(bbox=[50, 50, 2, 3]), "1 object(s) that cover no pixel", task="detection"
    ),
    told("a width of 1e308", annotation(bbox=[1, 1, 1e308, 1e308]), task="detection"),
    refused(
        "boxes only, for instances",
        edited(lambda v: [a.pop("segmentation") for a in v["annotations"]] and None),
        "instances.json",
        "read them as detection",
        task="instances",
    ),
    refused(
        "category ids beyond all numbers",
        edited(lambda v: v["categories"].append({"id": 10**30, "name": "x"})),
        "instances.json",
        "whole number",
    ),
    refused(
        "no COCO at all",
        lambda r: put(r / "instances.json", {"type": "FeatureCollection", "features": []}),
        "Formats that would do",
    ),
]


def segment(**values):
    return edited(lambda v: v["annotations"][7]["segments_info"][0].update(values), "panoptic.json")


PNG = Path("panoptic") / f"{BAD}.png"
SEGMENTS = [
    told(
        "an id that is not listed",
        segment(id=9),
        f"label panoptic/{BAD}.png holds the segment id 7",
        f"images/{BAD}.png",
    ),
    refused("a segment of an unknown category", segment(category_id=99), "panoptic.json", f"{BAD}.png", "99", "1, 3"),
    refused("a segment without a number", segment(id=None), "panoptic.json", f"{BAD}.png"),
    refused("an id twice", segment(id=5), "panoptic.json", f"{BAD}.png", "5 twice"),
    told(
        "a PNG that is not there",
        lambda r: (r / PNG).unlink(),
        "1 PNG(s) of panoptic.json are not on disk",
        f"{BAD}.png",
    ),
    told("a PNG cut off", lambda r: cut(r / PNG), f"label panoptic/{BAD}.png: ", "libpng"),
    told(
        "the first PNG is not there",
        lambda r: (r / "panoptic" / "c00.png").unlink(),
        "1 PNG(s) of panoptic.json are not on disk",
        lost=["c00"],
    ),
    told("a PNG of another size", lambda r: write(r / PNG, np.zeros((3, 5, 5), np.uint8)), f"label panoptic/{BAD}.png"),
    refused(
        "segments_info that is no list",
        edited(lambda v: v["annotations"][7].update(segments_info=5), "panoptic.json"),
        "panoptic.json",
        f"{BAD}.png",
        "must be a list",
    ),
    told(
        "no segments",
        edited(lambda v: v["annotations"][7].update(segments_info=[]), "panoptic.json"),
        "1 chip(s) without segments",
    ),
    refused("no PNG at all", lambda r: shutil.rmtree(r / "panoptic"), "panoptic.json", "Put the PNGs into a folder"),
    refused(
        "a PNG without a name",
        edited(lambda v: v["annotations"][7].pop("file_name") and None, "panoptic.json"),
        "panoptic.json",
        "file_name",
    ),
]


@pytest.mark.parametrize("case", COCO, ids=lambda case: case.name)
def test_coco(case, good):
    check(case, *good("coco", case))


@pytest.mark.parametrize("case", SEGMENTS, ids=lambda case: case.name)
def test_coco_panoptic(case, good):
    check(case, *good("segments", case))
