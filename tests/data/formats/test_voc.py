"""PASCAL_VOC_rectangles: the ArcGIS export, the open layouts, and what is wrong in label files."""

import json

import numpy as np
import pytest
from exports import copied, expected, litter, shout, stems

from accel_geo.data.formats import esri, voc

OBJECT = "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"


def xml(*objects: tuple, filename: str = "") -> str:
    """A label file with objects of (name, x1, y1, x2, y2), without a size."""
    named = f"<filename>{filename}</filename>" if filename else ""
    return f"<annotation>{named}{''.join(OBJECT.format(*each) for each in objects)}</annotation>"


@pytest.fixture
def folder(tmp_path, write):
    """A function that writes chips and label files: {path below the root: text or bytes}."""

    def make(labels: dict[str, str | bytes], chips: list[str]):
        for chip in chips:
            write(tmp_path / chip, np.full((3, 8, 8), 5, dtype=np.uint8))
        for name, text in labels.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return make


def boxes(row) -> list[list[float]]:
    return np.reshape(row["boxes"], (-1, 4)).tolist()


@pytest.mark.parametrize("change", [lambda root: None, litter, shout])
def test_the_export(shared, tmp_path, change):
    root, truth = copied(shared, "PASCAL_VOC_rectangles", tmp_path / "set"), expected(shared, "PASCAL_VOC_rectangles")
    change(root)
    assert voc.recognise(root)
    rows = voc.read(root, "detection")
    assert (rows.format, rows.task, rows.named, rows.closed) == ("PASCAL_VOC_rectangles", "detection", True, True)
    assert rows.classes == {c["value"]: c["name"] for c in truth["classes"]}
    assert len(rows.dataset) == truth["num_chips"] and rows.dataset["file"][:] == sorted(rows.dataset["file"][:])
    values = np.concatenate(rows.dataset["values"])
    assert {str(v): int((values == v).sum()) for v in rows.classes} == truth["objects_per_class"]
    chips = stems(rows)
    for name, objects in truth["boxes_of_chips"].items():
        assert chips[name]["values"] == [entry["value"] for entry in objects]
        assert boxes(chips[name]) == [entry["box"] for entry in objects]
    for name in truth["chips_without_objects_with_label_file"] + truth["chips_without_label_file"]:
        assert chips[name]["values"] == [] and chips[name]["boxes"] == []
    assert sum("3 chip(s) without a label file, kept as background" in problem for problem in rows.problems) == 1
    assert {file.name.lower() for file in rows.sources} >= {"map.txt", "000000006.xml", "esri_accumulated_stats.json"}


def test_without_metadata_numbers_are_the_classes(shared, tmp_path):
    root = copied(shared, "PASCAL_VOC_rectangles", tmp_path / "set")
    for file in [*root.glob("esri*"), *root.glob("*.txt")]:
        file.unlink()
    assert voc.recognise(root)
    rows = voc.read(root, "detection")
    assert rows.classes == {1: "1", 2: "2", 4: "4", 9: "9"} and not rows.named and rows.closed


@pytest.mark.parametrize(
    "name", ["Labeled_Tiles", "MultiLabeled_Tiles", "KITTI_rectangles", "YOLO", "COCO", "RCNN_Masks"]
)
def test_other_exports_are_not_claimed(shared, name):
    assert not voc.recognise(shared / "data" / "esri_exports" / name)


def test_labels_without_boxes_are_not_claimed(folder):
    root = folder({"labels/a.xml": "<annotation><object><name>3</name></object></annotation>"}, ["images/a.tif"])
    assert not voc.recognise(root)
    (root / "labels" / "a.xml").write_text(xml((3, 1, 1, 4, 4)))
    assert voc.recognise(root)


