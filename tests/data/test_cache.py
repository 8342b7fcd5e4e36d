"""How much the cache holds, what goes when it holds more, and what is kept of folders that take long to read."""

import errno
import json
import os
import threading
import time

import numpy as np
import pytest
import torch

from accel_geo import prepare_data
from accel_geo.data import building, cache, formats, room, row_cache
from accel_geo.data.decoder import Decoder
from accel_geo.data.pixels import describe_bands

MB = 1e-3  # in GB


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "chips"


def decoder(root, resize_to=None):
    rows = formats.read(root)
    return Decoder(rows, describe_bands(rows.root / rows.dataset["file"][0], None), resize_to)


def aged(file, days):
    os.utime(file, (time.time() - days * 86_400,) * 2)


def test_chips_too_large_for_the_disk_are_kept_in_memory_or_decoded_each_time(masks_folder, empty_cache, monkeypatch):
    one = decoder(masks_folder(size=64))
    monkeypatch.setenv("ACCEL_GEO_CACHE_GB", str(0.05 * MB))
    store, note = cache.prepare_store(one, "auto")
    assert store.keeps_pixels and "0.2 MB" in note and "ACCEL_GEO_CACHE_GB" in note and "kept in memory" in note
    assert not list(empty_cache.glob("*.arrow")) and not list(empty_cache.glob(".tmp-*"))
    monkeypatch.setattr(room, "free_memory", lambda: 400_000.0)
    store, note = cache.prepare_store(one, "auto")
    assert not store.keeps_pixels and "0.4 MB free" in note and note.endswith("decoded each time")
    assert np.array_equal(store.chip(3).pixels.values, cache.prepare_store(one, "memory")[0].pixels(3))
    store, note = cache.prepare_store(one, "disk")  # as the user wants it
    assert store.keeps_pixels and len(list(empty_cache.glob("*.arrow"))) == 1
    assert cache.prepare_store(one, "auto")[1] == "", "what is there is used"
    monkeypatch.setenv("ACCEL_GEO_CACHE_GB", "much")
    with pytest.raises(ValueError, match="ACCEL_GEO_CACHE_GB='much' must be a number"):
        cache.prepare_store(decoder(one.rows.root, (8, 8)), "auto")


def test_a_tenth_of_the_free_disk_stays_free(tmp_path, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: type("", (), {"free": 1000e6})())
    assert room.allowed(tmp_path) == pytest.approx(1000e6 / 3)
    assert room.lacking(tmp_path, 300e6) == "" and "400.0 MB" in room.lacking(tmp_path, 400e6).replace(
        "0.4 GB", "400.0 MB"
    )
    monkeypatch.setenv("ACCEL_GEO_CACHE_GB", "5")
    assert room.lacking(tmp_path, 890e6) == "" and "1.0 GB are free" in room.lacking(tmp_path, 910e6)


def test_the_stores_used_longest_ago_make_room(masks_folder, empty_cache, monkeypatch):
    root = masks_folder(size=64)
    sizes = [(64, 64), (63, 64), (62, 64), (61, 64)]
    for size in sizes:
        cache.prepare_store(decoder(root, size), "disk")
    files = {size: empty_cache / f"{decoder(root, size).manifest()}.arrow" for size in sizes}
    each = max(file.stat().st_size for file in files.values())
    for days, file in zip((9, 2, 5, 0.5), files.values()):
        aged(file, days)
    left = empty_cache / ".tmp-left"
    left.write_bytes(b"x" * 1000)
    aged(left, 2)
    (empty_cache / ".tmp-busy").write_bytes(b"x")
    monkeypatch.setenv("ACCEL_GEO_CACHE_GB", str(3.5 * each / 1e9))
    _, note = cache.prepare_store(decoder(root, sizes[0]), "disk")  # opened: from now on it is the newest
    assert note == "" and all(file.exists() for file in files.values()), "nothing is deleted without need"
    _, note = cache.prepare_store(decoder(root, (60, 64)), "disk")
    assert [file.exists() for file in files.values()] == [True, False, False, True], "those used within a day stay"
    assert "2 store(s) not used lately were deleted" in note and str(empty_cache) in note
    assert not left.exists() and (empty_cache / ".tmp-busy").exists()


