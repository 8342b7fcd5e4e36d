"""The folders of shared/data against what their expected.json says, read without it."""

import json
from collections import Counter

import numpy as np
import pytest

from accel_geo import prepare_data


def prepared(shared, folder, **options):
    path = shared / "data" / "esri_exports" / folder
    expected = json.loads((path / "expected.json").read_text())
    return prepare_data(path, val_split=0.0, **options), expected


def by_stem(data):
    return {file.rsplit("/", 1)[-1].rsplit(".", 1)[0]: data.train[i] for i, file in enumerate(data.train.files)}


@pytest.mark.parametrize("folder", ["RCNN_Masks", "Classified_Tiles", "Classified_Tiles_edge", "Imagenet", "COCO"])
def test_chips_classes_and_statistics(shared, folder):
    data, expected = prepared(shared, folder)
    assert data.format == expected["format"].replace("_edge", "")
    assert len(data.train) == expected["num_chips"] and data.train.ids == list(range(len(data.train)))
    assert data.train.files == sorted(data.train.files)
    assert data.spec.class_values == tuple(c["value"] for c in expected["classes"])
    assert data.spec.classes == tuple(c["name"] for c in expected["classes"])
    assert set(data.train.sizes) == {tuple(expected["tile_size"])}
    stats, tolerance = expected["band_stats"], expected["band_stats_tolerance"]
    assert np.multiply(data.spec.mean, 255) == pytest.approx(stats["mean"], abs=tolerance)
    assert np.multiply(data.spec.std, 255) == pytest.approx(stats["std"], abs=tolerance)
    moments = data.train.parts[0].store.moments
    assert moments.low.min(0).tolist() == stats["min"] and moments.high.max(0).tolist() == stats["max"]
    assert moments.count.sum(0).tolist() == [stats["pixels"]] * 3
    if "chips_per_class" in expected:
        held = dict(zip(map(str, data.spec.class_values), data.class_counts["train"]["chips"][1:]))
        assert held == expected["chips_per_class"]
        assert data.class_counts["train"]["chips"][0] == len(data.train) - expected["chips_with_objects"]
    missing = expected["chips_without_label_file"]
    said = [problem for problem in data.problems if "without a label file" in problem]
    assert len(said) == bool(missing and folder != "COCO") and all(f"{len(missing)} chip(s)" in text for text in said)


def test_statistics_equal_a_naive_computation(shared):
    data, _ = prepared(shared, "Classified_Tiles")
    pixels = np.stack([data.train[i]["image"].numpy() for i in range(len(data.train))]).astype(np.float64)
    assert data.spec.mean == pytest.approx(pixels.mean((0, 2, 3)), abs=1e-6)
    assert data.spec.std == pytest.approx(pixels.std((0, 2, 3)), abs=1e-6)


def test_rcnn_masks(shared):
    data, expected = prepared(shared, "RCNN_Masks")
    assert (
        dict(zip(map(str, data.spec.class_values), data.class_counts["train"]["objects"][1:]))
        == (expected["objects_per_class"])
    )
    chips = by_stem(data)
    for name, of_value in expected["mask_pixels_of_chips"].items():
        values = [data.spec.class_values[label - 1] for label in chips[name]["labels"].tolist()]
        pixels = chips[name]["masks"].sum((1, 2)).tolist()
        assert {str(v): [p for p, w in zip(pixels, values) if w == v] for v in values} == of_value
        boxes = [[v, *box] for v, box in zip(values, chips[name]["boxes"].tolist())]
        assert boxes == [[entry["value"], *entry["box"]] for entry in expected["mask_boxes_of_chips"][name]]
    empty = expected["chips_without_objects_with_label_file"] + expected["chips_without_label_file"]
    for name in empty:
        sample = chips[name]
        assert sample["boxes"].shape == (0, 4) and sample["labels"].shape == (0,) and not sample["ignore"]
        assert sample["masks"].shape == (0, 256, 256)


@pytest.mark.parametrize("folder", ["Classified_Tiles", "Classified_Tiles_edge"])
def test_classified_tiles(shared, folder):
    data, expected = prepared(shared, folder)
    indexes = {0: "0", **{i: str(value) for i, value in enumerate(data.spec.class_values, 1)}}
    without = len(expected["chips_without_label_file"]) * 256 * 256  # chips without a file are background here
    counted = {indexes[i]: n for i, n in enumerate(data.class_counts["train"]["pixels"])}
    counted["0"] -= without
    assert counted == expected["pixels_per_value"]
    chips = by_stem(data)
    for name, pixels in expected.get("pixels_per_value_of_chips", {}).items():
        found = Counter(chips[name]["mask"].flatten().tolist())
        assert {indexes[i]: n for i, n in found.items()} == pixels
    for name in expected["chips_without_label_file"]:
        assert not chips[name]["mask"].any()


