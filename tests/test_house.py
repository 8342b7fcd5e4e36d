"""The house: a room imports only from its own or lower floors, and nothing below models/ knows a model."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accel_geo.models import MODELS

PACKAGE = Path(__file__).resolve().parents[1] / "accel_geo"
FLOORS = {
    "parallel": 1,
    "data": 1,
    "nn": 1,
    "report": 1,
    "tasks": 2,
    "engine": 2,
    "geodata": 3,
    "prepare": 3,
    "maps": 3,
    "models": 4,
}
ROOMS = sorted(
    path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in FLOORS
)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("accel_geo.")}
    return found & set(FLOORS)


def test_the_sweep_finds_the_rooms() -> None:
    assert {room(path) for path in ROOMS} >= set(FLOORS) - {"maps"} and len(ROOMS) > 30


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_from_the_same_or_lower_floors(path: Path) -> None:
    above = {other for other in imported_rooms(path) if FLOORS[other] > FLOORS[room(path)]}
    # base.py names GeoData and the loop calls back the model it is given; neither imports upwards.
    assert not above, f"{path.name} imports from {above}"


def test_rooms_of_one_floor_make_no_circle() -> None:
    edges = {name: set() for name in FLOORS}
    for path in ROOMS:
        edges[room(path)] |= imported_rooms(path) - {room(path)}
    done: list[str] = []
    while len(done) < len(edges):
        free = [name for name in edges if name not in done and edges[name] <= set(done)]
        assert free, f"a circle among {sorted(set(edges) - set(done))}: {edges}"
        done += free


def test_nothing_below_models_names_a_model() -> None:
    below = [path for path in ROOMS if room(path) != "models"]
    kinds = {"SuperResolution"}  # also the name of a task
    words = [*MODELS, *(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in MODELS)]
    words = [word for word in words if word not in (*kinds, "super_resolution")]
    named = [(path.name, word) for path in below for word in words if re.search(rf"\b{word}\b", path.read_text())]
    assert len(below) > 20 and not named


def test_the_package_imports_without_torch() -> None:
    code = "import sys, accel_geo, accel_geo.options; print(sorted({'torch', 'numpy', 'datasets'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_every_public_name_loads() -> None:
    import accel_geo

    assert len(accel_geo.__all__) >= 8
    for name in accel_geo.__all__:
        assert getattr(accel_geo, name) is not None
    with pytest.raises(AttributeError, match="MaskRCNN"):
        accel_geo.MaskRCCN  # noqa: B018
