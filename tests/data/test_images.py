"""One image for a trained network: which bands of a file it gets, which types of pixels, and pixels in memory."""

import re
from dataclasses import replace

import numpy as np
import pytest
import rasterio
import torch

from accel_geo import prepare_data
from accel_geo.data.images import array_image, read_image

RGB = {"photometric": "rgb"}
NAMED = [f"B{i}" for i in range(1, 14)]
COUNTED = [f"Band_{i}" for i in range(1, 14)]


def pixels(bands, dtype):
    values = np.random.default_rng(bands).integers(0, 200, (bands, 12, 12)).astype(dtype)
    return values - 100 if values.dtype.kind == "f" else values


def described(write, file, values, names, profile):
    write(file, values, **profile)
    if names:
        with rasterio.open(file, "r+") as raster:
            raster.descriptions = names[: len(values)]
    return file


@pytest.fixture
def spec_of(tmp_path, write):
    """The DataSpec of data with so many bands of these types, one chip of each."""

    def make(bands, dtypes, names=None, chosen=None, **profile):
        for number, dtype in enumerate([dtypes] * 2 if isinstance(dtypes, str) else dtypes):
            described(write, tmp_path / f"set/images/{number}.tif", pixels(bands, dtype), names, profile)
            write(tmp_path / f"set/masks/{number}.tif", np.ones((12, 12), np.uint8))
        return prepare_data(tmp_path / "set", val_split=0, bands=chosen, cache="memory").spec

    return make


# Data trained on (bands, dtypes, names, chosen bands, profile), a file (bands, dtype, names, profile), and its bands used.
TAKEN = [
    ((3, "uint8", None, None, RGB), (3, "uint8", None, RGB), [1, 2, 3]),
    ((3, "uint8", None, None, RGB), (3, "uint8", None, {}), [1, 2, 3]),  # names alone refuse nothing
    ((3, "uint8", None, None, RGB), (4, "uint8", None, RGB | {"alpha": "yes"}), [1, 2, 3]),
    ((3, "uint8", None, None, RGB), (4, "uint8", None, RGB), [1, 2, 3]),  # by the names of colours
    ((3, "uint8", None, None, RGB), (5, "uint8", ["Blue", "Green", "Red", "nir", "mir"], {}), [3, 2, 1]),
    ((3, "uint8", ["B4", "B3", "B2"], None, {}), (13, "uint8", NAMED, {}), [4, 3, 2]),
    ((4, "uint8", None, None, RGB | {"alpha": "yes"}), (4, "uint8", None, RGB | {"alpha": "yes"}), [1, 2, 3, 4]),
    ((13, "int16", None, [4, 3, 2], {}), (13, "int16", None, {}), [4, 3, 2]),
    ((13, "int16", None, [1, 2, 3], {}), (13, "int16", None, {}), [1, 2, 3]),
    ((13, "int16", None, [4, 3, 2], {}), (12, "int16", None, {}), [4, 3, 2]),  # as training takes them
    ((13, "int16", NAMED, ["B4", "B8"], {}), (3, "int16", ["B8", "B4", "B2"], {}), [2, 1]),
    ((2, "float32", None, None, {}), (2, "float64", None, {}), [1, 2]),
    ((2, "float32", None, None, {}), (2, "int16", None, {}), [1, 2]),
    ((2, "int16", None, None, {}), (2, "uint16", None, {}), [1, 2]),
    ((2, "int16", None, None, {}), (2, "float32", None, {}), [1, 2]),
    ((2, ["uint8", "int16"], None, None, {}), (2, "uint8", None, {}), [1, 2]),
    ((2, ["uint8", "int16"], None, None, {}), (2, "int16", None, {}), [1, 2]),
]


@pytest.mark.parametrize("trained, given, bands", TAKEN)
def test_bands_that_are_taken(tmp_path, write, spec_of, trained, given, bands):
    spec, (count, dtype, names, profile) = spec_of(*trained[:4], **trained[4]), given
    values = pixels(count, dtype)
    file = described(write, tmp_path / "a.tif", values, names, profile)
    image = read_image(file, spec)
    assert torch.equal(image, torch.from_numpy(spec.scaled(values[[i - 1 for i in bands]])))
    assert torch.equal(array_image(values[[i - 1 for i in bands]].astype(spec.dtype), spec), image)


