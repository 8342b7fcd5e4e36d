"""A replica that spans devices: the same run, sharded by torch's fully_shard over two processes of the CPU."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from launching import PYTHON, TORCHRUN, UNET, config, run
from safetensors.torch import load_file

from accel_geo.data.scenes import builtin

pytestmark = pytest.mark.slow
STEPS = 4


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_GEO_CACHE", str(tmp_path_factory.mktemp("scenes")))
        return builtin("semantic", smoke=True)


def recipe(launcher: list[str], scenes: Path, output: Path, *more: str, **env: str) -> Path:
    """Train two epochs of two steps in float64 and return the run's folder."""
    small = "--limit 8 --val-split 0.25 --resize-to 32 --batch-size 4 --epochs 2 --backbone resnet18 --size small"
    options = f"{small} --clip 1 --dtype float64 --cpu --threads 1 --save-every 1 --keep 9".split()
    command = [*launcher, UNET, "--data", str(scenes), *options, "--output", str(output), *more]
    done = run(command, output.parent, seconds=240, **env)
    assert done.code == 0, done.errors
    return output


def history(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def agree(one: Path, two: Path) -> None:
    """Check that the last checkpoints hold the same names, shapes and, to 1e-9, values."""
    for name in ("model", "optimizer"):
        a, b = (load_file(folder / "checkpoints" / f"step-{STEPS}" / f"{name}.safetensors") for folder in (one, two))
        assert {k: v.shape for k, v in a.items()} == {k: v.shape for k, v in b.items()}
        for key, value in a.items():
            torch.testing.assert_close(value.double(), b[key].double(), rtol=1e-9, atol=1e-9, msg=key)
    first, second = ([h["loss"] for h in history(folder) if "loss" in h] for folder in (one, two))
    assert len(first) == STEPS and first == pytest.approx(second, rel=1e-9)


def cut_off(folder: Path, to: Path, step: int) -> Path:
    """Copy a run as it stood after a step."""
    shutil.copytree(folder, to, symlinks=True)
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(to / "checkpoints" / f"step-{later}")
    (to / "checkpoints" / "best").unlink()
    return to


def test_a_sharded_run_is_the_same_run(tmp_path, scenes):
    plain = recipe(TORCHRUN, scenes, tmp_path / "plain")
    by_file = recipe(config("fsdp2.yaml"), scenes, tmp_path / "by_file")
    by_variable = recipe(TORCHRUN, scenes, tmp_path / "by_variable", ACCELERATE_USE_FSDP="true")
    for sharded in (by_file, by_variable):
        agree(plain, sharded)
        assert {h["machine"]["processes"] for h in history(sharded)} == {2}
        here, whole = (int(w) for w in (sharded / "log.txt").read_text().partition("rank 0 holds ")[2].split()[:3:2])
        assert 0.45 * whole < here < 0.55 * whole
    assert "model is sharded" not in (plain / "log.txt").read_text()

    # From a sharded run onto one plain process, and from a plain one onto a sharded: in the middle of the second epoch.
    alone = recipe(PYTHON, scenes, cut_off(by_file, tmp_path / "alone", 3), "--resume")
    agree(plain, alone)
    assert [h["machine"]["processes"] for h in history(alone) if "loss" in h] == [2, 2, 2, 1]
    onto = recipe(config("fsdp2.yaml"), scenes, cut_off(plain, tmp_path / "onto", 3), "--resume")
    agree(plain, onto)


def test_what_a_sharded_run_cannot_do_is_refused(tmp_path, scenes):
    command = [*TORCHRUN, UNET, "--data", str(scenes), "--cpu", "--smoke", "--output", str(tmp_path / "run")]
    done = run([*command, "--ema", "0.9"], tmp_path, ACCELERATE_USE_FSDP="true")
    assert done.code != 0 and "--ema" in done.errors and "sharded" in done.errors
    done = run(command, tmp_path, ACCELERATE_USE_FSDP="true", FSDP_OFFLOAD_PARAMS="true")
    assert done.code != 0 and "fsdp_offload_params" in done.errors
