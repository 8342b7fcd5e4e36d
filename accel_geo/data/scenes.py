"""The built-in scenes: synthetic aerial imagery with labels, for every run that is given no data of its own.

Chips are drawn by scene_drawing.py and written as a training-data folder in the layout of ArcGIS Pro's export tool, so
that they take the same way through the readers as anybody's data. One scene knows every label and each task is one way
of writing it down: a further layout is one function and one entry in scene_layouts.py.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..parallel import keys
from .scene_canvas import GSD
from .scene_drawing import draw
from .scene_layouts import LAYOUTS, Label, Layout

CRS = "EPSG:32633"
ORIGIN = (512_000.0, 5_402_000.0)  # easting, northing of the first chip's upper left corner
SMOKE = (8, 64)  # chips and their side in pixels


def builtin(task: str, smoke: bool = False, chips: int | None = None, size: int = 128, seed: int = 7) -> Path:
    """Return the folder of built-in imagery for a task, drawing it if it is not in the cache yet.

    The cache is $ACCEL_GEO_CACHE, or ~/.cache/accel_geo. The same arguments give the same files, byte for byte.

    Args:
        task: one of LAYOUTS: "instances" (buildings, as RCNN_Masks), "detection" (their boxes, as
            PASCAL_VOC_rectangles), "edges" (their outlines, as Classified_Tiles), "semantic" (land cover, as
            Classified_Tiles), "panoptic" (buildings on land cover, as Panoptic_Segmentation), "classification" (land
            use, as Imagenet), "super_resolution" (sharp chips, as Export_Tiles).
        smoke: 8 chips of 64 pixels, whatever `size` says.
        chips: how many chips; 300 by default.
        size: their side in pixels of 0.4 m, at least 48.
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
    if chips < 1 or size < 48:
        raise ValueError(f"built-in scenes need at least 1 chip of at least 48 pixels, not {chips} of {size}")
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

        def save(path: str, content: NDArray | str, place=place) -> str:
            """Write uint8 [H, W] or [H, W, C] as <path>.tif with its world file, or a text as it is."""
            file = folder / (path if isinstance(content, str) else f"{path}.tif")
            file.parent.mkdir(parents=True, exist_ok=True)
            name = str(file.relative_to(folder)).replace("/", "\\")
            if isinstance(content, str):
                file.write_text(content)
                return name
            bands = content[None] if content.ndim == 2 else content.transpose(2, 0, 1)
            profile = {"driver": "GTiff", "height": size, "width": size, "count": len(bands), "dtype": "uint8"}
            packing = {"compress": "deflate"} if len(bands) == 1 else {"photometric": "rgb", "interleave": "pixel"}
            with rasterio.open(file, "w", crs=CRS, transform=place, **profile, **packing) as raster:
                raster.write(bands)
            world = (place.a, place.d, place.b, place.e, place.c + place.a / 2, place.f + place.e / 2)
            file.with_suffix(".tfw").write_text("".join(f"{number:.16f}\n" for number in world))
            return name

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
    if layout.things:
        template["Panoptic_Segmentation_Instance_Classes"] = [
            {"Value": c.value, "Name": c.name, "Color": list(c.color)} for c in layout.things
        ]
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
