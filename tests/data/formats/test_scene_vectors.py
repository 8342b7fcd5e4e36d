import json
import zipfile
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from rasterio.crs import CRS
from rasterio.features import rasterize
from rasterio.warp import transform_geom
from rasterio.windows import Window

from accel_geo.data.formats.scene_vectors import TASKS, read_scenes
from accel_geo.data.formats.scene_windows import Scene, grid
from accel_geo.data.pixels import describe_bands, located, read_pixels
from accel_geo.data.shapes import draw, outlines, shape_mask

UTM, WGS = "EPSG:32633", "EPSG:4326"
LEFT, TOP, PIXEL = 500_000, 5_000_000, 2  # of the synthetic scene: 100 x 80 pixels


@pytest.fixture
def scene(tmp_path, write):
    """A function that writes a scene of 100 x 80 pixels of 2 m, or of another size."""

    def make(name: str = "scene.tif", bands: int = 3, size: tuple = (80, 100), crs: str | None = UTM, left: int = LEFT):
        pixels = np.random.default_rng(1).integers(1, 255, (bands, *size)).astype(np.uint8)
        place = rasterio.Affine(PIXEL, 0, left, 0, -PIXEL, TOP)
        return write(tmp_path / name, pixels, transform=place, crs=crs, tiled=True, blockxsize=16, blockysize=16)

    return make


@pytest.fixture
def vectors(tmp_path):
    """A function that writes geometries given in pixels of the synthetic scene."""

    def make(shapes, name: str = "objects.gpkg", crs: str | None = UTM, layer: str | None = None, **columns) -> Path:
        shapes = np.array(shapes, dtype=object)
        placed = shapely.transform(shapes, lambda xy: xy * [PIXEL, -PIXEL] + [LEFT, TOP])
        if crs and CRS.from_user_input(crs) != CRS.from_user_input(UTM):
            placed = shapely.transform(placed, lambda xy: np.stack(rasterio.warp.transform(UTM, crs, *xy.T), 1))
        fields = [values if isinstance(values, np.ndarray) else np.array(values) for values in columns.values()]
        options = {"layer": layer, "append": (tmp_path / name).exists()} if layer else {}
        pyogrio.raw.write(
            tmp_path / name, shapely.to_wkb(placed), fields, list(columns), geometry_type="Unknown", crs=crs, **options
        )
        return tmp_path / name

    return make


def shapes_of(row: dict) -> list[dict]:
    return [json.loads(text) for text in row["segments"]]


def drawn(row: dict) -> np.ndarray:
    return draw(shapes_of(row), row["values"], (row["window"][3], row["window"][2]))


def window_of(row: dict, whole: np.ndarray) -> np.ndarray:
    left, top, width, height = row["window"]
    return whole[..., top : top + height, left : left + width]


def rings(geometry: dict) -> dict:
    """The lines that bound polygons; lines as they are."""
    if "Line" in geometry["type"]:
        return geometry
    parts = geometry["coordinates"] if geometry["type"] == "MultiPolygon" else [geometry["coordinates"]]
    return {"type": "MultiLineString", "coordinates": [ring for part in parts for ring in part]}


