"""Images for super-resolution: Export_Tiles, paired folders, plain folders."""

import numpy as np
import pytest
from exports import copied, expected, litter, shout

from accel_geo.data import formats
from accel_geo.data.formats import image_pairs

TASK = "super_resolution"


@pytest.mark.parametrize("change", [None, litter, shout])
def test_export_tiles(shared, tmp_path, change):
    root = copied(shared, "Export_Tiles", tmp_path / "set")
    if change:
        change(root)
    rows = formats.read(root)
    assert (rows.format, rows.task, rows.classes, rows.scale) == ("Export_Tiles", TASK, {}, None)
    assert len(rows.dataset) == expected(shared, "Export_Tiles")["pairs"] and rows.problems == []
    for row in rows.dataset:
        assert row["file"].casefold().startswith("images/")
        assert [name.casefold() for name in row["label_files"]] == [row["file"].casefold().replace("images", "images2")]


def test_export_tiles_of_one_raster(shared, tmp_path):
    root = copied(shared, "Export_Tiles_single", tmp_path / "set")
    for path in (root, root.parent, root / "images"):
        rows = formats.read(path, task=TASK)
        assert rows.root == root and rows.format == "Export_Tiles"
        assert len(rows.dataset) == expected(shared, "Export_Tiles_single")["num_chips"]
        assert not any(row["label_files"] for row in rows.dataset)


def test_without_metadata_and_with_gaps(shared, tmp_path):
    root = copied(shared, "Export_Tiles", tmp_path / "set")
    for name in ("esri_model_definition.emd", "esri_accumulated_stats.json", "map.txt", "stats.txt"):
        (root / name).unlink()
    (root / "images" / "000000000.tif").unlink()
    (root / "images2" / "000000001.tif").unlink()
    rows = formats.read(root)
    assert rows.format == "Export_Tiles" and len(rows.dataset) == 30
    assert sum("1 file(s)" in problem and "no partner" in problem for problem in rows.problems) == 2


@pytest.fixture
def pairs(tmp_path, write):
    """A function that writes files of these sizes."""

    def make(files: dict[str, tuple[int, int]]):
        for name, size in files.items():
            write(tmp_path / "set" / name, np.full((3, *size), 7, dtype=np.uint8))
        return tmp_path / "set"

    return make


LAYOUTS = {
    "low and high": ("low/a.tif", "high/a.tif"),
    "lr and hr": ("LR/a.tif", "HR/a.tif"),
    "input and target": ("input/a_input.png", "target/a_target.png"),
    "a benchmark": ("DIV2K_train_LR_bicubic/X4/0001x4.png", "DIV2K_train_HR/0001.png"),
    "factors and folders": ("lr_x4/0001x4.png", "hr/0001.png"),
    "scenes": ("coarse/scene/1.tif", "sharp/scene/1.tif"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_paired_folders(pairs, layout):
    coarse, sharp = LAYOUTS[layout]
    rows = formats.read(pairs({coarse: (5, 6), sharp: (20, 24)}), task=TASK)
    assert (rows.format, rows.scale, rows.problems) == ("image_pairs", 4, [])
    assert [(row["file"], row["label_files"]) for row in rows.dataset] == [(coarse, [sharp])]
    assert rows.dataset[0]["group"] == ("scene" if layout == "scenes" else "X4" if "X4" in coarse else "")


def test_names_that_only_look_like_factors(pairs):
    names = ("tile_12x3.tif", "tile_12x4.tif", "tile_12x5.tif")
    rows = formats.read(pairs({f"{base}/{name}": (8, 8) for base in ("lr", "hr") for name in names}), task=TASK)
    assert [row["file"] for row in rows.dataset] == [f"lr/{name}" for name in names] and rows.scale is None


def test_folders_the_other_way_round(pairs):
    rows = formats.read(pairs({"input/a.tif": (16, 16), "target/a.tif": (8, 8)}), task=TASK)
    assert rows.dataset[0]["file"] == "target/a.tif" and rows.dataset[0]["label_files"] == ["input/a.tif"]
    assert rows.scale == 2 and any("they are the sharp ones" in problem for problem in rows.problems)


def test_sizes_that_do_not_fit(pairs):
    for size in ((20, 25), (9, 9)):
        with pytest.raises(ValueError, match=r"a\.tif has .* whole multiple"):
            formats.read(pairs({"lr/a.tif": (5, 6), "hr/a.tif": size}), task=TASK)


def test_folders_that_do_not_pair(pairs):
    root = pairs({"lr/a.tif": (4, 4), "hr/b.tif": (8, 8)})
    with pytest.raises(ValueError, match=r"named like one.*a\.tif.*b\.tif"):
        image_pairs.read(root, TASK)
    with pytest.raises(ValueError, match="one pair of a coarse and a sharp folder, found: none"):
        image_pairs.read(root / "lr", TASK)


def test_the_same_ground_in_two_factors(pairs):
    files = {"LR/X2/0001x2.png": (8, 8), "LR/X4/0001x4.png": (4, 4), "HR/0001.png": (16, 16)}
    with pytest.raises(ValueError, match="two files of the same ground"):
        image_pairs.read(pairs(files), TASK)


def test_low_and_high_may_be_classes(pairs):
    root = pairs({"low/a.tif": (8, 8), "low/b.tif": (8, 8), "high/c.tif": (8, 8)})
    assert not image_pairs.recognise(root) and formats.read(root).format == "Imagenet"
    pairs({"low/c.tif": (8, 8), "high/a.tif": (16, 16), "high/b.tif": (16, 16)})
    assert formats.read(root).format == "image_pairs"


def test_plain_images_when_asked_for(pairs, shared):
    root = pairs({"a.tif": (8, 8), "b.tif": (9, 8)})
    with pytest.raises(ValueError, match="without labels beside them"):
        formats.read(root)
    rows = formats.read(root, task=TASK)
    assert rows.format == "sharp_images" and [row["file"] for row in rows.dataset] == ["a.tif", "b.tif"]
    export = shared / "data" / "esri_exports" / "Classified_Tiles"
    for path in (export, export / "images", export / "labels"):  # any export has sharp images
        rows = formats.read(path, task=TASK)
        assert (rows.format, rows.root) == ("sharp_images", export) and len(rows.dataset) == 32
        assert all(row["file"].startswith("images/") and not row["label_files"] for row in rows.dataset)
