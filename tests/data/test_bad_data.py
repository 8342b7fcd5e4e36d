"""What a bad chip counts (nothing), and what is no data; what is wrong otherwise stands in the tables test_bad_input_*."""

import numpy as np
import pytest
import torch

from accel_geo import prepare_data
from accel_geo.parallel.order import Request


def truncate(file, keep=0.6):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


BROKEN = {
    "truncated": lambda root, write: truncate(root / "images" / "chip_07.tif"),
    "six bands": lambda root, write: write(root / "images" / "chip_07.tif", np.ones((6, 16, 16), np.uint16)),
    "label truncated": lambda root, write: truncate(root / "masks" / "chip_07.tif"),
}


@pytest.mark.parametrize("cache", ["disk", "off"])
@pytest.mark.parametrize("what", BROKEN)
def test_a_bad_chip_keeps_its_place_and_counts_nothing(masks_folder, write, what, cache):
    root = masks_folder(n=24)
    good = prepare_data(root, val_split=0, cache="memory")
    BROKEN[what](root, write)
    data = prepare_data(root, val_split=0, cache=cache)
    bad = data.train[Request(7, 3, (20, 20))]
    assert bad["ignore"] and "chip_07" in bad["problem"] and (bad["mask"] == 255).all() and not bad["image"].any()
    assert bad["image"].shape == (3, 20, 20) and bad["size"] == (16, 16) and bad["image_id"] == 7
    assert sum("chip_07" in problem for problem in data.problems) == 1
    for i in set(range(24)) - {7}:
        assert torch.equal(data.train[i]["mask"], good.train[i]["mask"]) and not data.train[i]["ignore"]
        assert torch.equal(data.train[i]["image"], good.train[i]["image"])


def test_too_many_bad_chips_stop(masks_folder):
    root = masks_folder(n=24)
    for i in (3, 5):
        truncate(root / "images" / f"chip_{i:02}.tif")
    for cache in ("disk", "off"):
        with pytest.raises(ValueError, match="2 of 24 chips cannot be read, more than 5%") as error:
            prepare_data(root, cache=cache)
        assert "chip_03" in str(error.value) and "chip_05" in str(error.value)


def test_a_chip_that_breaks_while_training(masks_folder):
    data = prepare_data(masks_folder(n=8), val_split=0, cache="off")
    (data.train.parts[0].store._decoder.rows.root / "images" / "chip_02.tif").unlink()
    sample = data.train[2]
    assert sample["ignore"] and "chip_02" in sample["problem"] and not data.train[1]["ignore"]


def test_ignored_samples_of_the_other_tasks(tmp_path, write, coco_folder):
    for i in range(21):
        write(tmp_path / "a" / f"{i:02}.png", np.full((3, 8, 8), i, dtype=np.uint8))
    (tmp_path / "a" / "04.png").write_bytes(b"")
    data = prepare_data(tmp_path, val_split=0)
    assert data.train[4]["label"] == -1 and data.train[4]["ignore"] and data.train[5]["label"] == 0
    square = {"segmentation": [[2, 3, 10, 3, 10, 9, 2, 9]], "category_id": 1}
    root = coco_folder([square], [{"id": 1, "name": "a"}], n=21)
    (root / "images" / "c0.png").write_bytes(b"")
    sample = prepare_data(root, val_split=0).train[0]
    assert sample["boxes"].shape == (0, 4) and sample["masks"].shape == (0, 20, 24) and sample["ignore"]


def test_an_unknown_label_value_is_refused(masks_folder, write):
    root = masks_folder(labels="labels")
    (root / "esri_model_definition.emd").write_text(
        '{"Classes": [{"Value": 1, "Name": "a"}, {"Value": 3, "Name": "b"}]}'
    )
    assert prepare_data(root).spec.classes == ("a", "b")
    for option in ({"classes": {7: "c"}}, {"ignore_classes": ["7"]}):
        with pytest.raises(
            ValueError, match=rf"{[*option][0]}: class '7' does not exist; the classes are a \(1\), b \(3\)"
        ):
            prepare_data(root, **option)
    assert (prepare_data(root, ignore_classes=[0]).train[0]["mask"] != 0).all()  # background
    for value in (7, 255):
        write(root / "labels" / "chip_04.tif", np.full((16, 16), value, np.uint8))
        with pytest.raises(ValueError, match=rf"chip_04.tif holds the label value {value}") as error:
            prepare_data(root)
        assert "a (1), b (3)" in str(error.value)


def test_values_of_masks_without_a_class_list(masks_folder, write):
    root = masks_folder()
    write(root / "masks" / "chip_00.tif", np.full((16, 16), 255, np.uint8))
    write(root / "masks" / "chip_02.tif", np.full((16, 16), -9, np.int16))
    data = prepare_data(root, val_split=0)
    assert data.spec.class_values == (1, 3) and data.spec.classes == ("1", "3")
    assert (data.train[0]["mask"] == 255).all() and (data.train[2]["mask"] == 255).all()
    assert any("255" in problem for problem in data.problems) and any("-9" in problem for problem in data.problems)
    data = prepare_data(root, classes={3: "roof", 1: "road"})
    assert data.spec.classes == ("road", "roof")
    assert prepare_data(root, classes=["road", "roof"]).spec.classes == ("road", "roof")
    assert prepare_data(root, classes=["3=roof"]).spec.class_values == (3,)
    assert prepare_data(root, classes={3: "roof", 9: "rail"}).spec.class_values == (3, 9)  # 9 may be in other chips
    with pytest.raises(ValueError, match="'x' does not exist; the classes are 1, 3"):
        prepare_data(root, classes=["x"])


