"""Metadata of ArcGIS exports, old and new: what they say is taken, place-holders and litter are not."""

import json

import numpy as np
import pytest
from exports import copied

from accel_geo.data import formats
from accel_geo.data.formats import esri

NEW = {
    "MetaDataMode": "Classified_Tiles", "ImageSpaceUsed": "PIXEL_SPACE", "CropTileMode": "Variable_Size",
    "InputRastersProps": {"RasterCount": 1, "SensorName": "x", "BandNames": ["Red", "NearInfrared"]},
    "AllTilesStats": [
        {"BandName": "Red", "Min": 1, "Max": 60419, "Mean": 7669.7, "StdDev": 1512.75},
        {"BandName": "NearInfrared", "Min": 1, "Max": 50452, "Mean": 8771.2, "StdDev": 1429.1},
    ],
    "Classes": [{"Value": 3, "Name": " water "}, {"Value": 1, "Name": "ice"}],
    "Panoptic_Segmentation_Instance_Classes": [{"Value": 3, "Name": "water", "Color": [-1, -1, -1]}],
}  # fmt: skip
STATS = {
    "Version": 1, "NumTilesAsDouble": 12.0, "MetaDataMode": "Classified_Tiles",
    "BandStatsState": [{"Min": 0, "Max": 9, "M1": 4.0, "M2": 250.0, "Num": 10}],
    "Classes": [{"ClassValue": 1, "ClassName": "ice"}, {"ClassValue": 3, "ClassName": "water"}],
}  # fmt: skip


