"""Class values as pixels: Classified_Tiles, folders of images and masks, masks in colour."""

import numpy as np
import pytest
import rasterio
from exports import copied, expected, litter, shout, stems

from accel_geo import prepare_data
from accel_geo.data import formats
from accel_geo.data.formats import colour_map, image_masks


@pytest.mark.parametrize("change", [None, litter, shout])
@pytest.mark.parametrize("task", ["semantic", "edges"])
@pytest.mark.parametrize("folder", ["Classified_Tiles", "Classified_Tiles_edge"])
def test_classified_tiles(shared, tmp_path, folder, task, change):
    says = expected(shared, folder)
    root = copied(shared, folder, tmp_path / "set")
    if change:
        change(root)
    rows = formats.read(root, task=task)
    assert (rows.format, rows.task, rows.closed) == ("Classified_Tiles", task, True)
    assert rows.classes == {c["value"]: c["name"] for c in says["classes"]} and len(rows.dataset) == says["num_chips"]
    pixels = dict.fromkeys(says["pixels_per_value"], 0)
    for row in rows.dataset:
        for file in row["label_files"]:
            with rasterio.open(root / file) as raster:
                for value, count in zip(*np.unique(raster.read(1), return_counts=True)):
                    pixels[str(value)] += int(count)
    assert pixels == says["pixels_per_value"]
    without = [name for name, row in stems(rows).items() if not row["label_files"]]
    assert without == says["chips_without_label_file"]
    repeats = any("map.txt repeats 1 line(s)" in problem for problem in rows.problems)
    assert repeats == (folder == "Classified_Tiles")


def test_a_second_image_is_not_dropped_silently(shared, tmp_path):
    root = copied(shared, "Classified_Tiles", tmp_path / "set")
    (root / "images2").mkdir()
    assert any("images2" in problem for problem in formats.read(root).problems)


@pytest.fixture
def pictures(tmp_path, write):
    """A function that writes chips a, b and masks of these pixels under names made from the chips'."""

    def make(mask: np.ndarray, name: str = "masks/{}.png", images: str = "images/{}.tif"):
        for chip in "ab":
            write(tmp_path / images.format(chip), np.full((3, *mask.shape[-2:]), 9, dtype=np.uint8))
            write(tmp_path / name.format(chip), mask)
        return tmp_path

    return make


MASK = np.array([[0, 0, 1], [2, 2, 1]], dtype=np.uint8)
PALETTE = np.array([[0, 0, 0], [255, 0, 0], [10, 200, 30]], dtype=np.uint8)
COLOURS = PALETTE[MASK].transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("masks/{}.png", "images/{}.tif"),
        ("SegmentationClass/{}.PNG", "JPEGImages/{}.jpg"),
        ("masks/{}_mask.png", "images/{}.tif"),
        ("Labels/{}-label.tif", "imgs/{}_sat.jpg"),
        ("gt/scene 1/{}.tif", "Image/scene 1/{}.tif"),
    ],
)
def test_where_masks_lie(pictures, name, images):
    root = pictures(MASK, name.replace("PNG", "png"), images)
    rows = formats.read(root)
    assert (rows.format, rows.classes, rows.colours) == ("image_masks", {}, {})
    assert [(row["file"], row["label_files"]) for row in rows.dataset] == [
        (images.format(chip), [name.replace("PNG", "png").format(chip)]) for chip in "ab"
    ]
    assert rows.problems == [] and set(rows.dataset["group"][:]) == {"scene 1" if "scene" in name else ""}


def test_folders_of_edges(pictures):
    root = pictures(MASK.clip(0, 1), "edge/{}.png")
    rows = formats.read(root)
    assert rows.task == "edges" and rows.dataset[0]["label_files"] == ["edge/a.png"]
    pictures(MASK)
    assert formats.read(root).task == "semantic"
    assert formats.read(root, task="semantic").dataset[0]["label_files"] == ["masks/a.png"]
    assert formats.read(root, task="edges").dataset[0]["label_files"] == ["edge/a.png"]


