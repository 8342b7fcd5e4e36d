"""Object numbers as pixels: RCNN_Masks, and images beside a folder of object numbers."""

import numpy as np
import pytest
import rasterio
from exports import copied, expected, litter, shout, stems

from accel_geo.data import formats
from accel_geo.data.formats import image_ids


def read(path) -> np.ndarray:
    with rasterio.open(path) as raster:
        return raster.read()


@pytest.mark.parametrize("change", [None, litter, shout])
@pytest.mark.parametrize("task", [None, "detection", "semantic", "edges"])
def test_rcnn_masks(shared, tmp_path, task, change):
    says = expected(shared, "RCNN_Masks")
    root = copied(shared, "RCNN_Masks", tmp_path / "set")
    if change:
        change(root)
    rows = formats.read(root, task=task, format=None if task is None else "rcnn_masks")
    assert (rows.format, rows.task) == ("RCNN_Masks", task or "instances")
    assert rows.classes == {c["value"]: c["name"] for c in says["classes"]}
    found = stems(rows)
    assert len(found) == says["num_chips"]
    objects = dict.fromkeys(map(str, rows.classes), 0)
    for row in rows.dataset:
        assert row["values"] == sorted(row["values"])
        for value, file in zip(row["values"], row["label_files"]):
            objects[str(value)] += len(np.unique(read(root / file))) - 1
    assert objects == says["objects_per_class"]
    assert [name for name, row in found.items() if not row["label_files"]] == says["chips_without_label_file"]
    for name, of_value in says["mask_pixels_of_chips"].items():
        masks = {v: read(root / f)[0] for v, f in zip(found[name]["values"], found[name]["label_files"])}
        assert {str(v): np.bincount(m.ravel())[1:].tolist() for v, m in masks.items()} == of_value


def test_folders_of_blanks_values_and_unknown_classes(shared, tmp_path):
    root = copied(shared, "RCNN_Masks", tmp_path / "set")
    (root / "labels" / "tin_roof").rename(root / "labels" / "Tin-Roof")
    (root / "labels" / "other_roof").rename(root / "labels" / "9")
    (root / "labels" / "clay_tile_roof").rename(root / "labels" / "Thatch, old")
    (root / "labels" / "nothing").mkdir()
    rows = formats.read(root)
    assert rows.classes[10] == "Thatch, old" and "nothing" not in rows.classes.values()
    assert {value for row in rows.dataset for value in row["values"]} == {1, 2, 9, 10}
    assert any("labels/Thatch, old is no class of the metadata: taken as class 10" in text for text in rows.problems)


def test_one_class_without_a_folder_of_its_own(tmp_path, write):
    write(tmp_path / "images" / "a.tif", np.ones((3, 8, 8), np.uint8))
    write(tmp_path / "labels" / "a.tif", np.ones((8, 8), np.uint8))
    (tmp_path / "esri_model_definition.emd").write_text('{"MetaDataMode": "RCNN_Masks"}')
    rows = formats.read(tmp_path)
    assert rows.classes == {1: "object"} and rows.dataset[0]["label_files"] == ["labels/a.tif"]


def test_chips_in_folders_are_groups_and_splits(tmp_path, write):
    for name in ("train/a", "val/a"):
        write(tmp_path / "images" / f"{name}.tif", np.ones((3, 8, 8), np.uint8))
        write(tmp_path / "labels" / "house" / f"{name}.tif", np.ones((8, 8), np.uint8))
    rows = formats.read(tmp_path)
    assert [row["label_files"] for row in rows.dataset] == [["labels/house/train/a.tif"], ["labels/house/val/a.tif"]]
    assert rows.dataset["group"][:] == ["train", "val"]
    assert rows.dataset["attributes"][:] == ['{"split": "train"}', '{"split": "valid"}']


def test_folders_that_images_have_too_are_no_classes(tmp_path, write):
    for name in ("images/train/a", "labels/train/a"):
        write(tmp_path / f"{name}.tif", np.ones((8, 8), np.uint8))
    assert formats.read(tmp_path).format == "image_masks"


def test_images_and_ids(shared, tmp_path, write):
    real = shared / "data" / "kampala_oam_buildings"
    rows = image_ids.read(real, "instances")
    assert (
        len(rows.dataset) == len(list((real / "images").glob("*.tif")))
        and rows.classes == {1: "object"}
        and not rows.named
    )
    assert all(len(row["label_files"]) == len(row["values"]) == 1 for row in rows.dataset)
    write(tmp_path / "images" / "a.tif", np.ones((3, 8, 8), np.uint8))
    write(tmp_path / "images" / "b.tif", np.ones((3, 8, 8), np.uint8))
    write(tmp_path / "masks" / "a.tif", np.ones((8, 8), np.uint16))
    assert not image_ids.recognise(tmp_path)  # masks may hold classes: only where the format is asked for
    rows = image_ids.read(tmp_path, "instances")
    assert [row["values"] for row in rows.dataset] == [[1], []]
    assert any("1 chip(s) without a label file" in problem for problem in rows.problems)
    with pytest.raises(ValueError, match="holds no folder instances or"):
        image_ids.read(tmp_path / "images", "instances")
