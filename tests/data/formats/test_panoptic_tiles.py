"""Panoptic_Segmentation: class rasters in labels/, object numbers in labels2/."""

import json

import numpy as np
import pytest
import rasterio
from exports import copied, expected, litter, shout, stems

from accel_geo.data import formats


def read(path) -> np.ndarray:
    with rasterio.open(path) as raster:
        return raster.read(1)


def counted(root, rows, expected) -> None:
    """Compare the pixels and objects that the rows lead to with what is expected."""
    pixels, objects = dict.fromkeys(expected["pixels_per_value"], 0), dict.fromkeys(expected["objects_per_class"], 0)
    for row in rows.dataset:
        if not row["label_files"]:
            continue
        for value, count in zip(*np.unique(read(root / row["label_files"][0]), return_counts=True)):
            pixels[str(value)] += int(count)
        for value, file in zip(row["values"], row["label_files"][1:], strict=True):
            objects[str(value)] += len(np.unique(read(root / file))) - 1
    assert pixels == expected["pixels_per_value"] and objects == expected["objects_per_class"]


@pytest.mark.parametrize("change", [None, litter, shout])
def test_panoptic_segmentation(shared, tmp_path, change):
    says = expected(shared, "Panoptic_Segmentation")
    root = copied(shared, "Panoptic_Segmentation", tmp_path / "set")
    if change:
        change(root)
    rows = formats.read(root)
    assert (rows.format, rows.task) == ("Panoptic_Segmentation", "panoptic") and rows.closed
    assert rows.classes == {c["value"]: c["name"] for c in says["classes"]}
    assert sorted(rows.things) == says["instance_classes"] and set(rows.classes) - rows.things == {12}
    counted(root, rows, says)
    found = stems(rows)
    assert [name for name, row in found.items() if not row["label_files"]] == says["chips_without_label_file"]
    for name, of_value in says["instance_pixels_of_chips"].items():
        row = found[name]
        masks = {v: read(root / file) for v, file in zip(row["values"], row["label_files"][1:])}
        assert {str(v): np.bincount(m.ravel())[1:].tolist() for v, m in masks.items()} == of_value
    assert any("3 chip(s) without a label file, kept as unlabelled" in problem for problem in rows.problems)


def test_the_other_tasks_it_serves(shared, tmp_path):
    says = expected(shared, "Panoptic_Segmentation")
    root = copied(shared, "Panoptic_Segmentation", tmp_path / "set")
    (root / "labels" / "000000019.tif").unlink()
    for task in ("instances", "detection", "edges"):
        rows = formats.read(root, task=task, format="Panoptic_Segmentation")
        assert sorted(rows.classes) == says["instance_classes"] and rows.closed
        assert all(len(row["values"]) == len(row["label_files"]) for row in rows.dataset)
        assert all(file.startswith("labels2/") for row in rows.dataset for file in row["label_files"])
    rows = formats.read(root, task="semantic", format="Panoptic_Segmentation")
    assert sorted(rows.classes) == [1, 2, 4, 9, 12]
    found = stems(rows)
    assert found["000000020"]["label_files"] == ["labels/000000020.tif"] and found["000000020"]["values"] == []
    assert found["000000019"]["values"] == [1, 2]  # no class raster: the objects serve
    found = stems(formats.read(root))
    assert found["000000019"]["label_files"][0] == "" and found["000000019"]["values"] == [1, 2]


@pytest.mark.parametrize("entries", ["values", "names", "nothing"])
def test_instance_classes_in_other_words(shared, tmp_path, entries):
    root = copied(shared, "Panoptic_Segmentation", tmp_path / "set")
    file = root / "esri_model_definition.emd"
    model = json.loads(file.read_text())
    said = model.pop("Panoptic_Segmentation_Instance_Classes")
    if entries != "nothing":
        model["Panoptic_Segmentation_Instance_Classes"] = [c["Value" if entries == "values" else "Name"] for c in said]
    file.write_text(json.dumps(model))
    assert formats.read(root).things == {1, 2, 4, 9}


def test_a_thing_without_any_object(shared, tmp_path):
    root = copied(shared, "Panoptic_Segmentation", tmp_path / "set")
    for file in (root / "labels2" / "clay_tile_roof").glob("*.tif"):
        file.unlink()
    rows = formats.read(root)
    assert rows.things == {1, 2, 4, 9} and not any(4 in row["values"] for row in rows.dataset)


def test_without_metadata_the_pixels_say_which_class_a_folder_is(shared, tmp_path, write):
    says = expected(shared, "Panoptic_Segmentation")
    root = copied(shared, "Panoptic_Segmentation", tmp_path / "set")
    for name in ("esri_model_definition.emd", "esri_accumulated_stats.json", "map.txt", "stats.txt"):
        (root / name).unlink()
    rows = formats.read(root)
    assert rows.format == "Panoptic_Segmentation" and not rows.closed
    assert rows.classes == {c["value"]: c["name"] for c in says["classes"] if c["value"] != 12}
    assert rows.things == {1, 2, 4, 9}
    counted(root, rows, says)
    for file in (root / "labels2" / "tin_roof").glob("*.tif"):
        labels = root / "labels" / file.name
        labels.write_bytes((root / "labels" / "000000024.tif").read_bytes())  # stuff only
    with pytest.raises(ValueError, match="which class value .*_roof stands for"):
        formats.read(root)
