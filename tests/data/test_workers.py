"""Worker processes: rasters opened before survive them, nothing leaks over many epochs, and memory stays flat."""

import gc
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from accel_geo import prepare_data
from accel_geo.data import handles
from accel_geo.data.chips import collate
from accel_geo.data.pixels import read_pixels

NO_PROC = not Path("/proc/self/fd").is_dir()


def loader(chips, workers, start=None):
    batches = [list(range(i, min(i + 4, len(chips)))) for i in range(0, len(chips), 4)]
    context = start if workers else None
    return torch.utils.data.DataLoader(
        chips,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
    )


def mean(loaded):
    return [float(image.double().mean()) for images, _ in loaded for image in images]


def processes():
    return [os.getpid(), *(child.pid for child in multiprocessing.active_children())]


def open_files():
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in processes())


def memory_kb():
    gc.collect()
    texts = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in processes()]
    return sum(int(line.split()[1]) for text in texts for line in text if line.startswith("RssAnon"))


class Windows(torch.utils.data.Dataset):
    """Windows of a scene that the parent process has open, with the files that this process has open."""

    def __init__(self, file, bands):
        self.file, self.bands = file, bands

    def __len__(self):
        return 16

    def __getitem__(self, i):
        values = read_pixels(self.file, self.bands, [8 * (i % 4), 8 * (i // 4), 8, 8]).values
        return torch.from_numpy(values.astype(np.int64)), os.getpid(), len(handles._HANDLES.open)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_open_rasters_survive_two_workers(tmp_path, write, start):
    from accel_geo.data.pixels import describe_bands

    if start not in torch.multiprocessing.get_all_start_methods():
        pytest.skip(f"this system does not {start}")
    scene = np.random.default_rng(1).integers(0, 255, (3, 32, 32)).astype(np.uint8)
    file = write(tmp_path / "scene.tif", scene)
    windows = Windows(file, describe_bands(file, None))
    expected = [windows[i][0] for i in range(16)]  # the handle is open now, before the workers start
    found = torch.utils.data.DataLoader(windows, 4, num_workers=2, multiprocessing_context=start)
    for _ in range(2):
        parts = list(found)
        assert torch.equal(torch.cat([values for values, _, _ in parts]), torch.stack(expected))
        readers = torch.cat([process for _, process, _ in parts])
        assert len(set(readers.tolist()) - {os.getpid()}) == 2
        assert all(number == 1 for _, _, numbers in parts for number in numbers.tolist())
    assert torch.equal(windows[5][0], expected[5]), "the parent's handle still reads"


@pytest.mark.parametrize("cache", ["disk", "off"])
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_workers_read_what_one_process_reads(masks_folder, cache, start):
    chips = prepare_data(masks_folder(n=16), cache=cache, val_split=0, transforms=False).train
    chips[3]  # the parent has read before
    alone = mean(loader(chips, 0))
    two = loader(chips, 2, start)
    assert mean(two) == alone and mean(two) == alone


@pytest.mark.skipif(NO_PROC, reason="no /proc to count open files in")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", ["disk", "off"])
def test_no_file_stays_open_and_memory_is_flat_over_20_epochs(masks_folder, cache, workers):
    chips = prepare_data(masks_folder(n=12, size=32), cache=cache, val_split=0, transforms=False).train
    loaded = loader(chips, workers, "fork")
    files, memory = [], []
    for epoch in range(1, 21):
        mean(loaded)
        files.append(open_files())
        if epoch in (5, 20):
            memory.append(memory_kb())
    # Pipes of workers that are just ending may still be counted; what leaks would stay.
    assert min(files[15:]) <= min(files[:5]), f"open files: {files}"
    assert memory[1] - memory[0] < 4096, f"kB of memory: {memory}"


@pytest.mark.skipif(NO_PROC, reason="no /proc to count open files in")
def test_stores_opened_again_and_again_leave_no_file_open(masks_folder):
    root = masks_folder(n=8)
    prepare_data(root)
    before = open_files()
    for _ in range(10):
        prepare_data(root).train[0]
    gc.collect()
    assert open_files() <= before
