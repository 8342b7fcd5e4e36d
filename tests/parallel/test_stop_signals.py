"""SIGTERM and SIGUSR1 to all processes of a run: save, stop with exit code 0, go on with --resume."""

import json
import os
import signal
from pathlib import Path

import pytest
from launching import PYTHON, TORCHRUN, UNET, all_gone, config, descendants, running

from accel_geo.data.scenes import builtin

pytestmark = pytest.mark.slow
SMALL = "--limit 8 --val-split 0.25 --resize-to 32 --batch-size 4 --backbone resnet18 --size small"
OPTIONS = [*SMALL.split(), "--cpu", "--threads", "1"]


def recipe(launcher: list[str], scenes: Path, output: Path, *more: str) -> list[str]:
    return [*launcher, UNET, "--data", str(scenes), *OPTIONS, "--output", str(output), *more]


def steps(output: Path) -> list[dict]:
    file = output / "history.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [record for record in map(json.loads, lines) if "loss" in record]


@pytest.mark.parametrize(
    ("launcher", "more", "number", "to"),
    (
        (PYTHON, ["--devices", "2"], signal.SIGTERM, "supervisor"),
        (PYTHON, ["--devices", "2"], signal.SIGUSR1, "group"),
        (TORCHRUN, [], signal.SIGTERM, "launcher"),
        (TORCHRUN, [], signal.SIGUSR1, "workers"),
        ([*TORCHRUN, "--signals-to-handle", "SIGTERM,SIGUSR1"], [], signal.SIGUSR1, "launcher"),
        (TORCHRUN, [], signal.SIGKILL, "launcher"),  # its workers notice
        (config("cpu_2proc.yaml"), [], signal.SIGTERM, "launcher"),
    ),
    ids=("devices", "devices-group", "torchrun", "torchrun-workers", "torchrun-usr1", "torchrun-killed", "accelerate"),
)
def test_stop_and_resume(tmp_path, monkeypatch, launcher, more, number, to):
    monkeypatch.setenv("ACCEL_GEO_CACHE", str(tmp_path / "scenes"))
    scenes, output = builtin("semantic", smoke=True), tmp_path / "run"
    long = ["--max-steps", "100000", "--epochs", "100000", "--eval-every", "100000", "--save-every", "100000"]
    with running(recipe(launcher, scenes, output, *more, *long), tmp_path) as process:
        process.wait_for(lambda _: len(steps(output)) >= 2)
        pids = sorted(descendants(process.process.pid))
        if to == "group":
            os.killpg(process.process.pid, number)
        elif to == "workers":
            for pid in pids:
                os.kill(pid, number)
        else:
            process.process.send_signal(number)
        done = process.finish(60)
        assert all_gone(pids, 60 if number == signal.SIGKILL else 5), done.errors
    # torch's launchers report a signal of their own as a failure; workers that ended by themselves are none.
    assert (done.code == 0) == (to != "launcher"), done.errors
    log = (output / "log.txt").read_text()
    assert "stopped by a signal, saved at step" in log
    at = int(log.partition("saved at step ")[2].split(";")[0])
    assert {s["machine"]["processes"] for s in steps(output)} == {2} and steps(output)[-1]["step"] == at
    with running(recipe(PYTHON, scenes, output, *long, "--resume"), tmp_path, "resumed") as process:
        process.wait_for(lambda _: steps(output)[-1]["step"] > at)
    assert f"resumed at step {at}" in (output / "log.txt").read_text()
    assert [s["step"] for s in steps(output)] == list(range(1, len(steps(output)) + 1))
