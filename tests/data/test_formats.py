"""Formats on small folders: layouts, names, class lists, COCO's variants."""

import json

import numpy as np
import pytest
import torch

from accel_geo import prepare_data
from accel_geo.data import formats

SQUARE = {"segmentation": [[2, 3, 10, 3, 10, 9, 2, 9]]}


def rcnn(root, write, classes, meta=None):
    for i in range(3):
        write(root / "images" / f"{i}.tif", np.full((3, 12, 12), 9, dtype=np.uint8))
    for name in classes:
        ids = np.zeros((12, 12), dtype=np.uint8)
        ids[1:4, 1:4], ids[6:9, 6:12] = 1, 2
        write(root / "labels" / name / "1.tif", ids)
    if meta:
        entries = [{"Value": v, "Name": n} for v, n in meta.items()]
        (root / "esri_model_definition.emd").write_text(json.dumps({"Classes": entries, "MetaDataMode": "RCNN_Masks"}))
    return root


def test_class_folders_meet_the_class_list(tmp_path, write):
    root = rcnn(tmp_path, write, ["tin roof", "Other_Roof", "shed"], {3: "tin_roof", 7: "other roof"})
    data = prepare_data(root, val_split=0)
    assert data.spec.classes == ("tin_roof", "other roof", "shed") and data.spec.class_values == (3, 7, 8)
    assert any("labels/shed" in problem for problem in data.problems)
    assert data.train[1]["labels"].tolist() == [1, 1, 2, 2, 3, 3] and len(data.train[0]["labels"]) == 0


def test_masks_without_metadata_or_class_folder(tmp_path, write):
    data = prepare_data(rcnn(tmp_path / "a", write, ["b", "a"]), val_split=0)
    assert data.spec.classes == ("a", "b") and data.spec.class_values == (1, 2)
    data = prepare_data(rcnn(tmp_path / "b", write, ["."], {5: "roof"}), val_split=0)
    assert data.spec.classes == ("roof",) and data.train[1]["boxes"].tolist() == [[1, 1, 4, 4], [6, 6, 12, 9]]


def test_a_chip_that_one_object_fills_and_several_label_bands(tmp_path, write):
    write(tmp_path / "images" / "x.tif", np.ones((1, 8, 8), dtype=np.uint8))
    bands = np.zeros((2, 8, 8), dtype=np.uint16)
    bands[0], bands[1, 2:5, 1:3] = 1, 1
    write(tmp_path / "labels" / "roof" / "x.tif", bands)
    sample = prepare_data(tmp_path).train[0]
    assert sample["boxes"].tolist() == [[0, 0, 8, 8], [1, 2, 3, 5]] and sample["masks"].sum().item() == 64 + 6


def test_names_with_blanks_accents_capitals_and_litter(tmp_path, write):
    root = tmp_path / "Übung für KI"
    for name in ("chip 01.TIF", "a.b.c.tif", "café.tif", "deep/a.b.c.tif"):
        write(root / "Images" / name, np.full((3, 8, 8), 7, dtype=np.uint8))
    for name in ("chip 01.tiff", "a.b.c.png", "café.tif", "deep/a.b.c.tif"):  # the accent in its other spelling
        write(root / "Masks" / name, np.full((8, 8), 2, dtype=np.uint8))
    for litter in (".DS_Store", "._a.b.c.tif", "a.b.c.tif.aux.xml", "Thumbs.db", "a.b.c.tfw"):
        (root / "Images" / litter).write_bytes(b"litter")
    data = prepare_data(root, val_split=0)
    assert data.train.files == ["Images/a.b.c.tif", "Images/café.tif", "Images/chip 01.TIF", "Images/deep/a.b.c.tif"]
    assert all((data.train[i]["mask"] == 1).all() for i in range(4)) and not data.problems
    assert data.spec.class_values == (2,) and data.file(2) == "Images/chip 01.TIF"


def test_metadata_with_a_byte_order_mark_and_placeholders(tmp_path, masks_folder):
    root = masks_folder(labels="labels")
    meta = {"ImageHeight": "e.g. 256", "Classes": [{"Value": 0, "Name": "NoData"}, {"Value": 1, "Name": "a"},
            {"Value": 3, "Name": "b"}, {"Value": "e.g. 4", "Name": "x"}], "ImageSpaceUsed": "PIXEL_SPACE"}  # fmt: skip
    (root / "esri_model_definition.emd").write_bytes(b"\xef\xbb\xbf" + json.dumps(meta).replace(",", ",\r\n").encode())
    (root / "esri_accumulated_stats.json").write_text('{"NumTiles": 12, "MetaDataMode": "Classified_Tiles"}')
    data = prepare_data(root, val_split=0)
    assert data.format == "Classified_Tiles" and data.spec.classes == ("a", "b") and not data.spec.map_space
    assert any("12 chips, 10 are on disk" in problem for problem in data.problems)
    (root / "esri_accumulated_stats.json").write_text("{cut off")
    assert any("no valid JSON" in problem for problem in prepare_data(root).problems)


def test_class_folders(tmp_path, write):
    for name in ("10", "2", "7"):
        write(tmp_path / name / "a.png", np.full((3, 8, 8), 3, dtype=np.uint8))
    data = prepare_data(tmp_path, val_split=0)
    assert data.spec.classes == ("2", "7", "10") and data.spec.class_values == (2, 7, 10)
    assert [data.train[i]["label"] for i in range(3)] == [2, 0, 1]
    data = prepare_data(tmp_path, val_split=0, classes=["7", "10"])
    assert data.train.ids == [0, 2] and [data.train[i]["label"] for i in range(2)] == [1, 0]
    assert any("left out, with their chips: 2" in problem for problem in data.problems)


