"""Data sets of the library `datasets`: columns found, files written once and unchanged, labels as rows want them."""

import io
import json
import socket
import threading
import time

import datasets
import numpy as np
import pytest
import rasterio
from datasets import Array2D, Array3D, ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as Pillow

from accel_geo.data import once
from accel_geo.data.formats import hub_columns, hub_files
from accel_geo.data.formats.hub_dataset import read, read_dataset, recognise

datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "cache"))


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Pillow.fromarray(array).save(stream, kind)
    return stream.getvalue()


def pictures(n: int, kind: str = "PNG") -> list[dict]:
    return [{"bytes": encoded(np.full((12, 16, 3), 10 * i % 250, np.uint8), kind), "path": None} for i in range(n)]


def make(columns: dict, **features) -> Dataset:
    return Dataset.from_dict(columns, features=Features(features))


def labelled(n: int = 4) -> Dataset:
    return make(
        {"image": pictures(n), "label": [i % 2 for i in range(n)]}, image=Image(), label=ClassLabel(names=["z", "a"])
    )


def pixels(rows, i: int, column: str = "file") -> np.ndarray:
    name = rows.dataset[i][column]
    with rasterio.open(rows.root / (name if column == "file" else name[0])) as raster:
        return raster.read()


# -------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    "kind, suffix", [("PNG", ".png"), ("JPEG", ".jpg"), ("TIFF", ".tif"), ("WEBP", ".webp"), ("BMP", ".bmp")]
)
def test_encoded_images_are_written_byte_for_byte(kind, suffix, tmp_path):
    given = pictures(3, kind)
    rows = read_dataset(make({"image": given, "label": [5, 7, 5]}, image=Image(), label=Value("int64")))
    assert rows.dataset["file"][:] == [f"images/{i:07}{suffix}" for i in range(3)]
    assert [(rows.root / name).read_bytes() for name in rows.dataset["file"]] == [image["bytes"] for image in given]
    assert rows.root.parent == tmp_path / "cache" / "datasets"
    assert not [entry.name for entry in rows.root.parent.iterdir() if entry != rows.root], "nothing half done is left"


def test_names_of_images_stay_in_the_file_names():
    given = pictures(2)
    given[0]["path"], given[1]["path"] = "nörth 1.png", "deep/down/b.png"
    names = read_dataset(make({"image": given, "label": [1, 2]}, image=Image(), label=Value("int64"))).dataset["file"][
        :
    ]
    assert names == ["images/0000000_nörth_1.png", "images/0000001_b.png"]


