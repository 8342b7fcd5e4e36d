"""YOLO: the export, layouts with splits, class lists, outlines, and lines that are none."""

import json

import numpy as np
import pytest
from exports import copied, expected, stems

from accel_geo.data.formats import yolo


@pytest.fixture
def folder(tmp_path, write):
    """A function that writes files and makes chips of 20 x 40 pixels (height, width)."""

    def make(files: dict[str, str | bytes], chips: list[str]):
        for chip in chips:
            write(tmp_path / chip, np.full((3, 20, 40), 5, dtype=np.uint8))
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return make


def test_the_export(shared, tmp_path):
    root, truth = copied(shared, "YOLO", tmp_path / "set"), expected(shared, "YOLO")
    for path in (root, root / "data.yaml"):
        assert yolo.recognise(path)
        rows = yolo.read(path, "detection")
        assert rows.root == root and len(rows.dataset) == truth["num_chips"]
        assert rows.classes == {i: c["name"] for i, c in enumerate(truth["classes"])} and rows.named and rows.closed
        value_of = {i: c["value"] for i, c in enumerate(truth["classes"])}
        values = [value_of[value] for row in rows.dataset for value in row["values"]]
        assert {v: values.count(int(v)) for v in truth["objects_per_class"]} == truth["objects_per_class"]
        chips = stems(rows)
        for name, objects in truth["boxes_of_chips"].items():
            assert [value_of[value] for value in chips[name]["values"]] == [entry["value"] for entry in objects]
            found = np.reshape(chips[name]["boxes"], (-1, 4))
            assert found == pytest.approx(np.array([entry["box"] for entry in objects]), abs=0.011)  # 6 digits on disk
        for name in truth["chips_without_objects_with_label_file"] + truth["chips_without_label_file"]:
            assert chips[name]["values"] == []
        assert rows.dataset["attributes"][:] == [""] * 32  # data.yaml names one folder for both splits
        assert len(rows.problems) == 1 and "3 chip(s) without a label file" in rows.problems[0]


def test_a_list_of_names_serves_as_well(shared, tmp_path):
    root = copied(shared, "YOLO", tmp_path / "set")
    (root / "data.yaml").unlink()
    assert yolo.read(root, "detection").classes[3] == "other_roof"
    (root / "classes.txt").rename(root / "labels" / "classes.txt")  # where LabelImg puts it
    rows = yolo.read(root, "detection")
    assert rows.classes[3] == "other_roof" and len(rows.problems) == 1
    (root / "labels" / "classes.txt").unlink()
    rows = yolo.read(root, "detection")
    assert rows.classes == {i: str(i) for i in range(4)} and not rows.named


@pytest.mark.parametrize(
    "name", ["KITTI_rectangles", "PASCAL_VOC_rectangles", "Classified_Tiles", "COCO", "RCNN_Masks"]
)
def test_other_exports_are_not_claimed(shared, name):
    assert not yolo.recognise(shared / "data" / "esri_exports" / name)


def test_boxes_and_outlines_in_pixels(folder):
    lines = "1 0.5 0.5 0.25 0.5\n0 0.1 0.2 0.3 0.2 0.3 0.8\n\n"
    root = folder({"labels/a.txt": lines, "labels/b.txt": ""}, ["images/a.png", "images/b.png"])
    assert yolo.recognise(root)
    rows = yolo.read(root, "detection")
    assert rows.dataset["values"][:] == [[1, 0], []] and rows.zero_is_class
    assert rows.dataset["boxes"][0] == pytest.approx([15, 5, 25, 15, 4, 4, 12, 16])
    for task in ("instances", "semantic", "edges", "panoptic"):
        rows = yolo.read(root, task)
        assert rows.dataset["values"][:] == [[0], []] and rows.dataset["boxes"][0] == []
        assert json.loads(rows.dataset["segments"][0][0]) == [pytest.approx([4, 4, 12, 4, 12, 16])]
        assert "1 object(s) with a box but no outline were left out" in rows.problems
        assert rows.things == ({0} if task == "panoptic" else set())


def test_boxes_alone_serve_no_masks(folder):
    root = folder({"labels/a.txt": "1 0.5 0.5 0.25 0.5"}, ["images/a.png"])
    with pytest.raises(ValueError, match="none of 1 objects has an outline") as error:
        yolo.read(root, "instances")
    assert str(root) in str(error.value) and "detection" in str(error.value)


