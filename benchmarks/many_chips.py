"""Scale: seconds per chip of preparing 10,000 and 100,000 chips, and what a store of 1,000,000 chips costs.

    python benchmarks/many_chips.py

The folders hold hard links of a few chips of 32 px, as PASCAL_VOC_rectangles and as Classified_Tiles; each is prepared
twice, first decoding, then from its store, in a process of its own. The million is a store with made-up chips of 4 px:
opening it, taking it as a split, the order of an epoch, and the peak of the process's memory with all its libraries.
About 15 minutes and 5 GB of disk on two quiet cores. Targets: per chip 100,000 cost at most 1.5 times what 10,000 cost;
a million open in 3 s, an epoch's order takes 1 s, memory stays below 1.5 GB.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import line

LINKED = 16  # different chips; a file can have some 65,000 links
SIZE = 32
MILLION = 1_000_000
FORMATS = ("PASCAL_VOC_rectangles", "Classified_Tiles")
VOC = """<annotation><filename>{name}.tif</filename><size><width>{size}</width><height>{size}</height><depth>3</depth>
</size><object><name>{value}</name><bndbox><xmin>2</xmin><ymin>3.5</ymin><xmax>17.25</xmax><ymax>20</ymax></bndbox></object>
<object><name>1</name><bndbox><xmin>12</xmin><ymin>13</ymin><xmax>27</xmax><ymax>30</ymax></bndbox></object></annotation>"""


def make(root: Path, format: str, number: int) -> None:
    """Write a folder of chips."""
    import rasterio

    rng = np.random.default_rng(7)
    for name in ("images", "labels", "base"):
        (root / name).mkdir(parents=True)
    profile = {"driver": "GTiff", "height": SIZE, "width": SIZE, "dtype": "uint8"}
    profile |= {"crs": "EPSG:32645", "transform": rasterio.transform.from_origin(3e5, 3e6, 0.5, 0.5)}
    suffix = ".xml" if format == FORMATS[0] else ".tif"
    for i in range(LINKED):
        with rasterio.open(root / "base" / f"image{i}", "w", count=3, **profile) as raster:
            raster.write(rng.integers(0, 255, (3, SIZE, SIZE), dtype=np.uint8))
        label = root / "base" / f"label{i}"
        if suffix == ".xml":
            label.write_text(VOC.format(name=i, size=SIZE, value=1 + i % 3))
        else:
            with rasterio.open(label, "w", count=1, **profile) as raster:
                raster.write(rng.integers(0, 4, (1, SIZE, SIZE), dtype=np.uint8))
    classes = [{"Value": value, "Name": f"class {value}"} for value in (1, 2, 3)]
    (root / "esri_model_definition.emd").write_text(json.dumps({"MetaDataMode": format, "Classes": classes}))
    for i in range(number):
        os.link(root / "base" / f"image{i % LINKED}", root / "images" / f"{i:09}.tif")
        os.link(root / "base" / f"label{i % LINKED}", root / "labels" / f"{i:09}{suffix}")


def peak() -> float:
    """Return the most memory that this process has held, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3), 1)


def preparing(root: str) -> dict:
    """Prepare a folder; the imports do not count."""
    import datasets  # noqa: F401
    import torch
    import torchvision  # noqa: F401

    import accel_geo.prepare  # noqa: F401
    from accel_geo import prepare_data

    torch.set_num_threads(1)
    begin, before = time.perf_counter(), cpu_seconds()
    data = prepare_data(root, cache="disk")
    found = {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu_seconds() - before}
    return found | {"chips": len(data.train) + len(data.valid), "memory_mb": peak()}