@pytest.fixture
def described(tmp_path):
    """A function that writes the two descriptions and map.txt, and reads them."""

    def make(model: object = None, stats: object = None, listing: str | None = None) -> esri.Metadata:
        for name, content in (("esri_model_definition.emd", model), ("esri_accumulated_stats.json", stats)):
            if content is not None:
                text = content if isinstance(content, str) else json.dumps(content)
                (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
        if listing is not None:
            (tmp_path / "map.txt").write_bytes(listing.encode())
        return esri.metadata(tmp_path)

    return make


def test_a_new_model_definition_says_it_all(described):
    meta = described(NEW)
    assert (meta.mode, meta.map_space, meta.variable_size) == ("Classified_Tiles", False, True)
    assert meta.classes == {3: "water", 1: "ice"} and meta.bands == ("Red", "NearInfrared") and meta.things == {3}
    assert meta.statistics[1] == esri.BandStatistics("NearInfrared", 1, 50452, 8771.2, 1429.1)
    assert meta.chips is None and meta.problems == []


def test_statistics_from_running_sums(described):
    meta = described(None, STATS)
    assert meta.statistics == (esri.BandStatistics("", 0, 9, 4.0, 5.0),)
    assert meta.chips == 12 and meta.map_space and not meta.variable_size


def test_both_together(described):
    meta = described(NEW, STATS)
    assert meta.classes == {1: "ice", 3: "water"} and meta.problems == [] and meta.chips == 12
    assert len(meta.statistics) == 2 and [file.name for file in meta.files] == [
        "esri_model_definition.emd", "esri_accumulated_stats.json",
    ]  # fmt: skip


def test_place_holders_count_as_not_given(described):
    names = (*NEW, *STATS, "NumTiles")
    for text in ("e.g. something", "", None, 7, [], ["e.g. [0, 1]"], {}, [{"Value": "e.g. 1", "Name": "a"}], True):
        meta = described(dict.fromkeys(names, text), dict.fromkeys(names, text))
        mode = text if isinstance(text, str) and not text.startswith("e.g.") else ""
        assert (meta.mode, meta.classes, meta.statistics, meta.problems) == (mode, {}, (), [])
        assert meta.map_space and not meta.variable_size and meta.things == frozenset()


def test_class_values_of_other_types(described):
    entries = [
        ("1", "a"),
        (2.0, "b"),
        ("3.0", "c"),
        (4, 44),
        (True, "no"),
        (2.5, "no"),
        (None, "no"),
        (float("inf"), "no"),
    ]
    meta = described({"Classes": [{"Value": value, "Name": name} for value, name in entries]})
    assert meta.classes == {1: "a", 2: "b", 3: "c", 4: "44"}


def test_incomplete_statistics_are_not_taken(described):
    for entry in ({"Min": 0, "Max": 1, "Mean": 0.5}, {"Min": 0, "Max": "e.g. 255", "Mean": 1, "StdDev": 1}, "Red"):
        assert described({"AllTilesStats": [NEW["AllTilesStats"][0], entry]}).statistics == ()
    assert described({"BandStatsState": [{"Min": 0, "Max": 1, "M1": 0, "M2": 0, "Num": 0}]}).statistics == ()


def test_class_lists_that_disagree(described):
    stats = STATS | {"Classes": [{"ClassValue": 1, "ClassName": "snow"}, {"ClassValue": 8, "ClassName": "rock"}]}
    meta = described(NEW, stats)
    assert meta.classes == {1: "ice", 3: "water", 8: "rock"}
    (problem,) = meta.problems
    assert "1 ice, 3 water" in problem and "1 snow, 8 rock" in problem
    background = {"Classes": [*NEW["Classes"], {"Value": 0, "Name": "NoData"}]}
    assert described(NEW | background, STATS).problems == []


@pytest.mark.parametrize("text", ["", "{", "[1]", "no JSON at all", '{"Classes": '])
def test_broken_metadata_are_not_needed(described, text):
    meta = described(text, STATS)
    assert meta.classes == {1: "ice", 3: "water"} and meta.mode == "Classified_Tiles"
    assert len(meta.problems) == 1 and "esri_model_definition.emd" in meta.problems[0]


@pytest.fixture
def chips(tmp_path, write):
    for name in ("images/a", "images/b c", "labels/a", "labels/dry field/b c"):
        write(tmp_path / f"{name}.tif", np.ones((4, 4), np.uint8))


def test_map_lines(described, chips, tmp_path):
    text = "\ufeffimages\\a.tif  labels\\a.tif \r\nimages\\b c.TIF  labels\\dry field\\b c.tif labels\\a.tif\r\n\r\n"
    meta = described(NEW, None, text + "images/a.tif\n")
    assert esri.map_lines(tmp_path / "map.txt") == [
        ("images/a.tif", "labels/a.tif"),
        ("images/b c.TIF", "labels/dry field/b c.tif", "labels/a.tif"),
        ("images/a.tif",),
    ]
    assert esri.disagreements(meta, 2) == []


def test_what_map_and_counts_say_against_what_is_there(described, chips):
    line = "images\\a.tif  labels\\a.tif \n"
    meta = described(None, {"NumTiles": 9}, 3 * line + "images\\gone.tif  labels\\dry field\\gone.tif \n")
    problems = esri.disagreements(meta, 2)
    assert len(problems) == 4 and "count 9 chips, 2 are on disk" in problems[0] and "repeats 2 line(s)" in problems[1]
    assert "names 2 file(s) that are not on disk: images/gone.tif, labels/dry field/gone.tif" in problems[2]
    assert "names 1 of 2 chips" in problems[3]


def test_a_map_that_is_no_text(described, chips, tmp_path):
    (tmp_path / "map.txt").write_bytes(bytes(range(256)))
    assert esri.disagreements(described(NEW), 2) == []
    (tmp_path / "map.txt").unlink()
    (tmp_path / "map.txt").mkdir()
    (problem,) = esri.disagreements(described(NEW), 2)
    assert "map.txt cannot be read" in problem


def test_names_of_classes_and_folders():
    classes = {1: "dry field", 2: "Dry-Field", 3: "7", 7: "wood"}
    found = [
        esri.class_value(name, classes) for name in ("dry field", "Dry-Field", "DRY_FIELD", "7", "2", "8", "2.0", "x")
    ]
    assert found == [1, 2, 1, 3, 2, None, 2, None]


@pytest.mark.parametrize("folder", ["Classified_Tiles", "RCNN_Masks", "Labeled_Tiles", "Panoptic_Segmentation"])
def test_a_new_export_reads_as_the_old_one(shared, tmp_path, folder):
    """The same folder with the newer metadata, of a part of its chips."""
    root = copied(shared, folder, tmp_path / "set")
    old = formats.read(root)
    model = json.loads((root / "esri_model_definition.emd").read_text())
    stats = json.loads((root / "esri_accumulated_stats.json").read_text())
    model |= {key: NEW[key] for key in ("ImageSpaceUsed", "CropTileMode", "AllTilesStats")} | {"MetaDataMode": folder}
    stats["NumTilesAsDouble"] = float(stats.pop("NumTiles"))
    (root / "esri_model_definition.emd").write_bytes(json.dumps(model, indent="\t").encode("utf-8-sig"))
    (root / "esri_accumulated_stats.json").write_bytes(json.dumps(stats).encode("utf-16"))
    new = formats.read(root)
    assert new.dataset.to_list() == old.dataset.to_list() and new.classes == old.classes and not new.map_space
    assert new.problems == old.problems
    for row in old.dataset.select(range(5)):
        (root / row["file"]).unlink()
    part = formats.read(root)
    assert len(part.dataset) == len(old.dataset) - 5
    assert any("are on disk" in problem and str(len(old.dataset)) in problem for problem in part.problems)
    assert any("map.txt names 5 file(s) that are not on disk" in problem for problem in part.problems)
