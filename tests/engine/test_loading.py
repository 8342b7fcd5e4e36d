"""Loading processes: not forked from the process that trains, unless they must be, and no second run of its script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import accel_geo
from accel_geo import prepare_data
from accel_geo.engine import loading
from accel_geo.engine.batches import Loader
from accel_geo.parallel.order import Request

BATCHES = [[Request(0, 1), Request(1, 2)], [Request(2, 3), Request(3, 4)]]


class Parents(torch.utils.data.Dataset):
    """Samples that tell which process started the one that loads them."""

    def __getitem__(self, index):
        return {"image": torch.zeros(1, 1, 1), "parent": os.getppid(), "process": os.getpid()}


def load(chips, workers):
    return [
        target
        for _, targets in Loader(chips, BATCHES, torch.device("cpu"), torch.float32, workers)
        for target in targets
    ]


def test_workers_are_no_forks_of_the_training_process():
    if "forkserver" not in torch.multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork")
    (parent,) = {target["parent"] for target in load(Parents(), 2)}
    assert parent not in (os.getpid(), os.getppid())
    assert {target["process"] for target in load(Parents(), 0)} == {os.getpid()}


def test_a_script_is_not_run_again_by_its_workers(tmp_path):
    """It needs no guard, nor to be a file; what it defines itself only forks inherit."""
    samples = """
import os, torch
class Samples(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return {"image": torch.zeros(1, 1, 1), "parent": os.getppid()}
"""
    script = """
import samples
from accel_geo.engine.batches import Loader
from accel_geo.parallel.order import Request
print("run", flush=True)
class Mine(samples.Samples):
    pass
for given in (samples.Samples(), Mine()):
    loaded = Loader(given, [[0, 1], [2, 3]], torch.device("cpu"), torch.float32, 1)
    print({target["parent"] == os.getpid() for _, targets in loaded for target in targets})
"""
    (tmp_path / "samples.py").write_text(samples)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(accel_geo.__file__).parents[1]}"}
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 200, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-"], input="import os, torch" + script, **options)
    assert done.stdout.splitlines() == ["run", "{False}", "{True}"], done.stderr


def test_chips_in_memory_are_shared_where_they_are_large(monkeypatch):
    chips = Parents()
    chips.pixels = torch.ones(2**20)
    monkeypatch.setattr(loading, "MOST_SENT", 2**20)
    assert {target["parent"] for target in load(chips, 1)} == {os.getpid()}


def test_transforms_that_cannot_be_sent_are_inherited(chips):
    data = prepare_data(
        **chips("UnetClassifier") | {"transforms": lambda s, key: s | {"image": s["image"] * 0 + os.getppid()}}
    )
    loaded = Loader(data.train, BATCHES, torch.device("cpu"), torch.float32, 1)
    assert {float(image[0, 0, 0]) for images, _ in loaded for image in images} == {float(os.getpid())}
