import os
from pathlib import Path

import pytest
import torch

# Worlds of several processes, and chips for them; started and written by the first test that asks for them.
from parallel.fixtures import cache, chips, started, worlds  # noqa: F401

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real sample data beside the checkout; tests that need it are skipped where it is absent."""
    folder = CHECKOUT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("the sample data are not beside this checkout")
    return folder
