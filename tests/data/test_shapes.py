import numpy as np
import pytest
from rasterio.features import rasterize
from shapely.geometry import Polygon, mapping

from accel_geo.data import shapes

SQUARE = [2.2, 1.2, 6.7, 1.2, 6.7, 5.6, 2.2, 5.6]  # around the centres of columns 2..6, rows 1..5


def full(shape, size):
    mask, left, top = shapes.shape_mask(shape, size)
    result = np.zeros(size, dtype=bool)
    result[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    return result


def ring(*numbers):
    points = [list(point) for point in zip(numbers[::2], numbers[1::2])]
    return [*points, points[0]]


def geojson(kind, coordinates):
    return {"type": kind, "coordinates": coordinates}


def rle(mask):
    flat = mask.T.ravel().astype(int)
    edges = np.flatnonzero(np.diff(flat, prepend=0))
    runs = np.diff([0, *edges, len(flat)]).tolist()
    return {"size": list(mask.shape), "counts": runs}


def test_a_pixel_belongs_to_a_polygon_when_its_centre_lies_inside():
    expected = np.zeros((8, 10), dtype=bool)
    expected[1:6, 2:7] = True
    for shape in ([SQUARE], geojson("Polygon", [ring(*SQUARE)]), geojson("MultiPolygon", [[ring(*SQUARE)]])):
        np.testing.assert_array_equal(full(shape, (8, 10)), expected)


def test_parts_are_united_and_holes_stay_open():
    both = [SQUARE, [4, 3, 9, 3, 9, 7, 4, 7]]
    union = full([both[0]], (8, 10)) | full([both[1]], (8, 10))
    np.testing.assert_array_equal(full(both, (8, 10)), union)
    multi = geojson("MultiPolygon", [[ring(*part)] for part in both])
    np.testing.assert_array_equal(full(multi, (8, 10)), union)
    holed = geojson("Polygon", [ring(0, 0, 8, 0, 8, 8, 0, 8), ring(2, 2, 5, 2, 5, 5, 2, 5)])
    mask = full(holed, (8, 8))
    assert mask.sum() == 64 - 9 and not mask[2:5, 2:5].any()


def test_a_line_covers_every_pixel_that_it_touches():
    mask = full(geojson("LineString", [[0.5, 0.5], [3.5, 1.5]]), (4, 6))
    assert mask[0, 0] and mask[1, 3] and mask[0, 1] and mask[1, 2] and not mask[2:].any()
    assert full(geojson("LineString", [[3, 0.5], [3, 2.5]]), (4, 6))[:3, 3].all()  # on a side: the pixel after it
    two = geojson("MultiLineString", [[[0.5, 0.5], [2.5, 0.5]], [[0.5, 3.5], [2.5, 3.5]]])
    assert full(two, (4, 6)).sum() == 6


def test_shapes_that_reach_beyond_or_lie_outside():
    whole = full(geojson("Polygon", [ring(-3, -3, 30, -3, 30, 30, -3, 30)]), (5, 7))
    assert whole.all()
    for shape in (
        [[-9, -9, -2, -9, -2, -2]],
        [[20, 1, 30, 1, 30, 4]],
        geojson("LineString", [[-5, -5], [-1, -1]]),
        geojson("Polygon", []),
        geojson("MultiPolygon", []),
        [],
        [[1, 1, 2, 2]],
    ):
        assert not full(shape, (5, 7)).any()


def test_heights_of_points_do_not_matter():
    flat = geojson("Polygon", [ring(*SQUARE)])
    high = geojson("Polygon", [[[x, y, 7.5] for x, y in ring(*SQUARE)]])
    np.testing.assert_array_equal(full(high, (8, 10)), full(flat, (8, 10)))
    np.testing.assert_array_equal(shapes.outlines([high], (8, 10)), shapes.outlines([flat], (8, 10)))


def test_run_lengths_compressed_or_not():
    rng = np.random.default_rng(3)
    coco = pytest.importorskip("pycocotools.mask")
    for _ in range(20):
        mask = rng.random((9, 13)) < rng.random()
        packed = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        packed = {"size": packed["size"], "counts": packed["counts"].decode()}
        np.testing.assert_array_equal(full(packed, (9, 13)), mask)
        np.testing.assert_array_equal(full(rle(mask), (9, 13)), mask)


def test_a_window_holds_what_the_whole_chip_would():
    rng = np.random.default_rng(1)
    for _ in range(50):
        points = rng.uniform(-5, 25, (6, 2))
        shape = mapping(Polygon(points).convex_hull)
        whole = rasterize([(shape, 1)], out_shape=(16, 20), dtype="uint8")
        np.testing.assert_array_equal(full(shape, (16, 20)), whole)


def test_later_shapes_lie_on_top():
    square, bar = [SQUARE], geojson("LineString", [[0.5, 3.5], [9.5, 3.5]])
    mask = np.zeros((8, 10), dtype=bool)
    mask[3:, 5:] = True
    drawn = shapes.draw([square, bar, rle(mask), square], [7, -4, 300, 2**40], (8, 10))
    expected = np.zeros((8, 10), dtype=np.int64)
    for shape, value in zip([square, bar, rle(mask), square], [7, -4, 300, 2**40]):
        expected[full(shape, (8, 10))] = value
    assert drawn.dtype == np.int64
    np.testing.assert_array_equal(drawn, expected)
    assert not shapes.draw([], [], (3, 4)).any()


def test_outlines_are_the_pixels_that_the_sides_touch():
    edges = shapes.outlines([[SQUARE]], (8, 10))
    expected = np.zeros((8, 10), dtype=bool)
    expected[1:6, 2:7] = True
    expected[2:5, 3:6] = False
    np.testing.assert_array_equal(edges, expected)
    line = geojson("LineString", [[0.5, 0.5], [3.5, 1.5]])
    np.testing.assert_array_equal(shapes.outlines([line], (8, 10)), full(line, (8, 10)))
    assert not shapes.outlines([], (8, 10)).any()


def test_outlines_of_holes_and_every_part():
    holed = geojson("Polygon", [ring(1.5, 1.5, 12.5, 1.5, 12.5, 12.5, 1.5, 12.5), ring(5.5, 5.5, 8.5, 5.5, 8.5, 8.5)])
    edges = shapes.outlines([holed], (16, 16))
    assert edges[5, 6] and edges[1, 6] and not edges[3, 3]
    both = shapes.outlines([[SQUARE, [9.5, 9.5, 13.5, 9.5, 13.5, 13.5]]], (16, 16))
    assert both[1, 4] and both[9, 11]


def test_sides_on_the_border_or_beyond_it_are_no_outlines():
    cut = shapes.outlines([[[0, 0, 6.5, 0, 6.5, 8, 0, 8]]], (8, 10))  # cut by three borders
    assert cut[:, 6].all() and cut.sum() == 8
    beyond = shapes.outlines([geojson("Polygon", [ring(-4, -4, 6.5, -4, 6.5, 12, -4, 12)])], (8, 10))
    np.testing.assert_array_equal(beyond, cut)


def test_wide_outlines_hold_the_pixels_near_the_line():
    line = geojson("LineString", [[-5, 6], [30, 6]])
    assert np.flatnonzero(shapes.outlines([line], (16, 20), width=2).all(1)).tolist() == [5, 6]
    assert np.flatnonzero(shapes.outlines([line], (16, 20), width=4).all(1)).tolist() == [4, 5, 6, 7]
    near = geojson("LineString", [[-5, -1], [30, -1]])  # beyond the chip, but its width is not
    assert np.flatnonzero(shapes.outlines([near], (16, 20), width=4).all(1)).tolist() == [0]
    square = Polygon(ring(3.3, 3.3, 12.6, 3.3, 12.6, 12.6, 3.3, 12.6))
    y, x = np.mgrid[:16, :20] + 0.5
    from shapely import distance, points

    within = distance(points(np.stack([x, y], -1)), square.exterior) < 1.5
    np.testing.assert_array_equal(shapes.outlines([mapping(square)], (16, 20), width=3), within)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        shapes.outlines([line], (8, 8), width=0)


def test_run_lengths_have_the_outlines_of_their_pixels():
    mask = np.zeros((12, 12), dtype=bool)
    mask[3:8, 2:9] = True
    polygon = [[2, 3, 9, 3, 9, 8, 2, 8]]
    np.testing.assert_array_equal(full(polygon, (12, 12)), mask)
    for width in (1, 2, 3):
        np.testing.assert_array_equal(
            shapes.outlines([rle(mask)], (12, 12), width), shapes.outlines([polygon], (12, 12), width)
        )
    everything = rle(np.ones((12, 12), dtype=bool))
    assert not shapes.outlines([everything], (12, 12)).any()  # all sides are cuts


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (geojson("Point", [1, 2]), "'Point' cannot be drawn"),
        ({"size": [4, 4], "counts": [16]}, r"size \(4, 4\).*chip \(8, 10\)"),
        ({"size": [8, 10], "counts": [3, 4]}, "covers 7 pixels, the chip has 80"),
    ],
)
def test_what_cannot_be_drawn_is_named(shape, message):
    for call in (
        lambda: shapes.shape_mask(shape, (8, 10)),
        lambda: shapes.draw([shape], [1], (8, 10)),
        lambda: shapes.outlines([shape], (8, 10)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