def test_coco_category_zero_gaps_rle_and_what_is_left_out(coco_folder):
    mask = np.zeros((20, 24), dtype=np.uint8)
    mask[4:8, 5:15], mask[12, 3] = 1, 1
    flat, runs, last = mask.T.ravel(), [], 0
    changes = np.flatnonzero(np.diff(flat)) + 1
    for change in [*changes, flat.size]:
        runs.append(int(change - last))
        last = change
    hole = [[0, 0, 4, 0, 4, 4, 0, 4], [10, 10, 14, 10, 14, 14, 10, 14]]
    annotations = [
        SQUARE | {"category_id": 0},
        {"segmentation": {"size": [20, 24], "counts": runs}, "category_id": 90},
        {"segmentation": hole, "category_id": 90, "image_id": 101},
        SQUARE | {"category_id": 0, "iscrowd": 1},
        {"segmentation": [], "category_id": 0},
        SQUARE | {"category_id": 0, "image_id": 999},
        {"segmentation": [[3.1, 3.1, 3.2, 3.1, 3.2, 3.2]], "category_id": 0},
    ]
    root = coco_folder(annotations, [{"id": 90, "name": "b"}, {"id": 0, "name": "a"}], n=3)
    data = prepare_data(root, val_split=0)
    assert data.spec.classes == ("a", "b") and data.spec.class_values == (0, 90) and len(data.train) == 3
    first, second, third = (data.train[i] for i in range(3))
    assert first["labels"].tolist() == [1, 2] and first["boxes"].tolist() == [[2, 3, 10, 9], [3, 4, 15, 13]]
    assert torch.equal(first["masks"][1], torch.from_numpy(mask).bool()) and first["masks"][0].sum() == 48
    assert second["masks"].sum() == 32 and second["labels"].tolist() == [2]
    assert third["masks"].shape == (0, 20, 24)
    text = "\n".join(data.problems)
    for part in (
        "1 crowd",
        "1 annotation(s) of an image",
        "1 annotation(s) without a usable",
        "1 object(s) that cover no",
    ):
        assert part in text


def test_coco_compressed_rle(coco_folder):
    coder = pytest.importorskip("pycocotools.mask")
    mask = np.asfortranarray(np.random.default_rng(0).random((20, 24)) < 0.4, dtype=np.uint8)
    rle = coder.encode(mask)
    rle["counts"] = rle["counts"].decode()
    data = prepare_data(coco_folder([{"segmentation": rle, "category_id": 1}], [{"id": 1, "name": "a"}]), val_split=0)
    assert np.array_equal(data.train[0]["masks"][0].numpy(), mask.astype(bool))


def test_coco_json_as_the_path_in_annotations_with_folders_in_names(coco_folder):
    root = coco_folder([SQUARE | {"category_id": 1}], [{"id": 1, "name": "a"}], n=2)
    values = json.loads((root / "instances.json").read_text())
    values["images"][0]["file_name"] = "C:\\somewhere\\images\\C0.PNG"
    values["images"].append({"id": 7, "file_name": "gone.png"})
    (root / "instances.json").unlink()
    (root / "annotations").mkdir()
    file = root / "annotations" / "train.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(values).encode())
    for path in (root, file, root / "annotations"):
        data = prepare_data(path, val_split=0)
        assert data.train.files == ["images/c0.png", "images/c1.png"] and len(data.train[0]["boxes"]) == 1
        assert any("gone.png" in problem for problem in data.problems)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ([SQUARE | {"category_id": 5}], "category_id 5"),
        ([{"category_id": 1, "bbox": [1, 2, 3, 4]}], "only boxes"),
    ],
)
def test_coco_that_cannot_serve(coco_folder, annotations, message):
    root = coco_folder(annotations, [{"id": 1, "name": "a"}])
    with pytest.raises(ValueError, match=message) as error:
        prepare_data(root, task="instances")
    assert "instances.json" in str(error.value)


def test_where_the_data_set_is_found(tmp_path, masks_folder):
    root = masks_folder(root=tmp_path / "above" / "set")
    for path in (root, root.parent, root / "images", root / "masks"):
        rows = formats.read(path)
        assert rows.root == root and len(rows.dataset) == 10
        assert (path == root) == (not rows.problems)
    masks_folder(root=tmp_path / "above" / "other")
    with pytest.raises(ValueError, match="holds 2 data sets") as error:
        formats.read(root.parent)
    assert str(root) in str(error.value)


def test_nothing_that_can_be_read(tmp_path, masks_folder):
    with pytest.raises(FileNotFoundError, match="there are: here"):
        (tmp_path / "here").mkdir()
        formats.read(tmp_path / "gone" / "further")
    with pytest.raises(ValueError, match="It is empty") as error:
        formats.read(tmp_path / "here")
    assert all(name in str(error.value) for name in formats.FORMATS if name != "sharp_images")
    (tmp_path / "here" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match="notes.txt"):
        formats.read(tmp_path / "here")
    with pytest.raises(ValueError, match="YOLO, RCNN_Masks, Panoptic_Segmentation, Classified_Tiles"):
        formats.read(tmp_path / "here", format="Labeled")
    with pytest.raises(ValueError, match="is not in the format COCO"):
        formats.read(masks_folder(), format="coco")
    with pytest.raises(ValueError, match="Imagenet: classification"):
        formats.read(masks_folder(), task="classification", format="image_masks")
    root = masks_folder(root=tmp_path / "change", labels="labels")
    (root / "esri_accumulated_stats.json").write_text('{"MetaDataMode": "ChangeDetection"}')
    with pytest.raises(ValueError, match="call it ChangeDetection"):
        formats.read(root)