MAPS = {
    "class_dict.csv": "name,r,g,b\nBackground,0,0,0\nroof,255,0,0\nopen land,10,200,30\n",
    "CLASSES.CSV": "\ufeffRed;".replace(";", ",")
    + "Green,Blue,Class\r\n255,0,0,roof\r\n10,200,30,open land\r\n0,0,0,none\r\n",
    "colours.txt": "# red green blue\nbackground 0 0 0\nroof 255 0 0\nopen land\t10\t200\t30\n",
    "label_colors.txt": "0 0 0 background\n255 0 0\troof\n10,200,30,open land\n",
    "labelmap.txt": "# label:color_rgb:parts:actions\nbackground:0,0,0::\nroof:255,0,0::\nopen land:10,200,30::\n",
}


@pytest.mark.parametrize("place", ["", "masks"])
@pytest.mark.parametrize("name", MAPS)
def test_masks_in_colour(pictures, name, place):
    root = pictures(COLOURS)
    (root / place / name).write_text(MAPS[name])
    rows = formats.read(root)
    assert rows.classes == {1: "roof", 2: "open land"} and rows.named and rows.closed
    assert rows.colours == {(0, 0, 0): 0, (255, 0, 0): 1, (10, 200, 30): 2}
    assert rows.sources == [root / place / name]
    data = prepare_data(root, val_split=0, cache="off")
    assert data.spec.classes == ("roof", "open land") and np.array_equal(data.train[0]["mask"].numpy(), MASK)


def test_pixels_of_void_are_ignored(pictures):
    root = pictures(COLOURS)
    (root / "class_dict.csv").write_text(MAPS["class_dict.csv"].replace("Background", "Void"))
    data = prepare_data(root, val_split=0, cache="off")
    assert np.array_equal(data.train[0]["mask"].numpy(), np.where(MASK == 0, 255, MASK))


def test_colours_that_nothing_explains_are_listed(pictures):
    with pytest.raises(ValueError, match=r"a\.png has several bands.*3 colours.*\(10, 200, 30\).*class_dict\.csv"):
        formats.read(pictures(COLOURS))


def test_grey_pictures_hold_values(pictures):
    root = pictures(np.stack([MASK * 3] * 3))
    assert formats.read(root).classes == {}
    data = prepare_data(root, val_split=0, cache="off")
    assert data.spec.class_values == (3, 6) and np.array_equal(data.train[0]["mask"].numpy(), MASK)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,r,g,b\nroof,255,0,0\nland,255,0,0\n", r"class_dict\.csv: the colour \(255, 0, 0\) stands for two"),
        ("name,r,g,b\nroof,256,0,0\n", r"\(256, 0, 0\) of 'roof' is out of range"),
        ("name,r,g,b\n", "names no class"),
        ("", "names no class"),
        ("name,r,g,b\nbackground,0,0,0\n", "names no class"),
    ],
)
def test_colour_maps_that_cannot_serve(pictures, text, message):
    root = pictures(COLOURS)
    (root / "class_dict.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        formats.read(root)


def test_one_class_in_two_colours(tmp_path, write):
    write(tmp_path / "a.png", COLOURS)
    (tmp_path / "colors.txt").write_text("lane 0 0 0\nlane 255 0 0\nland 10 200 30\n")
    found = colour_map.read([tmp_path], [tmp_path / "a.png"])
    assert found.classes == {1: "lane", 2: "land"} and sorted(found.colours.values()) == [1, 1, 2]


def test_two_masks_for_one_chip(pictures):
    root = pictures(MASK, "masks/{}_mask.png")
    pictures(MASK, "masks/{}_label.png")
    with pytest.raises(ValueError, match="two label files for one chip"):
        image_masks.read(root, "semantic")


def test_no_masks_at_all(pictures):
    root = pictures(MASK, "elsewhere/{}.png")
    with pytest.raises(ValueError, match="holds no folder semantic or masks"):
        image_masks.read(root, "semantic")
