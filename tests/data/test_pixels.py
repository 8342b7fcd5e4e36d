import zipfile
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.enums import ColorInterp

from accel_geo.data import handles
from accel_geo.data.pixels import Pixels, _sample, describe_bands, located, read_pixels


@pytest.fixture(autouse=True)
def closed():
    yield
    handles.close()


def cropped(pixels: Pixels, window: tuple[int, int, int, int]) -> Pixels:
    """A window cut out of a whole raster: what lies beyond is missing."""
    values, missing, ignored = pixels
    missing = np.zeros(values.shape, dtype=bool) if missing is None else missing
    ignored = np.zeros(values.shape[1:], dtype=bool) if ignored is None else ignored
    left, top, width, height = window
    around = [(1000, 1000), (1000, 1000)]
    cut = np.s_[..., top + 1000 : top + 1000 + height, left + 1000 : left + 1000 + width]
    return Pixels(
        np.pad(values, [(0, 0), *around])[cut],
        np.pad(missing, [(0, 0), *around], constant_values=True)[cut],
        np.pad(ignored, around, constant_values=True)[cut],
    )


WINDOWS = [
    (0, 0, 16, 16),
    (3, 5, 9, 7),
    (0, 0, 40, 30),
    (-4, -6, 20, 20),
    (30, 20, 32, 32),
    (-5, 2, 60, 4),
    (90, 0, 8, 8),
]


def rgb(dtype="uint8", bands=3):
    return np.random.default_rng(0).integers(1, 200, (bands, 30, 40)).astype(dtype)


def with_alpha(file: Path, write) -> Path:
    pixels = rgb(bands=4)
    pixels[3] = 255
    pixels[3, 8:14, 3:20] = 0
    return write(file, pixels, photometric="rgb", alpha="yes")


def with_nodata(file: Path, write) -> Path:
    pixels = rgb()
    pixels[:, 4:9] = 0
    pixels[1, 12] = 0
    return write(file, pixels, nodata=0)


def with_holes(file: Path, write) -> Path:
    pixels = rgb("float32", 2)
    pixels[0, 4:9] = np.nan
    pixels[:, 20] = -9999
    return write(file, pixels, nodata=-9999)


def with_mask(file: Path, write) -> Path:
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        write(file, rgb(), tiled=True, blockxsize=16, blockysize=16)
        with rasterio.open(file, "r+") as raster:
            mask = np.full((30, 40), 255, dtype=np.uint8)
            mask[10:, 25:] = 0
            raster.write_mask(mask)
    return file


def plain(file: Path, write) -> Path:
    return write(file, rgb("uint16", 5))


@pytest.mark.parametrize("make", [plain, with_alpha, with_nodata, with_holes, with_mask])
def test_a_window_is_the_whole_cut(tmp_path, write, make):
    file = make(tmp_path / "scene.tif", write)
    bands = describe_bands(file, None)
    whole = read_pixels(file, bands)
    assert (whole.missing is not None) == (make is not plain)
    for window in WINDOWS:
        got, expected = read_pixels(str(file), bands, window), cropped(whole, window)
        np.testing.assert_array_equal(got.values, expected.values)
        assert got.values.dtype == whole.values.dtype
        for mine, theirs in [(got.missing, expected.missing), (got.ignored, expected.ignored)]:
            np.testing.assert_array_equal(np.zeros_like(theirs) if mine is None else mine, theirs)


def test_chosen_bands_of_a_window(tmp_path, write):
    file = write(tmp_path / "scene.tif", rgb(bands=5))
    bands = describe_bands(str(file), [4, 2])
    np.testing.assert_array_equal(read_pixels(file, bands, [2, 3, 8, 6]).values, rgb(bands=5)[[3, 1], 3:9, 2:10])


def test_other_bands_than_the_first_chip(tmp_path, write):
    bands = describe_bands(write(tmp_path / "a.tif", rgb()), None)
    other = write(tmp_path / "b.tif", rgb(bands=2))
    for window in (None, [0, 0, 4, 4]):
        with pytest.raises(ValueError, match=r"it has 2 band\(s\), the first chip has 3"):
            read_pixels(other, bands, window)


def test_complex_pixels_are_refused(tmp_path, write):
    file = write(tmp_path / "slc.tif", rgb("complex64", 1))
    bands = describe_bands(file, None)
    for window in (None, [0, 0, 4, 4]):
        with pytest.raises(ValueError, match="two bands"):
            read_pixels(file, bands, window)


def test_a_hidden_band_is_told_from_near_infrared_by_a_sample_of_a_large_raster(tmp_path, write):
    pixels = np.random.default_rng(0).integers(1, 200, (4, 600, 9000)).astype(np.uint8)
    near_infrared = write(tmp_path / "nir.tif", pixels, photometric="rgb", alpha="yes")
    pixels[3] = 255
    hidden = write(tmp_path / "rgba.tif", pixels, photometric="rgb", alpha="yes")
    with rasterio.open(hidden) as source:
        assert source.colorinterp[3] == ColorInterp.alpha
        assert _sample(source, 4).size == 16 * 256 * 256 < source.width * source.height
    assert not describe_bands(near_infrared, None).alpha
    assert describe_bands(hidden, None).alpha


def test_files_that_gdal_names(tmp_path, write):
    file = write(tmp_path / "in" / "scene.tif", rgb())
    with zipfile.ZipFile(tmp_path / "scenes.zip", "w") as archive:
        archive.write(file, "scene.tif")
    zipped = f"/vsizip/{tmp_path}/scenes.zip/scene.tif"
    bands = describe_bands(zipped, None)
    np.testing.assert_array_equal(read_pixels(zipped, bands, [1, 2, 5, 6]).values, rgb()[:, 2:8, 1:6])
    directory = f"GTIFF_DIR:1:{file}"
    np.testing.assert_array_equal(read_pixels(directory, bands, [1, 2, 5, 6]).values, rgb()[:, 2:8, 1:6])
    for name in (zipped, directory, "https://example.org/a.tif", "/vsicurl/https://example.org/a.tif"):
        assert located(tmp_path, name) == name
    assert located(tmp_path, "in/scene.tif") == file == located(Path("elsewhere"), str(file))
    odd = write(tmp_path / "at_10:30.tif", rgb())
    assert located(tmp_path, "at_10:30.tif") == odd


def test_a_damaged_jpeg_is_an_error_in_windows_too(tmp_path, write):
    from rasterio.errors import RasterioError

    file = write(tmp_path / "scene.jpg", np.random.default_rng(0).integers(0, 255, (3, 64, 64)).astype(np.uint8))
    bands = describe_bands(file, None)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2] = b"\xff\xd9"  # ends too early, of which libjpeg only warns
    file.write_bytes(data)
    for window in (None, [0, 40, 20, 20]):
        with pytest.raises(RasterioError):
            read_pixels(file, bands, window)
