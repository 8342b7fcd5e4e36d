"""The built-in scenes: synthetic aerial imagery with labels, for every run that is given no data of its own.

Chips are drawn by scene_drawing.py and written as a training-data folder in the layout of ArcGIS Pro's export tool, so
that they take the same way through the readers as anybody's data. One scene knows every label and each task is one way
of writing it down: a further layout is one function and one entry in LAYOUTS.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..parallel import keys
from .scene_canvas import GSD, LAND_COVER, Scene
from .scene_drawing import USES, draw

CRS = "EPSG:32633"
ORIGIN = (512_000.0, 5_402_000.0)  # easting, northing of the first chip's upper left corner
SMOKE = (8, 64)  # chips and their side in pixels


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
        write: writes a scene's label files into the folder.
    """

    mode: str
    classes: tuple[LabelClass, ...]
    uses: tuple[str, ...]
    features: bool
    image: Callable[[str, Scene], str]
    write: Callable[[Callable[[str, NDArray], str], str, Scene], Label]


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
# Buildings are what is to be found, and about every sixth chip has none.
BUILT_UP = (
    "residential", "industrial", "horticulture", "farmland", "residential", "horticulture", "industrial", "orchard",
    "residential", "horticulture", "industrial", "residential", "forest", "industrial", "horticulture", "farmland",
)  # fmt: skip


def _write_instances(save: Callable[[str, NDArray], str], name: str, scene: Scene) -> Label:
    files, sizes = [], {}
    for value, class_name, _ in BUILDING_CLASSES:
        ids = [i for i, kind in enumerate(scene.buildings, 1) if kind == class_name and (scene.owner == i).any()]
        if ids:
            masks = sum((scene.owner == i) * np.uint8(k) for k, i in enumerate(ids, 1))
            files.append(save(f"labels/{class_name}/{name}", masks))
            sizes[value] = [int((scene.owner == i).sum()) for i in ids]
    if not files:  # a chip without objects says so with an empty mask
        files.append(save(f"labels/{BUILDING_CLASSES[0].name}/{name}", np.zeros_like(scene.cover)))
    return Label(files, sizes)


def _write_cover(save: Callable[[str, NDArray], str], name: str, scene: Scene) -> Label:
    values, counts = np.unique(scene.cover[scene.cover > 0], return_counts=True)
    return Label([save(f"labels/{name}", scene.cover)], {int(v): [int(n)] for v, n in zip(values, counts)})


def _write_use(save: Callable[[str, NDArray], str], name: str, scene: Scene) -> Label:
    return Label([], {c.value: [scene.cover.size] for c in USE_CLASSES if c.name == scene.use})


LAYOUTS = {
    "instances": Layout(
        "RCNN_Masks", BUILDING_CLASSES, BUILT_UP, True, lambda name, scene: f"images/{name}", _write_instances
    ),
    "semantic": Layout(
        "Classified_Tiles", COVER_CLASSES, BUILT_UP, False, lambda name, scene: f"images/{name}", _write_cover
    ),
    "classification": Layout(
        "Imagenet", USE_CLASSES, tuple(USES), True, lambda name, scene: f"images/{scene.use}/{name}", _write_use
    ),
}


