"""Windows/s of our reader over one open raster against bare rasterio windowed reads, in random and in block order.

    python benchmarks/windows.py                                      # a made scene, a minute on one quiet core
    python benchmarks/windows.py --scene scene_banepa.tif --size 512

Both read the same windows in the same order under the same GDAL cache, by turns. Bare is `source.read(bands, window=)`
on one open data set; where alpha hides pixels or the scene has a nodata value, ours also says which pixels are missing,
and a second bare line that reads the mask besides shows what that costs. `cached` reads windows whose blocks all lie
in the GDAL cache, so that nothing but the calls counts; otherwise each round begins with an empty cache. Two grids: one
of whole blocks, one whose windows straddle them. Target: 0.8 of bare.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rasterio
from common import line, median_ratio
from rasterio.transform import from_origin
from rasterio.windows import Window

from accel_geo.data import handles
from accel_geo.data.formats.scene_windows import find_scenes, grid
from accel_geo.data.pixels import Bands, describe_bands, read_pixels

CACHE = 64 * 2**20  # bytes, as rasterio passes them on; less than the made scene, more than a row of its blocks


def make_scene(file: Path, size: int) -> Path:
    """Write a scene of smooth noise: three bands, 8 bits, JPEG in tiles of 256 px."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (3, size // 16 + 1, size // 16 + 1)).astype(np.uint8)
    pixels = coarse.repeat(16, 1).repeat(16, 2)[:, :size, :size] + rng.integers(0, 20, (3, size, size)).astype(np.uint8)
    tiles = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "jpeg", "photometric": "ycbcr"}
    shape = {"count": 3, "width": size, "height": size, "dtype": "uint8", "crs": "EPSG:32645"}
    with rasterio.open(file, "w", driver="GTiff", transform=from_origin(5e5, 3e6, 0.1, 0.1), **shape, **tiles) as scene:
        scene.write(pixels)
    return file


def bare(file: Path, bands: Bands, windows: list[list[int]], mask: bool = False) -> float:
    """Seconds of plain windowed reads on one open data set, with the mask or without."""
    indexes = list(bands.indexes)
    with rasterio.open(file) as source:
        begin = time.perf_counter()
        for left, top, width, height in windows:
            window = Window(left, top, width, height)
            source.read(indexes, window=window)
            if mask:
                source.dataset_mask(window=window)
        return time.perf_counter() - begin


def ours(file: Path, bands: Bands, windows: list[list[int]]) -> float:
    """Seconds of our reader; the raster is opened in them."""
    handles.close()
    begin = time.perf_counter()
    for window in windows:
        read_pixels(file, bands, window)
    seconds = time.perf_counter() - begin
    handles.close()
    return seconds


def measure(file: Path, windows: list[list[int]], rounds: int, about: dict) -> None:
    """Run all contestants by turns, and print a line for each order of the windows."""
    bands = describe_bands(file, None)
    with rasterio.open(file) as source:
        masked = bands.nodata is not None or source.count > len(bands.indexes)
    shuffled = random.Random(0).sample(windows, len(windows))
    few = [window for window in windows[:4] for _ in range(len(windows) // 4)]
    for order, chosen in (("block", windows), ("random", shuffled), ("cached", few)):
        runs: dict[str, Callable[[], float]] = {"ours": lambda: ours(file, bands, chosen)}  # noqa: B023
        runs["bare"] = lambda: bare(file, bands, chosen)  # noqa: B023
        if masked:
            runs["bare_mask"] = lambda: bare(file, bands, chosen, mask=True)  # noqa: B023
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            for name in sorted(runs, reverse=turn % 2 == 1):
                seconds[name].append(runs[name]())
        seconds = {name: values[1:] for name, values in seconds.items()}  # the first round warms up
        rates = {f"{name}_per_s": round(len(chosen) / sorted(values)[rounds // 2]) for name, values in seconds.items()}
        ratios = {f"ours_over_{name}": median_ratio(seconds[name], seconds["ours"]) for name in runs if name != "ours"}
        line(benchmark="windows", order=order, windows=len(chosen), **about, **rates, **ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", type=Path, help="a raster; made if not given")
    parser.add_argument("--size", type=int, default=256, help="of the windows (256)")
    parser.add_argument("--stride", type=int, help="of the grid (the size; another lets windows straddle blocks)")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, rasterio.Env(GDAL_CACHEMAX=CACHE):
        file = arguments.scene or make_scene(Path(folder, "scene.tif"), 8192)
        _, (scene,) = find_scenes(file)
        for stride in [arguments.stride] if arguments.stride else [arguments.size, arguments.size * 3 // 4]:
            windows = grid(scene, (arguments.size,) * 2, (stride,) * 2).tolist()
            measure(file, windows, arguments.rounds, {"size": arguments.size, "stride": stride})


if __name__ == "__main__":
    main()
