"""Chips with labels of the whole chip: Labeled_Tiles and MultiLabeled_Tiles."""

import numpy as np
import pytest
from exports import copied, expected, litter, shout, stems

from accel_geo.data import formats
from accel_geo.data.formats import labeled_tiles, multilabeled_tiles

CHIP = "<bndbox><xmin>0.00</xmin><ymin>0.00</ymin><xmax>8.00</xmax><ymax>8.00</ymax></bndbox>"
CLASSES = '{"MetaDataMode": "%s", "Classes": [{"Value": 3, "Name": "dry field"}, {"Value": 7, "Name": "wood, old"}]}'


def xml(*names: str, box: str = CHIP) -> str:
    objects = "".join(f"<object><name>{name}</name>{box}</object>" for name in names)
    return f"<annotation><size><width>8</width><height>8</height></size>{objects}</annotation>"


@pytest.fixture
def tiles(tmp_path, write):
    """A function that writes chips with these label texts; None is no label file."""

    def make(labels: dict[str, str | bytes | None], mode: str = ""):
        root = tmp_path / "tiles"
        (root / "labels").mkdir(parents=True)
        for name, text in labels.items():
            write(root / "images" / f"{name}.tif", np.full((3, 8, 8), 9, dtype=np.uint8))
            if text is not None:
                data = text if isinstance(text, bytes) else text.encode()
                (root / "labels" / f"{name}.xml").write_bytes(data)
        if mode:
            (root / "esri_model_definition.emd").write_text(CLASSES % mode)
        return root

    return make


@pytest.mark.parametrize("change", [None, litter, shout])
def test_labeled_tiles(shared, tmp_path, change):
    says = expected(shared, "Labeled_Tiles")
    root = copied(shared, "Labeled_Tiles", tmp_path / "set")
    if change:
        change(root)
    rows = formats.read(root)
    assert (rows.format, rows.task, rows.multilabel) == ("Labeled_Tiles", "classification", False)
    assert rows.classes == {c["value"]: c["name"] for c in says["classes"]} and rows.named
    found = stems(rows)
    assert len(found) == says["num_chips"]
    assert {name: found[name]["values"] for name in says["label_of_chips"]} == {
        name: [value] for name, value in says["label_of_chips"].items()
    }
    per_class = {str(v): sum(row["values"] == [v] for row in found.values()) for v in rows.classes}
    assert per_class == says["chips_per_class"]
    without = says["chips_without_objects_with_label_file"] + says["chips_without_label_file"]
    assert [name for name, row in found.items() if not row["values"]] == sorted(without)
    assert any("2 chip(s) without a label" in problem for problem in rows.problems)


def test_multilabeled_tiles(shared, tmp_path):
    says = expected(shared, "MultiLabeled_Tiles")
    root = copied(shared, "MultiLabeled_Tiles", tmp_path / "set")
    litter(root)
    for path in (root, root.parent, root / "images", root / "labels"):
        rows = formats.read(path)
        assert rows.root == root and (rows.format, rows.multilabel) == ("MultiLabeled_Tiles", True)
    found = stems(rows)
    assert len(found) == says["num_chips"] and rows.classes == {c["value"]: c["name"] for c in says["classes"]}
    assert {name: found[name]["values"] for name in says["labels_of_chips"]} == says["labels_of_chips"]
    per_class = {str(v): sum(v in row["values"] for row in found.values()) for v in rows.classes}
    assert per_class == says["chips_per_class"]
    without = says["chips_without_objects_with_label_file"] + says["chips_without_label_file"]
    assert [name for name, row in found.items() if not row["values"]] == sorted(without)


@pytest.mark.parametrize("folder", ["Labeled_Tiles", "MultiLabeled_Tiles"])
def test_recognised_without_metadata(shared, tmp_path, folder):
    root = copied(shared, folder, tmp_path / "set")
    for name in ("esri_model_definition.emd", "esri_accumulated_stats.json", "map.txt", "stats.txt"):
        (root / name).unlink()
    reader = {"Labeled_Tiles": labeled_tiles, "MultiLabeled_Tiles": multilabeled_tiles}[folder]
    assert [m for m in (labeled_tiles, multilabeled_tiles) if m.recognise(root)] == [reader]
    rows = reader.read(root, "classification")
    assert rows.classes == {c["value"]: str(c["value"]) for c in expected(shared, folder)["classes"]} and not rows.named


