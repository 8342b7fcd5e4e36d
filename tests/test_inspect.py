"""`python -m accel_geo inspect`: what is said of every real export equals what is in it."""

import json
import shutil

import pytest

from accel_geo.__main__ import main
from accel_geo.data.scenes import builtin

FOLDERS = {
    "PASCAL_VOC_rectangles": "detection",
    "KITTI_rectangles": "detection",
    "Classified_Tiles": "semantic",
    "Classified_Tiles_edge": "semantic",
    "RCNN_Masks": "instances",
    "Labeled_Tiles": "classification",
    "MultiLabeled_Tiles": "classification",
    "Imagenet": "classification",
    "Export_Tiles": "super_resolution",
    "Export_Tiles_single": "super_resolution",
    "Panoptic_Segmentation": "panoptic",
    "COCO": "instances",
    "YOLO": "detection",
}


@pytest.fixture
def inspected(capsys):
    def inspected(*arguments: object) -> dict:
        main(["inspect", *map(str, arguments), "--json"])
        return json.loads(capsys.readouterr().out)

    return inspected


def test_every_export_is_looked_at(shared):
    exports = shared / "data" / "esri_exports"
    assert set(FOLDERS) == {path.name for path in exports.iterdir() if path.is_dir()} and len(FOLDERS) == 13


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_export_without_its_answers(shared, tmp_path, inspected, folder):
    source = shared / "data" / "esri_exports" / folder
    expected = json.loads((source / "expected.json").read_text())
    copy = shutil.copytree(source, tmp_path / folder, ignore=shutil.ignore_patterns("expected.json"))
    found = inspected(copy)
    assert (found["format"], found["task"]) == (expected["format"], FOLDERS[folder])
    assert found["chips"] == expected["num_chips"] and found["sizes"][0]["chips"] >= expected["num_chips"] - 2
    assert found["chips_without_objects"] == expected["num_chips"] - expected["chips_with_objects"]

    of_value = {str(entry["value"]): entry for entry in found["classes"]}
    names = {entry["name"]: entry["value"] for entry in found["classes"]}
    listed = {entry["name"]: entry["value"] for entry in expected["classes"]}
    assert set(names) == set(listed)
    if folder == "YOLO":  # what stands in its files is the index in the list of names
        assert list(names.values()) == list(range(len(listed)))
        of_value = {str(listed[entry["name"]]): entry for entry in found["classes"]}
    else:
        assert names == listed
    for key, kind in (("objects_per_class", "objects"), ("chips_per_class", "chips"), ("pixels_per_value", "pixels")):
        for value, number in expected.get(key, {}).items():
            held = kind if kind in of_value.get(value, {}) else "chips"  # a label of a chip is its object
            assert value == "0" or of_value[value][held] == number, (key, value)

    tolerance = expected["band_stats_tolerance"]
    for name, bands in (("bands", "band_stats"), ("bands_hr", "band_stats_images2")):
        assert (name in found) == (bands in expected)
        for key in ("min", "max", "mean", "std") if name in found else ():
            assert [band[key] for band in found[name]] == pytest.approx(expected[bands][key], abs=tolerance)
    unlabelled = expected["chips_without_label_file"]
    said = [problem for problem in found["problems"] if "without a label" in problem["reason"]]
    assert bool(said) == bool(unlabelled and folder != "COCO")
    if folder == "RCNN_Masks":
        assert said[0]["file"].endswith(f"{unlabelled[0]}.tif")


def test_text_picture_and_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path))
    folder = builtin("semantic", chips=10, size=64)
    picture, page = tmp_path / "chips.png", tmp_path / "page.html"
    main(["inspect", str(folder), "--picture", str(picture), "--html", str(page)])
    text = capsys.readouterr().out
    assert "Classified_Tiles, semantic" in text and "9 to train, 1 to validate" in text and "background" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    html = page.read_text()
    assert "Classes" in html and html.count("<img") >= 2 and "http" not in html.split("</style>")[1]


def test_a_folder_that_holds_nothing(tmp_path):
    with pytest.raises(ValueError, match="It is empty"):
        from accel_geo import prepare_data

        prepare_data(tmp_path)
