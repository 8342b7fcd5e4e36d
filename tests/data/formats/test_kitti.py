"""KITTI_rectangles: the ArcGIS export, KITTI's own files, and lines that are none."""

import json

import numpy as np
import pytest
from exports import copied, expected, litter, shout, stems

from accel_geo.data.formats import kitti

BOX = "0.00 0 0 10.5 20 30 40.25"
SPACE = "0 0 0 0 0 0 0"


@pytest.fixture
def folder(tmp_path, write):
    """A function that writes label files, their chips and one chip more."""

    def make(labels: dict[str, str | bytes]):
        for name, text in labels.items():
            write(tmp_path / "images" / f"{name}.png", np.full((3, 8, 8), 5, dtype=np.uint8))
            (tmp_path / "labels").mkdir(exist_ok=True)
            (tmp_path / "labels" / f"{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
        write(tmp_path / "images" / "z.png", np.full((3, 8, 8), 5, dtype=np.uint8))
        return tmp_path

    return make


@pytest.mark.parametrize("change", [lambda root: None, litter, shout])
def test_the_export(shared, tmp_path, change):
    root, truth = copied(shared, "KITTI_rectangles", tmp_path / "set"), expected(shared, "KITTI_rectangles")
    change(root)
    assert kitti.recognise(root)
    rows = kitti.read(root, "detection")
    assert rows.format == "KITTI_rectangles" and len(rows.dataset) == truth["num_chips"]
    assert rows.classes == {c["value"]: c["name"] for c in truth["classes"]} and rows.named and rows.closed
    values = np.concatenate(rows.dataset["values"])
    assert {str(v): int((values == v).sum()) for v in rows.classes} == truth["objects_per_class"]
    chips = stems(rows)
    for name, objects in truth["boxes_of_chips"].items():
        assert chips[name]["values"] == [entry["value"] for entry in objects]
        assert np.reshape(chips[name]["boxes"], (-1, 4)).tolist() == [entry["box"] for entry in objects]
    for name in truth["chips_without_objects_with_label_file"] + truth["chips_without_label_file"]:
        assert chips[name]["values"] == []
    assert any("3 chip(s) without a label file" in problem for problem in rows.problems)


def test_without_metadata(shared, tmp_path):
    root = copied(shared, "KITTI_rectangles", tmp_path / "set")
    for file in root.glob("esri*"):
        file.unlink()
    assert kitti.recognise(root)
    rows = kitti.read(root, "detection")
    assert rows.classes == {1: "1", 2: "2", 4: "4", 9: "9"} and not rows.named


@pytest.mark.parametrize("name", ["YOLO", "PASCAL_VOC_rectangles", "Classified_Tiles", "COCO"])
def test_other_exports_are_not_claimed(shared, name):
    assert not kitti.recognise(shared / "data" / "esri_exports" / name)


def test_the_outline_of_seven_points_is_no_line_of_kitti(folder):
    root = folder({"a": "0 " + " ".join(["0.5"] * 14)})
    assert not kitti.recognise(root)
    (root / "labels" / "a.txt").write_text(f"0 {BOX} {SPACE}")
    assert kitti.recognise(root)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"Car {BOX} {SPACE}", "Car"),
        (f"tin\troof {BOX} {SPACE}", "tin roof"),
        (f"Zone 3 {BOX} {SPACE}", "Zone 3"),
        (f"Car {BOX} {SPACE} 0.98", "Car"),
        (f"big blue car {BOX} {SPACE} 0.5", "big blue car"),
        (f"  Car   {BOX}\t{SPACE}  \r", "Car"),
    ],
)
def test_columns_count_from_the_right(folder, line, name):
    rows = kitti.read(folder({"a": f"{line}\n"}), "detection")
    assert rows.classes == {1: name} and rows.dataset[0]["boxes"] == [10.5, 20, 30, 40.25]


def test_a_class_that_is_a_number_with_a_score(folder):
    rows = kitti.read(folder({"a": f"4 {BOX} {SPACE} 0.9\n4 {BOX} {SPACE}"}), "detection")
    assert rows.classes == {4: "4"} and rows.dataset["values"][0] == [4, 4]
    assert rows.dataset["boxes"][0] == [10.5, 20, 30, 40.25] * 2


def test_dont_care_blanks_and_byte_order_marks(folder):
    text = f"\n\nCar {BOX} {SPACE}\n  \nDontCare -1 -1 -10 1 2 3 4 -1 -1 -1 -1000 -1000 -1000 -10\n"
    root = folder({"a": b"\xef\xbb\xbf" + text.encode(), "b": "", "c": f"Tram {BOX} {SPACE}".encode("utf-16")})
    rows = kitti.read(root, "detection")
    assert rows.classes == {1: "Car", 2: "Tram"} and rows.dataset["values"][:] == [[1], [], [2], []]
    assert rows.problems == [
        "1 chip(s) without a label file, kept as background: z.png", "1 object(s) named DontCare were left out",
    ]  # fmt: skip


def test_names_and_numbers_with_a_class_list(folder):
    root = folder({"a": f"Car {BOX} {SPACE}\n5 {BOX} {SPACE}\n8 {BOX} {SPACE}\nShip {BOX} {SPACE}"})
    meta = {"Classes": [{"Value": 5, "Name": "car"}], "MetaDataMode": "KITTI_rectangles"}
    (root / "esri_model_definition.emd").write_text(json.dumps(meta))
    rows = kitti.read(root, "detection")
    assert rows.classes == {5: "car", 6: "Ship"} and rows.dataset["values"][0] == [5, 5, 8, 6]
    assert any("'Ship' is no class of the metadata" in problem for problem in rows.problems)


def test_the_layout_of_kitti_itself(tmp_path, write):
    write(tmp_path / "image_2" / "000001.png", np.full((3, 8, 8), 5, dtype=np.uint8))
    (tmp_path / "label_2").mkdir()
    (tmp_path / "label_2" / "000001.txt").write_text(f"Van {BOX} {SPACE}")
    assert kitti.recognise(tmp_path)
    assert kitti.read(tmp_path, "detection").dataset["file"][:] == ["image_2/000001.png"]


@pytest.mark.parametrize(
    "line",
    [
        f"{BOX} {SPACE}",
        f"Car {BOX}",
        f"Car {BOX.replace('20', 'x')} {SPACE}",
        f"Car {BOX.replace('20', 'nan')} {SPACE}",
    ],
)
def test_lines_that_are_refused(folder, line):
    with pytest.raises(ValueError, match=r"b\.txt, line 2: .*14 finite numbers"):
        kitti.read(folder({"a": f"Car {BOX} {SPACE}", "b": f"Car {BOX} {SPACE}\n{line}\n"}), "detection")


def test_two_label_files_for_one_chip(folder):
    root = folder({"a": f"Car {BOX} {SPACE}"})
    (root / "labels" / "A.TXT").write_text("")
    with pytest.raises(ValueError, match="two label files") as error:
        kitti.read(root, "detection")
    assert "A.TXT" in str(error.value) and "a.txt" in str(error.value)
