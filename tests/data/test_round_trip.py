"""Scenes written in every format and read back: the targets are what the scene knows, to the pixel.

The formats of the built-in scenes are written by the generator itself, the others by the small writers below.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.features import shapes
from rasterio.transform import IDENTITY

from accel_geo import prepare_data
from accel_geo.data.scene_canvas import LAND_COVER, Scene
from accel_geo.data.scene_drawing import USES, draw
from accel_geo.data.scene_layouts import BUILT_UP
from accel_geo.data.scenes import builtin

CHIPS, SIZE, SEED = 16, 128, 7
BUILDINGS = ("house", "hall", "glasshouse")


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw(BUILT_UP[i % len(BUILT_UP)], SEED, i, SIZE) for i in range(CHIPS)]


# What a scene knows


def objects(scene: Scene) -> list[tuple[str, np.ndarray]]:
    """Class and mask of each building that can be seen."""
    masks = [(kind, scene.owner == i) for i, kind in enumerate(scene.buildings, 1)]
    return [(kind, mask) for kind, mask in masks if mask.any()]


def box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of a mask."""
    rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def regions(scene: Scene) -> list[tuple[str, bool, np.ndarray]]:
    """Class, whether it is a thing, and mask of each segment: buildings on land cover."""
    cover = [(name, (scene.cover == value) & (scene.owner == 0)) for name, value in LAND_COVER.items()]
    stuff = [(name, False, mask) for name, mask in cover if mask.any()]
    return stuff + [(kind, True, mask) for kind, mask in objects(scene)]


def class_image(scene: Scene, values: dict[str, int]) -> np.ndarray:
    """uint8 [H, W], the value of the class of the building at each pixel, 0 elsewhere."""
    mask = np.zeros_like(scene.cover)
    for kind, where in objects(scene):
        mask[where] = values[kind]
    return mask


def outline(scene: Scene) -> np.ndarray:
    """Bool [H, W], pixels beside one of another owner."""
    padded = np.pad(scene.owner, 1, mode="edge")
    around = padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]
    return np.any([side != scene.owner for side in around], 0)


# What is read back, in the same words


def read_objects(sample: dict, classes: tuple[str, ...]) -> list[tuple]:
    names = [classes[label - 1] for label in sample["labels"].tolist()]
    boxes = [tuple(box) for box in sample["boxes"].round(decimals=3).tolist()]
    masks = [mask.numpy().tobytes() for mask in sample.get("masks", [])] or [b""] * len(names)
    return sorted(zip(names, boxes, masks))


def read_regions(sample: dict, classes: tuple[str, ...]) -> list[tuple]:
    ids = sample["segment_ids"].numpy()
    assert set(np.unique(ids)) - {0} == {segment["id"] for segment in sample["segments"]}
    assert not any(segment["iscrowd"] for segment in sample["segments"])
    found = [(classes[s["label"] - 1], s["isthing"], (ids == s["id"]).tobytes()) for s in sample["segments"]]
    return sorted(found)


