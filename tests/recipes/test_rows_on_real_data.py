"""Each row as its users have it, on real chips: its recipe trains on one process and on two, is killed and goes on, and
other processes load, evaluate, predict with and draw what it published."""

import json
import runpy
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import rasterio
from parallel.chips import write_raster
from parallel.compare import differences, flat, history, last_checkpoint, steps_of
from parallel.fixtures import TASKS
from parallel.launching import PYTHON, ROOT, run, running
from rasterio.windows import Window

from accel_geo import from_model, prepare_data
from accel_geo.models import MODELS
from accel_geo.tasks import TASKS as KINDS

pytestmark = pytest.mark.slow
STEPS = 6
COMMON = "--size small --batch-size 4 --threads 1 --cpu --num-workers 0 --keep 1"
# A low rate: the biases of a MobileNet's linear bottlenecks have a true gradient of zero (batch normalisation takes them
# away), and Adam makes steps of the rate's size times rounding noise / 1e-8 of it; at 1e-3 scores differ by 2e-9.
COMPARED = f"--dtype float64 --lr 1e-4 --max-steps {STEPS} --eval-every {STEPS}"
# The lightest network whose pretrained weights lie beside the sample data.
PRETRAINED = "--backbone mobilenet_v2 --weights {shared}/weights/mobilenet_v2_imagenet_features.safetensors"
# For rows whose predictions hold coordinates next to zero, of which such noise as below is more.
RESNET = "--backbone resnet18"
# A short run from which a detector's metric is above zero.
LEARNT = "--max-steps 60 --lr 2e-3"


class Case(NamedTuple):
    """What a recipe is given.

    Attributes:
        data: below the sample data; `floods` are cut from a scene.
        reading: options that tell how to read it.
        start: further options of a first short run, where six steps do not bring the metric above zero.
        network: options of the network.
    """

    data: str
    reading: str
    start: str = ""
    network: str = PRETRAINED


# By run, else by the row's task: a new row of a known task needs no line.
CASES = {
    "classification": Case("banepa_oam_osm/classify", "--resize-to 64 --val-split 0.25"),
    "semantic": Case("esri_exports/Classified_Tiles", "--resize-to 96 --chip-size 64 --val-split 0.25"),
    "detection": Case("esri_exports/PASCAL_VOC_rectangles", "--resize-to 96 --val-split 0.25", LEARNT, RESNET),
    "instances": Case("esri_exports/RCNN_Masks", "--resize-to 96 --val-split 0.25", LEARNT, RESNET),
    "edges": Case("esri_exports/Classified_Tiles_edge", "--resize-to 96 --chip-size 64 --val-split 0.25"),
    "super_resolution": Case("esri_exports/Export_Tiles", "--chip-size 64 --limit 8 --val-split 0.25", network=""),
    "DeepLab": Case("banepa_oam_osm", "--limit 24 --resize-to 96 --chip-size 64 --val-split 0.25"),
    "PSPNetClassifier": Case("floods", "--val-split 0.25"),
    "SingleShotDetector": Case("neon_tree_crowns/boxes_coco.json", "--resize-to 96 --val-split 0.25", LEARNT, RESNET),
    "BDCNEdgeDetector": Case(
        "spacenet_vegas_roads/scene_vegas_rgba.tif",
        "--vectors {shared}/data/spacenet_vegas_roads/roads.geojson --chip-size 260 --resize-to 96 --val-split 0.25",
    ),
    "SuperResolution sr3": Case(
        "banepa_oam_osm/images",
        "--chip-size 32 --resize-to 64 --limit 8 --val-split 0.25",
        network="--architecture sr3 --n-timestep-inference 2",
    ),
}
RUNS = [*MODELS, *(name for name in CASES if name.partition(" ")[2])]


@pytest.fixture
def floods(shared, tmp_path) -> Path:
    """The scene of thirteen bands and its labels, cut into 16 chips of 64 px."""
    for kind, name in (("images", "S2Hand"), ("masks", "LabelHand")):
        with rasterio.open(shared / f"data/sen1floods11_sample/Spain_7370579_{name}.tif") as scene:
            for row in range(0, 256, 64):
                for column in range(128, 384, 64):
                    pixels = scene.read(window=Window(column, row, 64, 64))
                    write_raster(tmp_path / f"floods/{kind}/spain_{row}_{column}.tif", pixels, nodata=scene.nodata)
    return tmp_path / "floods"


def split(options: str, shared: Path) -> list[str]:
    """Options as a list."""
    return [option.format(shared=shared) for option in shlex.split(options)]


def done(command: list, folder: Path, seconds: float = 600.0) -> str:
    """Run a command to its good end; returns what it printed."""
    finished = run([str(part) for part in command], folder, seconds)
    assert finished.code == 0, finished.errors
    return finished.output


