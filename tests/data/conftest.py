import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch, request):
    """A cache folder of the tests' own, kept over a session so that real folders are decoded once."""
    if "scenes" not in request.node.nodeid:
        folder = tmp_path_factory.getbasetemp() / "cache"
        monkeypatch.setenv("ACCEL_GEO_CACHE", str(folder))


@pytest.fixture
def write():
    """A function that writes an array [H, W] or [C, H, W] as a raster and makes its folders."""

    def write(file: Path, pixels: np.ndarray, **profile) -> Path:
        pixels = np.asarray(pixels)
        pixels = pixels[None] if pixels.ndim == 2 else pixels
        file.parent.mkdir(parents=True, exist_ok=True)
        driver = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}.get(file.suffix.lower(), "GTiff")
        shape = {"count": len(pixels), "height": pixels.shape[1], "width": pixels.shape[2], "dtype": pixels.dtype}
        with rasterio.open(file, "w", driver=driver, **shape, **profile) as raster:
            raster.write(pixels)
        return file

    return write


@pytest.fixture
def masks_folder(tmp_path, write):
    """A function that writes a folder of n images and masks: a square of value 1 or 3 on background."""

    def make(
        n: int = 10, size: int = 16, dtype: str = "uint8", root: Path = tmp_path / "set", labels: str = "masks"
    ) -> Path:
        rng = np.random.default_rng(5)
        for i in range(n):
            write(root / "images" / f"chip_{i:02}.tif", rng.integers(1, 200, (3, size, size)).astype(dtype))
            mask = np.zeros((size, size), dtype=np.uint8)
            mask[2 : 6 + i % 3, 3:9] = 1 + 2 * (i % 2)
            write(root / labels / f"chip_{i:02}.tif", mask)
        return root

    return make


@pytest.fixture
def coco_folder(tmp_path, write):
    """A function that writes n chips of 20 px and a COCO JSON with these annotations and categories."""

    def make(annotations: list[dict], categories: list[dict], n: int = 2, name: str = "instances.json") -> Path:
        root = tmp_path / "coco"
        images = []
        for i in range(n):
            write(root / "images" / f"c{i}.png", np.full((3, 20, 24), 40 + i, dtype=np.uint8))
            images.append({"id": 100 + i, "file_name": f"c{i}.png", "width": 24, "height": 20})
        full = [{"id": k, "image_id": 100, "iscrowd": 0} | a for k, a in enumerate(annotations)]
        (root / name).write_text(json.dumps({"images": images, "annotations": full, "categories": categories}))
        return root

    return make


@pytest.fixture(scope="session")
def good_folders(tmp_path_factory):
    """Good small folders by their names, and what was read of each by the options: made when first asked for."""
    return tmp_path_factory.mktemp("good"), {}


@pytest.fixture
def good(good_folders, tmp_path, monkeypatch):
    """A function that copies a good folder of `broken` for a case to break, and returns what is read of it before.

    The folder is the working directory, so that options may name files in it.
    """
    import broken

    def good(name: str, case: broken.Case) -> tuple[Path, dict]:
        base, known = good_folders
        source, key = base / name, f"{name} {case.options}"
        if not source.exists():
            broken.GOOD[name](source)
        monkeypatch.chdir(source)
        if not case.refused and key not in known:
            known[key] = broken.samples(broken.read(source, **case.options))
        monkeypatch.chdir(copy := Path(shutil.copytree(source, tmp_path / "set")))
        return copy, known.get(key, {})

    return good
