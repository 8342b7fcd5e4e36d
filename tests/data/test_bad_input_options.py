"""Options that do not fit, splits of few chips, folders that cannot be read or written, caches that fail."""

import os
import resource
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from broken import (
    NAMES,
    check,
    cut,
    image,
    itself,
    mask,
    put,
    read,
    refused,
    samples,
    told,
    write,
)


def only(*names: str):
    """Leave these chips alone."""

    def change(root: Path) -> None:
        for name in set(NAMES) - set(names):
            (root / "images" / f"{name}.tif").unlink()
            (root / "masks" / f"{name}.tif").unlink()

    return change


def other(root: Path, bands: int = 3, value: int = 1) -> None:
    """A second folder to validate on."""
    for i in range(2):
        write(root / "other" / "images" / f"v{i}.tif", image(i, bands))
        write(root / "other" / "masks" / f"v{i}.tif", value * (mask(i) > 0).astype(np.uint8))


OPTIONS = [
    refused("an unknown task", itself, "task 'buildings' is not known", "semantic", task="buildings"),
    refused("an unknown format", itself, "format 'shapes' is not known", "image_masks", format="shapes"),
    refused("another format", itself, "is not in the format COCO", "Found there", format="COCO"),
    refused("a task that no mask serves", itself, "set", "Found there", task="classification"),
    refused(
        "a task that the format does not serve",
        itself,
        "image_masks does not serve",
        "image_masks: semantic edges",
        task="detection",
        format="image_masks",
    ),
    refused("a path that is not there", itself, "gone does not exist", "images, masks", at=lambda r: r / "gone"),
    refused("a path far from there", itself, "does not exist", "Check the path", at=lambda r: "/no/such/folder"),
    refused(
        "a text file",
        lambda r: put(r / "notes.txt", "hello"),
        "notes.txt is in no format",
        "a file of 5 bytes",
        at=lambda r: r / "notes.txt",
    ),
    told("one chip of the folder", itself, "the data set was found in", lost=(), at=lambda r: r / "images" / "c00.tif"),
    refused(
        "a chip alone",
        lambda r: shutil.copy(r / "images" / "c00.tif", r / "c00.tif"),
        "c00.tif is in no format",
        "a file of",
        at=lambda r: r / "c00.tif",
    ),
    refused("half a limit", itself, "limit=2.5 must be at least 1, a whole number", limit=2.5),
    refused("an empty folder", lambda r: (r / "empty").mkdir(), "empty", "It is empty", at=lambda r: r / "empty"),
    refused(
        "a folder twice",
        itself,
        "set is given twice",
        "once",
        at=lambda r: [r, r.parent / "set" / "." / "images" / ".."],
    ),
    refused(
        "an address",
        itself,
        "s3://place/scene.tif is no folder on disk",
        "vectors",
        at=lambda r: "s3://place/scene.tif",
    ),
    refused("a number for a path", itself, "'5' (int) is no path", at=lambda r: 5),
    told(
        "the folder to validate on as well",
        itself,
        "21 validation chip(s) are training chips too",
        lost=(),
        valid_path=".",
    ),
    refused("an empty list", itself, "list of data folders is empty", at=lambda r: []),
    refused("a list with a folder that is not there", itself, "gone does not exist", at=lambda r: [r, r / "gone"]),
    refused("no path but blanks", itself, "does not exist", at=lambda r: "  "),
    refused(
        "two data sets in the folder above",
        lambda r: [shutil.copytree(r / d, r.parent / "b" / d) for d in ("images", "masks")],
        "holds 2 data sets",
        "valid_path",
        at=lambda r: r.parent,
    ),
    refused("a chip size of 0", itself, "chip_size=0", "positive", chip_size=0),
    refused("three sizes", itself, "chip_size=(1, 2, 3)", chip_size=(1, 2, 3)),
    refused("half a pixel", itself, "chip_size=7.5", chip_size=7.5),
    refused("a size in words", itself, "resize_to='large'", resize_to="large"),
    refused("a negative size", itself, "resize_to=-4", resize_to=-4),
    refused("all to validate on", itself, "val_split=1", "below 1", val_split=1),
    refused("a negative share", itself, "val_split=-0.5", val_split=-0.5),
    refused("a share that is not a number", itself, "val_split=nan", val_split=float("nan")),
    refused("a pattern that matches nothing", itself, "valid_match='x*'", "no one of 21", "c00", valid_match="x*"),
    refused("a pattern that matches everything", itself, "every one of 21", valid_match="*"),
    refused("a pattern and a folder", itself, "valid_match and valid_path", valid_match="c*", valid_path="."),
    refused("an unknown split", itself, "split_by='scene'", "column:NAME", split_by="scene"),
    refused(
        "a column that does not exist", itself, "column:place", "there are none", split_by="column:place", val_split=0.5
    ),
    refused("no groups", itself, "no chip is georeferenced", "valid_match", split_by="group", val_split=0.5),
    refused("a class that does not exist", itself, "class 'water' does not exist", "1, 3", classes=["water"]),
    refused("no class", itself, "classes=[] keeps none", "1, 3", classes=[]),
    refused("an ignored class that does not exist", itself, "class 'water' does not exist", ignore_classes=["water"]),
    refused(
        "an ignored value that does not exist",
        itself,
        "ignore_classes: class '7' does not exist; the classes are 1, 3",
        ignore_classes=[7],
    ),
    refused("all classes ignored", itself, "no class of", "leave out all, 1, 3", ignore_classes=[1, 3]),
    refused(
        "a mapping of an unknown class",
        itself,
        "class_mapping: 'water' is no class",
        "1, 3",
        class_mapping={"water": "sea"},
    ),
    refused("a limit of 0", itself, "limit=0 must be at least 1", limit=0),
    refused("a batch of 0", itself, "batch_size=0 must be at least 1", batch_size=0),
    refused("a scale of 0", itself, "scale=0 must be at least 1", scale=0),
    refused("a band by a wrong name", itself, "band 'nir' is not in", "1 red", bands=["nir"]),
    refused("band 0", itself, "band 0 is not in", "counted from 1", bands=[0]),
    refused("band 4 of three", itself, "band 4 is not in", bands=[4]),
    refused("a band twice", itself, "each once", bands=[1, 1]),
    refused("no band", itself, "at least one band", bands=[]),
    refused("an unknown cache", itself, "cache='ram'", "auto, disk, memory, off", cache="ram"),
    refused("workers in words", itself, "num_workers='many'", num_workers="many"),
    refused("negative workers", itself, "num_workers=-1", num_workers=-1),
    refused("a validation folder that is not there", itself, "gone does not exist", valid_path="gone"),
    refused("no validation folder in the list", itself, "valid_path", valid_path=[]),
    refused(
        "a validation folder of another format",
        lambda r: put(r / "v" / "a.csv", "a,b"),
        "v is not in the format image_masks",
        valid_path="v",
    ),
    refused(
        "a validation folder with other bands",
        lambda r: other(r, bands=1),
        "2 of 2 chips cannot be read",
        "other:",
        "1 band(s)",
        valid_path="other",
    ),
    refused("a test folder that is not there", itself, "gone does not exist", test_path="gone"),
    told(
        "a validation folder with another class",
        lambda r: other(r, value=9),
        "no training chip holds the class 9",
        valid_path="other",
    ),
    told("only one class", itself, "classes left out, as background: 3", classes=["1"], lost=()),
    told("one chip to train on, none to validate on", only("c00"), "one chip only", val_split=0.5, lost=NAMES[1:]),
    told("two chips", only("c00", "c01"), val_split=0.01, lost=NAMES[2:]),
    told("nothing to validate on", itself, lost=()),
    told("more to validate on than chips", itself, val_split=0.999, lost=()),
    told("a limit beyond the chips", itself, limit=10**9, lost=()),
    told("crops larger than the chips", itself, chip_size=500, lost=()),
]