def test_images_that_are_files_are_used_where_they_lie(tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.png").write_bytes(pictures(2)[i]["bytes"])
    paths = [str(tmp_path / f"{i}.png") for i in range(2)]
    rows = read_dataset(make({"image": paths, "label": [1, 2]}, image=Image(), label=Value("int64")))
    assert rows.dataset["file"][:] == paths and not list(rows.root.glob("images*"))
    gone = make({"image": [str(tmp_path / "no.png")], "label": [1]}, image=Image(), label=Value("int64"))
    with pytest.raises(FileNotFoundError, match=r"row 0 .*no.png"):
        read_dataset(gone)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("order", ["CHW", "HWC"])
def test_arrays_of_any_bands_and_type_become_geotiff(dtype, order):
    chips = (np.random.default_rng(1).random((3, 5, 8, 9)) * 200 + 1 / 3).astype(dtype)
    given = chips if order == "CHW" else np.moveaxis(chips, 1, -1)
    data = make({"image": list(given), "label": [1, 2, 3]}, image=Array3D(given.shape[1:], dtype), label=Value("int64"))
    for rows in (read_dataset(data), read_dataset(data.to_iterable_dataset())):
        for i in range(3):
            read = pixels(rows, i)
            assert read.dtype == dtype and (read == chips[i]).all()


def test_four_bands_are_bands_and_not_transparent():
    chip = np.random.default_rng(1).integers(0, 255, (4, 8, 8), np.uint8)
    rows = read_dataset(make({"image": [chip], "label": [1]}, image=Array3D((4, 8, 8), "uint8"), label=Value("int64")))
    with rasterio.open(rows.root / rows.dataset[0]["file"]) as raster:
        assert "alpha" not in [colour.name for colour in raster.colorinterp] and (raster.read() == chip).all()


def test_nested_lists_and_chips_of_mixed_size():
    given = [np.full((2, 4 + i, 6), 300 + i).tolist() for i in range(3)]
    rows = read_dataset(Dataset.from_dict({"image": given, "label": ["a", "b", "a"]}))
    assert [pixels(rows, i).shape for i in range(3)] == [(2, 4, 6), (2, 5, 6), (2, 6, 6)]
    assert pixels(rows, 2).dtype == np.int32 and (pixels(rows, 2) == 302).all()


def test_pictures_of_pillow_keep_their_pixels():
    rng = np.random.default_rng(1)
    grey, colour = rng.integers(0, 60000, (6, 7)).astype(np.uint16), rng.integers(0, 255, (6, 7, 4)).astype(np.uint8)
    palette = Pillow.fromarray(colour[..., :3]).quantize(4)
    for image, mask, expected in [
        (Pillow.fromarray(grey), False, grey[None]),
        (Pillow.fromarray(colour), False, np.moveaxis(colour, -1, 0)),
        (palette, False, np.moveaxis(np.asarray(palette.convert("RGB")), -1, 0)),
        (palette, True, np.asarray(palette)[None]),
        (Pillow.fromarray(grey.astype(np.float32)), False, grey[None]),
        (Pillow.fromarray(grey > 30000), True, (grey > 30000)[None]),
    ]:
        found = hub_files.content(image, mask=mask)
        with rasterio.MemoryFile(found.data, ext=found.suffix) as memory, memory.open() as raster:
            assert (raster.read() == expected).all()


def test_what_cannot_be_decoded_keeps_its_place():
    given = [*pictures(1), {"bytes": b"no image", "path": "bad.png"}]
    rows = read_dataset(make({"image": given, "label": [1, 2]}, image=Image(), label=Value("int64")))
    assert (rows.root / rows.dataset[1]["file"]).read_bytes() == b"no image"


# ------------------------------------------------------------------------------------------------------------- labels


def test_class_names_keep_their_order_and_values():
    rows = read_dataset(labelled())
    assert (rows.format, rows.task, rows.multilabel, rows.named, rows.closed) == (
        "datasets",
        "classification",
        False,
        True,
        True,
    )
    assert rows.classes == {0: "z", 1: "a"} and rows.dataset["values"][:] == [[0], [1], [0], [1]]


@pytest.mark.parametrize(
    "feature, given, values, classes, several",
    [
        (Value("int64"), [7, 3, 7], [[7], [3], [7]], {3: "3", 7: "7"}, False),
        (Value("string"), ["tin", "clay", None], [[2], [1], []], {1: "clay", 2: "tin"}, False),
        (Value("bool"), [True, False, True], [[1], [0], [1]], {0: "False", 1: "True"}, False),
        (ClassLabel(names=["x", "y"]), [1, -1, 0], [[1], [], [0]], {0: "x", 1: "y"}, False),
        (List(ClassLabel(names=["x", "y"])), [[0, 1], [], [1]], [[0, 1], [], [1]], {0: "x", 1: "y"}, True),
        (List(Value("string")), [["b", "a"], ["b"], []], [[2, 1], [2], []], {1: "a", 2: "b"}, True),
        (List(Value("int32")), [[4], None, [4, 9]], [[4], [], [4, 9]], {4: "4", 9: "9"}, True),
    ],
)
def test_labels(feature, given, values, classes, several):
    data = make({"picture": pictures(3), "labels": given}, picture=Image(), labels=feature)
    for rows in (read_dataset(data), read_dataset(data.to_iterable_dataset())):
        assert rows.dataset["values"][:] == values and rows.classes == classes and rows.multilabel is several
        assert rows.problems == [f"{n} chip(s) without a label" for n in [sum(not v for v in values)] if n]


def test_the_values_of_texts_do_not_depend_on_their_order():
    texts = ["d", "b", "a", "c", "b"]
    given = pictures(5)
    one = read_dataset(make({"image": given, "label": texts}, image=Image(), label=Value("string")))
    other = read_dataset(make({"image": given[::-1], "label": texts[::-1]}, image=Image(), label=Value("string")))
    assert one.classes == other.classes and one.dataset["values"][:] == other.dataset["values"][::-1]


OBJECTS = {"bbox": List(List(Value("float32"), length=4)), "category": List(ClassLabel(names=["roof", "pool"]))}


@pytest.mark.parametrize("layout", ["struct of lists", "list of structs", "columns"])
def test_objects(layout):
    boxes, categories = [[[1, 2, 3, 4], [0, 0, 5.5, 6]], []], [[1, 0], []]
    if layout == "struct of lists":
        columns = {"objects": [{"bbox": b, "category": c} for b, c in zip(boxes, categories)]}
        features = {"objects": OBJECTS}
    elif layout == "list of structs":
        pairs = [[{"bbox": b, "category": c} for b, c in zip(*both)] for both in zip(boxes, categories)]
        columns = {"objects": pairs}
        features = {"objects": List({"bbox": OBJECTS["bbox"].feature, "category": OBJECTS["category"].feature})}
    else:
        columns, features = {"bboxes": boxes, "labels": categories}, dict(zip(("bboxes", "labels"), OBJECTS.values()))
    data = make({"image": pictures(2), **columns}, image=Image(), **features)
    for given in (data, data.to_iterable_dataset()):
        rows = read_dataset(given)
        assert rows.task == "detection" and rows.classes == {0: "roof", 1: "pool"} and rows.zero_is_class
        assert rows.dataset["boxes"][:] == [[1, 2, 4, 6, 0, 0, 5.5, 6], []] and rows.dataset["values"][:] == [
            [1, 0],
            [],
        ]
    corners = read_dataset(data, box_format="xyxy")
    assert corners.dataset[0]["boxes"] == [1, 2, 3, 4, 0, 0, 5.5, 6] and corners.root != rows.root


def test_objects_with_texts_or_without_classes():
    boxes = [[[1, 2, 3, 4], [0, 0, 5, 6]]]
    texts = {"bbox": List(List(Value("int64"))), "label": List(Value("string"))}
    data = make(
        {"image": pictures(1), "objects": [{"bbox": boxes[0], "label": ["b", "a"]}]}, image=Image(), objects=texts
    )
    rows = read_dataset(data, "detection")
    assert rows.classes == {1: "a", 2: "b"} and rows.dataset[0]["values"] == [2, 1] and not rows.zero_is_class
    rows = read_dataset(make({"image": pictures(1), "boxes": boxes}, image=Image(), boxes=texts["bbox"]))
    assert rows.classes == {1: "object"} and rows.dataset[0]["values"] == [1, 1] and not rows.named


def test_shapes_serve_more_tasks():
    polygon = [[1.0, 1.0, 6.0, 1.0, 6.0, 5.0]]
    objects = [
        [{"segmentation": polygon, "category": 1, "bbox": [1, 1, 5, 4], "iscrowd": c} for c in (False, True)],
        [],
    ]
    kinds = {"segmentation": List(List(Value("float32"))), "category": Value("int64"), "iscrowd": Value("bool")}
    kinds["bbox"] = List(Value("int64"))
    data = make({"image": pictures(2), "objects": objects}, image=Image(), objects=List(kinds))
    rows = read_dataset(data)
    assert rows.task == "instances" and rows.dataset[0]["crowd"] == [1] and rows.dataset[0]["boxes"] == []
    assert [json.loads(shape) for shape in rows.dataset[0]["segments"]] == [polygon, polygon]
    for task in ("semantic", "edges"):
        assert read_dataset(data, task).dataset[0]["segments"] == rows.dataset[0]["segments"]
    detection = read_dataset(data, "detection")
    assert detection.dataset[0]["boxes"] == [1, 1, 6, 5] * 2 and detection.dataset[0]["segments"] == []
    assert detection.root == rows.root, "all tasks share the files"


@pytest.mark.parametrize(
    "given, expected",
    [
        ([1.0, 1, 2, 1, 2, 2], [[1, 1, 2, 1, 2, 2]]),
        ([[1, 1], [2, 1], [2, 2]], [[1, 1, 2, 1, 2, 2]]),
        ([[[1, 1], [2, 1], [2, 2]], [[5, 5], [6, 5], [6, 6], [5, 6]]], [[1, 1, 2, 1, 2, 2], [5, 5, 6, 5, 6, 6, 5, 6]]),
        ({"size": [4, 4], "counts": b"04"}, {"size": [4, 4], "counts": "04"}),
        (None, []),
    ],
)
def test_shapes_in_the_ways_they_are_written(given, expected):
    assert hub_columns._polygons(given) == expected


@pytest.mark.parametrize("name", ["mask", "label", "annotation", "segmentation_mask"])
def test_masks(name):
    masks = [np.array([[0, 1, 2, 255]] * 3, np.uint8), None]
    as_images = [{"bytes": encoded(masks[0]), "path": None}, None]
    for column, feature, suffix in [(as_images, Image(), ".png"), (masks, Array2D((3, 4), "uint8"), ".tif")]:
        rows = read_dataset(make({"image": pictures(2), name: column}, image=Image(), **{name: feature}))
        assert rows.task == "semantic" and not rows.closed and rows.classes == {} and not rows.zero_is_class
        assert rows.dataset["label_files"][:] == [[f"masks/0000000{suffix}"], []]
        assert (pixels(rows, 0, "label_files") == masks[0]).all()
        assert rows.problems == ["1 chip(s) without a mask, kept as background"]
        assert (
            read_dataset(make({"image": pictures(2), name: column}, image=Image(), **{name: feature}), "edges").task
            == "edges"
        )


@pytest.mark.parametrize("coarse, sharp", [("lr", "hr"), ("low", "high"), ("LR", "HR")])
def test_pairs(coarse, sharp):
    fine = [{"bytes": encoded(np.full((24, 32, 3), i, np.uint8)), "path": None} for i in range(2)]
    rows = read_dataset(make({sharp: fine, coarse: pictures(2)}, **{sharp: Image(), coarse: Image()}))
    assert rows.task == "super_resolution" and pixels(rows, 1).shape == (3, 12, 16)
    assert pixels(rows, 1, "label_files").shape == (3, 24, 32) and rows.classes == {}


# ------------------------------------------------------------------------------------------- splits, streams, loading


def test_splits_and_further_columns_stay_with_the_chips():
    def part(n: int) -> Dataset:
        columns = {
            "image": pictures(n),
            "label": [0] * n,
            "place": ["kampala"] * n,
            "year": [2020] * n,
            "kind": [1] * n,
        }
        columns["caption"] = ["word " * 100] * n
        kinds = {"place": Value("string"), "year": Value("int32"), "kind": ClassLabel(names=["dry", "wet"])}
        return make(columns, image=Image(), label=Value("int64"), caption=Value("string"), **kinds)

    data = DatasetDict({"train": part(3), "validation": part(2), "test": part(1)})
    rows = read_dataset(data)
    found = [json.loads(text) for text in rows.dataset["attributes"]]
    assert [values["split"] for values in found] == ["test"] + ["train"] * 3 + ["validation"] * 2
    assert found[0] == {"split": "test", "place": "kampala", "year": 2020, "kind": "wet"}
    assert (
        len(read_dataset(data, split="test").dataset) == 1
        and len(read_dataset(data, split=["test", "train"]).dataset) == 4
    )
    with pytest.raises(ValueError, match="no split dev; its splits are train, validation, test"):
        read_dataset(data, split="dev")
    assert (
        rows.dataset["attributes"][:]
        == read_dataset(
            datasets.IterableDatasetDict({name: part.to_iterable_dataset() for name, part in data.items()})
        ).dataset["attributes"][:]
    )


def test_the_same_image_in_two_splits_is_told(tmp_path):
    (tmp_path / "a.png").write_bytes(pictures(1)[0]["bytes"])
    part = make({"image": [str(tmp_path / "a.png")], "label": [1]}, image=Image(), label=Value("int64"))
    assert "listed more than once" in read_dataset(DatasetDict({"train": part, "test": part})).problems[0]


def test_files_are_written_once_and_found_again(monkeypatch):
    data = labelled()
    first = read_dataset(data)
    stamp = (first.root / first.dataset[0]["file"]).stat().st_mtime_ns
    monkeypatch.setattr(hub_files, "_encoded", None)
    again = read_dataset(data)
    assert again.root == first.root and (again.root / again.dataset[0]["file"]).stat().st_mtime_ns == stamp
    assert again.dataset[:] == first.dataset[:]
    monkeypatch.undo()
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(first.root.parents[1]))
    assert read_dataset(data.select([0, 1])).root != first.root