def test_boxes_of_objects_are_no_labels_of_chips(shared, tiles):
    assert labeled_tiles.kind(shared / "data" / "esri_exports" / "PASCAL_VOC_rectangles") == ""
    assert labeled_tiles.kind(tiles({"a": xml("1", box=CHIP.replace("8.00", "6.00"))})) == ""


def test_names_values_and_commas(tiles):
    labels = {
        "a": xml("dry field"), "b": xml("7"), "c": xml("DRY_field, 7"), "d": xml("wood, old"), "e": xml("3", "7", "3"),
        "f": xml(), "g": None, "h": xml(" , "), "i": xml("dry field", box=""),
    }  # fmt: skip
    rows = formats.read(tiles(labels, "MultiLabeled_Tiles"))
    assert [row["values"] for row in rows.dataset] == [[3], [7], [3, 7], [7], [3, 7], [], [], [], [3]]
    assert any("3 chip(s) without a label" in problem for problem in rows.problems)


def test_names_without_a_class_list(tiles):
    rows = labeled_tiles.read(tiles({"a": xml("water"), "b": xml("crop land"), "c": xml("water")}), "classification")
    assert rows.classes == {1: "crop land", 2: "water"} and rows.named
    assert [row["values"] for row in rows.dataset] == [[2], [1], [2]]


def test_unknown_classes_are_told(tiles):
    rows = formats.read(tiles({"a": xml("3"), "b": xml("swamp"), "c": xml("99")}, "Labeled_Tiles"))
    assert rows.classes == {3: "dry field", 7: "wood, old", 8: "swamp"}
    assert [row["values"] for row in rows.dataset] == [[3], [8], [99]]  # 99 is refused with the chip's name later
    assert any("'swamp'" in problem for problem in rows.problems)
    assert any("no chip of class wood, old" in problem for problem in rows.problems)


def test_several_labels_where_one_is_allowed(tiles):
    with pytest.raises(ValueError, match=r"b\.xml names 2 classes \(3, 7\).*MultiLabeled_Tiles"):
        formats.read(tiles({"a": xml("3"), "b": xml("3,7")}, "Labeled_Tiles"))


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><annotation><object><name>&a;</name></object></annotation>'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"b\.xml is empty"),
        (b" \n", r"b\.xml is empty"),
        (b"<annotation><object>", r"b\.xml is no valid XML"),
        (b"\xff\xd8\xff\xe0 a picture", r"b\.xml is no valid XML"),
        (BOMB.encode(), r"b\.xml declares entities"),
    ],
)
def test_broken_label_files_are_named(tiles, text, message):
    with pytest.raises(ValueError, match=message):
        formats.read(tiles({"a": xml("3"), "b": text}, "Labeled_Tiles"))


def test_label_files_as_editors_leave_them(tiles):
    head = '<?xml version="1.0"?>\r\n'
    labels = {
        "a": "\n" + head + xml("3"),
        "b": b"\xef\xbb\xbf" + (head + xml("7")).encode(),
        "c": ('<?xml version="1.0" encoding="utf-16"?>' + xml("3")).encode("utf-16"),
        "d": xml("3") + "\n\n",
    }
    rows = formats.read(tiles(labels, "Labeled_Tiles"))
    assert [row["values"] for row in rows.dataset] == [[3], [7], [3], [3]]


def test_labels_without_a_chip_and_twice(tiles):
    root = tiles({"a": xml("3"), "b": xml("7")}, "Labeled_Tiles")
    (root / "labels" / "gone.xml").write_text(xml("3"))
    assert any("1 label file(s) without a chip" in problem for problem in formats.read(root).problems)
    (root / "labels" / "A.XML").write_text(xml("7"))
    with pytest.raises(ValueError, match="two label files for one chip"):
        formats.read(root)