@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: case.name)
def test_options(case, good):
    options = {} if "valid_path" in case.options else case.options  # the good folder is the one to train on alone
    check(case, *good("masks", case._replace(options=options)))


def test_an_unknown_argument_is_an_error_of_the_program(good):
    root, _ = good("masks", told("", itself))
    with pytest.raises(TypeError, match="no argument chipsize"):
        read(root, chipsize=5)


@contextmanager
def ordinary_user():
    """Without the rights of root, whom no permission stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder that every user may read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for place, folders, _ in os.walk(folder):
        for name in folders:
            Path(place, name).chmod(0o755)
    shutil.rmtree(folder)


def entries(folder: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in [folder, *folder.rglob("*")]}


def test_read_only_data_and_cache(good, open_folder, monkeypatch):
    root, before = good("masks", told("", itself))
    root, cache = Path(shutil.move(root, open_folder / "set")), open_folder / "cache"
    cache.mkdir()
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(cache))
    for folder in (root, cache, *(entry for entry in root.iterdir())):
        folder.chmod(0o555)
    known = entries(root)
    with ordinary_user():
        data = read(root, cache="auto")
        with pytest.raises(OSError, match="cannot be written") as error:
            read(root, cache="disk")
    assert str(cache) in str(error.value) and "point ACCEL_GEO_CACHE elsewhere" in str(error.value)
    assert samples(data).keys() == before.keys() and any(f"{cache}" in text for text in data.problems)
    assert entries(root) == known and not any(cache.iterdir())


@pytest.mark.parametrize("place", ["images/c07.tif", "masks/c07.tif", "masks", "images", ""])
def test_no_permission_to_read(good, open_folder, place):
    root, before = good("masks", told("", itself))
    root = Path(shutil.move(root, open_folder / "set"))
    (root / place).chmod(0)
    with ordinary_user():
        if place.endswith(".tif"):
            data = read(root)
            assert any(place in text and "ermission" in text for text in data.problems)
        else:
            with pytest.raises((ValueError, OSError), match="ermission") as error:
                read(root)
            assert str(root / place) in str(error.value)


@contextmanager
def full_disk(size: int):
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(good, tmp_path, monkeypatch):
    root, before = good("masks", told("", itself))
    cache = tmp_path / "cache"
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(cache))
    with full_disk(4096):
        data = read(root, cache="auto")
        with pytest.raises(OSError, match="cannot be written") as error:
            read(root, cache="disk")
    assert "make room there" in str(error.value) and samples(data).keys() == before.keys()
    assert any("cannot be written" in text and "kept in memory" in text for text in data.problems)
    assert not [file for file in cache.rglob("*") if file.suffix == ".arrow" or file.name.startswith(".tmp")]
    assert read(root, cache="disk").problems == []  # and goes on as if nothing had been


def test_a_cache_that_is_a_file(good, tmp_path, monkeypatch):
    root, before = good("masks", told("", itself))
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(put(tmp_path / "file", "no folder")))
    data = read(root, cache="auto")
    assert samples(data).keys() == before.keys() and any(str(tmp_path / "file") in text for text in data.problems)
    with pytest.raises(OSError, match="point ACCEL_GEO_CACHE elsewhere"):
        read(root, cache="disk")


def test_a_bound_of_the_cache_that_is_no_number(good, monkeypatch):
    root, _ = good("masks", told("", itself))
    monkeypatch.setenv("ACCEL_GEO_CACHE_GB", "plenty")
    with pytest.raises(ValueError, match="ACCEL_GEO_CACHE_GB='plenty' must be a number"):
        read(root, cache="disk")


@pytest.mark.parametrize(
    "damage", [lambda file: cut(file, 0.5), lambda file: cut(file, 0), lambda file: put(file, b"\0" * 999)]
)
def test_a_damaged_store_is_made_again(good, tmp_path, monkeypatch, damage):
    root, _ = good("masks", told("", itself))
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "cache"))
    before = samples(read(root, cache="disk"))
    (store,) = (tmp_path / "cache").rglob("*.arrow")
    damage(store)
    assert samples(read(root, cache="disk")).keys() == before.keys()


@pytest.mark.parametrize("place", ["labels/roof", "labels", "images"])
def test_no_permission_to_read_a_class(good, open_folder, place):
    root, _ = good("rcnn", told("", itself))
    root = Path(shutil.move(root, open_folder / "set"))
    (root / place).chmod(0)
    with ordinary_user(), pytest.raises((ValueError, OSError), match="ermission") as error:
        read(root)
    assert str(root / place) in str(error.value)


def test_several_data_sets_above(good):
    root, _ = good("masks", told("", itself))
    for name in ("a", "b"):
        shutil.copytree(root / "images", root.parent / name / "images")
        shutil.copytree(root / "masks", root.parent / name / "masks")
        write(root.parent / name / "scene.tif", image(1))  # as if a, b and set were classes
    with pytest.raises(ValueError, match="holds 3 data sets; give one of them") as error:
        read(root.parent)
    assert f"{root} (image_masks)" in str(error.value)


def test_a_scene_without_its_labels(good):
    root, _ = good("scene", refused("", itself))
    with pytest.raises(ValueError, match=r"A scene there is chipped where labels.geojson is given as vectors"):
        read(root)
    with pytest.raises(ValueError, match="A raster is chipped where a file of labels is given as vectors"):
        read(root / "scene.tif")
    with pytest.raises(ValueError, match="Vectors label a scene: give that as the path and this file as vectors"):
        read(root / "labels.geojson")


def test_a_format_that_serves_other_tasks(good):
    root, _ = good("tiles", refused("", itself))
    with pytest.raises(
        ValueError, match="serves the task instances. It is in the format Classified_Tiles .semantic, ed"
    ):
        read(root, task="instances")
