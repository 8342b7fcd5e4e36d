"""CSV: DeepForest's files, polygons, background chips, and lines that are none."""

import json

import numpy as np
import pytest

from accel_geo.data.formats import csv_boxes

HEAD = "image_path,xmin,ymin,xmax,ymax,label\n"


@pytest.fixture
def folder(tmp_path, write):
    """A function that writes files and makes chips."""

    def make(files: dict[str, str | bytes], chips: list[str]):
        for chip in chips:
            write(tmp_path / chip, np.full((3, 20, 40), 5, dtype=np.uint8))
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return make


def test_tree_crowns(shared):
    root = shared / "data" / "neon_tree_crowns"
    assert csv_boxes.recognise(root)
    rows = csv_boxes.read(root, "detection")
    assert {row["file"].split("_")[1]: len(row["values"]) for row in rows.dataset} == {
        "SJER": 7,
        "BLAN": 4,
        "029.tif": 61,
    }
    assert rows.classes == {0: "0", 1: "Tree"} and rows.named and rows.closed and rows.zero_is_class
    assert rows.dataset[2]["boxes"][:4] == [203, 67, 227, 90]
    assert rows.dataset[0]["boxes"][:4] == [313.02652, 208.67921, 394.21036, 283.95688]
    assert rows.dataset[1]["boxes"][:4] == [737, 630, 817, 714]  # of the file with boxes, not around the polygons
    text = "\n".join(rows.problems)
    assert "4 line(s) of 2019_BLAN_3_751000_4330000_image_crop_polygon.csv" in text
    assert "2 image(s) on disk that no line names were left out" in text and "SOAP_061.png" in text


def test_tree_crowns_as_polygons(shared):
    root = shared / "data" / "neon_tree_crowns"
    rows = csv_boxes.read(root, "instances")
    assert [len(row["segments"]) for row in rows.dataset] == [4] and rows.classes == {1: "Tree"}
    shape = json.loads(rows.dataset[0]["segments"][0])
    assert shape["type"] == "Polygon" and len(shape["coordinates"][0]) == 35  # the drawn one, not the box's corners
    rows = csv_boxes.read(root / "2019_BLAN_3_751000_4330000_image_crop_polygon.csv", "detection")
    assert rows.dataset[0]["boxes"][:4] == [736.5, 629.5, 817.5, 714.5] and len(rows.dataset) == 1


def test_one_file(shared):
    rows = csv_boxes.read(shared / "data" / "neon_tree_crowns" / "OSBS_029.csv", "detection")
    assert rows.dataset["file"][:] == ["OSBS_029.tif"] and rows.sources[0].name == "OSBS_029.csv"


@pytest.mark.parametrize("name", ["KITTI_rectangles", "YOLO", "PASCAL_VOC_rectangles", "Classified_Tiles", "COCO"])
def test_other_exports_are_not_claimed(shared, name):
    assert not csv_boxes.recognise(shared / "data" / "esri_exports" / name)


def test_other_tables_are_not_claimed(folder):
    root = folder({"a.csv": "name,r,g,b\nroad,1,2,3\n", "b.csv": "", "c.csv": "image_path,label\na.png,x\n"}, ["a.png"])
    assert not csv_boxes.recognise(root)
    with pytest.raises(ValueError, match="is no table of boxes"):
        csv_boxes.read(root, "detection")


@pytest.mark.parametrize(
    "head",
    [
        "Image_Path,XMIN,ymin,xmax,ymax,Label",
        "image_path;xmin;ymin;xmax;ymax;label",
        '"filename"\t"xmin"\t"ymin"\t"xmax"\t"ymax"\t"class"',
        "label,ymax,xmax,ymin,xmin,image_path",
    ],
)
@pytest.mark.parametrize("code", ["utf-8", "utf-8-sig", "utf-16"])
def test_headers(folder, head, code):
    delimiter = next(d for d in ";\t," if d in head)
    cells = {"xmin": "1.5", "ymin": "2", "xmax": "3", "ymax": "4e0", "label": "Kiefer ä", "class": "Kiefer ä"}
    cells |= {"image_path": '"ä 1.png"', "filename": '"ä 1.png"'}
    line = delimiter.join(cells[name.strip('"').lower()] for name in head.split(delimiter))
    root = folder({"x.csv": f"{head}\r\n{line}\r\n\r\n".encode(code)}, ["ä 1.png"])
    assert csv_boxes.recognise(root)
    rows = csv_boxes.read(root, "detection")
    assert rows.dataset["boxes"][:] == [[1.5, 2, 3, 4]] and rows.classes == {1: "Kiefer ä"} and not rows.problems


def test_where_images_are_found(folder):
    lines = "images/a.png,0,0,1,1,1\nb.png,0,0,1,1,2\nC:\\lost\\folder\\C.PNG,0,0,1,1,3\n../images/a.png,1,1,2,2,1\n"
    lines += "gone.png,0,0,1,1,4\n/lost/deep/d.png,0,0,1,1,5\ne.png,0,0,1,1,6\n"
    chips = [f"images/{name}.png" for name in ("a", "b", "c", "deep/d", "x/e", "y/e")]
    root = folder({"annotations/all.csv": HEAD + lines}, chips)
    rows = csv_boxes.read(root, "detection")
    assert {row["file"]: row["values"] for row in rows.dataset} == {
        "images/a.png": [1, 1], "images/b.png": [2], "images/c.png": [3], "images/deep/d.png": [5],
    }  # fmt: skip
    assert any("2 image(s) that 2 line(s) name are not on disk, or not once" in problem for problem in rows.problems)


