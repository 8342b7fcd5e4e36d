"""The store: built once, atomically, by one process of a machine; the same content however it is kept."""

import multiprocessing
import os
import pickle
import time

import numpy as np
import pytest
import torch

from accel_geo import prepare_data
from accel_geo.data import cache as caching
from accel_geo.data import once
from accel_geo.data.chips import collate
from accel_geo.data.spec import DataSpec
from accel_geo.data.statistics import Moments, chip_moments, merge
from accel_geo.parallel.order import Request


def same(a, b):
    assert len(a) == len(b)
    for x, y in zip((a[i] for i in range(len(a))), (b[i] for i in range(len(b)))):
        assert x.keys() == y.keys()
        assert all(torch.equal(x[k], y[k]) if isinstance(x[k], torch.Tensor) else x[k] == y[k] for k in x)


def stores():
    return sorted(caching.cache_folder().glob("*.arrow"))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("resize_to", [None, 12])
def test_every_way_of_keeping_gives_the_same(masks_folder, empty_cache, resize_to):
    root = masks_folder()
    kept = {cache: prepare_data(root, cache=cache, resize_to=resize_to) for cache in caching.MODES}
    assert len(stores()) == 1 and len(list(caching.cache_folder().iterdir())) == 1
    for cache, data in kept.items():
        assert data.spec == kept["disk"].spec and data.class_counts == kept["disk"].class_counts
        same(data.train, kept["disk"].train)
        same(pickle.loads(pickle.dumps(data.train)), data.train)
        assert data.num_workers == 0 or cache == "off"
    disk = pickle.dumps(kept["disk"].train)
    assert len(disk) < 10_000, "a store on disk travels to a worker as its path"


def test_reads_are_views_of_the_file(masks_folder):
    store = prepare_data(masks_folder(size=64), cache="disk").train.parts[0].store
    pixels = store.pixels(3)
    assert not pixels.flags.owndata and not pixels.flags.writeable and pixels.shape == (3, 64, 64)


def test_a_store_is_reused_and_made_anew_when_a_file_changes(masks_folder, empty_cache, write):
    root = masks_folder()
    prepare_data(root)
    (first,) = stores()
    written = first.stat().st_mtime_ns
    prepare_data(root, classes=["3"], val_split=0.5, seed=1)  # what shapes no pixel needs no other store
    assert stores() == [first] and first.stat().st_mtime_ns == written
    write(root / "masks" / "chip_03.tif", np.full((16, 16), 3, np.uint8))
    data = prepare_data(root, val_split=0)
    assert len(stores()) == 2 and (data.train[3]["mask"] == 2).all()
    prepare_data(root, resize_to=8)
    prepare_data(root, bands=[2])
    assert len(stores()) == 4


def test_a_damaged_store_is_made_anew(masks_folder, empty_cache):
    root = masks_folder()
    before = prepare_data(root, cache="memory")
    prepare_data(root)
    (file,) = stores()
    file.write_bytes(file.read_bytes()[:500])
    same(prepare_data(root).train, before.train)


def test_where_the_disk_cannot_be_written(masks_folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "file"))
    data = prepare_data(masks_folder())
    assert len(data.train) == 9 and any("kept in memory" in problem for problem in data.problems)
    with pytest.raises(OSError, match="ACCEL_GEO_CACHE"):
        prepare_data(masks_folder(), cache="disk")
    with pytest.raises(ValueError, match="auto, disk, memory, off"):
        prepare_data(masks_folder(), cache="ram")


def child(root, rank, delay, queue):
    torch.set_num_threads(1)
    if rank is not None:
        os.environ["LOCAL_RANK"] = str(rank)
    time.sleep(delay)
    try:
        data = prepare_data(root)
        queue.put((rank, float(sum(data.train[i]["image"].double().sum() for i in range(len(data.train))))))
    except Exception as error:
        queue.put((rank, f"{type(error).__name__}: {error}"))


def run(root, ranks, delays):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=child, args=(root, *pair, queue)) for pair in zip(ranks, delays)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    return dict(enumerate(result for _, result in sorted(results, key=lambda r: r[0] or 0)))


def test_two_runs_that_start_together_both_end_well(masks_folder, empty_cache):
    found = run(masks_folder(n=60, size=64), [None, None], [0, 0])
    assert found[0] == found[1] and isinstance(found[0], float)
    assert len(list(caching.cache_folder().iterdir())) == 1


@pytest.mark.parametrize("delays", [(0, 0.3, 0), (0.5, 0, 0)])
def test_one_process_of_a_machine_builds_and_the_others_wait(masks_folder, empty_cache, delays):
    found = run(masks_folder(n=40, size=64), [0, 1, 2], delays)
    assert found[0] == found[1] == found[2] and isinstance(found[0], float)
    assert len(list(caching.cache_folder().iterdir())) == 1


def test_the_others_hear_why_the_building_failed(masks_folder, empty_cache):
    root = masks_folder(n=10)
    (root / "images" / "chip_03.tif").write_bytes(b"")
    found = run(root, [0, 1], [0.3, 0])
    assert all("1 of 10 chips cannot be read" in text and "chip_03" in text for text in found.values())


def test_a_builder_that_died(masks_folder, empty_cache, monkeypatch):
    monkeypatch.setattr(once, "_GRACE", 0.3)
    root = masks_folder()
    monkeypatch.setenv("LOCAL_RANK", "1")
    gone = multiprocessing.get_context("fork").Process(target=int)
    gone.start()
    gone.join()
    monkeypatch.setattr(once.os, "getpid", lambda: gone.pid)
    monkeypatch.setattr(caching, "_open", lambda file: once._tell(file.with_suffix(".building")))
    with pytest.raises(ValueError, match=f"process {gone.pid} on .* ended without finishing it"):
        prepare_data(root)


