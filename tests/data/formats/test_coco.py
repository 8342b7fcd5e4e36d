"""COCO: every task that a file serves, panoptic files, and entries that are none."""

import json

import numpy as np
import pytest
from exports import copied, expected, stems

from accel_geo.data.formats import coco

SQUARE = {"segmentation": [[2, 3, 10, 3, 10, 9, 2, 9]], "category_id": 1}
ROOF = [{"id": 1, "name": "roof"}]


def reset(root, **changes):
    """Change lists of the JSON file that the fixture wrote."""
    file = root / "instances.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


def test_the_export(shared, tmp_path):
    root, truth = copied(shared, "COCO", tmp_path / "set"), expected(shared, "COCO")
    assert coco.recognise(root) and coco.default_task(root) == "instances"
    for task in coco.TASKS:
        rows = coco.read(root, task)
        assert len(rows.dataset) == truth["num_chips"] and not rows.problems
        assert rows.classes == {c["value"]: c["name"] for c in truth["classes"]}
        values = np.concatenate(rows.dataset["values"])
        assert {str(v): int((values == v).sum()) for v in rows.classes} == truth["objects_per_class"]
        chips = stems(rows)
        for name, objects in truth["boxes_of_chips"].items():
            assert chips[name]["values"] == [entry["value"] for entry in objects]
            if task == "detection":
                found = np.reshape(chips[name]["boxes"], (-1, 4))
                assert found == pytest.approx(np.array([entry["box"] for entry in objects]), abs=0.011)
                assert chips[name]["segments"] == []
            else:
                assert len(chips[name]["segments"]) == len(objects) and chips[name]["boxes"] == []
        for name in truth["chips_without_label_file"]:
            assert chips[name]["values"] == []
        assert rows.things == (set(rows.classes) if task == "panoptic" else set())


@pytest.mark.parametrize(
    "name", ["KITTI_rectangles", "YOLO", "PASCAL_VOC_rectangles", "Classified_Tiles", "RCNN_Masks"]
)
def test_other_exports_are_not_claimed(shared, name):
    assert not coco.recognise(shared / "data" / "esri_exports" / name)


def test_a_file_of_boxes_with_category_0(shared):
    file = shared / "data" / "banepa_oam_osm" / "detection_labels.json"
    assert coco.default_task(file) == "detection"
    rows = coco.read(file, "detection")
    assert rows.classes == {0: "building"} and rows.zero_is_class and len(rows.dataset) == 48
    assert sum(map(len, rows.dataset["values"])) == 1847 and rows.dataset[0]["boxes"][:4] == [327, 0, 403, 68]
    with pytest.raises(ValueError, match="none of 1847 annotations has a segmentation, only boxes"):
        coco.read(file, "instances")


def test_the_file_with_most_annotations_for_the_task_is_read(shared):
    root = shared / "data" / "banepa_oam_osm"
    assert coco.default_task(root) == "instances"
    for task, name, count in [
        ("instances", "instances_coco.json", 1821), ("semantic", "instances_coco.json", 1821),
        ("detection", "detection_labels.json", 1847), ("panoptic", "panoptic.json", 1869),
    ]:  # fmt: skip
        rows = coco.read(root, task)
        assert rows.sources[0].name == name and sum(map(len, rows.dataset["values"])) == count
        assert (
            len(rows.problems) == 1 and rows.problems[0].startswith(f"read {name}") and ".json (0)" in rows.problems[0]
        )


def test_real_panoptic(shared):
    root = shared / "data" / "banepa_oam_osm"
    rows = coco.read(root / "panoptic.json", "panoptic")
    assert coco.default_task(root / "panoptic.json") == "panoptic" and not rows.problems
    assert rows.things == {1, 2, 3, 4} and rows.classes[0] == "background" and rows.zero_is_class
    row = rows.dataset[0]
    assert row["file"].startswith("images/OAM-386690-220241") and row["label_files"] == [
        "instance/OAM-386690-220241-19.png"
    ]
    assert row["segment_ids"] == [*range(1, 44), 0] and row["values"][-1] == 0 and row["crowd"] == []


def test_other_real_files(shared):
    rows = coco.read(shared / "data" / "kampala_oam_buildings", "instances")
    assert (
        len(rows.dataset) == 75 and sum(map(len, rows.dataset["segments"])) == 174 and rows.classes == {1: "building"}
    )
    root = shared / "data" / "neon_tree_crowns"
    rows = coco.read(root, "detection")
    assert coco.default_task(root) == "detection" and sum(map(len, rows.dataset["values"])) == 377
    assert rows.dataset["file"][0] == "chips/001.jpg" and json.loads(rows.dataset["attributes"][0]) == {
        "source": "OSBS_029.tif"
    }


