"""prepare_data and GeoData: splits, options, sizes, padding, what is refused, what is told."""

import re
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch

from accel_geo import prepare_data
from accel_geo.data.chips import collate
from accel_geo.parallel.order import Request


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def write(file: Path, pixels: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    shape = {"count": len(pixels), "height": pixels.shape[1], "width": pixels.shape[2], "dtype": pixels.dtype}
    with rasterio.open(file, "w", driver="GTiff", **shape) as raster:
        raster.write(pixels)


@pytest.fixture
def folder(tmp_path):
    """Twenty chips of 16 px, named after two places; class values 1, 3, 5."""
    rng = np.random.default_rng(2)
    for i in range(20):
        name = f"{'north' if i % 4 else 'south'}_{i:02}.tif"
        write(tmp_path / "images" / name, rng.integers(1, 255, (3, 16, 16)).astype(np.uint8))
        mask = np.zeros((1, 16, 16), dtype=np.uint8)
        mask[0, :4], mask[0, 6:8], mask[0, 12:] = 1, 3, 5
        write(tmp_path / "masks" / name, mask)
    return tmp_path


@pytest.fixture
def mixed(tmp_path):
    """Seven chips of mixed sizes."""
    for i, size in enumerate([(16, 16), (16, 16), (12, 20), (30, 9), (16, 16), (8, 8), (16, 24)]):
        write(tmp_path / "images" / f"{i}.tif", np.full((2, *size), 10 + i, dtype=np.uint16))
        write(tmp_path / "masks" / f"{i}.tif", np.ones((1, *size), dtype=np.uint8))
    return tmp_path


def test_random_split_is_stable_and_seeded(folder):
    data = prepare_data(folder, val_split=0.25)
    assert (len(data.train), len(data.valid)) == (15, 5)
    assert sorted(data.train.ids + data.valid.ids) == list(range(20)) and data.valid.ids == sorted(data.valid.ids)
    assert prepare_data(folder, val_split=0.25).valid.ids == data.valid.ids
    assert prepare_data(folder, val_split=0.25, seed=1).valid.ids != data.valid.ids
    gone = next(i for i in data.train.ids)
    (folder / data.file(gone)).unlink()
    less = prepare_data(folder, val_split=0.25)
    assert len(set(less.valid.files) & set(data.valid.files)) >= 4, "another number of chips hardly moves the others"


def test_other_splits(folder):
    data = prepare_data(folder, valid_match="south_*")
    assert len(data.valid) == 5 and all("south" in file for file in data.valid.files)
    assert data.file(data.valid.ids[1]) == "images/south_04.tif"
    for wrong, message in [("east_*", "no one of 20"), ("*", "every one")]:
        with pytest.raises(ValueError, match=message):
            prepare_data(folder, valid_match=wrong)
    assert len(prepare_data(folder, val_split=0).valid) == 0
    assert len(prepare_data(folder, val_split=0.001).valid) == 1
    assert len(prepare_data(folder, val_split=0.99).train) == 1
    assert len(prepare_data(folder, limit=1).train) == 1
    assert prepare_data(folder, limit=7, val_split=0).train.ids == list(range(7))


def test_a_folder_to_validate_on(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for i in range(3):
        write(other / "images" / f"{i}.tif", np.full((3, 16, 16), 9, dtype=np.uint8))
        write(other / "masks" / f"{i}.tif", np.full((1, 16, 16), 3, dtype=np.uint8))
    data = prepare_data(folder, valid_path=other)
    assert len(data.train) == 20 and data.valid.ids == [20, 21, 22] and (data.valid[2]["mask"] == 2).all()
    assert data.spec.classes == ("1", "3", "5") and data.file(21).endswith("images/1.tif")
    with pytest.raises(ValueError, match="give one of them"):
        prepare_data(folder, valid_path=other, valid_match="x*")


def test_classes_kept_named_and_merged(folder):
    data = prepare_data(folder, val_split=0, classes=["road", "roof", "shed"], class_mapping={"shed": "roof"})
    assert data.spec.classes == ("road", "roof") and data.spec.class_values == (1, 3)
    assert np.unique(data.train[0]["mask"], return_counts=True)[1].tolist() == [6 * 16, 4 * 16, 6 * 16]
    assert data.class_counts["train"]["pixels"] == [20 * 96, 20 * 64, 20 * 96]
    assert data.class_counts["train"]["chips"] == [0, 20, 20]
    data = prepare_data(folder, val_split=0, classes=[5])
    assert data.spec.class_values == (5,) and data.train[0]["mask"].sum() == 64
    assert any("left out, as background: 1 (1), 3 (3)" in problem for problem in data.problems)
    with pytest.raises(ValueError, match="'tin' is no class; the classes are 1, 3, 5"):
        prepare_data(folder, class_mapping={"tin": "roof"})


def test_chip_size_and_resize(folder):
    data = prepare_data(folder, chip_size=(8, 12))
    assert data.spec.chip_size == (8, 12) and set(data.train.sizes) == {(8, 12)} and set(data.valid.sizes) == {(16, 16)}
    seen = {data.train[Request(0, key)]["image"].sum().item() for key in range(1, 9)}
    assert len(seen) == 8 and data.train[Request(0, 4)]["mask"].shape == (8, 12)
    assert torch.equal(data.valid[Request(0, 5)]["image"], data.valid[0]["image"])
    data = prepare_data(folder, resize_to=8)
    assert data.train[0]["image"].shape == (3, 8, 8) and data.spec.resize_to == (8, 8)
    assert set(data.train[0]["mask"].unique().tolist()) <= {0, 1, 2, 3}
    assert prepare_data(folder, chip_size=99).train.sizes[0] == (16, 16)


def test_user_transforms(folder):
    def brighter(sample, key):
        return sample | {"image": sample["image"] + 1}

    plain = prepare_data(folder, transforms=False)
    mine = prepare_data(folder, transforms=brighter)
    assert torch.equal(plain.train[Request(2, 9)]["image"], plain.train[2]["image"])
    assert torch.equal(mine.train[Request(2, 9)]["image"], plain.train[2]["image"] + 1)
    assert torch.equal(mine.valid[Request(0, 9)]["image"], plain.valid[0]["image"])
    cut = prepare_data(folder, transforms=lambda sample, key: sample | {"image": sample["image"][:, :5]})
    with pytest.raises(ValueError, match="sizes must be known before loading"):
        cut.train[Request(0, 1)]


def forgetful(sample, key):
    sample["image"] = sample["image"].flip(-1)


def imageless(sample, key):
    return {"mask": sample["mask"]}


class Odd(Exception):
    """An error that cannot be made of a text alone."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def failing(sample, key):
    raise Odd(1, 2)


@pytest.mark.parametrize(
    "workers, transform, message",
    [
        (0, forgetful, "the transform returned None for {file}, but must return the sample, a dict: return sample"),
        (0, imageless, "the transform returned a dict without an image for {file}"),
        (0, failing, "the transform failed on {file}: Odd: 1 and 2"),
        (1, failing, "the transform failed on {file}: Odd: 1 and 2"),
    ],
)
def test_transforms_that_fail_are_told_with_the_chip(folder, workers, transform, message):
    from accel_geo.engine.batches import Loader

    chips = prepare_data(folder, transforms=transform).train
    loader = Loader(chips, [[Request(3, 1)]], torch.device("cpu"), torch.float32, workers)
    with pytest.raises(ValueError, match=re.escape(message.format(file=chips.files[3]))) as caught:
        list(loader)
    assert workers or transform is not failing or isinstance(caught.value.__cause__, Odd)


def test_mixed_sizes_pad_to_what_is_asked(mixed):
    data = prepare_data(mixed, val_split=0)
    sizes = data.train.sizes
    assert sizes[2:4] == [(12, 20), (30, 9)] and data.spec.chip_size == (16, 16)
    for key in (0, 11):
        images, targets = collate([data.train[Request(i, key, (30, 24))] for i in range(7)])
        assert images.shape == (7, 2, 30, 24)
        for image, target, (h, w) in zip(images, targets, sizes):
            assert target["size"] == (h, w) and "image" not in target and target["key"] == key
            assert (target["mask"][:h, :w] == 1).all() and (target["mask"] == 255).sum() == 30 * 24 - h * w
            assert not image[:, h:].any() and not image[:, :, w:].any()
    with pytest.raises(ValueError, match="cannot be padded"):
        data.train[Request(3, 0, (16, 16))]


def test_targets_have_the_types_that_they_promise(folder):
    sample = prepare_data(folder).train[0]
    assert sample["image"].dtype == torch.float32 and sample["mask"].dtype == torch.int64
    assert type(sample["image_id"]) is int and type(sample["key"]) is int and sample["ignore"] is False
    assert "problem" not in sample and "missing" not in sample


def test_what_is_told(folder):
    data = prepare_data(folder, val_split=0.25)
    text = data.describe()
    for part in (str(folder), "image_masks, semantic", "15 to train, 5 to validate", "16 x 16", "background", "red"):
        assert part in text
    with pytest.raises(KeyError, match="no chip has the image_id 99"):
        data.file(99)


def test_a_picture_of_a_batch(folder, tmp_path):
    pytest.importorskip("matplotlib")
    prepare_data(folder).show_batch(rows=1, path=tmp_path / "batch.png")
    assert (tmp_path / "batch.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "segmentation"}, "the tasks are classification"),
        ({"split_by": "rows"}, "random, group or column:NAME"),
        ({"val_split": 1.0}, "below 1"),
        ({"val_split": -0.1}, "at least 0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"limit": 0}, "limit=0"),
        ({"chip_size": 0}, "chip_size=0"),
        ({"resize_to": (1, 2, 3)}, "height, width"),
        ({"num_workers": "many"}, "num_workers"),
        ({"transforms": "flip"}, "transforms='flip' must be True .*function.*v2"),
        ({"transforms": [lambda sample, key: sample]}, r"v2.Compose\(\[...\]\) of several"),
        ({"vectors": "a.gpkg"}, "needs chip_size"),
        ({"cache": "ram"}, "auto, disk, memory, off"),
    ],
)
def test_options_that_are_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        prepare_data(folder, **options)


def test_workers_only_where_they_pay(folder, monkeypatch):
    assert prepare_data(folder).num_workers == 0 and prepare_data(folder, num_workers=3).num_workers == 3
    assert prepare_data(folder, cache="off").num_workers >= 1


def test_several_labels_of_a_chip(tmp_path, monkeypatch):
    from accel_geo.data import formats
    from accel_geo.data.formats.rows import Rows, table

    for i in range(3):
        write(tmp_path / f"{i}.tif", np.full((3, 8, 8), i, dtype=np.uint8))
    rows = table([{"file": f"{i}.tif", "values": [[7], [2, 7], []][i]} for i in range(3)])
    made = Rows("tags", "classification", tmp_path, rows, {2: "a", 7: "b"}, multilabel=True)
    monkeypatch.setattr(formats, "read", lambda *options: made)
    data = prepare_data(tmp_path, val_split=0)
    assert data.spec.multilabel and [data.train[i]["labels"].tolist() for i in range(3)] == [[0, 1], [1, 1], [0, 0]]
    assert data.class_counts["train"]["chips"] == [1, 1, 2]


def test_built_in_scenes(monkeypatch):
    from accel_geo.data import scenes

    drawn = scenes.builtin("semantic", smoke=True)
    monkeypatch.setattr(scenes, "builtin", lambda task, smoke: drawn)
    data = prepare_data(None, task="semantic")
    assert data.format == "Classified_Tiles" and len(data.train) + len(data.valid) == 8