def test_a_stream_is_read_once_and_named_by_what_came():
    reads = []

    def examples(last: int):
        reads.append(last)
        for i in range(3):
            yield {"image": Pillow.fromarray(np.full((8, 8), i if i < 2 else last, np.uint8)), "label": "ab"[i % 2]}

    roots = []
    for last in (2, 3, 2):
        rows = read_dataset(datasets.IterableDataset.from_generator(examples, gen_kwargs={"last": last}))
        assert rows.classes == {1: "a", 2: "b"} and pixels(rows, 2)[0, 0, 0] == last
        roots.append(rows.root)
    assert roots[0] == roots[2] != roots[1] and reads == [2, 3, 2]
    assert len(list(roots[0].parent.iterdir())) == 2, "nothing half done is left"


def test_a_stream_without_rows_or_features():
    def none():
        return iter(())

    with pytest.raises(ValueError, match="no image column; its columns are none"):
        read_dataset(datasets.IterableDataset.from_generator(none))


def test_saved_data_sets_are_recognised(tmp_path):
    data = labelled()
    data.save_to_disk(tmp_path / "one")
    DatasetDict({"train": data}).save_to_disk(tmp_path / "several")
    assert recognise(tmp_path / "one") and recognise(tmp_path / "several") and not recognise(tmp_path)
    assert read(tmp_path / "one", "classification").dataset["values"][:] == [[0], [1], [0], [1]]
    assert json.loads(read_dataset(tmp_path / "several").dataset[0]["attributes"]) == {"split": "train"}