def test_tree_crowns_beside_their_images(shared):
    root = shared / "data" / "neon_tree_crowns"
    assert voc.recognise(root)
    rows = voc.read(root, "detection")
    assert {row["file"].split(".")[0]: len(row["values"]) for row in rows.dataset} == {
        "OSBS_029": 61, "SOAP_061": 37, "2019_YELL_2_541000_4977000_image_crop": 279,
    }  # fmt: skip
    assert rows.classes == {1: "Alive", 2: "Dead", 3: "Tree"} and rows.named
    dead = [row["values"].count(2) for row in rows.dataset]
    assert sum(dead) == 28 and boxes(rows.dataset[1])[0] == [203, 67, 227, 90]
    assert any("2 image(s) without an XML beside them were left out" in problem for problem in rows.problems)


def test_one_label_file(shared):
    file = shared / "data" / "neon_tree_crowns" / "OSBS_029.xml"
    rows = voc.read(file, "detection")
    assert voc.recognise(file) and rows.root == file.parent and not rows.problems
    assert rows.dataset["file"][:] == ["OSBS_029.tif"] and len(rows.dataset[0]["values"]) == 61
    file = shared / "data" / "esri_exports" / "PASCAL_VOC_rectangles" / "labels" / "000000072.xml"
    rows = voc.read(file, "detection")
    assert rows.dataset["file"][:] == ["images/000000072.tif"] and rows.classes[9] == "other_roof"


def test_the_open_layout_with_splits_in_folders(folder):
    labels = {
        "Annotations/train/a.xml": xml(("tin roof", 1, 1, 4, 4), filename="a.png"),
        "Annotations/val/a.xml": xml(("hut", 2, 2, 5, 5), ("hut", 0, 0, 1, 1), filename="a.png"),
        "Annotations/val/gone.xml": xml(("hut", 2, 2, 5, 5), filename="c.png"),
    }
    root = folder(labels, ["JPEGImages/train/a.png", "JPEGImages/train/c.png", "JPEGImages/val/a.png"])
    rows = voc.read(root, "detection")
    assert voc.recognise(root) and rows.classes == {1: "hut", 2: "tin roof"}
    assert rows.dataset["file"][:] == ["JPEGImages/train/a.png", "JPEGImages/train/c.png", "JPEGImages/val/a.png"]
    assert rows.dataset["values"][:] == [[2], [], [1, 1]] and rows.dataset["group"][:] == ["train", "train", "val"]
    assert [json.loads(text)["split"] for text in rows.dataset["attributes"][:]] == ["train", "train", "valid"]
    assert any("1 label file(s) without a chip" in problem for problem in rows.problems)


def test_the_chip_is_found_by_filename_then_by_name(folder):
    labels = {
        "labels/1.xml": xml((1, 0, 0, 1, 1), filename="C:\\old\\images\\Dächer 1.TIF"),
        "labels/b.xml": xml((2, 0, 0, 1, 1), filename="lost.png"),
        "labels/c.xml": xml((3, 0, 0, 1, 1)),
        "labels/nothing.xml": xml((4, 0, 0, 1, 1), filename="gone.tif"),
        "labels/d.xml": xml((5, 0, 0, 1, 1), filename="e.tif"),
    }
    chips = ["images/dächer 1.tif", "images/b.tif", "images/deep/c.tif", "images/d.tif", "images/e.tif"]
    rows = voc.read(folder(labels, chips), "detection")
    found = stems(rows)
    assert found["dächer 1"]["values"] == [1] and found["b"]["values"] == [2] and found["e"]["values"] == [5]
    assert found["d"]["values"] == [] and found["c"]["values"] == []  # deep/c is another chip than c
    text = "\n".join(rows.problems)
    assert "2 label file(s) without a chip" in text and "1 label file(s) name another chip" in text and "d.xml" in text