def test_imagenet(shared):
    data, expected = prepared(shared, "Imagenet")
    chips = by_stem(data)
    for name, value in expected["label_of_chips"].items():
        assert data.spec.class_values[chips[name]["label"]] == value


def test_coco(shared):
    data, expected = prepared(shared, "COCO")
    chips = by_stem(data)
    assert sum(data.class_counts["train"]["objects"]) == expected["objects_total"]
    for name, objects in expected["boxes_of_chips"].items():
        sample = chips[name]
        assert [data.spec.class_values[i - 1] for i in sample["labels"].tolist()] == [o["value"] for o in objects]
        pixels = sample["masks"].sum((1, 2)).numpy()
        assert np.abs(pixels - [o["mask_pixels"] for o in objects]).max() <= 1  # the JSON rounds to 0.01 pixel
        assert (
            np.abs(sample["boxes"].numpy() - [o["box"] for o in objects]).max() < 2
        )  # tight boxes of pixels, not of points
    for name in expected["chips_without_label_file"]:
        assert len(chips[name]["boxes"]) == 0


def test_many_kinds_of_labels_in_one_folder(shared):
    path = shared / "data" / "banepa_oam_osm"
    data = prepare_data(path, task="instances")
    assert data.format == "COCO" and len(data.train) + len(data.valid) == 48
    assert sum(data.class_counts[split]["objects"][i] for split in ("train", "valid") for i in range(5)) == 1821
    assert any("instances_coco.json" in problem and "detection_labels.json" in problem for problem in data.problems)
    data = prepare_data(
        path, task="semantic", resize_to=256, valid_match="OAM-386695-*",
        classes=["concrete", "tin", "clay", "other"], class_mapping={"concrete": "building", "tin": "building"},
    )  # fmt: skip
    assert data.spec.classes == ("building", "clay", "other") and data.spec.class_values == (1, 3, 4)
    assert len(data.valid) == 8 and set(data.valid.sizes + data.train.sizes) == {(256, 256)}
    data = prepare_data(path, task="classification")  # in the folder below
    assert len(data.train) + len(data.valid) == 186 and len(data.spec.classes) == 4


def test_thirteen_bands_of_16_bit_with_unlabelled_pixels(shared, tmp_path, write):
    import rasterio

    scene = shared / "data" / "sen1floods11_sample"
    with rasterio.open(scene / "Spain_7370579_S2Hand.tif") as raster:
        pixels, names = raster.read(), raster.descriptions
    with rasterio.open(scene / "Spain_7370579_LabelHand.tif") as raster:
        labels = raster.read(1)
    for i in range(64):
        at = slice(i // 8 * 64, i // 8 * 64 + 64), slice(i % 8 * 64, i % 8 * 64 + 64)
        write(tmp_path / "images" / f"{i:02}.tif", pixels[:, *at], nodata=0)
        write(tmp_path / "labels" / f"{i:02}.tif", labels[at])
    data = prepare_data(tmp_path, val_split=0, classes=["water"])
    spec = data.spec
    assert (spec.classes, spec.class_values, spec.dtype, len(spec.bands)) == (("water",), (1,), "int16", 13)
    assert data.class_counts["train"]["pixels"] == [192_010, 70_035]
    assert sum(int((data.train[i]["mask"] == 255).sum()) for i in range(64)) == 99
    assert spec.low == tuple(pixels.min((1, 2))) and spec.high == tuple(pixels.max((1, 2)))
    scaled = (pixels - np.float64(spec.low)[:, None, None]) / np.subtract(spec.high, spec.low)[:, None, None]
    assert spec.mean == pytest.approx(scaled.mean((1, 2)), abs=1e-9)
    assert spec.std == pytest.approx(scaled.std((1, 2)), abs=1e-9)
    assert np.abs(data.train[9]["image"].numpy() - scaled[:, 64:128, 64:128]).max() < 1e-6
    for i, name in enumerate(names, 1):
        with rasterio.open(tmp_path / "images" / "00.tif", "r+") as raster:
            raster.set_band_description(i, name)
    data = prepare_data(tmp_path, bands=["b8", "4", "B3"])
    assert data.spec.bands == ("B8", "B4", "B3") and data.spec.band_indexes == (8, 4, 3)
    assert data.train[0]["image"].shape == (3, 64, 64)