def test_boxes_as_they_stand_else_around_the_shape(coco_folder):
    rle = {"size": [20, 24], "counts": [100, 10, 370]}  # column 5, rows 0 to 9
    annotations = [
        SQUARE | {"bbox": [1, 2.5, -3, 4]},
        SQUARE,
        {"segmentation": [[1, 1, 3, 1, 3, 4], [7, 7, 9, 7, 9, 8.5]], "category_id": 1},
        {"segmentation": rle, "category_id": 1},
        {"category_id": 1, "bbox": None},
        SQUARE | {"iscrowd": 1, "bbox": [0, 0, 5, 5]},
    ]
    rows = coco.read(coco_folder(annotations, ROOF), "detection")
    assert np.reshape(rows.dataset[0]["boxes"], (-1, 4)).tolist() == [
        [1, 2.5, -2, 6.5], [2, 3, 10, 9], [1, 1, 9, 8.5], [5, 0, 6, 10]
    ]  # fmt: skip
    assert rows.problems == [
        "1 annotation(s) without a usable bbox of instances.json were left out",
        "1 crowd annotation(s) (iscrowd = 1) of instances.json were left out",
    ]


def test_a_compressed_rle_without_a_box(coco_folder):
    coder = pytest.importorskip("pycocotools.mask")
    mask = np.zeros((20, 24), dtype=np.uint8, order="F")
    mask[4:8, 5:15] = 1
    rle = coder.encode(mask)
    rle["counts"] = rle["counts"].decode()
    rows = coco.read(coco_folder([{"segmentation": rle, "category_id": 1}], ROOF), "detection")
    assert rows.dataset[0]["boxes"] == [5, 4, 15, 8]


def test_crowds_count_in_panoptic_alone(coco_folder):
    root = coco_folder([SQUARE, SQUARE | {"iscrowd": 1}, SQUARE], ROOF)
    rows = coco.read(root, "panoptic")
    assert rows.dataset[0]["crowd"] == [1] and rows.dataset[0]["values"] == [1, 1, 1] and not rows.problems
    for task in ("instances", "semantic", "edges"):
        rows = coco.read(root, task)
        assert rows.dataset[0]["crowd"] == [] and len(rows.dataset[0]["segments"]) == 2
        assert rows.problems == ["1 crowd annotation(s) (iscrowd = 1) of instances.json were left out"]


def test_category_0_is_a_class_unless_masks_call_it_background(coco_folder):
    root = coco_folder([SQUARE | {"category_id": 0}], [{"id": 0, "name": "roof"}, {"id": "7", "name": "road"}])
    assert coco.read(root, "semantic").zero_is_class and coco.read(root, "semantic").classes == {0: "roof", 7: "road"}
    reset(root, categories=[{"id": 0, "name": "Background"}])
    assert not coco.read(root, "semantic").zero_is_class and coco.read(root, "detection").zero_is_class


def test_splits_and_groups_in_file_names(coco_folder, write):
    root = coco_folder([SQUARE], ROOF)
    for name in ("train/s1/c0.png", "val2017/c0.png"):
        write(root / name, np.full((3, 20, 24), 4, dtype=np.uint8))
    reset(root, images=[{"id": 100, "file_name": "train/s1/c0.png", "width": 24, "cloud": 0.5, "license": 3}])
    row = coco.read(root, "instances").dataset[0]
    assert row["file"] == "train/s1/c0.png" and row["group"] == "train/s1"
    assert json.loads(row["attributes"]) == {"split": "train", "cloud": 0.5}


