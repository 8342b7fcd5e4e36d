"""Panoptic_Segmentation, as exported by ArcGIS Pro: labels/<chip> holds class values, labels2/<class>/<chip> objects."""

from pathlib import Path

from accel_geo.data.formats import esri, rcnn_masks
from accel_geo.data.formats.rows import Rows, folder, has_raster, label_problems, pair, rasters, relative, table

TASKS = ("panoptic", "instances", "semantic", "detection", "edges")
LAYOUT = "images/<chip>, labels/<chip> with class values and labels2/<class>/<chip> with object numbers as pixels"


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    images, objects, mode = folder(path, "images"), folder(path, "labels2"), esri.metadata(path).mode
    if not images or not folder(path, "labels", "labels2"):
        return False
    if mode:
        return mode == "Panoptic_Segmentation"
    return objects is not None and any(has_raster(entry) for entry in objects.iterdir() if entry.is_dir())


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; classes with a folder in labels2 are things, as are those that the metadata say."""
    meta, base = esri.metadata(path), folder(path, "images")
    if base is None:
        raise ValueError(f"{path} holds no folder images: {LAYOUT}")
    images = rasters(base)
    classes, problems = dict(meta.classes), []
    objects, lonely = rcnn_masks.object_files(images, base, folder(path, "labels2"), classes, problems)
    things = meta.things | {value for found in objects.values() for value, _ in found}
    regions, more = {}, 0
    if labels := folder(path, "labels"):
        regions, more = pair(images, base, labels)
    rows = []
    for image in images:
        region = relative(regions[image], path) if image in regions else ""
        found = objects[image] if task != "semantic" else []
        row = {"file": relative(image, path), "values": [value for value, _ in found]}
        row["label_files"] = [relative(file, path) for _, file in found]
        if task in ("panoptic", "semantic") and (region or found):
            row["label_files"].insert(0, region)
        rows.append(row)
    if task not in ("panoptic", "semantic"):
        classes = {value: name for value, name in classes.items() if value in things}
    complaints = label_problems(
        [row | {"label_files": row["label_files"] or regions.get(image)} for image, row in zip(images, rows)],
        lonely + more,
    )
    return Rows(
        format="Panoptic_Segmentation",
        task=task,
        root=path,
        dataset=table(rows),
        classes=dict(sorted((value, name) for value, name in classes.items() if value != 0)),
        closed=bool(meta.classes) or task not in ("panoptic", "semantic"),
        bands=meta.bands,
        map_space=meta.map_space,
        things=frozenset(things),
        sources=meta.files,
        problems=[*esri.disagreements(meta, len(rows)), *problems, *complaints],
    )
