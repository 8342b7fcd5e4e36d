"""Every command and snippet that README and docs/ show is run, on small built-in data in the place of the user's."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio

from accel_geo.data.scenes import builtin

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What needs a cluster, other machines or the registry; the install commands are what .ci/run does.
ELSEWHERE = re.compile(r"^(pip |srun |sbatch |#|export |kill )|\$|node-|NODE|10\.0\.0\.")


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [(page.name, block) for page in PAGES for block in pattern.findall(page.read_text())]


def commands() -> list[str]:
    lines = [line.strip() for _, block in blocks("bash") for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return list(dict.fromkeys(part for part in parts if part and not ELSEWHERE.search(part)))


RECIPES = [command for command in commands() if "recipes/" in command]
OTHERS = [command for command in commands() if "recipes/" not in command and command != "pytest"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a checkout with the user's data and a trained model in it."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("recipes", "accelerate_configs", "accel_geo"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "my_export").symlink_to(builtin("instances", smoke=True))
    write_scene(folder)
    run([sys.executable, "-c", snippet()], folder)
    return folder


def write_scene(folder: Path) -> None:
    """Write scene.tif, 160 x 192 pixels, and roofs.geojson, three rectangles of two kinds on it."""
    edges = [(500_010, 5_000_060, 40), (500_080, 5_000_100, 30), (500_120, 5_000_020, 25)]
    rings = [[[x, y], [x + a, y], [x + a, y + a], [x, y + a], [x, y]] for x, y, a in edges]
    features = [
        {"type": "Feature", "properties": {"kind": kind}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        for kind, ring in zip(("house", "shed", "house"), rings)
    ]
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::32633"}}
    (folder / "roofs.geojson").write_text(json.dumps({"type": "FeatureCollection", "crs": crs, "features": features}))
    pixels = np.random.default_rng(3).integers(30, 120, (3, 160, 192), dtype=np.uint8)
    shape = {"count": 3, "height": 160, "width": 192, "dtype": "uint8", "crs": "EPSG:32633"}
    transform = rasterio.Affine(1, 0, 500_000, 0, -1, 5_000_160)
    with rasterio.open(folder / "scene.tif", "w", driver="GTiff", transform=transform, **shape) as raster:
        raster.write(pixels)


def snippet(page: str = "README.md") -> str:
    found = [block for name, block in blocks("python") if name == page]
    assert len(found) == 1
    return found[0]


def test_the_snippet_of_the_data_page(place: Path) -> None:
    assert "torch.Size([3, 64, 64])" in run([sys.executable, "-c", snippet("data.md")], place)
    assert (place / "batch.png").is_file()


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def test_the_snippet_leaves_a_run_and_a_model(place: Path) -> None:
    assert (place / "runs/roofs/report.html").is_file()
    assert sorted(path.name for path in (place / "roofs").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("command", OTHERS)
def test_command(command: str, place: Path) -> None:
    assert run(shlex.split(command), place)


@pytest.mark.slow
@pytest.mark.parametrize("command", RECIPES)
def test_recipe_command(command: str, place: Path, tmp_path: Path) -> None:
    recipe = re.search(r"recipes/(\w+)\.py", command)[1]
    task = re.search(r'task="(\w+)"', (ROOT / f"recipes/{recipe}.py").read_text())[1]
    arguments = [str(builtin(task, smoke=True)) if a == "my_export" else a for a in shlex.split(command)]
    arguments = [str(place / a) if a in ("scene.tif", "roofs.geojson") else a for a in arguments]
    resumed = "--resume" in arguments
    options = ["--epochs", "1", "--resize-to", "64", "--size", "small"] if resumed else ["--smoke"]
    if "--output" not in arguments:
        options += ["--output", str(tmp_path / "run")]
    assert "report:" in run([*arguments, *options], place)


def test_the_pages_show_commands() -> None:
    assert len(RECIPES) >= 4 and len(OTHERS) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target