def killed(command: list, folder: Path, output: Path) -> None:
    """Start a run, and kill all its processes once a checkpoint stands."""
    with running([str(part) for part in command], folder, "killed") as process:
        process.wait_for(lambda _: any((output / "checkpoints").glob("step-*")), 300)
        process.kill()
    assert 2 <= int(last_checkpoint(output).name.removeprefix("step-")) < STEPS
    lines = (output / "history.jsonl").read_text().splitlines()
    assert 2 <= len(lines) < STEPS


def first_image(path: Path, data: object) -> Path:
    """The first validation chip's file, or the scene of which it is a window."""
    folder, name = path if path.is_dir() else path.parent, data.valid.files[0].partition("@")[0]
    found = [file for file in sorted(folder.rglob(Path(name).name)) if str(file).endswith(name)]
    assert found, (folder, name)
    return found[0]


@pytest.mark.parametrize("name", RUNS)
def test_row(shared, request, tmp_path, monkeypatch, name):
    row = name.partition(" ")[0]
    case = CASES.get(name) or CASES[TASKS[row]]
    path = request.getfixturevalue("floods") if case.data == "floods" else shared / "data" / case.data
    reading = ["--data", path, *split(case.reading, shared)]
    recipe = [*PYTHON, ROOT / f"recipes/{row.lower()}.py", *reading, *split(COMMON, shared)]
    network = split(case.network, shared)
    if case.start:
        start = [*split(f"{case.start} --epochs 99 --eval-every 999", shared), "--output", tmp_path / "start"]
        done([*recipe, *network, *start], tmp_path)
        network = [*network[:2], "--weights", tmp_path / "start/model"]
    recipe += [*network, *split(COMPARED, shared), "--epochs", "99"]

    # One process and two: the same run.
    for devices in (1, 2):
        done([*recipe, "--devices", devices, "--output", tmp_path / f"on-{devices}"], tmp_path)
        assert {line["machine"]["processes"] for line in history(tmp_path / f"on-{devices}")} == {devices}
    whole = tmp_path / "on-1"
    assert differences(whole, tmp_path / "on-2", 1e-9, STEPS) == []
    last = [line["valid"] for line in history(whole) if "valid" in line][-1]
    assert last[KINDS[TASKS[row]].monitor] > 0

    # Killed on two processes, gone on with on one.
    broken = [*recipe, "--save-every", 2, "--output", tmp_path / "broken"]
    killed([*broken, "--devices", 2], tmp_path, tmp_path / "broken")
    saved = int(last_checkpoint(tmp_path / "broken").name.removeprefix("step-"))
    assert f"resumed at step {saved}" in done([*broken, "--resume"], tmp_path)
    assert steps_of(tmp_path / "broken") == list(range(1, STEPS + 1))
    assert differences(whole, tmp_path / "broken", 1e-9, STEPS) == []
    assert {line["machine"]["processes"] for line in history(tmp_path / "broken")} == {1, 2}

    # What was published, in other processes, in single precision.
    command = [*PYTHON, "-m", "accel_geo"]
    printed = done([*command, "evaluate", whole / "model", *reading, "--json"], tmp_path)
    assert_close(json.loads(printed.splitlines()[-1]), last)
    report = (whole / "report.html").read_text()
    assert report.count("<img") >= 3 and report.count("data:image/png;base64") >= 3

    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "cache"))
    data = prepare_data(**arguments(reading, row))
    image = first_image(path, data)
    done([*command, "predict", whole / "model", image, "--output", tmp_path / "predicted"], tmp_path)
    (entry,) = json.loads((tmp_path / "predicted/predictions.json").read_text())
    assert entry["file"] == str(image) and len(entry) >= 3
    assert_picture(tmp_path / f"predicted/00000-{image.stem}.png")
    from_model(whole / "model", data).show_results(rows=2, path=tmp_path / "results.png")
    assert_picture(tmp_path / "results.png")
    for output in tmp_path.glob("*/checkpoints"):
        shutil.rmtree(output)  # hundreds of megabytes, which pytest would keep


def arguments(reading: list, row: str) -> dict:
    """The arguments of prepare_data that a recipe makes of its options."""
    recipe = runpy.run_path(str(ROOT / f"recipes/{row.lower()}.py"))
    options = recipe["parser"].parse([str(part) for part in reading])
    return options.for_data()


def assert_close(found: dict, expected: dict) -> None:
    """Check metrics of single precision against those of double."""
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith("threshold"):
            continue  # where the best figure lies, which among near equals is left to rounding; the figure is compared
        if isinstance(value, float):
            assert abs(found[name] - value) <= 2e-3 * max(abs(value), 1.0), (name, found[name], value)
        else:
            assert found[name] == value, name


def assert_picture(file: Path) -> None:
    """Check that a PNG shows something."""
    with rasterio.open(file) as picture:
        pixels = picture.read([1, 2, 3])
    assert min(pixels.shape[1:]) > 50 and pixels.std() > 10


def test_every_row_is_swept():
    rows = [name.partition(" ")[0] for name in RUNS]
    assert set(rows) == set(MODELS) and len(rows) >= 10 and set(CASES) - set(RUNS) <= set(KINDS)
