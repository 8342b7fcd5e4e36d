"""The built-in scenes: reproducible, whole, readable as an export, varied, and not solvable by colour."""

import json
import multiprocessing
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
from scipy import ndimage

from accel_geo.data.scene_canvas import GSD, LAND_COVER
from accel_geo.data.scene_drawing import USES, draw
from accel_geo.data.scene_layouts import BUILT_UP, LAYOUTS
from accel_geo.data.scenes import builtin


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as raster:
        return raster.read()


@pytest.mark.parametrize("task", LAYOUTS)
def test_same_arguments_same_bytes(task, tmp_path, monkeypatch):
    first = contents(builtin(task, chips=6, size=64))
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "elsewhere"))
    assert contents(builtin(task, chips=6, size=64)) == first
    other = contents(builtin(task, chips=6, size=64, seed=8))
    assert not any(other[name] == first[name] for name in first if name.endswith("0.tif") and name.startswith("images"))


def test_fewer_chips_are_the_first_of_more():
    few, many = (contents(builtin("semantic", chips=n, size=64)) for n in (3, 5))
    images = [name for name in few if name.endswith(".tif")]
    assert len(images) == 6 and all(few[name] == many[name] for name in images)


@pytest.mark.parametrize("task", LAYOUTS)
def test_layout_is_a_complete_export(task):
    folder, layout = builtin(task, smoke=True), LAYOUTS[task]
    stats = json.loads((folder / "esri_accumulated_stats.json").read_text())
    model = json.loads((folder / "esri_model_definition.emd").read_text())
    assert stats["MetaDataMode"] == layout.mode and stats["NumTiles"] == 8 and stats["TileSizeX"] == 64
    assert [(c["Value"], c["Name"]) for c in model["Classes"]] == [(c.value, c.name) for c in layout.classes]
    assert [c["ClassValue"] for c in stats["Classes"]] == [c.value for c in layout.classes]
    assert "cls name" in (folder / "stats.txt").read_text()
    lines = (folder / "map.txt").read_text().splitlines()
    assert len(lines) == 8 and all(line.startswith("images\\") and line.endswith(" ") for line in lines)
    named = {file.replace("\\", "/") for line in lines for file in line.split()}
    assert named == {name for name in contents(folder) if name.endswith((".tif", ".xml"))}
    for name in (name for name in named if name.endswith(".tif")):
        with rasterio.open(folder / name) as raster:
            assert (
                raster.crs.to_epsg() == 32633 and raster.res == pytest.approx((GSD, GSD)) and raster.shape == (64, 64)
            )
            assert raster.count == (3 if name.startswith("images") else 1) and raster.dtypes[0] == "uint8"
            world = [float(number) for number in (folder / name).with_suffix(".tfw").read_text().split()]
            assert world[4:] == pytest.approx(raster.xy(0, 0))


@pytest.mark.parametrize("task", LAYOUTS)
def test_the_readers_take_it(task):
    prepare = pytest.importorskip("accel_geo.prepare")
    data = prepare.prepare_data(builtin(task, chips=12, size=64), val_split=0.25, task=task)
    assert data.task.name == task and len(data.train) + len(data.valid) == 12
    assert data.spec.classes == tuple(c.name for c in LAYOUTS[task].classes)
    assert data.spec.class_values == tuple(c.value for c in LAYOUTS[task].classes)


def by_chip(folder: Path) -> dict[str, list[str]]:
    """By chip, the label files that map.txt names."""
    lines = (folder / "map.txt").read_text().replace("\\", "/").splitlines()
    return {Path(line.split()[0]).stem: line.split()[1:] for line in lines}


