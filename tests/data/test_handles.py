import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from accel_geo.data import handles
from accel_geo.data.pixels import describe_bands, read_pixels


@pytest.fixture(autouse=True)
def closed():
    handles.close()
    yield
    handles.close()


@pytest.fixture
def scenes(tmp_path, write):
    """Ten rasters of 64 px, each of one value: 10, 11, ..."""
    return [
        write(
            tmp_path / f"{i}.tif",
            np.full((1, 64, 64), 10 + i, dtype=np.uint8),
            tiled=True,
            blockxsize=16,
            blockysize=16,
        )
        for i in range(10)
    ]


def open_files(folder: Path) -> int:
    """How many files of a folder this process has open."""
    links = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            links.append(os.readlink(entry.path))
        except FileNotFoundError:  # the listing itself
            continue
    return sum(link.startswith(str(folder)) for link in links)


linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")


def test_a_raster_is_opened_once(scenes):
    first = handles.opened(scenes[0])
    assert handles.opened(str(scenes[0])) is first
    handles.close()
    assert first.source.closed
    assert handles.opened(scenes[0]) is not first


@linux
def test_the_one_used_longest_ago_makes_room(scenes, tmp_path):
    rasters = [handles.opened(file) for file in scenes[: handles.MOST]]
    handles.opened(scenes[0])
    handles.opened(scenes[8])
    assert rasters[1].source.closed and not rasters[0].source.closed
    handles.opened(scenes[9])
    assert rasters[2].source.closed and open_files(tmp_path) == handles.MOST


@linux
def test_whole_rasters_are_closed_at_once(scenes, tmp_path):
    bands = describe_bands(scenes[0], None)
    for file in scenes:
        read_pixels(file, bands)
    assert open_files(tmp_path) == 0


def test_a_raster_that_cannot_be_opened_takes_no_room(scenes, tmp_path):
    from rasterio.errors import RasterioError

    handles.opened(scenes[0])
    for _ in range(20):
        with pytest.raises(RasterioError):
            handles.opened(tmp_path / "none.tif")
    assert not handles.opened(scenes[0]).source.closed


@linux
def test_threads_have_their_own_and_close_them_when_they_end(scenes, tmp_path):
    mine, others = handles.opened(scenes[0]), []

    def read() -> None:
        others.append(id(handles.opened(scenes[0])))
        others.append(open_files(tmp_path))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert others == [others[0], 2] and others[0] != id(mine)
    assert open_files(tmp_path) == 1 and not mine.source.closed


@linux
def test_a_forked_process_opens_its_own(scenes):
    mine = handles.opened(scenes[0])
    child = os.fork()
    if not child:
        theirs = handles.opened(scenes[0])
        handles.close()
        os._exit(0 if theirs is not mine and theirs.source.closed and not mine.source.closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert mine.source.read(1).mean() == 10


class Windows(Dataset):
    """Windows of all scenes; a sample says how many files its process has open."""

    def __init__(self, files: list[Path]) -> None:
        self.files, self.bands = files, describe_bands(files[0], None)

    def __len__(self) -> int:
        return 4 * len(self.files)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        file, place = self.files[index // 4], index % 4
        values = read_pixels(file, self.bands, [16 * place, 0, 16, 16]).values
        return index, torch.from_numpy(values), open_files(file.parent)


@linux
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_two_workers_over_twenty_epochs_leak_nothing(scenes, tmp_path, start):
    data = Windows(scenes)
    for index, values, _ in (data[i] for i in range(len(data))):  # the parent has rasters open when it forks
        assert (values == 10 + index // 4).all()
    before = open_files(tmp_path)
    persistent = start == "spawn"  # starting takes seconds
    loader = DataLoader(data, 4, num_workers=2, multiprocessing_context=start, persistent_workers=persistent)
    most = []
    for _ in range(20):
        for index, values, files in loader:
            assert (values.flatten(1) == (10 + index // 4)[:, None]).all()
            most.append(int(files.max()))
    inherited = before if start == "fork" else 0
    assert max(most) <= handles.MOST + inherited
    assert open_files(tmp_path) == before == handles.MOST


def test_what_is_open_does_not_hinder_the_end(scenes):
    code = (
        "import sys; from accel_geo.data import handles; from accel_geo.data.pixels import *\n"
        "bands = describe_bands(sys.argv[1], None)\n"
        "print(read_pixels(sys.argv[1], bands, [0, 0, 8, 8]).values.mean(), len(handles._HANDLES.open))"
    )
    done = subprocess.run([sys.executable, "-c", code, scenes[3]], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["13.0", "1"], "")
