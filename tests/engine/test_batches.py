"""Loading processes: not forked from the process that trains, and what cannot be sent to them is said."""

import os

import pytest
import torch

from accel_geo import prepare_data
from accel_geo.engine.batches import Loader

BATCHES = [[0, 1], [2, 3]]


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


def test_transforms_that_cannot_be_sent_are_named(chips):
    data = prepare_data(**chips("UnetClassifier") | {"transforms": lambda sample, key: sample})
    with pytest.raises(ValueError, match="at the top of a module.*num_workers=0"):
        load(data.train, 1)