def test_instances_masks_and_counts_agree():
    folder = builtin("instances", chips=len(BUILT_UP))
    stats = json.loads((folder / "esri_accumulated_stats.json").read_text())["FeatureStats"]
    found, empty = dict.fromkeys((c.name for c in LAYOUTS["instances"].classes), 0), 0
    for line in (folder / "map.txt").read_text().splitlines():
        masks = {Path(f.replace("\\", "/")).parts[1]: read(folder / f.replace("\\", "/")) for f in line.split()[1:]}
        assert masks, "a chip without buildings has an empty mask, not none"
        for name, mask in masks.items():
            assert set(np.unique(mask)) - {0} == set(range(1, mask.max() + 1))
            found[name] += int(mask.max())
        empty += not any(mask.any() for mask in masks.values())
    assert list(found.values()) == stats["NumFeaturesPerClass"] and sum(found.values()) == stats["NumFeaturesTotal"]
    assert all(count >= 5 for count in found.values())
    assert 1 <= empty <= len(BUILT_UP) // 3


def test_boxes_are_those_of_the_masks():
    masks, boxes = builtin("instances", chips=8), builtin("detection", chips=8)
    found = 0
    for chip, files in by_chip(masks).items():
        objects = []
        for file in files:
            value = {c.name: c.value for c in LAYOUTS["instances"].classes}[Path(file).parent.name]
            for rows, columns in ndimage.find_objects(read(masks / file)[0]):
                objects.append((value, [columns.start, rows.start, columns.stop, rows.stop]))
        root = ElementTree.parse(boxes / f"labels/{chip}.xml")
        entries = root.findall("object")
        values = [int(entry.findtext("name")) for entry in entries]
        corners = [[float(side.text) for side in entry.find("bndbox")] for entry in entries]
        assert list(zip(values, corners)) == objects and root.findtext("filename") == f"{chip}.tif"
        assert read(masks / f"images/{chip}.tif").tobytes() == read(boxes / f"images/{chip}.tif").tobytes()
        found += len(objects)
    stats = json.loads((boxes / "esri_accumulated_stats.json").read_text())["FeatureStats"]
    assert found == stats["NumFeaturesTotal"] > 10


def test_panoptic_objects_fill_their_classes():
    folder, layout = builtin("panoptic", chips=16), LAYOUTS["panoptic"]
    things = {c.name: c.value for c in layout.things}
    seen = np.zeros(16, dtype=int)
    for files in by_chip(folder).values():
        mask = read(folder / files[0])[0]
        objects = {things[Path(file).parent.name]: read(folder / file)[0] for file in files[1:]}
        for value in things.values():
            assert np.array_equal(mask == value, objects.get(value, np.zeros_like(mask)) > 0)
        assert mask.all(), "every pixel has a class"
        seen += np.bincount(mask.ravel(), minlength=16)
    assert set(np.flatnonzero(seen)) == {c.value for c in layout.classes}
    model = json.loads((folder / "esri_model_definition.emd").read_text())
    assert [c["Name"] for c in model["Panoptic_Segmentation_Instance_Classes"]] == list(things)


def test_edges_are_a_pixel_on_each_side_of_every_outline():
    objects, edges = builtin("panoptic", chips=8), builtin("edges", chips=8)
    for chip, files in by_chip(objects).items():
        edge = read(edges / f"labels/{chip}.tif")[0]
        owner = np.zeros(edge.shape, dtype=int)
        for number, file in enumerate(files[1:], 1):
            owner += read(objects / file)[0] * 10**number
        around = ndimage.generate_binary_structure(2, 1)  # beyond the border all goes on as it is: a cut is no outline
        low, high = (
            f(owner, footprint=around, mode="nearest") for f in (ndimage.minimum_filter, ndimage.maximum_filter)
        )
        assert np.array_equal(edge, low != high)


def test_smoke_shows_every_building_and_an_empty_chip():
    stats = json.loads((builtin("instances", smoke=True) / "esri_accumulated_stats.json").read_text())["FeatureStats"]
    assert all(stats["NumFeaturesPerClass"]) and stats["NumFeaturesPerImage"]["Min"] == 0


