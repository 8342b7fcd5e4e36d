"""Fixtures of the tests that need several processes: the worlds, the chips, and weights of a short fit."""

from pathlib import Path

import pytest
from parallel.chips import write_chips
from parallel.world import Worlds

from accel_geo.models import MODELS, model_class

TASKS = {row: model_class(row).task for row in MODELS}
CORE = ("FeatureClassifier", "UnetClassifier", "MaskRCNN")  # the other rows are looked at in slow tests
ROWS = [row if row in CORE else pytest.param(row, marks=pytest.mark.slow) for row in TASKS]
LEARNT = {"classification": 3, "instances": 6, "detection": 15}  # epochs until metrics are above zero, else 5
EMPTY = (1, 3, 6, 9, 10, 11, 14, 19, 25)  # chips without objects
VALID = "chip_02[2-8].tif"  # seven chips; 22 are left to train
SIZES = ((48, 48), (40, 56), (33, 47), (48, 48))


class Chips:
    """Folders of chips by kind, written when first asked for; all rows share them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, row: str, kind: str = "plain", valid: str | None = VALID, **options: object) -> dict:
        """Return the arguments of prepare_data for chips of a kind: plain, sizes, ...; "plain-12" are 12."""
        task = TASKS[row]
        folder = self.root / f"{task}-{kind}"
        kind, _, number = kind.partition("-")
        if not folder.exists():
            more = {
                "plain": {},
                "sizes": {"sizes": SIZES},
                "problem": {"unreadable": (5,), "seed": 3},
                "nodata": {"nodata": (0, 2, 4, 5, 7, 8, 12, 13, 15)},
                "several": {"several": True},
            }[kind]
            n = int(number or 29)
            empty = () if task == "classification" and kind != "several" else EMPTY
            write_chips(folder, task, n, empty=tuple(i for i in empty if i < n), **more)
        scale = {"scale": 2} if task == "super_resolution" else {}
        return {"path": str(folder), "task": task, "valid_match": valid, **scale, **options}


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """The cache of the worlds."""
    return tmp_path_factory.mktemp("world-cache")


@pytest.fixture(scope="session")
def worlds(tmp_path_factory, cache):
    """The worlds by their process count."""
    worlds = Worlds(tmp_path_factory.mktemp("worlds"), cache)
    yield worlds
    worlds.close()


@pytest.fixture(scope="session")
def chips(tmp_path_factory) -> Chips:
    """Folders of chips."""
    return Chips(tmp_path_factory.mktemp("chips"))


@pytest.fixture(scope="session")
def started(worlds, chips, tmp_path_factory):
    """A function that gives weights of a short fit, from which metrics are above zero: of a row, or of a named choice."""
    root = tmp_path_factory.mktemp("started")

    def start(row: str, name: str = "", data: dict | None = None, model: dict | None = None) -> str:
        folder = root / (name or row)
        if not folder.exists():
            stage = {"epochs": LEARNT.get(TASKS[row], 5), "lr": 3e-3, "batch_size": 4, "dtype": "float32"}
            more = {"row": row, "data": data or chips(row), "model": model, "save": str(folder)}
            worlds[1].run("fit", stages=[stage], **more)
        return str(folder)

    return start
