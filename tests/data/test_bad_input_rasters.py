"""Bad rasters, folders of images and masks, and exports of tiles."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from broken import BAD, NAMES, SIZE, check, cut, image, itself, mask, put, refused, told, write

UNREADABLE = f"cannot be read, counts nothing: images/{BAD}.tif"


def chip(root: Path, name: str = BAD) -> Path:
    return root / "images" / f"{name}.tif"


def label(root: Path, name: str = BAD) -> Path:
    return root / "masks" / f"{name}.tif"


def colours(root: Path, dictionary: str | None) -> None:
    """Write every mask as a picture: red for class 1, green for class 3."""
    for i, name in enumerate(NAMES):
        values = mask(i)
        write(label(root, name), np.stack([np.uint8(200) * (values == 1), np.uint8(200) * (values == 3), 0 * values]))
    if dictionary is not None:
        put(root / "class_dict.csv", dictionary)


COLOURS = "name,r,g,b\nbackground,0,0,0\n1,200,0,0\n3,0,200,0\n"


def every_mask(root: Path, values: object) -> None:
    for name in NAMES:
        write(label(root, name), np.broadcast_to(values, (SIZE, SIZE)))


def in_a_loop(root: Path) -> None:
    (root / "images" / "loop").symlink_to(root / "images")
    (root / "masks" / "loop").symlink_to(root)


def a_link_to_nowhere(root: Path) -> None:
    chip(root).unlink()
    chip(root).symlink_to(root / "gone.tif")


def a_folder_named_like_a_chip(root: Path) -> None:
    chip(root).unlink()
    chip(root).mkdir()


def renamed(root: Path) -> None:
    """The folder, and one chip with its mask, under names with blanks and other letters."""
    for file in (chip(root), label(root)):
        file.rename(file.with_name("Größe 7 日本.tif"))
    root.rename(root.with_name("mein Ordner, Größe"))


def two_folders(root: Path) -> None:
    """The same stem in two folders below images and masks."""
    for place in ("a", "b"):
        for base in ("images", "masks"):
            (root / base / place).mkdir()
    shutil.move(chip(root), root / "images" / "a")
    shutil.move(label(root), root / "masks" / "a")
    write(root / "images" / "b" / f"{BAD}.tif", image(3))
    write(root / "masks" / "b" / f"{BAD}.tif", np.ones((SIZE, SIZE), np.uint8))


def other_crs(root: Path) -> None:
    from rasterio import Affine

    for i, name in enumerate(NAMES):
        place = {"crs": f"EPSG:{32600 + i % 3}", "transform": Affine(2.0, 0, 1000.0 * i, 0, -2.0, 0)} if i % 4 else {}
        write(chip(root, name), image(i), **place)


def jpeg_masks(root: Path) -> None:
    from PIL import Image

    for i, name in enumerate(NAMES):
        label(root, name).unlink()
        Image.fromarray(mask(i)).save(label(root, name).with_suffix(".jpg"))


def palettes(root: Path) -> None:
    from PIL import Image

    for name in NAMES:
        chip(root, name).unlink()
        Image.fromarray(image(0)[0]).convert("P").save(chip(root, name).with_suffix(".png"))


def damaged_jpeg(root: Path) -> None:
    chip(root).unlink()
    cut(write(root / "images" / f"{BAD}.jpg", image(7)), 0.9)


RASTERS = [
    told("a truncated TIFF", lambda r: cut(chip(r)), UNREADABLE),
    told("a TIFF cut in its header", lambda r: cut(chip(r), 0.02), UNREADABLE),
    told("an image of no bytes", lambda r: cut(chip(r), 0), UNREADABLE),
    told("a text named .tif", lambda r: put(chip(r), "not an image"), UNREADABLE),
    told("a damaged JPEG", damaged_jpeg, f"counts nothing: images/{BAD}.jpg"),
    told("six bands", lambda r: write(chip(r), image(7, 6)), UNREADABLE, "6 band(s), the first chip has 3"),
    told("one band", lambda r: write(chip(r), image(7, 1)), UNREADABLE, "1 band(s), the first chip has 3"),
    told("complex pixels", lambda r: write(chip(r), image(7).astype(np.complex64)), UNREADABLE, "two bands"),
    told("a link to nowhere", a_link_to_nowhere, f"images/{BAD}.tif"),
    told("pixels that are indexes of a palette", palettes, "indexes of a palette", "-expand rgb", lost=NAMES),
    told(
        "no data that is not declared",
        lambda r: write(chip(r), np.full((3, SIZE, SIZE), -3.4e38, np.float32)),
        "values beyond 1e+30",
        f"images/{BAD}.tif",
        lost=NAMES,
    ),
    told("links in a circle", in_a_loop, lost=()),
    told("a folder named like a chip", a_folder_named_like_a_chip),
    told("blanks and other letters", renamed, at=lambda r: r.with_name("mein Ordner, Größe")),
    told("one name in two folders", two_folders),
    told(
        "a chip of another size",
        lambda r: [write(f, np.ones((b, 5, 30), np.uint8)) for f, b in ((chip(r), 3), (label(r), 1))],
    ),
    told(
        "a chip of one pixel",
        lambda r: [write(f, np.ones((b, 1, 1), np.uint8)) for f, b in ((chip(r), 3), (label(r), 1))],
    ),
    told(
        "a chip without any data", lambda r: write(chip(r), 0 * image(7), nodata=0), "1 hold nothing else", f"{BAD}.tif"
    ),
    told("other reference systems and none", other_crs, lost=()),
    told(
        "a chip of 16 bits", lambda r: write(chip(r), image(7).astype(np.uint16)), "different pixel types", lost=NAMES
    ),
    refused(
        "every chip truncated",
        lambda r: [cut(chip(r, n)) for n in NAMES],
        "21 of 21",
        "images/c00.tif",
        "Repair or remove",
    ),
    refused(
        "a fifth of the chips broken",
        lambda r: [cut(chip(r, n)) for n in NAMES[4:8]],
        "4 of 21",
        "images/c04.tif",
        "Repair or remove",
    ),
    refused(
        "no chip has data",
        lambda r: [write(chip(r, n), 0 * image(1), nodata=0) for n in NAMES],
        "no classes",
        "nodata",
        "Check",
    ),
]

MASKS = [
    told("labels as JPEG", jpeg_masks, "21 label(s) are JPEG", "write them as PNG or TIFF", lost=NAMES),
    told("a truncated label", lambda r: cut(label(r)), UNREADABLE, f"label masks/{BAD}.tif"),
    told("a label of no bytes", lambda r: cut(label(r), 0), UNREADABLE, f"label masks/{BAD}.tif"),
    told(
        "a label of another size",
        lambda r: write(label(r), np.ones((SIZE, 5), np.uint8)),
        f"label masks/{BAD}.tif has",
        "the chip (12, 12)",
    ),
    told(
        "a label of fractions",
        lambda r: write(label(r), np.full((SIZE, SIZE), 0.5, np.float32)),
        f"label masks/{BAD}.tif",
        "whole numbers",
        "0.5",
    ),
    told(
        "a label of two bands",
        lambda r: write(label(r), np.ones((2, SIZE, SIZE), np.uint8)),
        f"masks/{BAD}.tif has 2 bands",
        "class_dict.csv",
    ),
    told(
        "complex labels",
        lambda r: write(label(r), np.full((SIZE, SIZE), 1 + 1j, np.complex64)),
        f"label masks/{BAD}.tif",
        "whole numbers",
    ),
    told("whole numbers as floats", lambda r: write(label(r), mask(7).astype(np.float64)), lost=()),
    told("labels of 16 bits with a gap", lambda r: write(label(r), np.where(mask(7), 40_000, 0).astype(np.uint16))),
    told("NaN in a label", lambda r: write(label(r), np.where(mask(7), np.nan, 1).astype(np.float32)), "-1"),
    told("a negative class value", lambda r: write(label(r), np.full((SIZE, SIZE), -9, np.int16)), "-9"),
    told("a huge class value", lambda r: write(label(r), np.full((SIZE, SIZE), 2_000_000_000, np.int32))),
    told("a value of 32 bits without sign", lambda r: write(label(r), np.full((SIZE, SIZE), 2**32 - 1, np.uint32))),
    told(
        "a value beyond 63 bits",
        lambda r: write(label(r), np.full((SIZE, SIZE), 2**63 + 9, np.uint64)),
        f"label masks/{BAD}.tif",
        "whole numbers",
    ),
    told("infinite labels", lambda r: write(label(r), np.full((SIZE, SIZE), np.inf, np.float32)), "-1"),
    told(
        "floats beyond whole numbers",
        lambda r: write(label(r), np.full((SIZE, SIZE), 1e30, np.float32)),
        f"label masks/{BAD}.tif",
        "whole numbers",
    ),
    told("no label", lambda r: label(r).unlink(), "1 chip(s) without a label file, kept as background", f"{BAD}.tif"),
    told("no image", lambda r: chip(r).unlink(), "1 label file(s) without a chip"),
    told("a picture in colours that the map lists", lambda r: colours(r, COLOURS), lost=()),
    told(
        "a colour that the map does not list",
        lambda r: [colours(r, COLOURS), write(label(r), np.full((3, SIZE, SIZE), 9, np.uint8))],
        f"masks/{BAD}.tif holds the colours [(9, 9, 9)]",
        "class_dict.csv",
    ),
    refused(
        "a picture in colours without a map", lambda r: colours(r, None), "masks/c00.tif", "3 colours", "class_dict.csv"
    ),
    refused("a map of colours that is empty", lambda r: colours(r, ""), "class_dict.csv", "each line must hold"),
    refused(
        "a map of colours out of range", lambda r: colours(r, "name,r,g,b\na,999,0,0\n"), "class_dict.csv", "0 to 255"
    ),
    refused(
        "a map of colours that contradicts itself",
        lambda r: colours(r, "name,r,g,b\na,1,0,0\nb,1,0,0\n"),
        "class_dict.csv",
        "its own",
    ),
    refused(
        "one stem with two suffixes",
        lambda r: write(label(r).with_suffix(".png"), mask(1)),
        "two label files",
        f"{BAD}.png",
        f"{BAD}.tif",
        "keep one",
    ),
    told("one chip with two suffixes", lambda r: write(chip(r).with_suffix(".png"), image(1))),
    refused("all labels empty", lambda r: every_mask(r, np.uint8(0)), "no classes", "masks"),
    refused(
        "every label missing", lambda r: shutil.rmtree(r / "masks"), "images/ (21 entries)", "Formats that would do"
    ),
    refused(
        "an empty folder of labels", lambda r: [label(r, n).unlink() for n in NAMES], "masks", "Formats that would do"
    ),
    refused(
        "no label named like a chip",
        lambda r: [label(r, n).rename(label(r, f"other_{n}")) for n in NAMES],
        "No file in masks/ (other_c00.tif) is named like one in images/ (c00.tif)",
    ),
    refused(
        "more than 254 classes",
        lambda r: [
            write(label(r, n), np.arange(144).reshape(12, 12).astype(np.uint16) + 1 + 60 * i)
            for i, n in enumerate(NAMES)
        ],
        "at most 254",
        "class_mapping",
    ),
    refused(
        "photographs as labels",
        lambda r: [
            write(label(r, n), np.random.default_rng(i).integers(0, 60_000, (1, SIZE, SIZE)).astype(np.uint16))
            for i, n in enumerate(NAMES)
        ],
        "at most 254",
        "class rasters",
    ),
]


def emd(root: Path, content: object) -> None:
    put(root / "esri_model_definition.emd", content)


def tile(root: Path, name: str = BAD) -> Path:
    return root / "labels" / f"{name}.tif"


CLASSES = [{"Value": 1, "Name": "road"}, {"Value": 3, "Name": "roof"}]
TILES = [
    refused(
        "a value of no class",
        lambda r: write(tile(r), np.full((SIZE, SIZE), 7, np.uint8)),
        f"labels/{BAD}.tif",
        "value 7",
        "road (1), roof (3)",
        "Add it",
    ),
    refused(
        "255 is no class",
        lambda r: write(tile(r), np.full((SIZE, SIZE), 255, np.uint8)),
        f"labels/{BAD}.tif",
        "value 255",
    ),
    told(
        "metadata that are no JSON",
        lambda r: emd(r, '{"Classes": ['),
        "esri_model_definition.emd",
        "left out",
        lost=NAMES,
    ),
    told("metadata with a list at the top", lambda r: emd(r, []), "esri_model_definition.emd", "left out", lost=NAMES),
    told(
        "place-holders",
        lambda r: emd(r, {"MetaDataMode": "e.g. Classified_Tiles", "Classes": "e.g. []", "NumTiles": "e.g. 9"}),
        lost=NAMES,
    ),
    told("no class list", lambda r: emd(r, {"MetaDataMode": "Classified_Tiles", "Classes": []}), lost=NAMES),
    told(
        "another number of chips",
        lambda r: emd(r, {"MetaDataMode": "Classified_Tiles", "Classes": CLASSES, "NumTiles": 99}),
        "count 99 chips, 21",
        lost=(),
    ),
    told(
        "a list of classes with one name twice",
        lambda r: emd(
            r, {"MetaDataMode": "Classified_Tiles", "Classes": [{"Value": v, "Name": "road"} for v in (1, 3)]}
        ),
        "the same name",
        "road",
        lost=NAMES,
    ),
    told(
        "class values as texts",
        lambda r: emd(
            r,
            {
                "MetaDataMode": "Classified_Tiles",
                "Classes": [{"Value": str(c["Value"]), "Name": c["Name"]} for c in CLASSES],
            },
        ),
        lost=(),
    ),
    told(
        "class lists that disagree",
        lambda r: put(r / "esri_accumulated_stats.json", {"Classes": [{"ClassValue": 1, "ClassName": "water"}]}),
        "the class lists differ",
        lost=(),
    ),
    told(
        "metadata in UTF-16", lambda r: emd(r, (r / "esri_model_definition.emd").read_text().encode("utf-16")), lost=()
    ),
    told(
        "map.txt names files that are not there",
        lambda r: put(r / "map.txt", "images\\gone.tif  labels\\gone.tif\n"),
        "map.txt names 2 file(s) that are not on disk",
        "images/gone.tif",
        lost=(),
    ),
    told("map.txt of zeros", lambda r: put(r / "map.txt", b"\0\xff\xfe\0" * 50), lost=()),
    told("map.txt in UTF-16", lambda r: put(r / "map.txt", (r / "map.txt").read_text().encode("utf-16")), lost=()),
    told("map.txt is a folder", lambda r: [(r / "map.txt").unlink(), (r / "map.txt").mkdir()], "map.txt", lost=()),
    told("the folder above", itself, "was found in", lost=(), at=lambda r: r.parent),
    told("the folder of images", itself, "was found in", lost=(), at=lambda r: r / "images"),
    told("the folder of labels", itself, "was found in", lost=(), at=lambda r: r / "labels"),
    told(
        "litter",
        lambda r: [
            put(r / p / n, b"\0")
            for p in ("images", "labels")
            for n in ("Thumbs.db", ".DS_Store", "._c00.tif", "c00.tif.aux.xml", "c01.tif.ovr")
        ],
        lost=(),
    ),
    refused(
        "a mode that does not exist",
        lambda r: emd(r, {"MetaDataMode": "Holograms", "Classes": CLASSES}),
        "Holograms",
        "Formats that would do",
    ),
    refused(
        "a class value too large",
        lambda r: emd(
            r, {"MetaDataMode": "Classified_Tiles", "Classes": [{"Value": 1e300, "Name": "road"}, *CLASSES[1:]]}
        ),
        "labels/c00.tif",
        "value 1",
        "roof (3)",
        "Add it",
    ),
    refused("one chip of each folder copied", lambda r: [tile(r, n).unlink() for n in NAMES], "labels"),
]


@pytest.mark.parametrize("case", RASTERS + MASKS, ids=lambda case: case.name)
def test_images_and_masks(case, good):
    check(case, *good("masks", case))


@pytest.mark.parametrize("case", TILES, ids=lambda case: case.name)
def test_tiles(case, good):
    check(case, *good("tiles", case))