def test_scenes_vary():
    scenes = [draw(use, 7, index, 96) for index, use in enumerate([*USES] * 4)]
    brightness = np.array([scene.image.mean() for scene in scenes])
    contrast = np.array([scene.image.std() for scene in scenes])
    assert np.ptp(brightness) > 40 and contrast.max() > 1.5 * contrast.min()
    assert {kind for scene in scenes for kind in scene.buildings} == {"house", "hall", "glasshouse"}
    assert {value for scene in scenes for value in np.unique(scene.cover)} == set(LAND_COVER.values())
    for scene in scenes:  # few objects, few of them cut, none tiny
        assert len(scene.buildings) <= 8
        areas = np.bincount(scene.owner.ravel(), minlength=len(scene.buildings) + 1)[1:]
        assert (areas > 60).all()


def test_buildings_cast_shadows():
    ratios = []
    for index in range(12):
        scene = draw("industrial", 7, index, 128)
        built = scene.owner > 0
        north, south = (ndimage.shift(built, (rows, 0), order=0) & ~built for rows in (-5, 5))
        ratios.append(scene.image[north].mean() / scene.image[south].mean())  # the sun stands in the south
    assert np.median(ratios) < 0.75 and max(ratios) < 1


def test_cache_is_reused_and_mended(cache):
    folder = builtin("instances", smoke=True)
    before, stamp = contents(folder), (folder / "map.txt").stat().st_mtime_ns
    assert folder.parent == cache
    assert builtin("instances", smoke=True) == folder and (folder / "map.txt").stat().st_mtime_ns == stamp
    (folder / "images" / "000000003.tif").unlink()
    assert builtin("instances", smoke=True) == folder and contents(folder) == before
    assert [p.name for p in cache.iterdir()] == [folder.name], "no drafts are left behind"


def _build(_: int) -> str:
    return str(builtin("instances", smoke=True))


def test_processes_starting_together_share_one_folder(cache):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        folders = set(pool.map(_build, range(3), chunksize=1))
    assert len(folders) == 1 and [str(p) for p in cache.iterdir()] == list(folders)


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'colours'.*instances.*--data"):
        builtin("colours")
    with pytest.raises(ValueError, match="at least 1 chip of at least 48 pixels, not 0 of 128"):
        builtin("instances", chips=0)
    with pytest.raises(ValueError, match="not 5 of 16"):
        builtin("instances", chips=5, size=16)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="ACCEL_GEO_CACHE"):
        builtin("instances", smoke=True)


# Colour alone


def features(image: np.ndarray) -> dict[str, np.ndarray]:
    """Every simple colour feature of an image, each scaled to ranks 0..1 so that cuts adapt to the chip."""
    red, green, blue = (image[..., band].astype(np.float64) + 1 for band in range(3))
    total = red + green + blue
    top, low = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    raw = {
        "brightness": total, "saturation": (top - low) / top, "greenness": (2 * green - red - blue) / total,
        "redness": (red - green) / (red + green), "blueness": (blue - red) / (red + blue), "value": top,
    }  # fmt: skip
    return {name: ndimage.gaussian_filter(feature, 1.0) for name, feature in raw.items()}


def colour_masks(image: np.ndarray) -> dict[str, list[np.ndarray]]:
    """By method, the masks in which connected components are looked for."""
    from skimage.color import rgb2lab
    from skimage.filters import threshold_multiotsu, threshold_otsu
    from sklearn.cluster import KMeans

    masks: dict[str, list[np.ndarray]] = {}
    for name, feature in features(image).items():
        ranks = np.argsort(np.argsort(feature.ravel())).reshape(feature.shape) / feature.size
        for cut in (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9):
            masks[f"{name} below {cut}"], masks[f"{name} above {cut}"] = [ranks < cut], [ranks >= cut]
        masks[f"{name} otsu low"] = [feature < threshold_otsu(feature)]
        masks[f"{name} otsu high"] = [feature >= threshold_otsu(feature)]
        levels = np.digitize(feature, threshold_multiotsu(feature, 4, nbins=64))
        masks[f"{name} four levels"] = [levels == level for level in range(4)]
    smooth = ndimage.gaussian_filter(rgb2lab(image), (1, 1, 0))
    for k, weight in product((3, 5, 8), (1.0, 0.3)):  # with less weight on lightness shadows and slopes fall together
        points = (smooth * [weight, 1, 1]).reshape(-1, 3)
        labels = KMeans(k, n_init=1, random_state=0).fit(points[::7]).predict(points).reshape(image.shape[:2])
        masks[f"{k} clusters, lightness {weight}"] = [labels == label for label in range(k)]
    return masks