def test_a_folder_that_cannot_be_written_serves_what_it_holds(masks_folder, empty_cache, monkeypatch):
    root = masks_folder()
    expected = prepare_data(root).train[0]["image"]

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(room.os, "utime", refuse)
    monkeypatch.setattr(cache, "make_once", refuse)
    data = prepare_data(root)
    assert torch.equal(data.train[0]["image"], expected) and not any("cannot be written" in p for p in data.problems)
    data = prepare_data(root, resize_to=8)
    assert any("Permission denied" in p and "kept in memory" in p for p in data.problems)


def test_a_full_disk(masks_folder, empty_cache, monkeypatch):
    class Full:
        def __init__(self, stream, schema):
            self.stream = stream

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def write_batch(self, batch):
            self.stream.write(b"something")
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("accel_geo.data.store.pa.ipc.new_file", Full)
    data = prepare_data(masks_folder())
    assert len(data.train) == 9 and any("No space left on device" in problem for problem in data.problems)
    assert not list(empty_cache.glob(".tmp-*")) and not list(empty_cache.glob("*.arrow"))


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"\0" * len(b), lambda b: b[8:]]
)
def test_damaged_files_are_built_anew(masks_folder, empty_cache, damage):
    one = decoder(masks_folder())
    before = cache.prepare_store(one, "disk")[0].pixels(4).copy()
    (file,) = empty_cache.glob("*.arrow")
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(content))
    assert np.array_equal(cache.prepare_store(one, "disk")[0].pixels(4), before)
    assert file.stat().st_size == len(content)


def test_verify_knows_files_by_their_content(masks_folder):
    root = masks_folder()
    file = root / "images" / "chip_04.tif"
    usual, verified = decoder(root).manifest(), decoder(root).manifest(verify=True)
    data, status = file.read_bytes(), file.stat()
    os.utime(file, ns=(1, 1))
    assert decoder(root).manifest() != usual and decoder(root).manifest(verify=True) == verified
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert decoder(root).manifest() == usual and decoder(root).manifest(verify=True) != verified


def test_rows_are_part_of_the_key_and_groups_are_not(masks_folder):
    one = decoder(masks_folder())
    key, dataset = one.manifest(), one.rows.dataset

    def changed(name, values):
        one.rows.dataset = dataset.remove_columns(name).add_column(name, values, feature=dataset.features[name])
        return one.manifest() != key

    n = len(dataset)
    assert changed("window", [[0, 0, 8, 8]] * n) and changed("boxes", [[1.0, 2, 3, 4]] * n)
    assert changed("label_files", dataset["label_files"][::-1]), "the same files, for other chips"
    assert not changed("group", ["a"] * n) and not changed("attributes", ['{"split": "train"}'] * n)


def test_processes_decode_the_same_as_threads(masks_folder, monkeypatch):
    root = masks_folder(n=70, size=24)
    (root / "images" / "chip_05.tif").write_bytes(b"no raster")
    one = decoder(root)
    planned = building.plan(one)._replace(rows=16)
    assert planned.bytes == pytest.approx(70 * 24 * 24 * 4, rel=0.2) and 0 < planned.seconds < 60
    alone = list(building.build(one, True, planned))
    monkeypatch.setattr(building, "_processes", lambda planned: 3)
    together = list(building.build(one, True, planned))
    assert [len(index) for index, _ in together] == [16, 16, 16, 16, 6] and alone == together
    assert [batches[1] for batches in building.build(one, False, planned)] == [None] * 5


def test_a_decoding_process_that_is_killed(masks_folder, monkeypatch):
    one = decoder(masks_folder(n=40))
    planned = building.plan(one)._replace(rows=4)
    monkeypatch.setattr(building, "_processes", lambda planned: 2)
    monkeypatch.setattr(building, "encode", lambda *args: os.kill(os.getpid(), 9))
    with pytest.raises(ValueError, match="process that decodes chips was ended by signal 9; perhaps memory ran out"):
        list(building.build(one, True, planned))