def builtin(task: str, smoke: bool = False, chips: int | None = None, size: int = 128, seed: int = 7) -> Path:
    """Return the folder of built-in imagery for a task, drawing it if it is not in the cache yet.

    The cache is $ACCEL_GEO_CACHE, or ~/.cache/accel_geo. The same arguments give the same files, byte for byte.

    Args:
        task: one of LAYOUTS: "instances" (buildings, as RCNN_Masks), "semantic" (land cover, as Classified_Tiles),
            "classification" (land use, as Imagenet).
        smoke: 8 chips of 64 pixels, whatever `size` says.
        chips: how many chips; 300 by default.
        size: their side in pixels of 0.4 m, at least 32.
        seed: another seed gives other scenes.

    Raises:
        ValueError: unknown task, no chips, or chips too small to hold a building.
        OSError: the cache cannot be written.
    """
    if task not in LAYOUTS:
        raise ValueError(
            f"no built-in scenes for the task {task!r}; there are some for {', '.join(LAYOUTS)}: pass --data for others"
        )
    if smoke:
        chips, size = chips or SMOKE[0], SMOKE[1]
    chips = 300 if chips is None else chips
    if chips < 1 or size < 32:
        raise ValueError(f"built-in scenes need at least 1 chip of at least 32 pixels, not {chips} of {size}")
    cache = Path(os.environ.get("ACCEL_GEO_CACHE") or Path.home() / ".cache" / "accel_geo")
    folder = cache / f"scenes-{task}-{chips}x{size}-seed{seed}-{_version()}"
    if _whole(folder):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".tmp-scenes-", dir=cache))
        try:
            _export(draft, LAYOUTS[task], chips, size, seed)
            _publish(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise OSError(
            f"the built-in scenes could not be written to {cache} ({error}); set ACCEL_GEO_CACHE to a folder with some "
            f"{chips * size * size * 4 >> 20} MB free, or pass your own imagery with --data"
        ) from error
    return folder


def _version() -> str:
    """Eight hex digits that change with the code that draws: a cache never shows what older code drew."""
    here = Path(__file__).parent
    return f"{keys.fold(*((here / name).read_text() for name in sorted(p.name for p in here.glob('scene*.py')))):016x}"[
        :8
    ]


def _whole(folder: Path) -> bool:
    """Tell whether the folder holds every file that its map.txt names."""
    if not (folder / "map.txt").is_file():
        return False
    return all((folder / file.replace("\\", "/")).is_file() for file in (folder / "map.txt").read_text().split())


def _publish(draft: Path, folder: Path) -> None:
    """Give a finished folder its name in one step; where another process was faster, its equal folder stays."""
    draft.chmod(0o755)
    for attempt in range(3):
        try:
            draft.rename(folder)
            return
        except OSError:
            if _whole(folder):
                return
            if attempt == 2:
                raise
            broken = draft.with_name(f"{draft.name}-broken-{attempt}")  # files were deleted: ours takes its place
            with contextlib.suppress(OSError):
                folder.rename(broken)
            shutil.rmtree(broken, ignore_errors=True)


def _export(folder: Path, layout: Layout, chips: int, size: int, seed: int) -> None:
    """Draw the chips and write images, labels, map.txt and the three descriptions."""
    import rasterio

    lines, labels = [], []
    for index in range(chips):
        scene = draw(layout.uses[index % len(layout.uses)], seed, index, size)
        name, pitch = f"{index:09d}", 1.25 * size * GSD  # a gap between chips: they show different places
        column, row = index % 16, index // 16
        place = rasterio.Affine(GSD, 0, ORIGIN[0] + column * pitch, 0, -GSD, ORIGIN[1] - row * pitch)

        def save(path: str, pixels: NDArray, place=place) -> str:
            """Write uint8 [H, W] or [H, W, C] as <path>.tif with its world file; returns its name for map.txt."""
            bands = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
            file = folder / f"{path}.tif"
            file.parent.mkdir(parents=True, exist_ok=True)
            profile = {"driver": "GTiff", "height": size, "width": size, "count": len(bands), "dtype": "uint8"}
            packing = {"compress": "deflate"} if len(bands) == 1 else {"photometric": "rgb", "interleave": "pixel"}
            with rasterio.open(file, "w", crs=CRS, transform=place, **profile, **packing) as raster:
                raster.write(bands)
            world = (place.a, place.d, place.b, place.e, place.c + place.a / 2, place.f + place.e / 2)
            file.with_suffix(".tfw").write_text("".join(f"{number:.16f}\n" for number in world))
            return f"{path}.tif".replace("/", "\\")

        image = save(layout.image(name, scene), scene.image)
        label = layout.write(save, name, scene)
        labels.append(label)
        lines.append(f"{image}  {''.join(file + ' ' for file in label.files)}" if label.files else f"{image} ")
    _describe(folder, layout, labels, size)
    (folder / "map.txt").write_text("\n".join(lines) + "\n")


def _describe(folder: Path, layout: Layout, labels: list[Label], size: int) -> None:
    """Write esri_model_definition.emd, esri_accumulated_stats.json and stats.txt."""
    by_class = [[label.sizes[c.value] for label in labels if c.value in label.sizes] for c in layout.classes]
    images = [len(found) for found in by_class]
    if layout.features:  # objects are counted, their areas are square metres
        word, per_image = "features", [sum(map(len, label.sizes.values())) for label in labels]
        counts = [sum(map(len, found)) for found in by_class]
        sizes = [_summary([pixels * GSD * GSD for found in one for pixels in found]) for one in by_class]
        names = "NumFeaturesPerClass", "NumFeaturesPerImage", "FeatureAreaPerClass"
    else:  # pixels are counted, over all chips
        word, per_image = "pixels", [len(label.sizes) for label in labels]
        counts = [sum(map(sum, found)) for found in by_class]
        sizes = [_summary([sum(label.sizes.get(c.value, ())) for label in labels]) for c in layout.classes]
        names = "NumPixelsPerClass", "NumClassesPerImage", "PixelsPerClass"
    block = {"NumClasses": len(layout.classes), "NumImagesTotal": len(labels)}
    block |= {"NumFeaturesTotal": sum(counts)} if layout.features else {}
    block |= {"NumImagesPerClass": images} | dict(zip(names, (counts, _summary(per_image), sizes)))
    stats = {
        "Version": 1, "NumBands": 3, "TileSizeX": size, "TileSizeY": size, "NumClasses": len(layout.classes),
        "NumTiles": len(labels), "OutputFeatures": layout.features, "MetaDataMode": layout.mode,
        "Classes": [{"ClassValue": c.value, "ClassName": c.name} for c in layout.classes],
        "FeatureStats" if layout.features else "ClassPixelStats": block,
    }  # fmt: skip
    template = {
        "Framework": "e.g. CNTK", "ModelConfiguration": "some description",
        "ModelType": "e.g. ObjectDetection or ImageClassification", "ModelFile": "e.g. .\\trained.model",
        "ImageHeight": f"e.g. {size}", "ImageWidth": f"e.g. {size}", "ExtractBands": "e.g. [0, 1, 2]",
        "DataRange": "e.g. [0.1, 1.0] (optional)", "ModelPadding": "e.g. 64 (optional)",
        "BatchSize": "e.g. 8 (optional)", "PerProcessGPUMemoryFraction": "e.g. 0.8 (optional)",
        "Classes": [{"Value": c.value, "Name": c.name, "Color": list(c.color)} for c in layout.classes],
        "WellKnownBandNames (FYI, these band names can be used in ExtractBands)": ["Red", "Green", "Blue", "Infrared"],
    }  # fmt: skip
    for file, content in (("esri_accumulated_stats.json", stats), ("esri_model_definition.emd", template)):
        (folder / file).write_text(json.dumps(content, indent=2, separators=(",", " : ")))

    spread = f"[min = {min(per_image)}, mean = {np.mean(per_image):.2f}, max = {max(per_image)}]"
    text = [f"images = {len(labels)} *3*{size}*{size}"]
    text += [f"features = {sum(counts)}", f"features per image = {spread}"] if layout.features else []
    text += [f"classes = {len(layout.classes)}"] + ([] if layout.features else [f"classes per image = {spread}"])
    heads = ("cls name", "cls value", "images", word, "min size", "mean size", "max size")
    text.append("{:<20} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}".format(*heads))
    for c, seen, count, area in zip(layout.classes, images, counts, sizes):
        numbers = "".join(f" {area[key]:>11.2f}" for key in ("Min", "Mean", "Max"))
        text.append(f"{c.name:<20} {c.value:>10} {seen:>10} {count:>10}{numbers}")
    (folder / "stats.txt").write_text("\n".join(text) + "\n")


def _summary(values: list[float]) -> dict[str, float]:
    """Return the five figures that the export tool gives of a list."""
    least, most, total, count = min(values, default=0), max(values, default=0), sum(values), len(values)
    return {"Min": least, "Max": most, "Mean": total / max(count, 1), "Sum": total, "Count": count}
