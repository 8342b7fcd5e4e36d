"""How the built-in scenes are written down: one layout of ArcGIS Pro's export tool for each task.

A scene knows every label, and a layout is one way of saying it. The classes of a layout have values with gaps, as real
exports have them.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scene_canvas import LAND_COVER, Scene
from .scene_drawing import USES

Save = Callable[[str, NDArray | str], str]  # path in the folder and content -> the file's name for map.txt


class LabelClass(NamedTuple):
    """A class as the export tool lists it."""

    value: int
    name: str
    color: tuple[int, int, int]


class Label(NamedTuple):
    """What a layout wrote for one chip.

    Attributes:
        files: the files beside the image, as map.txt names them.
        sizes: by class value, the size in pixels of each object or of the whole class.
    """

    files: list[str]
    sizes: dict[int, list[int]]


class Layout(NamedTuple):
    """One way of writing labels down.

    Attributes:
        mode: the export tool's name of it (MetaDataMode).
        classes: the classes, background never among them.
        uses: the land uses drawn, in turn.
        features: whether labels are counted as objects or as pixels.
        image: folder and name of a scene's image, without suffix, from the chip's name.
        write: writes a scene's label files with `save`: pixels uint8 [H, W] or [H, W, C] under a path without suffix,
            or a text.
        things: the classes whose objects are written one by one beside the class raster (panoptic).
    """

    mode: str
    classes: tuple[LabelClass, ...]
    uses: tuple[str, ...]
    features: bool
    image: Callable[[str, Scene], str]
    write: Callable[[Save, str, Scene], Label]
    things: tuple[LabelClass, ...] = ()


BUILDING_CLASSES = (
    LabelClass(1, "house", (230, 76, 0)),
    LabelClass(2, "hall", (0, 112, 255)),
    LabelClass(5, "glasshouse", (85, 255, 200)),
)
COVER_CLASSES = tuple(
    LabelClass(LAND_COVER[name], name, color)
    for name, color in {
        "building": (230, 76, 0),
        "paved": (170, 170, 170),
        "tree": (38, 115, 0),
        "field": (255, 211, 127),
    }.items()
)
USE_CLASSES = tuple(
    LabelClass(value, use, color)
    for use, value, color in (
        ("residential", 1, (255, 190, 190)), ("industrial", 2, (190, 130, 255)), ("horticulture", 3, (85, 255, 200)),
        ("farmland", 5, (255, 211, 127)), ("orchard", 6, (152, 230, 0)), ("forest", 9, (38, 115, 0)),
    )
)  # fmt: skip
STUFF_CLASSES = (
    LabelClass(3, "paved", (170, 170, 170)),
    LabelClass(4, "tree", (38, 115, 0)),
    LabelClass(7, "field", (255, 211, 127)),
    LabelClass(9, "open", (163, 255, 115)),
)
EDGE_CLASSES = (LabelClass(1, "edge", (255, 255, 0)),)
# Buildings are what is to be found, and about every sixth chip has none.
BUILT_UP = (
    "residential", "industrial", "horticulture", "farmland", "residential", "horticulture", "industrial", "orchard",
    "residential", "horticulture", "industrial", "residential", "forest", "industrial", "horticulture", "farmland",
)  # fmt: skip


def _objects(scene: Scene) -> dict[LabelClass, list[int]]:
    # The numbers of the buildings of each class that can be seen.
    return {
        c: [i for i, kind in enumerate(scene.buildings, 1) if kind == c.name and (scene.owner == i).any()]
        for c in BUILDING_CLASSES
    }


def _save_objects(save: Save, folder: str, name: str, scene: Scene) -> Label:
    files, sizes = [], {}
    for c, ids in _objects(scene).items():
        if ids:
            masks = sum((scene.owner == i) * np.uint8(k) for k, i in enumerate(ids, 1))
            files.append(save(f"{folder}/{c.name}/{name}", masks))
            sizes[c.value] = [int((scene.owner == i).sum()) for i in ids]
    return Label(files, sizes)


def _save_classes(save: Save, name: str, mask: NDArray) -> Label:
    values, counts = np.unique(mask[mask > 0], return_counts=True)
    return Label([save(f"labels/{name}", mask)], {int(v): [int(n)] for v, n in zip(values, counts)})


def _write_instances(save: Save, name: str, scene: Scene) -> Label:
    label = _save_objects(save, "labels", name, scene)
    if not label.files:  # a chip without objects says so with an empty mask
        label.files.append(save(f"labels/{BUILDING_CLASSES[0].name}/{name}", np.zeros_like(scene.cover)))
    return label


def _write_boxes(save: Save, name: str, scene: Scene) -> Label:
    size = scene.cover.shape
    text = [
        '<?xml version="1.0"?>', "<annotation>", f"    <filename>{name}.tif</filename>",
        "    <source>", "        <annotation>accel_geo, built-in scenes</annotation>", "    </source>", "    <size>",
        f"        <width>{size[1]}</width>", f"        <height>{size[0]}</height>", "        <depth>3</depth>",
        "    </size>",
    ]  # fmt: skip
    sizes: dict[int, list[int]] = {}
    for c, ids in _objects(scene).items():
        for i in ids:
            rows, columns = (np.flatnonzero((scene.owner == i).any(axis)) for axis in (1, 0))
            x1, y1, x2, y2 = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
            corners = {"xmin": x1, "ymin": y1, "xmax": x2, "ymax": y2}
            text += ["    <object>", f"        <name>{c.value}</name>", "        <bndbox>"]
            text += [f"            <{side}>{at:.2f}</{side}>" for side, at in corners.items()]
            text += ["        </bndbox>", "    </object>"]
            sizes.setdefault(c.value, []).append(int((x2 - x1) * (y2 - y1)))
    return Label([save(f"labels/{name}.xml", "\n".join([*text, "</annotation>", ""]))], sizes)


def _write_cover(save: Save, name: str, scene: Scene) -> Label:
    return _save_classes(save, name, scene.cover)


def _write_panoptic(save: Save, name: str, scene: Scene) -> Label:
    stuff = {c.name: c.value for c in STUFF_CLASSES}
    mask = np.zeros_like(scene.cover)
    for cover, value in LAND_COVER.items():
        mask[scene.cover == value] = stuff.get(cover, 0)
    for c, ids in _objects(scene).items():  # last: a tree over a roof does not cut into the building
        mask[np.isin(scene.owner, ids)] = c.value
    regions, objects = _save_classes(save, name, mask), _save_objects(save, "labels2", name, scene)
    return Label(regions.files + objects.files, regions.sizes)


def _write_edges(save: Save, name: str, scene: Scene) -> Label:
    # Two pixels wide, one on each side of the line between two owners; the chip's own border is no such line.
    edges = np.zeros_like(scene.cover)
    for one, other in (((slice(1, None),), (slice(-1),)), ((slice(None), slice(1, None)), (slice(None), slice(-1)))):
        differs = scene.owner[one] != scene.owner[other]
        edges[one] |= differs
        edges[other] |= differs
    return _save_classes(save, name, edges)


def _write_use(save: Save, name: str, scene: Scene) -> Label:
    return Label([], {c.value: [scene.cover.size] for c in USE_CLASSES if c.name == scene.use})


def _write_nothing(save: Save, name: str, scene: Scene) -> Label:
    return Label([], {})


def _chip(name: str, scene: Scene) -> str:
    return f"images/{name}"


def _chip_of_use(name: str, scene: Scene) -> str:
    return f"images/{scene.use}/{name}"


LAYOUTS = {
    "instances": Layout("RCNN_Masks", BUILDING_CLASSES, BUILT_UP, True, _chip, _write_instances),
    "detection": Layout("PASCAL_VOC_rectangles", BUILDING_CLASSES, BUILT_UP, True, _chip, _write_boxes),
    "semantic": Layout("Classified_Tiles", COVER_CLASSES, BUILT_UP, False, _chip, _write_cover),
    "panoptic": Layout(
        "Panoptic_Segmentation", tuple(sorted(BUILDING_CLASSES + STUFF_CLASSES)), BUILT_UP, False, _chip, _write_panoptic,
        BUILDING_CLASSES,
    ),
    "edges": Layout("Classified_Tiles", EDGE_CLASSES, BUILT_UP, False, _chip, _write_edges),
    "classification": Layout("Imagenet", USE_CLASSES, tuple(USES), True, _chip_of_use, _write_use),
    "super_resolution": Layout("Export_Tiles", (), BUILT_UP, True, _chip, _write_nothing),
}  # fmt: skip
