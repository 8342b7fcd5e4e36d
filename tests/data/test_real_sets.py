"""The real imagery beside the checkout: read as its users would, drawn, and its statistics recomputed with numpy alone."""

import json

import numpy as np
import pytest
import rasterio
from rasterio.windows import Window

from accel_geo import prepare_data

HOLE = 5  # pixels along the side of what one chip of floats lacks


@pytest.fixture
def sets(shared):
    return shared / "data"


@pytest.fixture
def flood_tiles(sets, tmp_path, write):
    """A function that cuts the flood scene of one sensor and its labels into 64 chips of 64 px."""

    def make(sensor: str):
        folder = sets / "sen1floods11_sample"
        for kind, name in (("images", f"{sensor}Hand"), ("masks", "LabelHand")):
            with rasterio.open(folder / f"Spain_7370579_{name}.tif") as scene:
                for row in range(8):
                    for column in range(8):
                        window = Window(column * 64, row * 64, 64, 64)
                        place = {"crs": scene.crs, "transform": scene.window_transform(window), "nodata": scene.nodata}
                        pixels = scene.read(window=window)
                        if pixels.dtype == np.float32 and row == column == 0:
                            pixels[0, :HOLE, :HOLE] = np.nan  # the sample happens to hold none
                        write(tmp_path / sensor / kind / f"spain_{row}_{column}.tif", pixels, **place)
        return tmp_path / sensor, folder / f"Spain_7370579_{sensor}Hand.tif", folder / "Spain_7370579_LabelHand.tif"

    return make


def drawn(data, split="train"):
    figure = data.show_batch(rows=1, split=split)
    shown = [axes for axes in figure.axes if axes.images or axes.patches]
    assert shown
    return figure


def test_floods_of_thirteen_bands(flood_tiles):
    folder, scene, labels = flood_tiles("S2")
    data = prepare_data(folder, val_split=0)
    with rasterio.open(scene) as source:
        pixels = source.read().astype(np.float64)
    with rasterio.open(labels) as source:
        truth = source.read(1)
    assert data.format == "image_masks" and len(data.train) == 64 and len(data.spec.bands) == 13
    assert data.spec.dtype == "int16" and data.spec.classes == ("1",)
    counts = data.class_counts["train"]["pixels"]
    assert counts == [int((truth == 0).sum()), int((truth == 1).sum())]
    ignored = sum(int((data.train[i]["mask"] == 255).sum()) for i in range(64))
    assert ignored == int((truth == -1).sum()) == 99
    assert any("ignored" in problem for problem in data.problems)
    # Nothing is clipped, and the statistics are those of all pixels.
    assert data.moments.low.tolist() == pixels.min((1, 2)).tolist()
    assert data.moments.high.tolist() == pixels.max((1, 2)).tolist()
    assert data.moments.mean == pytest.approx(pixels.mean((1, 2)), abs=1e-6)
    assert np.sqrt(data.moments.spread / data.moments.count) == pytest.approx(pixels.std((1, 2)), abs=1e-6)
    drawn(data)


def test_floods_with_nan(flood_tiles):
    folder, scene, labels = flood_tiles("S1")
    data = prepare_data(folder, val_split=0)
    with rasterio.open(scene) as source:
        pixels = source.read().astype(np.float64)
    with rasterio.open(labels) as source:
        truth = source.read(1)
    pixels[0, :HOLE, :HOLE] = np.nan
    valid = np.isfinite(pixels)
    assert data.spec.dtype == "float32"
    assert data.moments.count.tolist() == valid.sum((1, 2)).tolist()
    for band in range(2):
        known = pixels[band][valid[band]]
        assert data.moments.mean[band] == pytest.approx(known.mean(), abs=1e-6)
        assert np.sqrt(data.moments.spread[band] / known.size) == pytest.approx(known.std(), abs=1e-6)
    samples = [data.train[i] for i in range(64)]
    assert all(bool(np.isfinite(sample["image"].numpy()).all()) for sample in samples)
    ignored = sum(int((sample["mask"] == 255).sum()) for sample in samples)
    assert ignored == int(((truth == -1) | ~valid.all(0)).sum())
    drawn(data)


