"""Bad labels of boxes and outlines: PASCAL VOC, KITTI, YOLO, CSV."""

import shutil
from pathlib import Path

import pytest
from broken import BAD, NAMES, SQUARES, check, cut, itself, put, refused, told, xml

GOOD_BOX = ("road", *SQUARES[0])


def chip(root: Path) -> Path:
    return next((root / "images").glob(f"{BAD}.*"))


def voc(root: Path, name: str = BAD) -> Path:
    return root / "labels" / f"{name}.xml"


def xmls(*objects: tuple):
    return lambda root: put(voc(root), xml(*objects))


BOMB = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "ha"}">' for i in range(12))
OUTSIDE = ("road", 100, 100, 120, 120)
LABEL = f"labels/{BAD}.xml"
DROPPED = ("1 object(s) that cover no pixel of their chip, or have no area were left out", f"{BAD}.tif")

VOC = [
    told("blank lines before the XML", lambda r: put(voc(r), "\n\r\n " + voc(r).read_text()), lost=()),
    told("a byte-order mark", lambda r: put(voc(r), voc(r).read_text().encode("utf-8-sig")), lost=()),
    told(
        "XML in UTF-16", lambda r: put(voc(r), ('<?xml version="1.0"?>' + voc(r).read_text()).encode("utf-16")), lost=()
    ),
    told(
        "a name in another encoding",
        lambda r: put(
            voc(r), b'<?xml version="1.0" encoding="latin-1"?>' + xml(("Grün", 1, 1, 5, 5)).encode("latin-1")
        ),
    ),
    refused(
        "a wrong encoding",
        lambda r: put(voc(r), xml(("Grün", 1, 1, 5, 5)).encode("latin-1")),
        LABEL,
        "no valid XML",
        "correct it, or delete it",
    ),
    refused("XML cut off", lambda r: cut(voc(r)), LABEL, "no valid XML", "delete it"),
    refused("a label of no bytes", lambda r: cut(voc(r), 0), LABEL, "is empty", "delete it"),
    refused(
        "an entity bomb",
        lambda r: put(voc(r), f"<!DOCTYPE x [{BOMB}]>" + xml(("&e11;", 1, 1, 5, 5))),
        LABEL,
        "entities",
        "delete the DOCTYPE",
    ),
    refused(
        "an external entity",
        lambda r: put(voc(r), '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + xml(("&e;", 1, 1, 5, 5))),
        LABEL,
        "entities",
    ),
    refused("NaN", xmls(("road", "nan", 1, 5, 5)), LABEL, "object 1", "xmin nan", "four finite numbers"),
    refused("an infinite side", xmls(("road", 1, 1, "inf", 5)), LABEL, "xmax inf"),
    refused("a word for a number", xmls(("road", 1, 1, "wide", 5)), LABEL, "xmax wide"),
    refused(
        "a missing side", lambda r: put(voc(r), xml(GOOD_BOX).replace("<xmax>9</xmax>", "")), LABEL, "xmax missing"
    ),
    refused("no class", xmls(("", 1, 1, 5, 5)), LABEL, "name ''"),
    told("x2 < x1", xmls(("road", 9, 1, 2, 5)), *DROPPED),
    told("no area", xmls(("road", 4, 4, 4, 9)), *DROPPED),
    told("outside the chip", xmls(OUTSIDE), *DROPPED),
    told("1e300", xmls(("road", -1e300, -1e300, 1e300, 1e300))),
    told("an object without a box", xmls(("road",)), "1 object(s) without a bndbox were left out"),
    told("a class that no other chip has", xmls(("tin roof, Größe", 1, 1, 5, 5))),
    told("no label", lambda r: voc(r).unlink(), "1 chip(s) without a label file, kept as background", f"{BAD}.tif"),
    told("no image", lambda r: chip(r).unlink(), "1 label file(s) without a chip were left out"),
    told(
        "another XML among the labels",
        lambda r: put(r / "labels" / "notes.xml", "<html></html>"),
        "1 XML file(s) that are no annotations",
        lost=(),
    ),
    refused(
        "a label that names another chip",
        lambda r: put(voc(r), xml(GOOD_BOX).replace("<object>", "<filename>c03.tif</filename><object>", 1)),
        "two label files",
        "c03",
    ),
    told("all chips without objects but one", lambda r: [put(voc(r, n), xml()) for n in NAMES[1:]], lost=NAMES[1:]),
    refused("all chips without objects", lambda r: [put(voc(r, n), xml()) for n in NAMES], "no classes"),
    refused("every label cut off", lambda r: [cut(voc(r, n), 0.5) for n in NAMES], "labels/c00.xml"),
    refused(
        "a list of classes without this value",
        lambda r: [
            put(
                r / "esri_model_definition.emd",
                {
                    "MetaDataMode": "PASCAL_VOC_rectangles",
                    "Classes": [{"Value": 1, "Name": "road"}, {"Value": 3, "Name": "roof"}],
                },
            ),
            put(voc(r), xml(("8", 1, 1, 5, 5))),
        ],
        f"{BAD}.tif",
        "value 8",
        "road (1), roof (3)",
    ),
    told("a folder named like a label", lambda r: [voc(r).unlink(), voc(r).mkdir()], "1 chip(s) without a label file"),
    refused(
        "no folder of images", lambda r: shutil.rmtree(r / "images"), "labels/ (21 entries)", "Formats that would do"
    ),
]


def text(root: Path) -> Path:
    return root / "labels" / f"{BAD}.txt"


def line(content: str | bytes):
    return lambda root: put(text(root), content)


TXT = f"labels/{BAD}.txt, line 1"
KITTI = [
    refused("too few columns", line("road 0 0 0 1 1 5 5\n"), TXT, "14 finite numbers", "correct or delete"),
    refused("no columns", line("road\n"), TXT),
    refused("NaN in KITTI", line("road 0 0 0 nan 1 5 5 0 0 0 0 0 0 0\n"), TXT),
    refused("a word in KITTI", line("road 0 0 0 a 1 5 5 0 0 0 0 0 0 0\n"), TXT),
    refused("numbers only", line("0 0 0 1 1 5 5 0 0 0 0 0 0 0\n"), TXT),
    told("CRLF and blank lines", line(b"\r\nroad 0 0 0 2 3 9 6 0 0 0 0 0 0 0\r\n\r\n")),
    told("a BOM in KITTI", lambda r: put(text(r), text(r).read_text().encode("utf-8-sig")), lost=()),
    told("UTF-16 in KITTI", lambda r: put(text(r), text(r).read_text().encode("utf-16")), lost=()),
    told("DontCare", line("DontCare -1 -1 -10 1 1 5 5 0 0 0 0 0 0 0\n"), "1 object(s) named DontCare"),
    told("x2 < x1 in KITTI", line("road 0 0 0 9 1 2 5 0 0 0 0 0 0 0\n"), "1 object(s) that cover no pixel"),
    told("an empty KITTI label", line(b"")),
    refused("zeros instead of text", line(b"\0" * 40), TXT),
]

YOLO = [
    refused("missing columns", line("0 0.5 0.5 0.2\n"), TXT, "class cx cy w h"),
    refused("a class that is a name", line("road 0.5 0.5 0.2 0.2\n"), TXT),
    refused("NaN in YOLO", line("0 nan 0.5 0.2 0.2\n"), TXT),
    refused("a negative class index", line("-1 0.5 0.5 0.2 0.2\n"), TXT),
    refused(
        "a class index beyond the names", line("7 0.5 0.5 0.2 0.2\n"), f"{BAD}.png", "value 7", "road (0), roof (1)"
    ),
    told("values above 1", line("0 50 50 20 20\n"), "1 object(s) that cover no pixel"),
    told("a box that reaches beyond the chip", line("0 0.9 0.9 0.6 0.6\n")),
    told("no width", line("0 0.5 0.5 0 0.2\n"), "1 object(s) that cover no pixel"),
    told("a negative width", line("0 0.5 0.5 -0.4 0.2\n"), "1 object(s) that cover no pixel"),
    told("an outline among boxes", line("0 0.1 0.1 0.9 0.1 0.5 0.9\n")),
    told("an image of no bytes in YOLO", lambda r: cut(chip(r), 0), f"{BAD}.png"),
    told("no label in YOLO", lambda r: text(r).unlink(), "1 chip(s) without a label file"),
    refused(
        "boxes for instances",
        itself,
        "none of 21 objects has an outline",
        "read the boxes as detection",
        task="instances",
    ),
    refused("data.yaml that is no YAML", lambda r: put(r / "data.yaml", "names: [a, b"), "data.yaml", "no valid YAML"),
    refused(
        "names that are no list", lambda r: put(r / "data.yaml", "names: 5\n"), "data.yaml", "names must be a list"
    ),
    told("an empty data.yaml", lambda r: put(r / "data.yaml", ""), lost=NAMES),
    told(
        "a wrong number of classes",
        lambda r: put(r / "data.yaml", "nc: 9\nnames: [road, roof]\n"),
        "counts 9 classes and names 2",
        lost=(),
    ),
    told(
        "a number of classes that is none",
        lambda r: put(r / "data.yaml", "nc: [many]\nnames: [road, roof]\n"),
        "data.yaml",
        lost=(),
    ),
    told("a repeated name", lambda r: put(r / "data.yaml", "names: [road, road]\n"), "the same name", lost=NAMES),
    refused(
        "YAML that would run code",
        lambda r: put(r / "data.yaml", "names: !!python/object/apply:os.system {a: b}\n"),
        "data.yaml",
    ),
    told(
        "folders of splits that are not there",
        lambda r: put(r / "data.yaml", "train: /nowhere/train\nval: ../gone\nnames: [road, roof]\n"),
        lost=(),
    ),
]


def table(root: Path) -> Path:
    return root / "boxes.csv"


def edited(old: str, new: str):
    def change(root: Path) -> None:
        before = table(root).read_text()
        assert old in before
        put(table(root), before.replace(old, new))

    return change


def elsewhere(root: Path) -> None:
    (root / "chips" / "more").mkdir(parents=True)
    for file in root.glob("*.png"):
        file.rename(root / "chips" / "more" / file.name)


ROW = f"{BAD}.png,2,3,9,6,roof"
LINE = "boxes.csv, line 9"
CSV = [
    refused("a needed column is missing", edited("ymax", "height"), "Formats that would do", "CSV"),
    told("semicolons", lambda r: put(table(r), table(r).read_text().replace(",", ";")), lost=()),
    told(
        "tabs and a byte-order mark",
        lambda r: put(table(r), table(r).read_text().replace(",", "\t").encode("utf-8-sig")),
        lost=(),
    ),
    told("a CSV in UTF-16", lambda r: put(table(r), table(r).read_text().encode("utf-16")), lost=()),
    told("images elsewhere", elsewhere, lost=()),
    told(
        "an image that is not on disk",
        lambda r: (r / f"{BAD}.png").unlink(),
        "1 image(s) that 1 line(s) name are not on disk",
        f"{BAD}.png",
    ),
    told(
        "an image that no line names",
        edited(ROW + "\n", ""),
        "1 image(s) on disk that no line names were left out",
        f"{BAD}.png",
    ),
    refused("a line cut off", edited(ROW, f"{BAD}.png,2,3"), LINE, "3 columns"),
    refused("NaN in one side", edited(ROW, f"{BAD}.png,nan,3,9,6,roof"), LINE, "four finite numbers"),
    refused("a word in one side", edited(ROW, f"{BAD}.png,2,3,far,6,roof"), LINE, "xmax far"),
    refused("no label for a box", edited(ROW, f"{BAD}.png,2,3,9,6,"), LINE, "no label"),
    told("no box at all", edited(ROW, f"{BAD}.png,,,,,")),
    told("x2 < x1 in a CSV", edited(ROW, f"{BAD}.png,9,3,2,6,roof"), "1 object(s) that cover no pixel"),
    refused("decimal commas", edited(ROW, f"{BAD}.png,2,5,3,5,9,5,6,5,roof"), LINE),
    refused("only the first line", lambda r: put(table(r), "image_path,xmin,ymin,xmax,ymax,label\n"), "holds no chips"),
    refused("an empty CSV", lambda r: put(table(r), ""), "boxes.csv", "Formats that would do"),
    refused("a quote that never ends", edited(ROW, f'"{BAD}.png,2,3,9,6,roof'), "boxes.csv"),
    refused(
        "a broken polygon",
        lambda r: put(table(r), f"image_path,geometry,label\n{BAD}.png,POLYGON ((0 0,a roof\n"),
        "boxes.csv, line 2",
        "no WKT",
    ),
    refused(
        "boxes as instances", itself, "boxes.csv", "no column geometry", "read the boxes as detection", task="instances"
    ),
]


@pytest.mark.parametrize("case", VOC, ids=lambda case: case.name)
def test_voc(case, good):
    check(case, *good("voc", case))


@pytest.mark.parametrize("case", KITTI, ids=lambda case: case.name)
def test_kitti(case, good):
    check(case, *good("kitti", case))


@pytest.mark.parametrize("case", YOLO, ids=lambda case: case.name)
def test_yolo(case, good):
    check(case, *good("yolo", case))


@pytest.mark.parametrize("case", CSV, ids=lambda case: case.name)
def test_csv(case, good):
    check(case, *good("csv", case))