def check(data, scenes: list[Scene], what: str) -> None:
    """Compare every chip of the data with its scene."""
    assert len(data.train) == len(scenes)
    spec = data.spec
    for position, file in enumerate(data.train.files):
        scene, sample = scenes[int(Path(file).stem)], data.train[position]
        pixels = np.float32(scene.image.transpose(2, 0, 1)) / np.float32(255)
        if what != "sharp":
            assert np.array_equal(sample["image"].numpy(), pixels)
        if what == "boxes":
            assert read_objects(sample, spec.classes) == sorted((kind, box(m), b"") for kind, m in objects(scene))
        elif what == "masks":
            truth = sorted((kind, box(m), m.tobytes()) for kind, m in objects(scene))
            assert read_objects(sample, spec.classes) == truth
        elif what == "objects":  # the format tells no classes
            truth = sorted((spec.classes[0], box(m), m.tobytes()) for _, m in objects(scene))
            assert read_objects(sample, spec.classes) == truth
        elif what == "classes":
            truth = class_image(scene, {name: i for i, name in enumerate(spec.classes, 1)})
            assert np.array_equal(sample["mask"].numpy(), truth)
        elif what == "cover":
            values = np.array([0, *spec.class_values])[sample["mask"].numpy()]
            assert np.array_equal(values, scene.cover)
        elif what == "regions":
            assert read_regions(sample, spec.classes) == sorted((n, t, m.tobytes()) for n, t, m in regions(scene))
        elif what == "edges":
            assert np.array_equal(sample["edges"].numpy(), outline(scene))
        elif what == "use":
            assert spec.classes[sample["label"]] == scene.use
        elif what == "kinds":
            held = {name for name, on in zip(spec.classes, sample["labels"].tolist()) if on}
            assert held == {kind for kind, _ in objects(scene)}
        elif what == "sharp":
            coarse = pixels.reshape(3, SIZE // 4, 4, SIZE // 4, 4).mean((2, 4))
            assert np.array_equal(sample["image_hr"].numpy(), pixels) and not sample["ignored_hr"].any()
            assert np.allclose(sample["image"].numpy(), coarse, atol=0.5 / 255 + 1e-6)  # pairs are rounded to bytes


BUILT_IN = {
    "detection": "boxes", "instances": "masks", "semantic": "cover", "panoptic": "regions", "edges": "edges",
    "super_resolution": "sharp", "classification": "use",
}  # fmt: skip


@pytest.mark.parametrize("task", BUILT_IN)
def test_built_in_scenes(scenes, task):
    if task == "classification":
        scenes = [draw([*USES][i % len(USES)], SEED, i, SIZE) for i in range(CHIPS)]
    folder = builtin(task, chips=CHIPS, size=SIZE, seed=SEED)
    data = prepare_data(folder, task=task, val_split=0, cache="memory")
    assert not data.problems
    check(data, scenes, BUILT_IN[task])


# Writers of other formats


def raster(file: Path, pixels: np.ndarray) -> None:
    bands = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    file.parent.mkdir(parents=True, exist_ok=True)
    driver = "PNG" if file.suffix == ".png" else "GTiff"
    shape = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2], "dtype": bands.dtype}
    with rasterio.open(file, "w", driver=driver, **shape) as target:
        target.write(bands)


