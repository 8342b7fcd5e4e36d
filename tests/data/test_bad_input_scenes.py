"""Bad scenes and vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from broken import check, collection, cut, feature, itself, put, refused, ring, told, write

VECTORS = "labels.geojson"
SCENE = {"vectors": VECTORS, "class_column": "kind", "chip_size": 12}
ALL = [f"scene.tif@{x},{y}" for y in (0, 12, 24) for x in (0, 12, 24)]
CENTRE = "scene.tif@12,12"  # window of feature 4


def features(change):
    """A change of the list of features."""

    def edit(root: Path) -> None:
        values = json.loads((root / VECTORS).read_text())
        values["features"] = change(values["features"]) or values["features"]
        put(root / VECTORS, values)

    return edit


def geometry(kind: str, coordinates: object):
    """Another geometry for the feature of the central window."""

    def change(found: list) -> None:
        found[4]["geometry"] = kind and {"type": kind, "coordinates": coordinates}

    return features(change)


def kinds(value: object):
    return features(lambda found: [f["properties"].update(kind=value) for f in found] and None)


def at(x: float, y: float) -> list:
    return [600_000 + x, 4_000_000 - y]


def without_crs(root: Path) -> None:
    with rasterio.open(root / "scene.tif") as source:
        pixels, transform = source.read(), source.transform
    write(root / "scene.tif", pixels, transform=transform)


def replaced(new: dict):
    return SCENE | new


POINTS = features(lambda found: [feature({"type": "Point", "coordinates": at(5, 5)}, "road")])
LINES = features(lambda found: [feature({"type": "LineString", "coordinates": [at(5, 5), at(9, 9)]}, "road")])
EIGHT = [[at(14, 14), at(22, 22), at(22, 14), at(14, 22), at(14, 14)]]

CASES = [
    refused(
        "no vector file", lambda r: (r / VECTORS).unlink(), f"vectors {VECTORS} not found", "give a GeoPackage", **SCENE
    ),
    refused("vectors of no bytes", lambda r: cut(r / VECTORS, 0), VECTORS, **SCENE),
    refused("vectors cut off", lambda r: cut(r / VECTORS, 0.5), VECTORS, **SCENE),
    refused("a text as vectors", lambda r: put(r / VECTORS, "no vectors"), f"{VECTORS} cannot be read", **SCENE),
    refused("a raster as vectors", itself, "scene.tif", **replaced({"vectors": "scene.tif"})),
    refused(
        "a folder as vectors", itself, "vectors . cannot be read", "give a GeoPackage", **replaced({"vectors": "."})
    ),
    refused(
        "no features", features(lambda found: found.clear()), VECTORS, "no feature", **replaced({"class_column": None})
    ),
    refused(
        "features elsewhere",
        features(lambda found: [feature(ring(9000, 9000, 9010, 9010), "road")]),
        VECTORS,
        "none of the 1 features",
        "they cover x 609000..609010, y 3990990..3991000",
        "Check that they",
        **SCENE,
    ),
    refused(
        "degrees that are metres",
        lambda r: put(r / VECTORS, collection([feature(ring(1, 1, 9, 9), "road")], None)),
        VECTORS,
        "CRS",
        **SCENE,
    ),
    refused("no such column", itself, "no column 'type'", "kind, number", **replaced({"class_column": "type"})),
    refused("a column of fractions", kinds(1.5), "column 'kind'", "1.5", "whole numbers", **SCENE),
    refused("a column without any class", kinds(None), VECTORS, "8 feature(s)", "have no kind", **SCENE),
    refused("class values of 0", kinds(0), VECTORS, "not above 0", task="instances", **SCENE),
    refused("class values of 0 for pixels", kinds(0), "no classes", **SCENE),
    refused("points without a buffer", POINTS, VECTORS, "1 points", "give `buffer`", **SCENE),
    refused("lines for whole chips", LINES, VECTORS, "1 lines", "give `buffer`", task="classification", **SCENE),
    refused(
        "a task that shapes cannot serve",
        itself,
        "super_resolution",
        "semantic, instances",
        task="super_resolution",
        **SCENE,
    ),
    refused("no size of windows", itself, "chip_size", **replaced({"chip_size": None})),
    refused("windows of no size", itself, "chip_size=0", **replaced({"chip_size": 0})),
    refused("a stride of 0", itself, "stride=0", **replaced({"stride": 0})),
    refused("a buffer of 0", itself, "buffer", "above 0", **replaced({"buffer": 0.0})),
    refused("a negative buffer", itself, "buffer", "above 0", **replaced({"buffer": -3})),
    refused("a buffer that is not a number", itself, "buffer", "above 0", **replaced({"buffer": float("nan")})),
    refused("an area that is not there", itself, "area.geojson not found", **replaced({"area": "area.geojson"})),
    refused(
        "an area elsewhere",
        lambda r: put(r / "a.geojson", collection([feature(ring(900, 900, 990, 990), 1)])),
        "a.geojson",
        **replaced({"area": "a.geojson"}),
    ),
    refused(
        "an area of points",
        lambda r: put(r / "a.geojson", collection([feature({"type": "Point", "coordinates": at(1, 1)}, 1)])),
        "a.geojson must hold polygons",
        **replaced({"area": "a.geojson"}),
    ),
    refused(
        "an area without features",
        lambda r: put(r / "a.geojson", collection([])),
        "a.geojson",
        **replaced({"area": "a.geojson"}),
    ),
    refused("no scene", lambda r: (r / "scene.tif").unlink(), "holds no rasters", **SCENE),
    refused("a scene that is not there", itself, "gone.tif not found", at=lambda r: r / "gone.tif", **SCENE),
    refused("a scene of no bytes", lambda r: cut(r / "scene.tif", 0), "scene.tif cannot be read", **SCENE),
    refused("a scene cut off", lambda r: cut(r / "scene.tif", 0.3), "scene.tif@0,0: ", "cannot be read", **SCENE),
    refused("a text as scene", lambda r: put(r / "scene.tif", "no raster"), "scene.tif cannot be read", **SCENE),
    refused(
        "scenes of different bands",
        lambda r: write(r / "b.tif", np.ones((2, 9, 9), np.uint8), crs="EPSG:32645"),
        "scenes must have the same bands",
        **SCENE,
    ),
    refused("one scene twice", itself, "given twice", at=lambda r: [r / "scene.tif", r / "scene.tif"], **SCENE),
    refused(
        "a scene without a system, and vectors elsewhere",
        lambda r: [without_crs(r), put(r / VECTORS, collection([feature(ring(1e5, 1, 1e5 + 9, 9), "road")]))],
        "scene.tif",
        "gdal_edit",
        **SCENE,
    ),
    refused(
        "options of scenes without vectors", itself, "class_column, buffer needs vectors", class_column="kind", buffer=3
    ),
    refused("an unknown band of a scene", itself, "'infrared'", "1 red", **replaced({"bands": ["infrared"]})),
    told("a polygon that crosses itself", geometry("Polygon", EIGHT), "1 self-crossing", lost=[CENTRE], **SCENE),
    told(
        "a polygon of two points",
        geometry("Polygon", [[at(14, 14), at(20, 20), at(14, 14)]]),
        VECTORS,
        lost=[CENTRE],
        **SCENE,
    ),
    told(
        "a polygon without an area",
        geometry("Polygon", [[at(14, 14), at(20, 20), at(17, 17), at(14, 14)]]),
        "1 polygon(s)",
        "without an area",
        lost=[CENTRE],
        **SCENE,
    ),
    told("no geometry", geometry("", None), "1 feature(s)", "without a geometry", lost=[CENTRE], **SCENE),
    told("an empty polygon", geometry("Polygon", []), "1 feature(s)", "without a geometry", lost=[CENTRE], **SCENE),
    told(
        "coordinates of 1e300",
        geometry("Polygon", [[at(14, 14), [1e300, 1e300], at(14, 22), at(14, 14)]]),
        lost=ALL,
        **SCENE,
    ),
    told(
        "a polygon over everything", geometry("Polygon", ring(-1e6, -1e6, 1e6, 1e6)["coordinates"]), lost=ALL, **SCENE
    ),
    told(
        "a collection of point and polygon",
        features(
            lambda found: found[4].update(
                geometry={
                    "type": "GeometryCollection",
                    "geometries": [found[4]["geometry"], {"type": "Point", "coordinates": at(1, 1)}],
                }
            )
        ),
        lost=[CENTRE],
        **SCENE,
    ),
    told(
        "a feature without a class",
        features(lambda found: found[4]["properties"].update(kind=None)),
        "1 feature(s)",
        "have no kind",
        lost=[CENTRE],
        **SCENE,
    ),
    told(
        "a feature far away",
        features(lambda found: found.append(feature(ring(5e4, 0, 6e4, 9), "roof"))),
        "1 of 9 feature(s)",
        "outside all windows",
        lost=(),
        **SCENE,
    ),
    told("a scene without a system", without_crs, "scene.tif: no coordinate reference system", lost=(), **SCENE),
    told("a scene smaller than the window", itself, lost=(), **replaced({"chip_size": 64})),
    told(
        "GeoJSON with a byte-order mark",
        lambda r: put(r / VECTORS, (r / VECTORS).read_text().encode("utf-8-sig")),
        lost=(),
        **SCENE,
    ),
    told(
        "classes with other letters and blanks",
        features(lambda found: found[4]["properties"].update(kind=" Größe, 日本 ")),
        lost=[CENTRE],
        **SCENE,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scenes(case, good):
    check(case, *good("scene", case))