@pytest.mark.parametrize(("cache", "start"), [("disk", "fork"), ("off", "fork"), ("off", "spawn")])
def test_workers_read_the_same(masks_folder, cache, start):
    data = prepare_data(masks_folder(), cache=cache, val_split=0, chip_size=12)
    batches = [[Request(i, 5 + i, (20, 24)) for i in (3, 1, 4)], [Request(5), Request(6)]]
    workers = 1 if start == "spawn" else 2  # each imports everything anew
    loader = torch.utils.data.DataLoader(
        data.train, batch_sampler=batches, num_workers=workers, collate_fn=collate, multiprocessing_context=start
    )
    for (images, targets), batch in zip(loader, batches, strict=True):
        expected, others = collate([data.train[request] for request in batch])
        assert torch.equal(images, expected) and [t["image_id"] for t in targets] == [t["image_id"] for t in others]
        assert all(torch.equal(t["mask"], o["mask"]) for t, o in zip(targets, others))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32"])
def test_merged_statistics_equal_those_of_all_pixels(dtype):
    rng = np.random.default_rng(3)
    chips = [(rng.normal(90, 20, (2, h, 7)) + 5 * h).clip(0, 255).astype(dtype) for h in (3, 8, 1, 30)]
    hidden = [rng.random(chip.shape) < 0.2 for chip in chips]
    for missing in (None, hidden):
        parts = [chip_moments(c, None if missing is None else m) for c, m in zip(chips, hidden)]
        merged = merge(Moments(*(np.stack(column) for column in zip(*parts))))
        for band in range(2):
            pixels = [c[band][~m[band]] if missing else c[band].ravel() for c, m in zip(chips, hidden)]
            x = np.concatenate(pixels).astype(np.float64)
            found = [column[band] for column in merged]
            assert found == pytest.approx([x.size, x.mean(), ((x - x.mean()) ** 2).sum(), x.min(), x.max()], rel=1e-12)


def test_spec_as_json(masks_folder):
    import json

    spec = prepare_data(masks_folder(), resize_to=(8, 12)).spec
    values = json.loads(json.dumps(spec.to_json()))
    assert DataSpec.from_json(values) == spec
    for wrong in ({**values, "more": 1}, {k: v for k, v in values.items() if k != "mean"}, [], {**values, "std": [1]}):
        with pytest.raises(ValueError, match="DataSpec"):
            DataSpec.from_json(wrong)


def test_footprints_of_chips(tmp_path, write):
    from rasterio import Affine

    from accel_geo.data import cache, formats
    from accel_geo.data.decoder import Decoder
    from accel_geo.data.pixels import describe_bands

    custom = "+proj=laea +lat_0=11 +lon_0=33 +x_0=5 +units=m"
    pixels = np.ones((1, 8, 12), np.uint8)
    places = {
        "a": {"crs": "EPSG:32645", "transform": Affine(2, 0, 100, 0, -2, 50)},
        "b": {"crs": "EPSG:32645", "transform": Affine(0, 1, 10, 1, 0, 20)},  # turned
        "c": {"crs": custom, "transform": Affine(3, 0, 0, 0, 3, 0)},  # south up
        "d": {"crs": "EPSG:32645"},
        "e": {"transform": Affine(2, 0, 1, 0, -2, 0)},
    }
    for name, profile in places.items():
        write(tmp_path / f"{name}.tif", pixels, **profile)
    rows = [{"file": f"{name}.tif", "values": [1]} for name in "abcde"]
    rows += [{"file": "a.tif", "window": [3, 2, 4, 9], "values": [1]}]
    rows = formats.Rows("any", "classification", tmp_path, formats.rows.table(rows), {1: "x"})
    expected = {
        ("a.tif", ()): ([100, 34, 124, 50], "EPSG:32645"),
        ("a.tif", (3, 2, 4, 9)): ([106, 28, 114, 46], "EPSG:32645"),
        ("b.tif", ()): ([10, 20, 18, 32], "EPSG:32645"),
        ("c.tif", ()): ([0, 0, 36, 24], "WKT:"),
        ("d.tif", ()): ([np.nan] * 4, ""),
        ("e.tif", ()): ([1, -16, 25, 0], ""),
    }
    for mode in ("disk", "off"):
        store, _ = cache.prepare_store(Decoder(rows, describe_bands(tmp_path / "a.tif", None)), mode)
        bounds, systems = store.footprints()
        for row, found, system in zip(rows.dataset, bounds, systems, strict=True):
            wanted, name = expected[row["file"], tuple(row["window"])]
            np.testing.assert_allclose(found, wanted)
            assert system == name or (name == "WKT:" and system.startswith(name) and len(system) > 8)


def test_ragged_lists():
    from accel_geo.data.index import Ragged

    lists = Ragged(np.array([5, 6, 7]), np.array([0, 2, 2, 3]))
    assert len(lists) == 3 and [found.tolist() for found in map(lists.__getitem__, range(3))] == [[5, 6], [], [7]]
    assert list(lists) == [[5, 6], [], [7]] and lists.rows.tolist() == [0, 0, 2] and lists.lengths.tolist() == [2, 0, 1]
    assert np.shares_memory(lists[0], lists.flat)
