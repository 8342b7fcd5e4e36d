"""Chips per second from the store, end to end into a batch, and from what else one would use, in the same run.

    python benchmarks/loading.py

Chips of 256 px, three bands, 8 bit, as uncompressed GeoTIFFs in random order, one thread:

- `memmap_views`, `memmap`: a bare numpy memmap, without touching the bytes and copying them into a batch;
- `store_views`, `store`: the pixels of our store likewise;
- `rasterio`: open and read into a batch;
- `chips`, `uncached`: samples of the evaluation preset collated into batches, from the store and with cache="off", for
  each task; `chips_2_workers` the same as `chips` from two worker processes;
- `windows`: windows of one open scene of the same chips through our reader, row by row;
- `torchgeo_grid`, `torchgeo_random`: torchgeo's samplers on that scene, where torchgeo is installed.

About 4 minutes and 1 GB of disk. Targets: `store` at least 50 times `rasterio` and 0.6 of `memmap`; `chips` at least 5
times `uncached`.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import line, median_ratio, medians
from torch.utils.data import DataLoader

from accel_geo import prepare_data
from accel_geo.data.chips import Chips, collate
from accel_geo.parallel.launch import keep_freed_memory

SIZE, BATCH, COLUMNS = 256, 8, 20
TASKS = ("classification", "semantic")


def make(root: Path, number: int) -> None:
    """Write the chips as a data set of each task, and as one scene of tiles."""
    import rasterio

    rng = np.random.default_rng(7)
    rows = -(-number // COLUMNS)
    georeferenced = {"crs": "EPSG:32645", "transform": rasterio.transform.from_origin(3e5, 3e6, 0.5, 0.5)}
    profile = {"driver": "GTiff", "dtype": "uint8", **georeferenced}
    for name in ("semantic/images", "semantic/masks", *(f"classification/{c}" for c in "ab"), "scene"):
        (root / name).mkdir(parents=True)
    scene = {"width": COLUMNS * SIZE, "height": rows * SIZE, "tiled": True, "blockxsize": SIZE, "blockysize": SIZE}
    with rasterio.open(root / "scene" / "scene.tif", "w", count=3, **profile, **scene) as whole:
        for i in range(number):
            pixels = rng.integers(0, 255, (3, SIZE, SIZE), dtype=np.uint8)
            name = f"chip_{i:05}.tif"
            with rasterio.open(
                root / "semantic/images" / name, "w", count=3, width=SIZE, height=SIZE, **profile
            ) as chip:
                chip.write(pixels)
            with rasterio.open(
                root / "semantic/masks" / name, "w", count=1, width=SIZE, height=SIZE, **profile
            ) as mask:
                mask.write(pixels[:1] // 64)
            os.link(root / "semantic/images" / name, root / "classification" / "ab"[i % 2] / name)
            whole.write(pixels, window=place(i))


def place(i: int) -> object:
    """Return the window of a chip in the scene."""
    from rasterio.windows import Window

    return Window(i % COLUMNS * SIZE, i // COLUMNS * SIZE, SIZE, SIZE)


def chips_of(root: Path, task: str, cache: str) -> Chips:
    """Return all chips of a task as one split, with the evaluation preset."""
    chips = prepare_data(root / task, task=task, cache=cache, val_split=0, transforms=False).train
    chips.training = False
    return chips


def batches(chips: Chips, order: list[int]) -> int:
    """Load samples into batches; return how many."""
    count = 0
    for start in range(0, len(order), BATCH):
        images, _ = collate([chips[i] for i in order[start : start + BATCH]])
        count += len(images)
    return count


def contestants(root: Path, number: int, slow: int) -> dict[str, Callable[[], int]]:
    """Return what is measured: functions that load chips and return how many."""
    import rasterio

    from accel_geo.data.pixels import describe_bands, read_pixels

    order = np.random.default_rng(1).permutation(number).tolist()
    stored = {task: chips_of(root, task, "disk") for task in TASKS}
    uncached = {task: chips_of(root, task, "off") for task in TASKS}
    store, files = stored["semantic"].parts[0].store, [root / "semantic" / f for f in stored["semantic"].files]
    mapped = np.memmap(root / "memmap", np.uint8, "w+", shape=(number, 3, SIZE, SIZE))
    for i in range(number):
        mapped[i] = store.pixels(i)
    mapped = np.memmap(root / "memmap", np.uint8, "r", shape=(number, 3, SIZE, SIZE))
    batch = np.empty((BATCH, 3, SIZE, SIZE), dtype=np.uint8)
    workers = DataLoader(
        stored["semantic"],
        batch_sampler=[order[start : start + BATCH] for start in range(0, number, BATCH)],
        collate_fn=collate,
        num_workers=2,
        persistent_workers=True,
    )
    scene = root / "scene" / "scene.tif"
    bands = describe_bands(scene, None)

    def looking(get: Callable[[int], np.ndarray]) -> int:
        for i in order:
            get(i)
        return number

    def copying(get: Callable[[int], np.ndarray], order: list[int] = order) -> int:
        for k, i in enumerate(order):
            batch[k % BATCH] = get(i)
        return len(order)

    def opened(i: int) -> np.ndarray:
        with rasterio.open(files[i]) as source:
            return source.read()

    def window(i: int) -> np.ndarray:
        return read_pixels(scene, bands, [i % COLUMNS * SIZE, i // COLUMNS * SIZE, SIZE, SIZE]).values

    found = {
        "memmap_views": lambda: looking(lambda i: mapped[i]),
        "store_views": lambda: looking(store.pixels),
        "memmap": lambda: copying(lambda i: mapped[i]),
        "store": lambda: copying(store.pixels),
        "rasterio": lambda: copying(opened, order[:slow]),
        "chips_2_workers": lambda: sum(len(images) for images, _ in workers),
        "windows": lambda: copying(window, list(range(number))),
    }
    for task in TASKS:
        found[f"chips_{task}"] = lambda task=task: batches(stored[task], order)
        found[f"uncached_{task}"] = lambda task=task: batches(uncached[task], order[:slow])
    return found | torchgeo_contestants(scene.parent, slow)


def torchgeo_contestants(folder: Path, number: int) -> dict[str, Callable[[], int]]:
    """Return torchgeo's samplers on the scene, or nothing where it is not installed."""
    try:
        from torchgeo.datasets import RasterDataset, stack_samples
        from torchgeo.samplers import GridGeoSampler, RandomGeoSampler
    except ImportError as error:
        line(benchmark="loading", skipped="torchgeo", reason=f"not installed: {error}")
        return {}

    class Scene(RasterDataset):
        filename_glob = "scene.tif"

    scene = Scene(folder)
    samplers = {
        "torchgeo_grid": GridGeoSampler(scene, size=SIZE, stride=SIZE),
        "torchgeo_random": RandomGeoSampler(scene, size=SIZE, length=number),
    }

    def load(sampler: object) -> int:
        loader = DataLoader(scene, batch_size=BATCH, sampler=sampler, collate_fn=stack_samples)
        return sum(len(batch["image"]) for batch in itertools.islice(loader, -(-number // BATCH)))

    return {name: lambda sampler=sampler: load(sampler) for name, sampler in samplers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", type=int, default=600, help="(default: 600)")
    parser.add_argument("--slow", type=int, default=200, help="chips for what decodes files (default: 200)")
    parser.add_argument("--runs", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--folder", type=Path, help="where to work (default: the system's temporary folder)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        root = Path(folder)
        os.environ["ACCEL_GEO_CACHE"] = str(root / "cache")
        with contextlib.redirect_stdout(sys.stderr):
            make(root, given.chips)
        found = contestants(root, given.chips, min(given.slow, given.chips))
        rates: dict[str, list[float]] = {name: [] for name in found}
        for run in range(given.runs + 1):
            for name, load in found.items():
                begin = time.perf_counter()
                count = load()
                if run:  # the first one warms up: files come into memory, workers start
                    rates[name].append(count / (time.perf_counter() - begin))
    ratios = {
        "store_of_memmap": median_ratio(rates["store"], rates["memmap"]),
        "store_of_rasterio": median_ratio(rates["store"], rates["rasterio"]),
    }
    for task in TASKS:
        ratios[f"chips_of_uncached_{task}"] = median_ratio(rates[f"chips_{task}"], rates[f"uncached_{task}"])
    for name in rates:
        if name.startswith("torchgeo"):
            ratios[f"windows_of_{name}"] = median_ratio(rates["windows"], rates[name])
    targets = {"store_of_memmap": 0.6, "store_of_rasterio": 50.0} | {f"chips_of_uncached_{task}": 5.0 for task in TASKS}
    line(benchmark="loading", chips_per_second=medians(rates, 0), size=SIZE, runs=given.runs)
    line(
        benchmark="loading",
        ratios=ratios,
        targets=targets,
        reached=all(ratios[name] >= target for name, target in targets.items()),
    )


if __name__ == "__main__":
    main()