def rasterized(scene: Path, vectors: Path, column: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Class values and edges of a whole scene by rasterio alone, from GeoJSON in WGS 84."""
    features = json.loads(vectors.read_text())["features"]
    names = sorted({feature["properties"].get(column) for feature in features}, key=str)
    with rasterio.open(scene) as source:
        place = {"out_shape": source.shape, "transform": source.transform}
        same = source.crs == CRS.from_epsg(4326)
        geometries = [f["geometry"] if same else transform_geom(WGS, source.crs, f["geometry"]) for f in features]
    values = [1 + names.index(feature["properties"].get(column)) for feature in features]
    classes = rasterize(list(zip(geometries, values)), dtype="int32", **place)
    edges = rasterize([(rings(g), 1) for g in geometries], dtype="uint8", all_touched=True, **place)
    return classes, edges.astype(bool)


REAL = [
    ("banepa_oam_osm/scene_banepa.tif", "banepa_oam_osm/buildings.geojson", "class"),
    ("kampala_oam_buildings/scene_kampala.tif", "kampala_oam_buildings/labels_wgs84.geojson", None),
]


@pytest.mark.parametrize(("scene", "vectors", "column"), REAL)
@pytest.mark.parametrize(("size", "stride"), [(512, None), ((300, 420), (250, 333))])
def test_labels_of_windows_are_those_of_the_whole_scene_cut(shared, scene, vectors, column, size, stride):
    scene, vectors = shared / "data" / scene, shared / "data" / vectors
    classes, edges = rasterized(scene, vectors, column)
    options = {"class_column": column, "size": size, "stride": stride}
    semantic, covered = read_scenes(scene, vectors, task="semantic", **options).dataset, np.zeros(classes.shape, bool)
    for row in semantic:
        np.testing.assert_array_equal(drawn(row), window_of(row, classes))
        window_of(row, covered)[:] = True
    assert covered.all() and classes.any()
    for row in read_scenes(scene, vectors, task="edges", **options).dataset:
        got = outlines(shapes_of(row), (row["window"][3], row["window"][2]))
        np.testing.assert_array_equal(got, window_of(row, edges))


@pytest.mark.parametrize(("scene", "vectors", "column"), REAL)
def test_pixels_of_windows_are_those_of_chips_that_were_cut(shared, tmp_path, scene, vectors, column):
    scene, vectors = shared / "data" / scene, shared / "data" / vectors
    rows = read_scenes(scene, vectors, task="semantic", size=500)
    bands = describe_bands(scene, None)
    with rasterio.open(scene) as source:
        for row in rows.dataset.select(range(0, len(rows.dataset), 7)):
            window = Window(*row["window"])
            shape = {"count": source.count, "width": window.width, "height": window.height}
            with rasterio.open(
                tmp_path / "chip.tif", "w", driver="GTiff", dtype=source.dtypes[0], nodata=source.nodata, **shape
            ) as chip:
                chip.write(source.read(window=window))
            cut = read_pixels(tmp_path / "chip.tif", bands)
            got = read_pixels(located(rows.root, row["file"]), bands, row["window"])
            np.testing.assert_array_equal(got.values, cut.values)
            for mine, theirs in ((got.missing, cut.missing), (got.ignored, cut.ignored)):
                assert (mine is None) == (theirs is None)
                np.testing.assert_array_equal(0 if mine is None else mine, 0 if theirs is None else theirs)


def test_objects_of_windows_are_those_of_the_whole_scene_cut(shared):
    folder = shared / "data" / "banepa_oam_osm"
    rows = read_scenes(folder / "scene_banepa.tif", folder / "buildings.geojson", task="instances", size=512)
    features = json.loads((folder / "buildings.geojson").read_text())["features"]
    with rasterio.open(rows.root / "scene_banepa.tif") as source:
        place, bounds = ~source.transform, source.bounds
        shape = source.shape
    expected = {}
    for feature in features:
        polygon = shapely.geometry.shape(feature["geometry"])
        if not polygon.intersects(shapely.box(*bounds)):
            continue
        pixels = shapely.transform(polygon, lambda xy: np.stack(place * xy.T, 1))
        mask, left, top = shape_mask(shapely.geometry.mapping(pixels), shape)
        ys, xs = np.nonzero(mask)
        places, counts = np.unique((ys + top) // 512 * 100 + (xs + left) // 512, return_counts=True)
        for number, count in zip(places.tolist(), counts.tolist()):
            expected.setdefault((number % 100 * 512, number // 100 * 512), []).append(count)
    total = 0
    for row in rows.dataset:
        masks = [shape_mask(shape, (512, 512))[0] for shape in shapes_of(row)]
        mine = sorted(int(mask.sum()) for mask in masks if mask.any())
        theirs = sorted(expected.get((row["window"][0], row["window"][1]), []))
        missing = list(theirs)
        for count in mine:
            missing.remove(count)
        # What is left out is small against the window; whole objects are not.
        assert all(count < 0.012 * 512**2 for count in missing)
        total += len(missing)
    assert 0 < total <= 183 and any("183 piece(s)" in problem for problem in rows.problems)


def test_roads_to_edges(shared):
    folder = shared / "data" / "spacenet_vegas_roads"
    options = {"paths": folder / "scene_vegas_rgba.tif", "vectors": folder / "roads.geojson", "size": 325}
    lines, roads, areas = (np.zeros((1300, 1300), dtype=bool) for _ in range(3))
    for row in read_scenes(task="edges", **options).dataset:
        window_of(row, lines)[:] = outlines(shapes_of(row), (325, 325))
        window_of(row, roads)[:] = outlines(shapes_of(row), (325, 325), width=16)
    for row in read_scenes(task="semantic", buffer=8 * 2.7e-6, **options).dataset:
        window_of(row, areas)[:] = drawn(row) > 0
    with rasterio.open(folder / "centerline.png") as centre, rasterio.open(folder / "road_mask.png") as mask:
        np.testing.assert_array_equal(lines, centre.read(1) > 0)
        np.testing.assert_array_equal(roads, mask.read(1) > 0)
        assert np.count_nonzero(areas != (mask.read(1) > 0)) < 10  # a buffer is a polygon of many sides
    rows = read_scenes(task="edges", **options)
    bands = describe_bands(rows.root / "scene_vegas_rgba.tif", None)
    assert (bands.count, bands.alpha) == (3, True)
    assert read_pixels(rows.root / "scene_vegas_rgba.tif", bands, rows.dataset[5]["window"]).missing is None


@pytest.mark.parametrize(
    ("length", "size", "stride", "starts"),
    [
        (100, 32, 32, [0, 32, 64, 68]),
        (96, 32, 32, [0, 32, 64]),
        (100, 32, 20, [0, 20, 40, 60, 68]),
        (100, 32, 50, [0, 50]),
        (100, 100, 100, [0]),
        (20, 32, 32, [0]),
    ],
)
def test_windows_stay_inside_where_the_scene_is_large_enough(length, size, stride, starts):
    place = Scene("s", 50, length, 1, rasterio.Affine.identity(), None)
    windows = grid(place, (size, 50), (stride, 50))
    assert windows.tolist() == [[0, start, 50, size] for start in starts]
    place = Scene("s", length, 50, 1, rasterio.Affine.identity(), None)
    assert grid(place, (50, size), (50, stride))[:, 0].tolist() == starts


def test_rows_are_in_order_of_rows_of_windows(scene, vectors):
    file = vectors([shapely.box(10, 10, 20, 20)])
    rows = read_scenes(scene(), file, task="semantic", size=(40, 32))
    assert rows.dataset["window"][:] == [[x, y, 32, 40] for y in (0, 40) for x in (0, 32, 64, 68)]
    assert set(rows.dataset["file"]) == {"scene.tif"} and set(rows.dataset["group"]) == {""}
    assert rows.classes == {1: "objects"} and rows.named and rows.sources == [file]
    assert rows.dataset["values"][0] == [1] and rows.dataset["values"][1:] == [[]] * 7
    assert read_scenes(scene(), file, task="semantic", size=(40, 32), keep_empty=False).dataset["values"][:] == [[1]]


def test_a_scene_smaller_than_a_window(scene, vectors):
    rows = read_scenes(scene(), vectors([shapely.box(60, 60, 140, 140)]), task="semantic", size=128)
    assert rows.dataset["window"][:] == [[0, 0, 128, 128]]
    pixels = read_pixels(rows.root / "scene.tif", describe_bands(rows.root / "scene.tif", None), [0, 0, 128, 128])
    assert pixels.ignored.sum() == 128**2 - 100 * 80 and not pixels.ignored[:80, :100].any()
    mask = drawn(rows.dataset[0])
    assert mask[60:80, 60:100].all() and not mask[:60].any()


def test_a_window_without_data(tmp_path, write, vectors):
    pixels = np.full((1, 80, 100), 7, dtype=np.uint8)
    pixels[:, :40, :50] = 0
    place = {"transform": rasterio.Affine(PIXEL, 0, LEFT, 0, -PIXEL, TOP), "crs": UTM}
    file = write(tmp_path / "scene.tif", pixels, nodata=0, **place)
    rows = read_scenes(file, vectors([shapely.box(10, 10, 20, 20)]), task="semantic", size=(40, 50))
    bands = describe_bands(file, None)
    ignored = [read_pixels(file, bands, row["window"]).ignored for row in rows.dataset]
    assert ignored[0].all() and all(mask is None for mask in ignored[1:])


def test_numbers_are_class_values_and_texts_are_numbered(scene, vectors):
    boxes = [shapely.box(x, 10, x + 8, 18) for x in (0, 10, 20, 30, 40)]
    texts = np.array(["tin", " clay ", None, "", "tin"], dtype=object)
    file = vectors(boxes, kind=texts, number=[7, 3, 0, -1, 3], share=np.array([1.0, 2.0, np.nan, 4.0, 1.0]))
    rows = read_scenes(scene(), file, task="semantic", class_column="kind", size=(80, 100))
    assert rows.classes == {1: "clay", 2: "tin"} and rows.named and rows.dataset["values"][0] == [2, 1, 2]
    assert rows.problems == ["2 feature(s) of objects.gpkg have no kind and were left out"]
    rows = read_scenes(scene(), file, task="semantic", class_column="NUMBER", size=(80, 100))
    assert rows.classes == {3: "3", 7: "7"} and not rows.named and rows.dataset["values"][0] == [7, 3, 0, -1, 3]
    rows = read_scenes(scene(), file, task="detection", class_column="number", size=(80, 100))
    assert rows.classes == {3: "3", 7: "7"} and rows.dataset["values"][0] == [7, 3, 3]
    assert "2 feature(s)" in rows.problems[0] and "not above 0" in rows.problems[0]
    rows = read_scenes(scene(), file, task="panoptic", class_column="share", size=(80, 100))
    assert rows.classes == {1: "1", 2: "2", 4: "4"} and rows.things == {1, 2, 4}
    file = vectors(boxes[:1], "b.gpkg", share=[1.5])
    with pytest.raises(ValueError, match="'share' of .*b.gpkg holds 1.5; class values must be whole numbers"):
        read_scenes(scene(), file, task="semantic", class_column="share", size=32)


def test_later_features_lie_on_top_and_values_return(scene, vectors):
    file = vectors([shapely.box(0, 0, 40, 40), shapely.box(10, 10, 20, 20)], kind=[9, 4])
    rows = read_scenes(scene(), file, task="semantic", class_column="kind", size=64)
    mask = drawn(rows.dataset[0])
    assert (mask[10:20, 10:20] == 4).all() and (mask == 9).sum() == 1600 - 100


def test_features_of_several_parts_curves_and_heights(scene, tmp_path, vectors):
    two = shapely.multipolygons([shapely.box(2, 2, 8, 8), shapely.box(20, 2, 26, 8)])
    high = shapely.from_wkt("POLYGON Z ((40 2 9, 46 2 9, 46 8 9, 40 8 9, 40 2 9))")
    rows = read_scenes(scene(), vectors([two, high]), task="instances", size=64)
    masks = [shape_mask(shape, (64, 64))[0] for shape in shapes_of(rows.dataset[0])]
    assert [int(mask.sum()) for mask in masks] == [72, 36]
    split = read_scenes(scene(), vectors([two]), task="instances", size=(64, 16), stride=16)
    assert [len(values) for values in split.dataset["values"]][:3] == [1, 1, 0]
    text = f"CURVEPOLYGON(CIRCULARSTRING({LEFT} {TOP - 40},{LEFT + 40} {TOP - 40},{LEFT} {TOP - 40}))"
    (tmp_path / "round.csv").write_text(f'WKT,kind\n"{text}",1\n')
    (tmp_path / "round.prj").write_text(CRS.from_user_input(UTM).to_wkt())
    rows = read_scenes(scene(), tmp_path / "round.csv", task="semantic", size=64)
    assert abs((drawn(rows.dataset[0]) > 0).sum() - np.pi * 100) < 8


def test_self_crossing_polygons_are_repaired(scene, vectors):
    crossing = shapely.Polygon([(5.2, 5.1), (25.3, 24.2), (26.1, 5.2), (4.7, 25.6)])
    flat = shapely.Polygon([(5, 5), (25, 5), (15, 5)])
    file = vectors([crossing, flat, shapely.box(40, 40, 50, 50), None])
    rows = read_scenes(scene(), file, task="semantic", size=64)
    assert rows.problems == [
        "1 feature(s) of objects.gpkg without a geometry that can be used were left out",
        "1 polygon(s) of objects.gpkg without an area were left out",
        "1 self-crossing or otherwise invalid shape(s) of objects.gpkg were repaired",
    ]
    expected = rasterize([(crossing, 1), (shapely.box(40, 40, 50, 50), 1)], out_shape=(64, 64))
    np.testing.assert_array_equal(drawn(rows.dataset[0]), expected)


def test_features_outside_are_counted(scene, vectors):
    file = vectors([shapely.box(10, 10, 20, 20), shapely.box(500, 10, 520, 20), shapely.box(100.5, 0, 120, 9)])
    rows = read_scenes(scene(), file, task="semantic", size=32)
    assert rows.problems == ["2 of 3 feature(s) of objects.gpkg lie outside all windows"]
    with pytest.raises(ValueError, match=r"none of the 1 features .* lies in a window: .*x 501000\.\..*EPSG:32633"):
        read_scenes(scene(), vectors([shapely.box(500, 0, 600, 90)], "far.gpkg"), task="semantic", size=32)


def test_features_at_the_ends_of_the_earth_do_no_harm(scene, tmp_path):
    shapes = [
        {"type": "Polygon", "coordinates": [[[-180, -90], [180, -90], [180, 90], [-180, 90], [-180, -90]]]},
        {"type": "Polygon", "coordinates": [[[100, -90], [120, -90], [120, -60], [100, -90]]]},
    ]
    features = [{"type": "Feature", "properties": {}, "geometry": shape} for shape in shapes]
    (tmp_path / "world.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    rows = read_scenes(scene(), tmp_path / "world.geojson", task="semantic", size=64)
    assert all(drawn(row).all() for row in rows.dataset) and "1 of 2 feature(s)" in rows.problems[0]


def test_vectors_in_another_system(scene, vectors):
    box = shapely.box(10.2, 10.2, 30.7, 20.6)
    here = read_scenes(scene(), vectors([box]), task="semantic", size=64).dataset
    there = read_scenes(scene(), vectors([box], "wgs.gpkg", WGS), task="semantic", size=64).dataset
    for mine, theirs in zip(here, there):
        np.testing.assert_array_equal(drawn(mine), drawn(theirs))
    with pytest.raises(ValueError, match="cannot be transformed|lies in a window"):
        wrong = vectors([box], "wrong.gpkg")
        pyogrio.raw.write(
            wrong, shapely.to_wkb(np.array([shapely.box(5e5, 4e6, 6e5, 5e6)])), [], [], crs=WGS, geometry_type="Polygon"
        )
        read_scenes(scene(), wrong, task="semantic", size=64)


@pytest.mark.filterwarnings("ignore:'crs' was not provided")
def test_without_a_reference_system(scene, vectors):
    box = shapely.box(10, 10, 30, 20)
    bare, placed = vectors([box], "bare.gpkg", None), vectors([box])
    for file, crs, lacking in (
        (bare, UTM, "bare.gpkg"),
        (placed, None, "scene.tif"),
        (bare, None, "bare.gpkg and scene"),
    ):
        rows = read_scenes(scene(crs=crs), file, task="semantic", size=64)
        assert (drawn(rows.dataset[0]) > 0).sum() == 200
        assert lacking in rows.problems[0] and "no coordinate reference system" in rows.problems[0]
    degrees = vectors([box], "degrees.geojson", WGS)
    with pytest.raises(ValueError, match=r"scene.tif: no coordinate reference system.*do not meet.*-a_srs"):
        read_scenes(scene(crs=None), degrees, task="semantic", size=64)


def test_a_scene_placed_by_control_points_only(tmp_path, write, vectors):
    points = [rasterio.control.GroundControlPoint(r, c, 10 + c, 50 - r) for r, c in ((0, 0), (0, 9), (9, 0), (9, 9))]
    file = write(tmp_path / "raw.tif", np.ones((1, 20, 20), np.uint8))
    with rasterio.open(file, "r+") as raster:
        raster.gcps = points, CRS.from_epsg(4326)
    with pytest.raises(ValueError, match="raw.tif lies on the map by control points.*gdalwarp"):
        read_scenes(file, vectors([shapely.box(1, 1, 2, 2)]), task="semantic", size=8)


def test_a_turned_scene(tmp_path, write):
    place = rasterio.Affine.translation(LEFT, TOP) * rasterio.Affine.rotation(30) * rasterio.Affine.scale(2, -2)
    file = write(tmp_path / "turned.tif", np.ones((1, 64, 64), np.uint8), transform=place, crs=UTM)
    box = shapely.box(10.2, 20.2, 30.2, 40.2)
    there = shapely.transform(box, lambda xy: np.stack(place * xy.T, 1))
    pyogrio.raw.write(tmp_path / "v.gpkg", shapely.to_wkb(np.array([there])), [], [], crs=UTM, geometry_type="Polygon")
    rows = read_scenes(file, tmp_path / "v.gpkg", task="semantic", size=64)
    np.testing.assert_array_equal(drawn(rows.dataset[0]), rasterize([(box, 1)], out_shape=(64, 64)))


def test_several_layers(scene, vectors, tmp_path):
    box = shapely.box(10, 10, 20, 20)
    vectors([box], layer="roofs", kind=[1])
    rows = read_scenes(
        scene(),
        vectors([box, box], layer="walls", kind=[5, 6]).parent / "objects.gpkg|layername=walls",
        task="semantic",
        class_column="kind",
        size=64,
    )
    assert rows.classes == {5: "5", 6: "6"} and rows.sources == [tmp_path / "objects.gpkg"]
    with pytest.raises(ValueError, match=r"2 layers with geometry \(roofs, walls\).*layername="):
        read_scenes(scene(), tmp_path / "objects.gpkg", task="semantic", size=64)
    with pytest.raises(ValueError, match="no layer 'doors' with geometry; there are: roofs, walls"):
        read_scenes(scene(), f"{tmp_path}/objects.gpkg|layername=doors", task="semantic", size=64)


def test_shapefiles_and_zips_of_them(scene, vectors, tmp_path):
    file = vectors([shapely.box(10, 10, 20, 20)], "roofs.shp", kind=[3])
    with zipfile.ZipFile(tmp_path / "roofs.zip", "w") as archive:
        for part in tmp_path.glob("roofs.*"):
            if part.suffix != ".zip":
                archive.write(part, part.name)
    for path in (file, tmp_path / "roofs.zip"):
        rows = read_scenes(scene(), path, task="semantic", class_column="kind", size=64)
        assert rows.classes == {3: "3"} and (drawn(rows.dataset[0]) == 3).sum() == 100


def test_points_and_lines(scene, vectors):
    point, line = shapely.Point(20.3, 20.1), shapely.LineString([(40.3, 10.4), (50.3, 10.4)])
    both = vectors([point, line])
    for task in TASKS:
        with pytest.raises(ValueError, match="1 points.*buffer"):
            read_scenes(scene(), both, task=task, size=64)
    rows = read_scenes(scene(), both, task="semantic", size=64, buffer=10)  # metres: 5 pixels
    mask = drawn(rows.dataset[0])
    assert abs((mask[:, :30] > 0).sum() - np.pi * 25) < 5 and abs((mask[:, 30:] > 0).sum() - (100 + np.pi * 25)) < 8
    thin = vectors([line], "line.gpkg")
    assert (drawn(read_scenes(scene(), thin, task="semantic", size=64).dataset[0]) > 0).sum() == 11
    assert read_scenes(scene(), thin, task="instances", size=64).dataset["values"][0] == [1]
    with pytest.raises(ValueError, match="1 lines.*buffer"):
        read_scenes(scene(), thin, task="classification", size=64)
    polygons = vectors([shapely.box(1, 1, 9, 9)], "box.gpkg")
    rows = read_scenes(scene(), polygons, task="semantic", size=64, buffer=10)
    assert "not widened" in rows.problems[0] and (drawn(rows.dataset[0]) > 0).sum() == 64


def test_sides_made_by_cutting_are_no_edges(scene, vectors):
    file = vectors([shapely.box(5.5, 5.5, 95.5, 75.5)])
    for row in read_scenes(scene(), file, task="edges", size=(40, 50)).dataset:
        left, top, width, height = row["window"]
        whole = outlines([shapely.geometry.mapping(shapely.box(5.5, 5.5, 95.5, 75.5))], (80, 100), width=3)
        got = outlines(shapes_of(row), (height, width), width=3)
        np.testing.assert_array_equal(got, whole[top : top + height, left : left + width])


def test_an_edge_beyond_the_window_reaches_into_it_by_its_width(scene, vectors):
    rows = read_scenes(scene(), vectors([shapely.box(51.5, 10, 60, 20)]), task="edges", size=(80, 50))
    assert outlines(shapes_of(rows.dataset[0]), (80, 50), width=6)[12:18, 49].all()


def test_pieces_of_objects(scene, vectors):
    objects = [
        shapely.box(20, 10, 50.9, 20),  # 9 of 309 pixels in the second window
        shapely.box(45, 30, 55, 40),  # half and half
        shapely.box(0, 50, 100, 79),  # vast: half of it is seen, in both
        shapely.box(49.5, 5, 50.5, 6),  # half a pixel on each side
        shapely.box(80, 10, 80.9, 10.9),  # small but whole
    ]
    rows = read_scenes(
        scene(), vectors(objects, kind=[1, 2, 3, 4, 5]), task="instances", class_column="kind", size=(80, 50)
    )
    assert rows.dataset["values"][:] == [[1, 2, 3], [2, 3, 5]]
    assert rows.problems == ["3 piece(s) of objects cut by windows of scene.tif are too small: left out"]
    semantic = read_scenes(scene(), vectors(objects), task="semantic", size=(80, 50))
    assert [len(values) for values in semantic.dataset["values"]] == [4, 5] and not semantic.problems
    lines = vectors(
        [shapely.LineString([(0.5, 10.5), (99, 10.5)]), shapely.LineString([(0.5, 30.5), (51, 30.5)])], "l.gpkg"
    )
    rows = read_scenes(scene(), lines, task="detection", size=(80, 50))
    assert [len(values) for values in rows.dataset["values"]] == [2, 1]


def test_a_vast_object_is_seen_in_each_window_that_it_fills(scene, vectors):
    rows = read_scenes(scene(), vectors([shapely.box(-900, -900, 900, 900)]), task="detection", size=16)
    assert all(values == [1] for values in rows.dataset["values"])
    assert all(shapely.geometry.shape(shapes_of(row)[0]).area < 50**2 for row in rows.dataset)


def test_classification_takes_the_class_that_covers_most(scene, vectors):
    objects = [
        shapely.box(0, 0, 30, 40),
        shapely.box(30, 0, 42, 40),
        shapely.box(42, 0, 50, 40),
        shapely.box(60, 0, 70, 10),
    ]
    file = vectors(objects, kind=np.array(["meadow", "forest", "meadow", "forest"], dtype=object))
    rows = read_scenes(scene(), file, task="classification", class_column="kind", size=(40, 50))
    assert rows.classes == {1: "forest", 2: "meadow"}
    assert rows.dataset["values"][:] == [[2], [1], [], []] and not any(rows.dataset["segments"][:])
    even = vectors([shapely.box(0, 0, 10, 10), shapely.box(20, 0, 30, 10)], "even.gpkg", kind=[8, 5])
    assert read_scenes(scene(), even, task="classification", class_column="kind", size=64).dataset["values"][0] == [5]


def test_an_area_of_interest(scene, vectors):
    objects, area = vectors([shapely.box(0, 0, 100, 80)]), vectors([shapely.box(0, 0, 55, 41)], "area.gpkg", WGS)
    rows = read_scenes(scene(), objects, task="semantic", size=(20, 20), area=area)
    assert rows.dataset["window"][:] == [[x, y, 20, 20] for y in (0, 20) for x in (0, 20, 40)]
    assert rows.sources == [objects, area]
    far = vectors([shapely.box(300, 300, 400, 400)], "far.gpkg")
    with pytest.raises(ValueError, match="no window|none of the"):
        read_scenes(scene(), objects, task="semantic", size=20, area=far)
    with pytest.raises(ValueError, match="must hold polygons"):
        read_scenes(scene(), objects, task="semantic", size=20, area=vectors([shapely.Point(1, 1)], "p.gpkg"))


def test_several_scenes(scene, vectors, tmp_path, write):
    first, second = scene("a/one.tif"), scene("b/two.tif", left=LEFT + 200)
    file = vectors([shapely.box(10, 10, 20, 20), shapely.box(110, 10, 120, 20)])
    listed = read_scenes([second, first], file, task="semantic", size=(80, 100))
    assert listed.root == tmp_path and listed.dataset["file"][:] == ["a/one.tif", "b/two.tif"]
    assert listed.dataset["group"][:] == ["a/one.tif", "b/two.tif"]
    assert read_scenes(tmp_path, file, task="semantic", size=(80, 100)).dataset["file"][:] == listed.dataset["file"][:]
    for row in listed.dataset:
        assert drawn(row)[10:20, 10:20].all() and (drawn(row) > 0).sum() == 100
    with pytest.raises(ValueError, match="given twice: a/one.tif"):
        read_scenes([first, second, first], file, task="semantic", size=32)


def test_scenes_in_two_systems(scene, vectors, tmp_path, write):
    scene("utm.tif")
    corners = rasterio.warp.transform(UTM, WGS, [LEFT, LEFT + 200], [TOP, TOP - 160])
    (left, right), (top, bottom) = corners
    place = rasterio.transform.from_bounds(left, bottom, right, top, 100, 80)
    write(tmp_path / "wgs.tif", np.ones((3, 80, 100), np.uint8), transform=place, crs=WGS)
    file = vectors([shapely.box(10.3, 10.3, 30.3, 20.3)])
    utm, wgs = read_scenes(tmp_path, file, task="semantic", size=(80, 100)).dataset
    assert (utm["file"], wgs["file"]) == ("utm.tif", "wgs.tif")
    np.testing.assert_array_equal(drawn(utm), drawn(wgs))


def test_scenes_of_different_bands_are_refused(scene, vectors, tmp_path, write):
    first, second = scene("one.tif"), scene("two.tif", bands=2)
    file = vectors([shapely.box(10, 10, 20, 20)])
    with pytest.raises(ValueError, match=r"one.tif has 3, others have not: two.tif \(2\)"):
        read_scenes([first, second], file, task="semantic", size=32)
    pixels = np.full((4, 80, 100), 255, dtype=np.uint8)
    place = rasterio.Affine(PIXEL, 0, LEFT, 0, -PIXEL, TOP)
    third = write(tmp_path / "rgba.tif", pixels, transform=place, crs=UTM, photometric="rgb", alpha="yes")
    assert len(read_scenes([first, third], file, task="semantic", size=(80, 100)).dataset) == 2


def test_whatever_gdal_opens(scene, vectors, tmp_path):
    file, objects = scene(), vectors([shapely.box(10, 10, 20, 20)])
    with zipfile.ZipFile(tmp_path / "scenes.zip", "w") as archive:
        archive.write(file, "scene.tif")
    zipped = f"/vsizip/{tmp_path}/scenes.zip/scene.tif"
    text = f'<VRTDataset rasterXSize="100" rasterYSize="80"><SRS>{UTM}</SRS><GeoTransform>{LEFT},2,0,{TOP},0,-2</GeoTransform>'
    for band in (1, 2, 3):
        source = f"<SourceFilename>{file}</SourceFilename><SourceBand>{band}</SourceBand>"
        text += f'<VRTRasterBand dataType="Byte" band="{band}"><SimpleSource>{source}</SimpleSource></VRTRasterBand>'
    (tmp_path / "scene.vrt").write_text(text + "</VRTDataset>")
    bands = describe_bands(file, None)
    for path, name in ((zipped, zipped), (tmp_path / "scene.vrt", "scene.vrt")):
        rows = read_scenes(path, objects, task="semantic", size=32)
        assert set(rows.dataset["file"]) == {name}
        row = rows.dataset[5]
        got = read_pixels(located(rows.root, row["file"]), bands, row["window"])
        np.testing.assert_array_equal(got.values, read_pixels(file, bands, row["window"]).values)


def broken(tmp_path: Path, scene, vectors) -> dict:
    """What is wrong, the arguments that it is wrong in, and what the message says."""
    box, line = shapely.box(10, 10, 20, 20), shapely.LineString([(0, 0), (9, 9)])
    good, image = vectors([box], "good.gpkg", kind=[1], built=[1999]), scene()
    (tmp_path / "empty.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    (tmp_path / "text.gpkg").write_text("no GeoPackage")
    (tmp_path / "bad.tif").write_bytes(image.read_bytes()[:100])
    (tmp_path / "none").mkdir()
    point = {"type": "Feature", "properties": {"kind": 1}, "geometry": None}
    (tmp_path / "null.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": [point]}))
    return {
        "no vectors": ({"vectors": tmp_path / "no.gpkg"}, "no.gpkg not found"),
        "no scene": ({"paths": tmp_path / "no.tif"}, "no.tif not found"),
        "vectors unreadable": ({"vectors": tmp_path / "text.gpkg"}, "text.gpkg cannot be read"),
        "raster as vectors": ({"vectors": image}, "scene.tif cannot be read"),
        "scene unreadable": ({"paths": tmp_path / "bad.tif"}, "bad.tif cannot be read"),
        "vectors as scene": ({"paths": good}, "good.gpkg cannot be read"),
        "empty folder": ({"paths": tmp_path / "none"}, "none holds no rasters"),
        "no paths": ({"paths": []}, "no scene was given"),
        "empty layer": ({"vectors": tmp_path / "empty.geojson"}, "no feature that can be used"),
        "no geometry": ({"vectors": tmp_path / "null.geojson"}, "layers with geometry|no feature that can be used"),
        "no column": ({"class_column": "klass"}, "no column 'klass'; the columns are: kind, built"),
        "area lines": ({"area": vectors([line], "line.gpkg")}, "must hold polygons"),
        "task": ({"task": "super_resolution"}, "cannot serve the task 'super_resolution'"),
        "size": ({"size": (0, 32)}, r"size of windows is \(0, 32\)"),
        "stride": ({"stride": -4}, r"stride of windows is \(-4, -4\)"),
        "buffer": ({"buffer": 0.0}, "must be above 0"),
    }


def test_what_is_wrong_is_named(tmp_path, scene, vectors):
    good = {"paths": scene(), "vectors": tmp_path / "good.gpkg", "task": "semantic", "size": 32}
    for what, (arguments, message) in broken(tmp_path, scene, vectors).items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            read_scenes(**{**good, **arguments})
            pytest.fail(f"{what} was not refused")
    assert len(read_scenes(**good).dataset) == 12