def test_a_name_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="'nobody/nothing' cannot be loaded .*save_to_disk"):
        read_dataset("nobody/nothing")

    def refuse(*args):
        raise ValueError(f"Config name is missing: {args}")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(
        ValueError, match=r"Config name is missing: \('nobody/nothing', 'small'\).*owner/name:configuration"
    ):
        read_dataset("nobody/nothing:small")


# -------------------------------------------------------------------------------------------------- other processes


def test_other_processes_wait_for_the_first(monkeypatch):
    data = labelled()
    waited = []

    def later():
        time.sleep(0.3)
        waited.append(True)
        monkeypatch.setenv("LOCAL_RANK", "0")
        read_dataset(data)

    monkeypatch.setenv("LOCAL_RANK", "1")
    first = threading.Thread(target=later)
    first.start()
    rows = read_dataset(data)
    first.join()
    assert waited and len(rows.dataset) == 4 and len(list(rows.root.parent.glob("*"))) == 1


def test_other_processes_of_a_stream_find_what_the_first_wrote(monkeypatch):
    data = labelled()
    first = read_dataset(data.to_iterable_dataset())
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert read_dataset(data.to_iterable_dataset()).root == first.root
    monkeypatch.setattr(once, "_PATIENCE", 0.2)
    with pytest.raises(ValueError, match="no process began"):
        read_dataset(data.select([0, 1]).to_iterable_dataset())