def test_class_texts(folder):
    meta = {"Classes": [{"Value": 3, "Name": "tin_roof"}, {"Value": 7, "Name": "hut, thatched"}]}
    labels = {
        "labels/a.xml": xml(("Tin Roof", 0, 0, 1, 1), ("3.0", 0, 0, 2, 2), ("hut, thatched", 0, 0, 3, 3)),
        "labels/b.xml": xml(("shed", 0, 0, 1, 1), ("3, 7", 0, 0, 2, 2), (12, 0, 0, 3, 3)),
        "esri_model_definition.emd": json.dumps(meta),
    }
    root = folder(labels, ["images/a.tif", "images/b.tif"])
    rows = voc.read(root, "detection")
    assert esri.metadata(root).classes.keys() < rows.classes.keys()
    assert rows.classes == {3: "tin_roof", 7: "hut, thatched", 8: "shed"}
    assert rows.dataset["values"][:] == [[3, 3, 7], [8, 3, 7, 12]]  # 12 is in no list: it is refused with its chip
    assert boxes(rows.dataset[1]) == [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 2, 2], [0, 0, 3, 3]]
    assert any("'shed' is no class of the metadata" in problem for problem in rows.problems)


def test_encodings_blanks_and_boxes_as_they_stand(folder):
    declared = f'\n  <?xml version="1.0" encoding="utf-8"?>\r\n{xml(("Hütte", 9, 8, 1, 2))}'.encode()
    labels = {
        "labels/a.xml": declared,
        "labels/b.xml": b"\xef\xbb\xbf" + xml(("Hütte", "-3.25", 0, " 400 ", 5)).encode(),
        "labels/c.xml": xml(("Hütte", 1, 1, 2, 2)).encode("utf-16"),
        "labels/a.xml.aux.xml": b"<PAMDataset/>",
        "labels/other.xml": b"<metadata/>",
    }
    root = folder(labels, ["images/a.tif", "images/b.tif", "images/c.tif"])
    rows = voc.read(root, "detection")
    assert voc.recognise(root) and rows.classes == {1: "Hütte"}
    assert [boxes(row)[0] for row in rows.dataset] == [[9, 8, 1, 2], [-3.25, 0, 400, 5], [1, 1, 2, 2]]
    assert rows.problems == ["1 XML file(s) that are no annotations were left out"]


def test_objects_without_a_box_are_counted(folder):
    mixed = "<annotation><object><name>a</name><polygon/></object>" + xml(("a", 1, 1, 2, 2))[len("<annotation>") :]
    rows = voc.read(folder({"labels/a.xml": mixed}, ["images/a.tif"]), "detection")
    assert rows.dataset["values"][:] == [[1]] and rows.problems == ["1 object(s) without a bndbox were left out"]


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation><filename>&b;</filename></annotation>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("<annotation><object>", "no valid XML"),
        (BOMB, "entities"),
        (BOMB.encode("utf-16"), "entities"),
        (
            '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotation><filename>&a;</filename></annotation>',
            "entit",
        ),
        (xml(("a", 1, "x", 2, 2)), "ymin x"),
        (xml(("a", 1, "", 2, 2)), "ymin missing"),
        (xml(("a", 1, 1, "nan", 2)), "xmax nan"),
        (xml(("a", 1, 1, 2, 2), ("b", 1, 1, 2, "inf")), "object 2"),
        (xml(("", 1, 1, 2, 2)), "the name ''"),
        (xml(("a", 1, 1, 2, 2), filename="a.tif"), "two label files"),
    ],
)
def test_label_files_that_are_refused(folder, text, message):
    root = folder({"labels/a.xml": xml((1, 1, 1, 2, 2)), "labels/b.xml": text}, ["images/a.tif", "images/b.tif"])
    with pytest.raises(ValueError, match=message) as error:
        voc.read(root, "detection")
    assert "b.xml" in str(error.value)


def test_no_label_files(folder):
    root = folder({}, ["images/a.tif"])
    assert not voc.recognise(root)
    with pytest.raises(ValueError, match="holds no label files"):
        voc.read(root, "detection")