def cpu_seconds() -> float:
    """Return the processor time of this process and its children."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def million(file: str) -> dict:
    """Open a store of a million chips, take it as a split, and go through the order of an epoch."""
    import torch  # noqa: F401

    from accel_geo.data.chips import Chips, Part
    from accel_geo.data.spec import DataSpec
    from accel_geo.data.statistics import merge
    from accel_geo.data.store import open_store
    from accel_geo.parallel.order import EpochOrder

    stamps, three = [time.perf_counter()], (0.0,) * 3

    def lap() -> float:
        stamps.append(time.perf_counter())
        return stamps[-1] - stamps[-2]

    store = open_store(Path(file))
    everything = range(len(store))
    store.sizes(everything), store.present_values(), store.footprints(), merge(store.moments)
    result = {"open_seconds": lap()}
    spec = DataSpec(
        "detection", ("a",) * 3, (1, 2, 3), ("r", "g", "b"), "uint8", three, (255.0,) * 3, three, three, (4, 4)
    )
    names = [f"images/{i:09}.tif" for i in everything]
    chips = Chips(spec, [Part(store, everything, 0, names, {1: 1, 2: 2, 3: 3})])
    result["split_seconds"] = lap()
    order = EpochOrder(chips.ids, chips.sizes, batch_size=8, accumulate=1, seed=1, fit=0, rank=0, processes=1)
    batches = iter(order)
    first = next(batches)
    result["first_batch_seconds"] = lap()
    rest = sum(len(batch) for batch in batches)
    result["order_seconds"] = lap() + result["first_batch_seconds"]
    for request in first:
        chips[request]
    return result | {"chips": len(first) + rest, "memory_mb": peak()}


def write_million(file: str) -> dict:
    """Write a store of a million chips: one record batch, over and over."""
    from accel_geo.data.building import encode
    from accel_geo.data.decoder import Chip
    from accel_geo.data.georeference import Footprint
    from accel_geo.data.labels import Label
    from accel_geo.data.pixels import Pixels
    from accel_geo.data.store import write

    pixels = np.random.default_rng(7).integers(0, 255, (64, 3, 4, 4), dtype=np.uint8)
    label = Label([1, 2, 3], [1, 1, 1], [0.0, 0.0, 2.5, 3.5] * 3)
    footprint = Footprint((0.0, 1.0, 2.0, 3.0), "EPSG:32645")
    batches = encode([Chip(Pixels(values), label, None, footprint) for values in pixels], 3, True)
    write(Path(file), itertools.repeat(batches, MILLION // len(pixels)), len(pixels))
    return {}


WORK = {"preparing": preparing, "write_million": write_million, "million": million}


def measure(kind: str, path: Path, cache: Path) -> dict:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, "--worker", kind, str(path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "ACCEL_GEO_CACHE": str(cache)}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, nargs="+", default=[10_000, 100_000], help="(default: 10000 100000)")
    parser.add_argument("--formats", nargs="*", default=FORMATS, choices=FORMATS, help="(default: both)")
    parser.add_argument("--folder", type=Path, help="where to work (default: the system's temporary folder)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, path = given.worker
        print(json.dumps(WORK[kind](path)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for format in given.formats:
            each: dict[str, list[float]] = {"decoding": [], "again": []}
            for number in given.numbers:
                root = Path(folder, format, str(number))
                make(root, format, number)
                for run, values in each.items():
                    found = measure("preparing", root, Path(folder, "cache"))
                    values.append(found["seconds"] / number)
                    found = {name: round(value, 2) for name, value in found.items()}
                    line(
                        benchmark="many_chips", format=format, run=run, us_per_chip=round(1e6 * values[-1], 1), **found
                    )
            ratios = {run: round(values[-1] / values[0], 3) for run, values in each.items()}
            line(
                benchmark="many_chips",
                format=format,
                numbers=given.numbers,
                per_chip_of_first=ratios,
                target=1.5,
                reached=ratios["decoding"] <= 1.5,
            )
        store = Path(folder, "million.arrow")
        measure("write_million", store, Path(folder, "cache"))
        found = measure("million", store, Path(folder, "cache"))
        line(
            benchmark="many_chips",
            **{name: round(value, 3) for name, value in found.items()},
            target={"open_seconds": 3.0, "order_seconds": 1.0, "memory_mb": 1500},
            reached=found["open_seconds"] <= 3.0 and found["order_seconds"] <= 1.0 and found["memory_mb"] <= 1500,
        )


if __name__ == "__main__":
    main()