def test_other_processes_learn_of_a_failure(monkeypatch, tmp_path):
    bad = make(
        {"image": pictures(1), "objects": [{"bbox": [[1, 2]], "category": [0]}]},
        image=Image(),
        objects={"bbox": List(List(Value("int64"))), "category": List(Value("int64"))},
    )
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(ValueError, match=r"row 0 of the data set: the box \[1, 2\] is not four numbers"):
            read_dataset(bad)
    assert not list((tmp_path / "cache" / "datasets").glob(".tmp*"))


def test_a_killed_builder_ends_the_wait_and_the_next_one_clears_up(monkeypatch, tmp_path):
    data, folder = labelled(), tmp_path / "cache" / "datasets"
    target = read_dataset(data).root
    target.rename(folder / ".tmp-left")
    killed = {"pid": 2**22 + 1, "host": socket.gethostname(), "kind": "", "failure": "", "temporary": ".tmp-left"}
    target.with_suffix(".building").write_text(json.dumps(killed))
    monkeypatch.setattr(once, "_GRACE", 0.1)
    monkeypatch.setattr(once, "_STARTED", 0.0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="ended without finishing it; start again"):
        read_dataset(data)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert read_dataset(data).root == target and [entry.name for entry in folder.iterdir()] == [target.name]