def text(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def rings(mask: np.ndarray) -> list[list[tuple[float, float]]]:
    """The outlines of a mask along the edges of its pixels, one for each part."""
    found = [shape["coordinates"] for shape, _ in shapes(mask.astype(np.uint8), mask=mask, transform=IDENTITY)]
    assert all(len(ring) == 1 for ring in found), "holes cannot be written as a list of polygons"
    return [ring[0][:-1] for ring in found]


def runs(mask: np.ndarray) -> dict:
    """COCO's run lengths, not compressed: down the columns, beginning with zeros."""
    flat = mask.T.ravel()
    changes = np.flatnonzero(np.diff(flat, prepend=0)).tolist()
    return {"size": list(mask.shape), "counts": np.diff([0, *changes, flat.size]).tolist()}


def voc(root: Path, i: int, scene: Scene) -> None:
    corners = "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>"
    found = [
        f"<object><name>{kind}</name><bndbox>{corners.format(*box(m))}</bndbox></object>" for kind, m in objects(scene)
    ]
    text(root / f"Annotations/{i}.xml", f"<annotation><filename>{i}.tif</filename>{''.join(found)}</annotation>")


def kitti(root: Path, i: int, scene: Scene) -> None:
    lines = [f"{kind} 0.0 0 0.0 {' '.join(f'{n:.2f}' for n in box(m))}" + " 0" * 7 for kind, m in objects(scene)]
    text(root / f"labels/{i}.txt", "\n".join(lines))


def yolo_boxes(root: Path, i: int, scene: Scene) -> None:
    lines = []
    for kind, mask in objects(scene):
        x1, y1, x2, y2 = (n / SIZE for n in box(mask))
        lines.append(f"{BUILDINGS.index(kind)} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}\n")
    text(root / f"labels/{i}.txt", "".join(lines))
    text(root / "classes.txt", "\n".join(BUILDINGS))


def yolo_outlines(root: Path, i: int, scene: Scene) -> None:
    lines = []
    for kind, mask in objects(scene):
        (ring,) = rings(mask)
        lines.append(f"{BUILDINGS.index(kind)} {' '.join(str(n / SIZE) for point in ring for n in point)}\n")
    text(root / f"labels/{i}.txt", "".join(lines))
    text(root / "data.yaml", f"names: [{', '.join(BUILDINGS)}]\n")


def csv(root: Path, i: int, scene: Scene) -> None:
    file = root / "boxes.csv"
    if not file.exists():
        text(file, "image_path,xmin,ymin,xmax,ymax,label\n")
    lines = [f"images/{i}.tif,{','.join(map(str, box(m)))},{kind}\n" for kind, m in objects(scene)]
    with file.open("a") as table:
        table.writelines(lines or [f"images/{i}.tif,0,0,0,0,\n"])


def labels_of_chips(root: Path, i: int, names: list[str]) -> None:
    found = f"<object><name>{','.join(names)}</name></object>" if names else ""
    text(root / f"labels/{i}.xml", f"<annotation>{found}</annotation>")


def labeled(root: Path, i: int, scene: Scene) -> None:
    labels_of_chips(root, i, [scene.use])


def multilabeled(root: Path, i: int, scene: Scene) -> None:
    labels_of_chips(root, i, sorted({kind for kind, _ in objects(scene)}))


def masks(root: Path, i: int, scene: Scene) -> None:
    raster(root / f"masks/{i}.png", scene.cover)


def masks_in_colour(root: Path, i: int, scene: Scene) -> None:
    colours = {"open": (0, 0, 0), "building": (230, 0, 0), "paved": (9, 9, 9), "tree": (0, 99, 0), "field": (1, 0, 0)}
    pixels = np.zeros((*scene.cover.shape, 3), np.uint8)
    for name, colour in colours.items():
        pixels[scene.cover == LAND_COVER[name]] = colour
    raster(root / f"masks/{i}.png", pixels)
    lines = [f"{'background' if name == 'open' else name},{r},{g},{b}\n" for name, (r, g, b) in colours.items()]
    text(root / "class_dict.csv", "name,r,g,b\n" + "".join(lines))


def ids(root: Path, i: int, scene: Scene) -> None:
    raster(root / f"instances/{i}.tif", (scene.owner * 7).astype(np.uint16))  # numbers with gaps


def several_bands(root: Path, i: int, scene: Scene) -> None:
    for name in {kind for kind, _ in objects(scene)}:  # one band for each object, as overlapping ones are written
        found = [m for kind, m in objects(scene) if kind == name]
        raster(root / f"labels/{name}/{i}.tif", np.stack(found, 2).astype(np.uint8))


def pairs(root: Path, i: int, scene: Scene) -> None:
    coarse = scene.image.reshape(SIZE // 4, 4, SIZE // 4, 4, 3).mean((1, 3)).round().astype(np.uint8)
    raster(root / f"low/{i}.png", coarse)
    raster(root / f"high/{i}.png", scene.image)


def coco(root: Path, scenes: list[Scene], shape: str) -> None:
    values = {"house": 0, "hall": 3, "glasshouse": 4}  # ids from 0, with gaps
    images = [{"id": 90 + i, "file_name": f"{i}.tif", "width": SIZE, "height": SIZE} for i in range(len(scenes))]
    found = []
    for i, scene in enumerate(scenes):
        for kind, mask in objects(scene):
            x1, y1, x2, y2 = box(mask)
            entry = {"id": len(found), "image_id": 90 + i, "category_id": values[kind], "iscrowd": 0}
            entry |= {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": int(mask.sum())}
            if shape == "polygons":
                entry["segmentation"] = [[n for point in ring for n in point] for ring in rings(mask)]
            if shape == "runs":
                entry["segmentation"] = runs(mask)
            found.append(entry)
    categories = [{"id": value, "name": name} for name, value in values.items()]
    text(root / "instances.json", json.dumps({"images": images, "annotations": found, "categories": categories}))


def coco_panoptic(root: Path, scenes: list[Scene]) -> None:
    values = {name: 10 * i for i, name in enumerate([*BUILDINGS, *LAND_COVER], 1)}
    images, found = [], []
    for i, scene in enumerate(scenes):
        pixels, info = np.zeros((SIZE, SIZE, 3), np.uint8), []
        for number, (name, _, mask) in enumerate(regions(scene), 1):
            number *= 300  # beyond one byte
            pixels[mask] = (number & 255, number >> 8, 0)
            info.append({"id": number, "category_id": values[name], "area": int(mask.sum()), "iscrowd": 0})
        raster(root / f"panoptic/{i}.png", pixels)
        images.append({"id": i, "file_name": f"{i}.tif", "width": SIZE, "height": SIZE})
        found.append({"image_id": i, "file_name": f"{i}.png", "segments_info": info})
    categories = [{"id": v, "name": name, "isthing": int(name in BUILDINGS)} for name, v in values.items()]
    text(root / "panoptic.json", json.dumps({"images": images, "annotations": found, "categories": categories}))


WRITERS = {
    "VOC": (voc, "PASCAL_VOC_rectangles", {"detection": "boxes"}),
    "KITTI": (kitti, "KITTI_rectangles", {"detection": "boxes"}),
    "YOLO boxes": (yolo_boxes, "YOLO", {"detection": "boxes"}),
    "YOLO outlines": (yolo_outlines, "YOLO", {"instances": "masks", "detection": "boxes", "semantic": "classes"}),
    "CSV": (csv, "CSV", {"detection": "boxes"}),
    "Labeled_Tiles": (labeled, "Labeled_Tiles", {"classification": "use"}),
    "MultiLabeled_Tiles": (multilabeled, "MultiLabeled_Tiles", {"classification": "kinds"}),
    "masks": (masks, "image_masks", {"semantic": "cover"}),
    "ids": (ids, "image_ids", {"instances": "objects"}),
    "bands": (several_bands, "RCNN_Masks", {"instances": "masks", "detection": "boxes", "semantic": "classes"}),
    "pairs": (pairs, "image_pairs", {"super_resolution": "sharp"}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_other_formats(scenes, tmp_path, name):
    write, format, tasks = WRITERS[name]
    for i, scene in enumerate(scenes):
        images = "JPEGImages" if name == "VOC" else "images"
        if name != "pairs":
            raster(tmp_path / f"{images}/{i}.tif", scene.image)
        write(tmp_path, i, scene)
    for task, what in tasks.items():
        data = prepare_data(tmp_path, task=task, val_split=0, cache="memory")
        assert data.format == format
        check(data, scenes, what)


def test_masks_in_colour(scenes, tmp_path):
    for i, scene in enumerate(scenes):
        raster(tmp_path / f"images/{i}.tif", scene.image)
        masks_in_colour(tmp_path, i, scene)
    data = prepare_data(tmp_path, val_split=0, cache="memory")
    assert data.spec.classes == ("building", "paved", "tree", "field")
    for position, file in enumerate(data.train.files):
        values = np.array([LAND_COVER[name] for name in ("open", *data.spec.classes)])
        mask = data.train[position]["mask"].numpy()
        assert np.array_equal(values[mask], scenes[int(Path(file).stem)].cover)


COCO = {
    "boxes": {"detection": "boxes"},
    "polygons": {"instances": "masks", "detection": "boxes", "semantic": "classes"},
    "runs": {"instances": "masks", "detection": "boxes", "semantic": "classes"},
}


@pytest.mark.parametrize("shape", COCO)
def test_coco(scenes, tmp_path, shape):
    for i, scene in enumerate(scenes):
        raster(tmp_path / f"images/{i}.tif", scene.image)
    coco(tmp_path, scenes, shape)
    for task, what in COCO[shape].items():
        data = prepare_data(tmp_path, task=task, val_split=0, cache="memory")
        assert data.format == "COCO" and data.spec.class_values == (0, 3, 4)
        check(data, scenes, what)


def test_coco_panoptic(scenes, tmp_path):
    for i, scene in enumerate(scenes):
        raster(tmp_path / f"images/{i}.tif", scene.image)
    coco_panoptic(tmp_path, scenes)
    data = prepare_data(tmp_path, val_split=0, cache="memory")
    assert (data.format, data.task.name) == ("COCO", "panoptic")
    check(data, scenes, "regions")


def test_the_scenes_are_worth_the_trip(scenes):
    assert {kind for scene in scenes for kind, _ in objects(scene)} == set(BUILDINGS)
    assert any(not objects(scene) for scene in scenes) and max(len(objects(scene)) for scene in scenes) > 1
    assert {value for scene in scenes for value in np.unique(scene.cover)} == set(LAND_COVER.values())