@pytest.mark.parametrize("order", ["images/{}", "{}/images"])
def test_splits_in_folders(folder, order):
    chips = [f"{order.format(split)}/x.png" for split in ("train", "val", "test")]
    labels = {
        chip.replace("images", "labels").replace("png", "txt"): f"{i} 0.5 0.5 1 1" for i, chip in enumerate(chips)
    }
    root = folder(labels | {"data.yaml": "names: [no, 1e3, ' c ']\nnc: 3\ntrain: ../train/images"}, chips)
    assert yolo.recognise(root)
    rows = yolo.read(root, "detection")
    assert rows.classes == {0: "no", 1: "1e3", 2: "c"} and not rows.problems
    by_file = {row["file"]: row for row in rows.dataset}
    assert [by_file[chip]["values"] for chip in chips] == [[0], [1], [2]]
    splits = [json.loads(by_file[chip]["attributes"])["split"] for chip in chips]
    assert splits == ["train", "valid", "test"] and [by_file[c]["group"] for c in chips] == ["train", "val", "test"]


def test_one_split_finds_the_names_above(folder):
    root = folder(
        {"train/labels/a.txt": "0 .5 .5 1 1", "data.yaml": "names: {0: roof}", "other.yaml": "x: 1"},
        ["train/images/a.png"],
    )
    assert yolo.read(root / "train", "detection").classes == {0: "roof"}


def test_splits_that_data_yaml_names(folder):
    chips = [f"images/{name}.png" for name in "abcd"]
    lists = {"train.txt": "/lost/images/a.png\n./images/b.png\n", "val.txt": "images/c.png\n"}
    yaml = "path: /lost\ntrain: train.txt\nval: [val.txt]\nnames: [roof]\n"
    rows = yolo.read(folder({"labels/a.txt": "0 .5 .5 1 1", "set.yaml": yaml, **lists}, chips), "detection")
    splits = [json.loads(text)["split"] if text else "" for text in rows.dataset["attributes"][:]]
    assert splits == ["train", "train", "valid", ""]


def test_an_index_without_a_name_is_kept_to_be_refused(folder):
    root = folder({"labels/a.txt": "7 0.5 0.5 1 1", "classes.txt": "a\nb\n\n"}, ["images/a.png"])
    rows = yolo.read(root, "detection")
    assert rows.classes == {0: "a", 1: "b"} and rows.closed and rows.dataset["values"][0] == [7]


def test_what_contradicts_itself_is_told(folder):
    root = folder(
        {"labels/a.txt": "0 0.5 0.5 1 1", "labels/gone.txt": "0 1 1 1 1", "d.yml": "nc: 4\nnames: [a]"},
        ["images/a.png"],
    )
    rows = yolo.read(root, "detection")
    assert any("counts 4 classes and names 1" in p for p in rows.problems)
    assert any("1 label file(s) without a chip" in p for p in rows.problems)


def test_sizes_come_from_headers_of_any_raster(folder, write):
    root = folder({"labels/a.txt": "0 0.5 0.5 1 1", "labels/b.txt": "0 0.5 0.5 1 1"}, [])
    write(root / "images" / "a.tif", np.zeros((6, 10, 30), dtype=np.int16))  # Pillow does not open this one
    (root / "images" / "b.png").write_bytes(b"\x89PNG cut off")
    rows = yolo.read(root, "detection")
    assert rows.dataset["boxes"][:] == [[0, 0, 30, 10], []] and any("b.png" in problem for problem in rows.problems)


@pytest.mark.parametrize(
    "line",
    ["0 .5 .5 .1", "0 .5 .5 .1 .1 .9", "a .5 .5 .1 .1", "-1 .5 .5 .1 .1", "1.5 .5 .5 .1 .1", "0 .5 nan .1 .1", "0 .5 .5 x .1"],
)  # fmt: skip
def test_lines_that_are_refused(folder, line):
    root = folder({"labels/a.txt": f"0 .5 .5 1 1\n{line}\n"}, ["images/a.png"])
    with pytest.raises(ValueError, match=r"a\.txt, line 2: .*is no object; lines are"):
        yolo.read(root, "detection")


@pytest.mark.parametrize(("text", "message"), [("names: [a", "no valid YAML"), ("names: 3", "must be a list")])
def test_class_lists_that_are_refused(folder, text, message):
    root = folder({"labels/a.txt": "0 .5 .5 1 1", "data.yaml": text}, ["images/a.png"])
    with pytest.raises(ValueError, match=message) as error:
        yolo.read(root, "detection")
    assert "data.yaml" in str(error.value)