def test_statistics_of_a_set_of_jpegs(sets):
    data = prepare_data(sets / "kampala_oam_buildings", val_split=0)
    pixels = []
    for file in sorted((sets / "kampala_oam_buildings" / "images").glob("*.tif")):
        with rasterio.open(file) as source:
            pixels.append(source.read().reshape(3, -1).astype(np.float64))
    pixels = np.concatenate(pixels, axis=1)
    assert data.moments.mean == pytest.approx(pixels.mean(1), abs=1e-6)
    assert np.sqrt(data.moments.spread / data.moments.count) == pytest.approx(pixels.std(1), abs=1e-6)
    assert sum(data.class_counts["train"]["objects"]) == 174
    drawn(data)


BANEPA = {"instances": 1821, "detection": 1847, "panoptic": 1821}


@pytest.mark.parametrize("task", ["instances", "detection", "panoptic", "semantic", "edges"])
def test_banepa(sets, task):
    folder = sets / "banepa_oam_osm"
    data = prepare_data(folder, task=task, val_split=0)
    assert len(data.train) == 48
    if task in BANEPA:
        assert sum(data.class_counts["train"]["objects"]) == BANEPA[task]
    else:
        rasters = sorted((folder / {"semantic": "semantic", "edges": "edge"}[task]).glob("*.png"))
        found = np.zeros(256, dtype=np.int64)
        for file in rasters:
            with rasterio.open(file) as source:
                found += np.bincount(source.read(1).ravel(), minlength=256)
        assert data.class_counts["train"]["pixels"] == [int(n) for n in found if n]
    drawn(data)


def test_a_category_of_id_zero(sets):
    data = prepare_data(sets / "banepa_oam_osm" / "detection_labels.json", val_split=0)
    listed = json.loads((sets / "banepa_oam_osm" / "detection_labels.json").read_text())
    assert data.spec.task == "detection" and data.spec.class_values == (0,)
    assert sum(len(data.train[i]["labels"]) for i in range(48)) == len(listed["annotations"])
    assert {int(label) for i in range(48) for label in data.train[i]["labels"]} == {1}


def test_tree_crowns(sets):
    crowns = prepare_data(sets / "neon_tree_crowns", format="PASCAL_VOC_rectangles", val_split=0)
    assert sum(crowns.class_counts["train"]["objects"]) == 61 + 37 + 279
    tables = prepare_data(sets / "neon_tree_crowns", format="CSV", val_split=0)
    assert tables.spec.task == "detection" and sum(tables.class_counts["train"]["objects"]) == 61 + 7 + 4
    chips = prepare_data(sets / "neon_tree_crowns" / "boxes_coco.json", val_split=0)
    assert len(chips.train) == 46 and sum(chips.class_counts["train"]["objects"]) == 377
    for data in (crowns, tables, chips):
        drawn(data)


def test_roads_of_a_scene(sets):
    folder = sets / "spacenet_vegas_roads"
    scene, roads = folder / "scene_vegas_rgba.tif", folder / "roads.geojson"
    data = prepare_data(scene, vectors=roads, chip_size=325, task="edges", val_split=0)
    assert len(data.train) == 16 and len(data.spec.bands) == 3  # alpha is no band
    with rasterio.open(folder / "centerline.png") as source:
        lines = source.read(1) > 0
    found = np.zeros_like(lines)
    for i, name in enumerate(data.train.files):
        column, row = map(int, name.rsplit("@", 1)[1].split(","))
        found[row : row + 325, column : column + 325] = data.train[i]["edges"].numpy() == 1
    assert (found & lines).sum() / (found | lines).sum() > 0.9
    drawn(data)


def test_outlines_stay_whole_when_chips_shrink(sets):
    """A 1 px line that is resized by the nearest pixel falls into dashes."""
    data = prepare_data(sets / "banepa_oam_osm", task="edges", resize_to=128, val_split=0, limit=6)
    for i, name in enumerate(data.train.files):
        with rasterio.open(
            sets / "banepa_oam_osm" / "edge" / (name.rsplit("/", 1)[1].replace(".tif", ".png"))
        ) as source:
            lines = source.read(1).reshape(128, 4, 128, 4).max((1, 3)) > 0
        assert np.array_equal(data.train[i]["edges"].numpy() == 1, lines)