def components(masks: list[np.ndarray]) -> list[tuple[np.ndarray, float]]:
    """Cleaned connected components of a building's size, the most box-like scored highest: all help that is fair."""
    found = []
    for mask in masks:
        labels, _ = ndimage.label(ndimage.binary_opening(mask, iterations=2))
        for number, window in enumerate(ndimage.find_objects(labels), 1):
            part = ndimage.binary_fill_holes(labels[window] == number)
            if 200 <= part.sum() <= 3200:
                whole = np.zeros(mask.shape, bool)
                whole[window] = part
                found.append((whole, float(part.mean())))
    return found


def average_precision(truth: list[list[np.ndarray]], found: list[list[tuple[np.ndarray, float]]]) -> float:
    """Mask AP50 over all chips, whatever the class."""
    from pycocotools import mask as rle
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def encode(mask):
        return rle.encode(np.asfortranarray(mask, np.uint8))

    coco, entries = COCO(), []
    for image, masks in enumerate(truth):
        for mask in masks:
            code = encode(mask)
            entry = {"id": len(entries) + 1, "image_id": image, "category_id": 1, "segmentation": code, "iscrowd": 0}
            entries.append(entry | {"area": float(rle.area(code)), "bbox": list(rle.toBbox(code))})
    images = [{"id": i, "height": 128, "width": 128} for i in range(len(truth))]
    coco.dataset = {"images": images, "categories": [{"id": 1}], "annotations": entries}
    coco.createIndex()
    results = [
        {"image_id": i, "category_id": 1, "segmentation": encode(mask), "score": score}
        for i, f in enumerate(found)
        for mask, score in f
    ]
    if not results:
        return 0.0
    evaluation = COCOeval(coco, coco.loadRes(results), "segm")
    evaluation.params.iouThrs = np.array([0.5])
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][0, :, 0, 0, -1]
    return float(precision[precision > -1].mean())


def colour_scores(chips: int, seed: int = 7) -> dict[str, float]:
    """AP50 of every method on the first chips of the default set."""
    scenes = [draw(BUILT_UP[index % len(BUILT_UP)], seed, index, 128) for index in range(chips)]
    truth = [[scene.owner == i for i in range(1, len(scene.buildings) + 1)] for scene in scenes]
    masks = [colour_masks(scene.image) for scene in scenes]
    return {method: average_precision(truth, [components(m[method]) for m in masks]) for method in masks[0]}


def test_colour_alone_does_not_find_the_buildings():
    pytest.importorskip("skimage"), pytest.importorskip("sklearn"), pytest.importorskip("pycocotools")
    scores = colour_scores(32)
    best = max(scores, key=scores.get)
    assert scores[best] < 0.3, f"{best} alone finds buildings with AP50 {scores[best]:.2f}"


def test_the_score_of_colour_is_a_fair_one():
    """The same methods do solve scenes that colour solves: so a low score says something about the scenes."""
    pytest.importorskip("skimage"), pytest.importorskip("sklearn"), pytest.importorskip("pycocotools")
    rng = np.random.default_rng(0)
    truth, images = [], []
    for index in range(6):
        scene = draw(BUILT_UP[index], 7, index, 128)
        images.append(
            np.where(scene.owner[..., None] > 0, [200, 60, 50], [70, 110, 70]) + rng.integers(-9, 9, (128, 128, 3))
        )
        truth.append([scene.owner == i for i in range(1, len(scene.buildings) + 1)])
    masks = [colour_masks(image.astype(np.uint8)) for image in images]
    assert max(average_precision(truth, [components(m[method]) for m in masks]) for method in masks[0]) > 0.8