def test_a_binary_mask_of_0_and_255(tmp_path, write):
    mask = np.zeros((8, 8), dtype=np.uint8)
    mask[:2] = 255
    write(tmp_path / "images" / "a.png", np.full((3, 8, 8), 3, dtype=np.uint8))
    write(tmp_path / "masks" / "a.png", mask)
    data = prepare_data(tmp_path)
    assert data.spec.class_values == (255,) and data.train[0]["mask"].sum() == 16


def test_empty_masks_only(tmp_path, write):
    write(tmp_path / "images" / "a.png", np.full((3, 8, 8), 3, dtype=np.uint8))
    write(tmp_path / "masks" / "a.png", np.zeros((8, 8), dtype=np.uint8))
    with pytest.raises(ValueError, match="has no classes"):
        prepare_data(tmp_path)


def test_nan_pixels_count_as_no_data(tmp_path, write):
    rng = np.random.default_rng(0)
    pixels = rng.normal(1000, 300, (4, 2, 16, 16)).astype(np.float32)
    pixels[1, 0, 3, 4], pixels[1, :, 5, 5], pixels[2] = np.nan, np.inf, np.nan
    for i in range(4):
        write(tmp_path / "images" / f"{i}.tif", pixels[i])
        write(tmp_path / "masks" / f"{i}.tif", np.full((16, 16), 1 + i % 2, np.uint8))
    data = prepare_data(tmp_path, val_split=0)
    valid = np.isfinite(pixels)
    low, high = (f(pixels.transpose(1, 0, 2, 3)[b][valid[:, b]]) for f in (np.min, np.max) for b in (0,))
    assert data.spec.low[0] == low and data.spec.high[0] == high
    scaled = (pixels[:, 0][valid[:, 0]].astype(np.float64) - low) / (np.float64(high) - low)
    assert data.spec.mean[0] == pytest.approx(scaled.mean(), abs=1e-9)
    assert data.spec.std[0] == pytest.approx(scaled.std(), abs=1e-9)
    sample = data.train[1]
    assert torch.isfinite(sample["image"]).all() and sample["image"][0, 3, 4] == 0 and sample["image"][1, 3, 4] != 0
    assert sample["mask"][3, 4] == 255 and sample["mask"][5, 5] == 255 and (sample["mask"] == 255).sum() == 2
    assert (data.train[2]["mask"] == 255).all() and not data.train[2]["ignore"]
    assert any("2.tif" in problem and "without data" in problem for problem in data.problems)
    moved = data.train[Request(1, 77)]  # gain and offset leave what has no data at 0
    assert (moved["image"] == 0).sum() >= 3 and (moved["mask"] == 255).sum() == 2


def test_nodata_value_and_alpha(tmp_path, write):
    pixels = np.full((3, 8, 8), 50, dtype=np.uint8)
    pixels[:, :2], pixels[0, 4, 4] = 0, 0  # rows without data, and a dark pixel in one band
    write(tmp_path / "a" / "images" / "0.tif", pixels, nodata=0)
    alpha = np.full((1, 8, 8), 255, dtype=np.uint8)
    alpha[0, :2] = 0
    write(tmp_path / "b" / "images" / "0.png", np.concatenate([pixels, alpha]))
    for name in "ab":
        write(tmp_path / name / "masks" / "0.tif", np.ones((8, 8), np.uint8))
        data = prepare_data(tmp_path / name)
        mask = data.train[0]["mask"]
        assert (mask[:2] == 255).all() and (mask[2:] == 1).all() and len(data.spec.bands) == 3
        assert data.spec.mean[1] == pytest.approx(50 / 255) and data.spec.std[1] == 1.0  # constant: never 0


def test_a_fourth_band_is_not_alpha_because_it_is_tagged_so(tmp_path, write):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 16, 16)).astype(np.uint8)
    write(tmp_path / "images" / "0.tif", pixels)  # GDAL tags the fourth of 8-bit bands as alpha
    write(tmp_path / "masks" / "0.tif", np.ones((16, 16), np.uint8))
    assert prepare_data(tmp_path, bands=[4, 1]).spec.band_indexes == (4, 1)
    data = prepare_data(tmp_path)
    assert len(data.spec.bands) == 4 and (data.train[0]["mask"] == 1).all()
    assert np.allclose(data.train[0]["image"].numpy(), pixels / 255)
    assert any("tagged as alpha" in problem for problem in data.problems)


def test_16_bit_is_never_clipped(tmp_path, write):
    pixels = np.random.default_rng(1).integers(300, 9000, (5, 1, 16, 16)).astype(np.uint16)
    for i in range(5):
        write(tmp_path / "images" / f"{i}.tif", pixels[i])
        write(tmp_path / "masks" / f"{i}.tif", np.ones((16, 16), np.uint8))
    data = prepare_data(tmp_path, val_split=0)
    low, high = pixels.min(), pixels.max()
    assert (data.spec.low, data.spec.high, data.spec.dtype) == ((float(low),), (float(high),), "uint16")
    back = torch.stack([data.train[i]["image"] for i in range(5)]).double() * float(high - low) + float(low)
    assert np.array_equal(back.round().numpy(), pixels)


def test_bands_that_do_not_exist(masks_folder):
    for bands in ([4], ["nir"], [0], [1, 1], []):
        with pytest.raises(ValueError, match="band"):
            prepare_data(masks_folder(), bands=bands)
    assert prepare_data(masks_folder(), bands=["3", 1]).spec.band_indexes == (3, 1)