def test_an_absolute_path_elsewhere(folder, tmp_path_factory, write):
    chip = write(tmp_path_factory.mktemp("far") / "a.tif", np.full((3, 8, 8), 5, dtype=np.uint8))
    rows = csv_boxes.read(folder({"x.csv": f"{HEAD}{chip},0,0,1,1,1\n"}, ["b.png"]), "detection")
    assert (rows.root / rows.dataset[0]["file"]).samefile(chip)


def test_background_chips_are_those_that_a_line_names(folder):
    lines = "a.png,1,1,2,2,Tree\nb.png,0,0,0,0,Tree\nc.png,,,,,\nd.png,nan,NaN,,None,Tree\n"
    rows = csv_boxes.read(folder({"x.csv": HEAD + lines}, [f"{name}.png" for name in "abcde"]), "detection")
    assert rows.dataset["file"][:] == ["a.png", "b.png", "c.png", "d.png"]
    assert rows.dataset["values"][:] == [[1], [], [], []] and rows.dataset["boxes"][0] == [1, 1, 2, 2]
    assert len(rows.problems) == 1 and "1 image(s) on disk that no line names were left out: e.png" in rows.problems[0]


def test_other_columns_become_attributes_where_lines_agree(folder):
    text = "image_path,xmin,ymin,xmax,ymax,label,score,site,split\na.png,1,1,2,2,x,.5,OSBS,\na.png,1,1,3,3,x,.6,OSBS,\n"
    root = folder({"train.csv": text, "test.csv": HEAD + "b.png,1,1,2,2,x\n"}, ["a.png", "b.png"])
    rows = csv_boxes.read(root, "detection")
    assert [json.loads(a) for a in rows.dataset["attributes"][:]] == [
        {"site": "OSBS", "split": "train"},
        {"split": "test"},
    ]


def test_boxes_stay_as_they_stand(folder):
    rows = csv_boxes.read(folder({"x.csv": HEAD + "a.png,9,8,-1,2,5\n"}, ["a.png"]), "detection")
    assert rows.dataset["boxes"][0] == [9, 8, -1, 2] and rows.classes == {5: "5"} and not rows.named


def test_geometry(folder):
    wkt = {
        "hole": "POLYGON ((0 0, 8 0, 8 8, 0 8, 0 0), (2 2, 4 2, 4 4, 2 4, 2 2))",
        "many": "MULTIPOLYGON (((0 0, 2 0, 2 2, 0 0)), ((5 5, 9 5, 9 7, 5 5)))",
        "line": "LINESTRING (0 0, 1 1)",
        "none": "POLYGON EMPTY",
        "deep": "POLYGON Z ((0 0 5, 8 0 5, 8 8 5, 0 0 5))",
        "": "",
    }
    lines = "".join(f'a.png,roof,"{text}"\n' for text in wkt.values())
    root = folder({"x.csv": f"image_path,label,geometry\n{lines}"}, ["a.png"])
    rows = csv_boxes.read(root, "instances")
    shapes = [json.loads(text) for text in rows.dataset[0]["segments"]]
    assert [shape["type"] for shape in shapes] == ["Polygon", "MultiPolygon", "Polygon"]
    assert len(shapes[0]["coordinates"]) == 2 and len(shapes[2]["coordinates"][0][0]) == 2
    assert rows.problems == ["2 shape(s) that are no polygon were left out"]
    assert csv_boxes.read(root, "detection").dataset[0]["boxes"] == [0, 0, 8, 8, 0, 0, 9, 7, 0, 0, 8, 8]


def test_a_polygon_of_many_points(folder):
    points = ", ".join(f"{x / 1000} {x % 7}" for x in range(20_000))
    root = folder({"x.csv": f'image_path,label,geometry\na.png,roof,"POLYGON (({points}, 0 0))"\n'}, ["a.png"])
    assert len(json.loads(csv_boxes.read(root, "semantic").dataset[0]["segments"][0])["coordinates"][0]) == 20_001


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png,1,x,2,2,t,", "ymin x"),
        ("a.png,1,,2,2,t,", "ymin empty"),
        ("a.png,1,inf,2,2,t,", "ymin inf"),
        ("a.png,1,1,2,2,,", "no label"),
        ("a.png,1,1,2", "4 columns, the first line 7"),
        ('a.png,,,,,t,"POLYGON ((0 0"', "no WKT"),
        ('a.png,,,,,t,"POLYGON ((0 0, nan 1, 1 1, 0 0))"', "no finite number"),
    ],
)
def test_lines_that_are_refused(folder, line, message):
    text = f"image_path,xmin,ymin,xmax,ymax,label,geometry\na.png,1,1,2,2,t,\n{line}\n"
    with pytest.raises(ValueError, match=message) as error:
        csv_boxes.read(folder({"x.csv": text}, ["a.png"]), "detection")
    assert "x.csv, line 3 " in str(error.value)


def test_boxes_alone_serve_no_masks(folder):
    with pytest.raises(ValueError, match="no column geometry") as error:
        csv_boxes.read(folder({"x.csv": HEAD + "a.png,1,1,2,2,t\n"}, ["a.png"]), "instances")
    assert "x.csv" in str(error.value)