@pytest.fixture
def panoptic(tmp_path, write):
    """A function that writes the standard layout: val2017/, annotations/panoptic_val2017.json and its PNGs."""

    def make(segments: list[dict], categories: list[dict], ids: np.ndarray, folder="annotations/panoptic_val2017"):
        write(tmp_path / "val2017" / "a.png", np.full((3, *ids.shape), 5, dtype=np.uint8))
        write(tmp_path / "masks" / "a.png", np.zeros(ids.shape, dtype=np.uint8))
        pixels = np.stack([ids % 256, ids // 256 % 256, ids // 65536]).astype(np.uint8)
        write(tmp_path / folder / "a.png", pixels)
        values = {
            "images": [{"id": 8, "file_name": "a.png"}],
            "annotations": [{"image_id": 8, "file_name": "a.png", "segments_info": segments}],
            "categories": categories,
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / "panoptic_val2017.json").write_text(json.dumps(values))
        return tmp_path

    return make


IDS = np.array([[0, 7], [70_000, 300]])
SEGMENTS = [
    {"id": 7, "category_id": 1, "iscrowd": 0, "bbox": [1, 0, 1, 1]},
    {"id": 70_000, "category_id": 1, "iscrowd": 1},
    {"id": 300, "category_id": 90, "iscrowd": 0},
]
KINDS = [{"id": 1, "name": "roof", "isthing": 1}, {"id": 90, "name": "sky", "isthing": 0}]


@pytest.mark.parametrize("folder", ["annotations/panoptic_val2017", "labels", "deep/er"])
def test_the_standard_panoptic_layout(panoptic, folder):
    root = panoptic(SEGMENTS, KINDS, IDS, folder)
    assert coco.recognise(root) and coco.default_task(root) == "panoptic"
    rows = coco.read(root, "panoptic")
    row = rows.dataset[0]
    assert row["file"] == "val2017/a.png" and row["label_files"] == [f"{folder}/a.png"]
    assert row["segment_ids"] == [7, 70_000, 300] and row["values"] == [1, 1, 90] and row["crowd"] == [1]
    assert rows.things == {1} and rows.classes == {1: "roof", 90: "sky"} and not rows.problems
    with pytest.raises(ValueError, match="only segments_info"):
        coco.read(root, "instances")


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([{"id": 7, "category_id": 5}], "category_id 5, none of its categories 1, 90"),
        ([{"id": "7", "category_id": 1}], "the id '7'"),
        ([{"id": 7, "category_id": 1}] * 2, "lists the segment id 7 twice"),
        ([3], "category_id None"),
        ([{"id": 7, "category_id": 1}], "was not found; looked at"),
    ],
)
def test_segments_that_are_refused(panoptic, segments, message):
    root = panoptic(segments, KINDS, IDS, "elsewhere")
    with pytest.raises(ValueError, match=message) as error:
        coco.read(root, "panoptic")
    assert "panoptic_val2017.json" in str(error.value)


@pytest.mark.parametrize(
    ("task", "annotation", "message"),
    [
        ("detection", {"bbox": [1, 2, 3]}, "it is x, y, width, height"),
        ("detection", {"bbox": [1, 2, "3", 4]}, "must hold finite numbers"),
        ("detection", {"bbox": [1, 2, float("nan"), 4]}, "must hold finite numbers"),
        ("detection", {"bbox": {"x": 1}}, "must hold finite numbers"),
        ("detection", {"segmentation": {"size": [20, 24], "counts": "??"}}, "RLE that cannot be read"),
        ("instances", {"segmentation": [[0, 0, 1, float("inf"), 1, 1]]}, "must hold finite numbers"),
        ("instances", {"segmentation": [[0, 0, 1, "1", 1, 1]]}, "must hold finite numbers"),
        ("instances", SQUARE | {"category_id": None}, "category_id None"),
        ("instances", SQUARE | {"category_id": [1]}, r"category_id \[1\]"),
        ("instances", SQUARE | {"image_id": None}, "image_id None"),
    ],
)
def test_annotations_that_are_refused(coco_folder, task, annotation, message):
    root = coco_folder([SQUARE | {"bbox": [1, 1, 2, 2]}, {"category_id": 1} | annotation | {"id": 77}], ROOF)
    with pytest.raises(ValueError, match=message) as error:
        coco.read(root, task)
    assert "instances.json" in str(error.value) and "annotation 77" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": [{"id": 1}]}, "needs an id, a whole number, and a name"),
        ({"categories": [{"id": "a", "name": "a"}]}, "needs an id"),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}, "stands for 'a' and 'b'"),
        ({"images": [{"file_name": "c0.png"}]}, "needs an id and a file_name"),
        ({"images": [{"id": 100}]}, "needs an id and a file_name"),
        ({"images": [{"id": 100, "file_name": n} for n in ("c0.png", "c1.png")]}, "listed twice"),
        ({"images": [{"id": i, "file_name": "c0.png"} for i in (1, 2)]}, "listed twice"),
        ({"images": {}}, "must be an object with the lists"),
        ({"annotations": [1]}, "an entry of annotations is no object"),
    ],
)
def test_files_that_are_refused(coco_folder, changes, message):
    root = coco_folder([SQUARE], ROOF)
    file = reset(root, **changes)
    with pytest.raises(ValueError, match=message) as error:
        coco.read(root, "instances")
    assert str(file) in str(error.value)