def test_a_build_that_is_broken_off_leaves_no_thread(masks_folder, monkeypatch):
    """Left to the garbage collector, the end of the pool could meet a thread that was just being started."""
    kept = []  # as a traceback keeps the frames of what failed

    def fails(temporary, batches, rows):
        kept.append(batches)
        next(batches)
        raise OSError("no room")

    monkeypatch.setattr(cache, "write", fails)
    monkeypatch.setattr(building, "_MOST_ROWS", 4)
    before = threading.active_count()
    with pytest.raises(OSError, match="no room"):
        cache.prepare_store(decoder(masks_folder(n=20)), "disk")
    assert threading.active_count() == before and next(kept[0], None) is None


def test_windows_say_how_large_the_store_will_be(tmp_path, write):
    file = write(tmp_path / "scene.tif", np.ones((2, 64, 64), np.uint16))
    rows = formats.Rows("scene", "classification", tmp_path, None, {1: "a"})
    sides = [32] * 30 + [60] * 2
    rows.dataset = formats.rows.table(
        {"file": "scene.tif", "window": [0, i, side, side], "values": [1]} for i, side in enumerate(sides)
    )
    planned = building.plan(Decoder(rows, describe_bands(file, None)))
    assert planned.bytes == pytest.approx(sum(4 * side * side for side in sides), rel=0.05)
    resized = building.plan(Decoder(rows, describe_bands(file, None), (40, 40)))
    assert resized.bytes == pytest.approx(32 * 4 * 1600, rel=0.05)


def test_the_bar_shows_what_takes_long(masks_folder, monkeypatch, capfd):
    one = decoder(masks_folder(n=12))
    planned = building.plan(one)._replace(rows=2)
    list(building.build(one, True, planned))
    assert capfd.readouterr().err == ""
    original = Decoder.__call__
    monkeypatch.setattr(Decoder, "__call__", lambda self, row: time.sleep(0.3) or original(self, row))
    monkeypatch.setenv("LOCAL_RANK", "1")
    list(building.build(one, True, planned))
    assert capfd.readouterr().err == "", "one bar for all processes"
    monkeypatch.setenv("LOCAL_RANK", "0")
    list(building.build(one, True, planned))
    assert "decoding chips" in capfd.readouterr().err


def test_rows_that_took_long_are_kept_until_a_file_changes(masks_folder, empty_cache, write, monkeypatch):
    root, calls = masks_folder(), []

    def read(place, task):
        calls.append(place)
        return formats.FORMATS["image_masks"].read(place, task)

    def rows(read=read):
        return row_cache.cached_rows(root, "semantic", "image_masks", read)

    first = rows()
    rows()
    assert len(calls) == 2, "a folder that is read quickly is read each time"
    monkeypatch.setattr(row_cache, "_LONG", -1.0)

    def meanwhile(place, task):
        write(root / "masks" / "chip_03.tif", np.ones((16, 16), np.uint8))
        return read(place, task)

    rows(meanwhile)
    rows()
    kept, again = rows(), rows()
    assert len(calls) == 4 and again is not kept, "what changed while it was read is not kept"
    for one in (kept, again):
        assert list(one.dataset) == list(first.dataset) and one.dataset.features == first.dataset.features
        assert vars(one) | {"dataset": 0} == vars(first) | {"dataset": 0}
    assert Decoder(again, None).manifest() == Decoder(first, None).manifest()
    write(root / "masks" / "chip_03.tif", np.zeros((16, 16), np.uint8))
    rows()
    assert len(calls) == 5
    (file,) = (empty_cache.parent / "rows").iterdir()
    file.write_bytes(b"damaged")
    rows()
    assert len(calls) == 6


def test_plain_values_return_as_they_were(tmp_path):
    values = {"a": {1: "x", (1, 2): [tmp_path]}, "b": frozenset({3}), "c": (True, None, 2.5), "d": [], "e": {}}
    assert row_cache._loaded(json.loads(json.dumps(row_cache._plain(values)))) == values
