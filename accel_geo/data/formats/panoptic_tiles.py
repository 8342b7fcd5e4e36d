"""Panoptic_Segmentation, as exported by ArcGIS Pro: labels/<chip> holds class values, labels2/<class>/<chip> objects."""

from collections import Counter
from itertools import islice
from pathlib import Path

from rasterio.errors import RasterioError

from accel_geo.data.formats import boxes, esri, rcnn_masks
from accel_geo.data.formats.rows import Rows, folder, has_raster, label_problems, some, table
from accel_geo.data.pixels import RASTER_SUFFIXES, read_label

TASKS = ("panoptic", "instances", "semantic", "detection", "edges")
LAYOUT = "images/<chip>, labels/<chip> with class values and labels2/<class>/<chip> with object numbers as pixels"
_LOOKED_AT = 5  # chips of each class that show its value where the metadata do not


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    images, objects, mode = folder(path, "images"), folder(path, "labels2"), esri.metadata(path).mode
    if not images or not folder(path, "labels", "labels2"):
        return False
    if mode:
        return mode == "Panoptic_Segmentation"
    return objects is not None and any(has_raster(entry) for entry in objects.iterdir() if entry.is_dir())


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; classes with a folder in labels2 are things, as are those that the metadata say.

    Raises:
        ValueError: two label files belong to one chip, or without metadata the class value of a folder in labels2 does
            not show in the class rasters.
    """
    meta, base = esri.metadata(path), folder(path, "images")
    if base is None:
        raise ValueError(f"{path} holds no folder images: {LAYOUT}")
    labels, labels2 = folder(path, "labels"), folder(path, "labels2")
    chips = boxes.listing(base, RASTER_SUFFIXES)
    regions, lonely = boxes.pair(chips, boxes.listing(labels, RASTER_SUFFIXES), str(labels)) if labels else ({}, 0)
    regions = {chip: f"{labels.name}/{file}" for chip, file in regions.items()}
    classes, problems = dict(meta.classes), []
    if not classes and labels2:
        classes = _classes_below(labels2, path, regions)
    objects, more = rcnn_masks.object_files(chips, labels2, classes, problems)
    things = (meta.things & set(classes)) | {value for found in objects.values() for value, _ in found}
    rows = []
    for chip in chips:
        region, found = regions.get(chip, ""), objects[chip]
        if task == "semantic" and region:
            found = []
        row = {"file": f"{base.name}/{chip}", "values": [value for value, _ in found], **boxes.placed(chip)}
        first = [region] if task == "panoptic" and (region or found) or task == "semantic" and region else []
        rows.append(row | {"label_files": [*first, *(file for _, file in found)]})
    counted = [row for chip, row in zip(chips, rows) if not row["label_files"] and chip not in regions]
    if counted and task == "panoptic":
        names = some([row["file"] for row in counted], 3)
        problems.append(f"{len(counted)} chip(s) without a label file, kept as unlabelled: {names}")
    problems += label_problems(counted if task != "panoptic" else [], lonely + more)
    if task not in ("panoptic", "semantic"):
        classes = {value: name for value, name in classes.items() if value in things}
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
        problems=[*esri.disagreements(meta, len(rows)), *problems],
    )


def _classes_below(labels2: Path, root: Path, regions: dict[str, str]) -> dict[int, str]:
    # Without a class list: the value that most pixels of a class's objects have in the class rasters.
    classes: dict[int, str] = {}
    for entry in sorted(e for e in labels2.iterdir() if e.is_dir() and not e.name.startswith(".")):
        votes: Counter[int] = Counter()
        pairs, _ = boxes.pair(regions, boxes.listing(entry, RASTER_SUFFIXES), str(entry))
        for chip, file in islice(pairs.items(), _LOOKED_AT):
            try:
                inside, below = read_label(entry / file)[0].any(0), read_label(root / regions[chip])[0][0]
            except RasterioError:
                continue  # the decoder names the file
            votes.update(below[inside].tolist() if inside.shape == below.shape else ())
        value, most = votes.most_common(1)[0] if votes else (0, 0)
        if value > 0 and value not in classes and most > votes.total() / 2:
            classes[value] = entry.name
        elif votes:
            raise ValueError(
                f"which class value {entry} stands for does not show: of the pixels of its objects, labels/ gives "
                f"{dict(votes.most_common(3))} (value: pixels). Add an esri_model_definition.emd with Classes: "
                '[{"Value": 1, "Name": "..."}]'
            )
    return classes