# -------------------------------------------------------------------------------------------------------------- errors

PLAIN = {"image": Image(), "label": Value("int64")}


@pytest.mark.parametrize(
    "columns, features, options, message",
    [
        (
            {"text": ["a"], "label": [1]},
            {"text": Value("string"), "label": Value("int64")},
            {},
            "no image column; its columns are text: string; label: int64. .*columns=",
        ),
        (
            {"left": pictures(1), "right": pictures(1)},
            {"left": Image(), "right": Image()},
            {},
            r"several columns that may be the image \(left, right\)",
        ),
        (
            {"image": pictures(1), "text": [1.5]},
            {"image": Image(), "text": Value("float32")},
            {},
            "no labels that are known; its columns are image: image; text: float32",
        ),
        (
            {"image": pictures(1), "label": [1]},
            PLAIN,
            {"task": "detection"},
            "not serve the task 'detection' but classification",
        ),
        ({"image": pictures(1), "label": [1]}, PLAIN, {"task": "panoptic"}, "they serve classification, detection"),
        (
            {"image": pictures(1), "label": [1]},
            PLAIN,
            {"columns": {"label": "nope"}},
            "no column 'nope'; the columns are image",
        ),
        (
            {"image": pictures(1), "label": [1]},
            PLAIN,
            {"columns": {"labels": "label"}},
            "the role 'labels' is not one of image",
        ),
        ({"image": pictures(1), "label": [1]}, PLAIN, {"split": "train"}, "needs a DatasetDict"),
        ({"image": pictures(1), "label": [1]}, PLAIN, {"box_format": "cxcywh"}, "box_format='cxcywh' is not known"),
        ({"image": [None], "label": [1]}, PLAIN, {}, "has no image in its column 'image'"),
        ({"image": [], "label": []}, PLAIN, {}, "has no image in its column 'image', or no rows"),
        (
            {"image": [[[[[1]]]]], "label": [1]},
            {"image": List(List(List(List(Value("int64"))))), "label": Value("int64")},
            {},
            "no image column; its columns are image: list of list of list of list of int64",
        ),
        (
            {"image": [[[1, 2], [3]]], "label": [1]},
            {"image": List(List(Value("int64"))), "label": Value("int64")},
            {},
            "row 0 of the data set",
        ),
        (
            {"image": pictures(1), "objects": [{"bbox": [[1, 2, 3, 4]], "category": []}]},
            {"image": Image(), "objects": OBJECTS},
            {},
            "1 boxes, 0 shapes and 0 classes do not belong together",
        ),
        (
            {"image": pictures(1), "objects": [{"bbox": [[0.1, 0.2, 0.3, 0.4]], "category": [1]}]},
            {"image": Image(), "objects": OBJECTS},
            {},
            "no box of the column 'objects' is larger than 1",
        ),
    ],
)
def test_what_cannot_serve_is_told(columns, features, options, message):
    with pytest.raises(ValueError, match=message):
        read_dataset(make(columns, **features), **options)


def test_what_is_no_data_set_and_splits_that_differ():
    with pytest.raises(ValueError, match="dict is no data set|no split"):
        read_dataset({})
    with pytest.raises(ValueError, match="list is no data set of the library"):
        read_dataset([1])
    other = make({"image": pictures(1), "class": [1]}, image=Image(), **{"class": Value("int64")})
    with pytest.raises(ValueError, match="the splits have different columns: .*label.*; but test: .*class"):
        read_dataset(DatasetDict({"train": labelled(), "test": other}))


def test_columns_can_be_named():
    data = make(
        {"left": pictures(2), "right": pictures(2), "kind": [3, 4]}, left=Image(), right=Image(), kind=Value("int64")
    )
    rows = read_dataset(data, columns={"image": "right", "label": "kind"})
    assert rows.task == "classification" and rows.dataset["values"][:] == [[3], [4]]
    assert read_dataset(data, columns={"image": "right", "sharp": "left"}).task == "super_resolution"