REFUSED = [
    (
        (3, "uint8", None, None, RGB),
        (13, "int16", None, {}),
        "13 band(s) (band_1, ",
        " of int16",
        "3 band(s) (red, green",
    ),
    ((3, "uint8", None, None, RGB), (13, "uint8", COUNTED, {}), "13 band(s) (Band_1, ", "gdal_translate -b"),
    ((3, "uint8", COUNTED, None, RGB), (13, "uint8", COUNTED, {}), "13 band(s) (Band_1, ", "files without others"),
    ((3, "uint8", None, None, RGB), (2, "uint8", None, {}), "2 band(s) (band_1, band_2)", "red, green, blue"),
    ((3, "uint8", None, None, RGB), (3, "int16", None, {}), "of int16", "of uint8", "something else", "units"),
    ((3, "uint8", None, None, RGB), (3, "float32", None, {}), "of float32", "of uint8", "something else"),
    ((2, "float32", None, None, {}), (3, "uint8", None, RGB), "3 band(s) (red, green, blue) of uint8", "of float32"),
    ((2, "float32", None, None, {}), (2, "uint8", None, {}), "of uint8", "2 band(s) (band_1, band_2) of float32"),
    ((3, "int16", None, None, {}), (3, "uint8", None, RGB), "of uint8", "of int16", "a raster of int16 or an array"),
    ((13, "int16", None, [13, 1], {}), (12, "int16", None, {}), "band 13 is not in", "positions [13, 1]"),
]


@pytest.mark.parametrize("trained, given, words", [(a, b, words) for a, b, *words in REFUSED])
def test_bands_that_are_refused(tmp_path, write, spec_of, trained, given, words):
    spec, (count, dtype, names, profile) = spec_of(*trained[:4], **trained[4]), given
    file = described(write, tmp_path / "a.tif", pixels(count, dtype), names, profile)
    with pytest.raises(ValueError) as caught:
        read_image(file, spec)
    assert all(word in str(caught.value) for word in (str(file), *words))


def test_a_model_that_does_not_tell_of_other_bands_takes_its_positions(tmp_path, write, spec_of):
    spec = replace(spec_of(3, "int16"), all_bands=False, file_dtypes=())
    file = write(tmp_path / "a.tif", pixels(5, "uint16"))
    assert torch.equal(read_image(file, spec), torch.from_numpy(spec.scaled(pixels(5, "uint16")[:3])))


def test_pixels_in_memory_are_read_as_those_of_a_file(tmp_path, write, spec_of):
    spec = replace(spec_of(2, "float32"), nodata=-7.0, resize_to=(6, 6))
    values = pixels(2, "float32")
    values[0, :6], values[1, 0, 0] = np.nan, -7
    given = values.copy()
    image = array_image(given, spec)
    assert torch.equal(image, read_image(write(tmp_path / "a.tif", values, nodata=-7), spec)) and image.shape == (
        2,
        6,
        6,
    )
    assert image.isfinite().all() and not image[0, :2].any() and np.array_equal(given, values, equal_nan=True)


@pytest.mark.parametrize(
    "dtype, values, words",
    [
        ("int16", np.zeros((3, 8, 8), np.int16), ["int16 [3, 8, 8]", "[2, H, W] of the bands band_1, band_2"]),
        ("int16", np.zeros((1, 2, 8, 8), np.int16), ["int16 [1, 2, 8, 8]", "[2, H, W]"]),
        ("int16", np.zeros((2, 0, 8), np.int16), ["int16 [2, 0, 8]", "[2, H, W]"]),
        ("int16", np.zeros((2, 8, 8)), ["float64", "pixels of int16", "array.astype('int16')", "a tensor"]),
        ("int16", np.zeros((2, 8, 8), np.uint8), ["uint8", "pixels of int16"]),
        ("uint8", np.zeros((2, 8, 8), np.int64), ["int64", "array.astype('uint8')"]),
        ("uint8", np.zeros((2, 8, 8), bool), ["bool", "pixels of uint8"]),
        ("float32", np.zeros((2, 8, 8), np.complex64), ["complex64", "pixels of float32"]),
    ],
)
def test_arrays_that_are_refused(spec_of, dtype, values, words):
    with pytest.raises(ValueError, match="".join(f"(?=.*{re.escape(word)})" for word in words)):
        array_image(values, spec_of(2, dtype))


def test_a_folder_is_no_raster(tmp_path, spec_of):
    with pytest.raises(ValueError, match=rf"{tmp_path} is a folder; name its rasters: {tmp_path}/\*\.tif"):
        read_image(tmp_path, spec_of(2, "uint8"))
