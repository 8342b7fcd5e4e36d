"""What a fit writes, where a run goes on, and how it fails: clearly, on all processes together."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from parallel.chips import write_chips
from parallel.compare import history, last_checkpoint

ROW = "FeatureClassifier"
STAGE = {"epochs": 2, "lr": 1e-3, "batch_size": 6, "save_every": 2}
STEP_KEYS = {"fit", "epoch", "step", "loss", "losses", "lr", "samples", "machine"}
VALID_KEYS = {"fit", "epoch", "step", "valid", "machine"}
BOTH = pytest.mark.parametrize("processes", [1, 2])


@BOTH
@pytest.mark.parametrize("row", ["FeatureClassifier", "UnetClassifier", "MaskRCNN"])
def test_the_history_holds_just_the_agreed_keys(worlds, chips, tmp_path, row, processes):
    stage = STAGE | {"max_steps": 3, "eval_every": 2, "output": str(tmp_path)}
    worlds[processes].run("fit", row=row, data=chips(row), stages=[stage])
    text = (tmp_path / "history.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [("loss" in line, line["step"]) for line in lines] == [
        (True, 1),
        (True, 2),
        (False, 2),
        (True, 3),
        (False, 3),
    ]
    for line, written in zip(lines, text.splitlines()):
        assert written == json.dumps(line), "standard spacing"
        assert set(line) == (STEP_KEYS if "loss" in line else VALID_KEYS)
        assert line["machine"]["processes"] == processes and line["machine"]["seconds"] > 0
        if "loss" in line:
            assert {"samples_per_process", "samples_per_s", "data_wait"} <= set(line["machine"])
            assert sum(line["machine"]["samples_per_process"]) == line["samples"]
            assert line["loss"] == pytest.approx(sum(line["losses"].values())) and math.isfinite(line["loss"])
            assert isinstance(line["lr"], float) and line["fit"] == 0 and line["epoch"] == 0
        else:
            assert line["valid"] and not any(
                v is not None and v != v for v in line["valid"].values() if not isinstance(v, list)
            )
    assert last_checkpoint(tmp_path).name == "step-3" and lines[-1]["step"] == 3, (
        "the last step is evaluated, then saved"
    )


def test_several_groups_have_a_list_of_rates(chips, tmp_path):
    import torch

    from accel_geo import FeatureClassifier, prepare_data

    data = prepare_data(**chips(ROW), cache="memory")
    model = FeatureClassifier(data, backbone="test_resnet", size="small")

    def factory(parameters, lr):
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first]}, {"params": rest, "lr": lr / 2}], lr=lr)

    model.fit(1, 1e-2, optimizer=factory, batch_size=11, output=tmp_path, cpu=True, threads=1, schedule="constant")
    assert [line["lr"] for line in history(tmp_path) if "loss" in line] == [[1e-2, 5e-3]] * 2


def refusals(worlds, processes, **arguments):
    """What each process of a world raised; within a minute, and the world goes on."""
    said = worlds[processes].run("refused", timeout=60, **arguments)
    assert len(said) == processes and all(each == said[0] for each in said), "one message, on all processes"
    assert worlds[processes].run("reduction", timeout=60, values=[1.0] * 4)[0]["total"] == 4.0
    return said[0]


@BOTH
@pytest.mark.parametrize("row", ["FeatureClassifier", "UnetClassifier", "MaskRCNN"])
def test_a_non_finite_loss_names_step_term_and_chips(worlds, chips, tmp_path, row, processes):
    """A weight becomes infinite behind step 2, on one of the processes alone."""
    stage = STAGE | {"output": str(tmp_path)}
    at = {"2": f"infinite@{processes - 1}"}
    said = refusals(worlds, processes, row=row, data=chips(row), stages=[stage], at=at)
    term = {"FeatureClassifier": "cross_entropy", "UnetClassifier": "cross_entropy", "MaskRCNN": "loss_"}[row]
    assert said["error"] == "ValueError" and "step 3" in said["message"] and term in said["message"], said
    assert "chip_0" in said["message"] and "--lr" in said["message"] and "nan" in said["message"]
    assert [line["step"] for line in history(tmp_path) if "loss" in line] == [1, 2]
    assert last_checkpoint(tmp_path).name == "step-2" and not (tmp_path / ".lock").exists()


@BOTH
def test_an_absurd_rate_ends_in_words(worlds, chips, processes):
    stage = {"epochs": 9, "lr": 1e30, "batch_size": 6, "schedule": "constant", "dtype": "float32"}
    said = refusals(worlds, processes, row="UnetClassifier", data=chips("UnetClassifier"), stages=[stage])
    assert said["error"] == "ValueError" and "cross_entropy is" in said["message"] and "Lower --lr" in said["message"]


@BOTH
def test_more_unreadable_chips_than_allowed_stop_the_run(worlds, tmp_path, processes):
    """With the cache off chips are read while training: two of 22 break after the data set was opened."""
    folder = write_chips(tmp_path / "data", "semantic", 29)
    data = {
        "path": str(folder),
        "task": "semantic",
        "valid_match": "chip_02[2-8].tif",
        "cache": "off",
        "num_workers": 0,
    }
    broken = [str(folder / f"images/chip_{i:03}.tif") for i in (4, 13)]
    stage = STAGE | {"output": str(tmp_path / "run")}
    said = refusals(worlds, processes, row="UnetClassifier", data=data, stages=[stage], breaking=broken)
    assert said["error"] == "ValueError" and "2 of 22 training chips cannot be read, more than 5%" in said["message"]
    assert any(name in said["message"] for name in ("chip_004.tif", "chip_013.tif"))
    log = (tmp_path / "run/log.txt").read_text()
    assert log.count("unreadable chip, counts zero") == 2 and "chip_004.tif" in log and "chip_013.tif" in log


@BOTH
def test_one_unreadable_chip_is_named_once_and_counts_nothing(worlds, tmp_path, processes):
    folder = write_chips(tmp_path / "data", "semantic", 29)
    data = {
        "path": str(folder),
        "task": "semantic",
        "valid_match": "chip_02[2-8].tif",
        "cache": "off",
        "num_workers": 2,
    }
    stage = STAGE | {"output": str(tmp_path / "run")}
    broken = [str(folder / "images/chip_004.tif")]
    worlds[processes].run("fit", row="UnetClassifier", data=data, stages=[stage], breaking=broken)
    log = (tmp_path / "run/log.txt").read_text()
    assert log.count("unreadable chip, counts zero") == 1 and log.count("images/chip_004.tif") >= 1
    assert [line["samples"] for line in history(tmp_path / "run") if "loss" in line] == [6, 6, 5, 5] * 2


@BOTH
def test_an_unreadable_validation_chip_is_named_once_and_counts_in_no_metric(worlds, tmp_path, processes):
    folder = write_chips(tmp_path / "data", "semantic", 29)
    data = {
        "path": str(folder),
        "task": "semantic",
        "valid_match": "chip_02[2-8].tif",
        "cache": "off",
        "num_workers": 0,
    }
    stage = STAGE | {"output": str(tmp_path / "run"), "max_steps": 4, "eval_every": 2}
    broken = [str(folder / f"images/chip_{i:03}.tif") for i in (24, 27)]  # more than 5 %, but of what is not trained on
    worlds[processes].run("fit", row="UnetClassifier", data=data, stages=[stage], breaking=broken)
    log = (tmp_path / "run/log.txt").read_text()
    assert (
        log.count("unreadable chip, counts in no metric: images/chip_024.tif") == 1 and log.count("in no metric") == 2
    )
    assert [line["step"] for line in history(tmp_path / "run") if "valid" in line] == [2, 4]


@BOTH
def test_missing_and_empty_folders(worlds, tmp_path, processes):
    (tmp_path / "empty").mkdir()
    for name, error in (("missing", "FileNotFoundError"), ("empty", "ValueError")):
        data = {"path": str(tmp_path / name), "task": "semantic"}
        said = refusals(worlds, processes, row="UnetClassifier", data=data, stages=[STAGE])
        assert said["error"] in (error, "FileNotFoundError") and str(tmp_path / name) in said["message"]


def test_fewer_samples_than_processes_name_the_ways_out(worlds, chips):
    for options in ({"batch_size": 1}, {"batch_size": 4, "accumulate": 4}):
        said = refusals(worlds, 2, row=ROW, data=chips(ROW), stages=[STAGE | options])
        assert said["error"] == "ValueError" and "2 process(es)" in said["message"]
        assert all(way in said["message"] for way in ("--batch-size", "--per-device-batch-size", "--scale-lr"))


def test_one_sample_a_process_is_hinted_at(worlds, chips):
    worlds[2].run("fit", row=ROW, data=chips(ROW), stages=[STAGE | {"batch_size": 2, "max_steps": 1}])
    assert "hint: a global batch of 2 gives 1 sample(s) to a process" in worlds[2].said()


@BOTH
def test_a_folder_with_another_run_or_in_use_is_refused(worlds, chips, tmp_path, processes):
    stage = STAGE | {"output": str(tmp_path / "run"), "max_steps": 1}
    worlds[processes].run("fit", row=ROW, data=chips(ROW), stages=[stage])
    before = history(tmp_path / "run")
    said = refusals(worlds, processes, row=ROW, data=chips(ROW), stages=[stage])
    assert "already holds a run; go on with it by --resume" in said["message"]
    from accel_geo.engine.run_folder import RunFolder

    mine = RunFolder(tmp_path / "run")
    mine.acquire(allow_existing=True)
    said = refusals(worlds, processes, row=ROW, data=chips(ROW), stages=[stage | {"resume": True}])
    assert f"in use by process {os.getpid()}" in said["message"]
    mine.release()
    assert history(tmp_path / "run") == before


@BOTH
def test_a_full_disk_while_saving(worlds, chips, tmp_path, processes):
    """The second checkpoint finds no room: one message on all processes, and the first stays whole."""
    from accel_geo.engine import checkpoint

    run = tmp_path / "run"
    with small_disk(run, megabytes=3) as mounted:
        stage = STAGE | {"output": str(run), "keep": 9, "save_every": 1, "epochs": 20}
        said = refusals(worlds, processes, row=ROW, data=chips(ROW), stages=[stage])
        assert said["error"] == "OSError" and "No space left" in said["message"], said
        assert "failed" in said["message"] and "--resume" in said["message"]
        assert checkpoint.newest(run / "checkpoints", pytest.fail).training["step"] >= 1
        assert mounted and not [p for p in (run / "checkpoints").iterdir() if p.name.startswith(".tmp-")]
        assert not (run / ".lock").exists()


def test_a_full_disk_while_logging_ends_all_processes(worlds, chips, tmp_path):
    """The main process alone writes the history: where that fails the others must not wait for it."""
    run = tmp_path / "run"
    with small_disk(run, megabytes=1):
        (run / "ballast").write_bytes(b"\0" * (2**20 - 40 * 1024))
        stage = STAGE | {"output": str(run), "save_every": 10_000, "eval_every": 10_000, "epochs": 400}
        said = refusals(worlds, 2, row=ROW, data=chips(ROW), stages=[stage])
        assert said["error"] == "OSError" and "No space left" in said["message"], said


class small_disk:
    """A small disk mounted at a folder; tests that need it are skipped where mounting is not allowed."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder, self.megabytes = folder, megabytes

    def __enter__(self) -> bool:
        self.folder.mkdir()
        size = f"size={self.megabytes}m"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.folder)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
        return True

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.path.insert(0, sys.argv[1])
import cases
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
arguments = __import__("json").loads(sys.argv[2])
print("answer", __import__("json").dumps(cases.refused(**arguments)))
"""


def test_a_file_that_may_not_grow_while_saving(chips, tmp_path):
    """Where no small disk can be mounted, a limit on the size of files fails the same write."""
    stage = STAGE | {"output": str(tmp_path / "run"), "eval_every": 99}
    arguments = json.dumps({"row": ROW, "data": chips(ROW) | {"cache": "memory"}, "stages": [stage]})
    cases = Path(__file__).parents[1] / "parallel"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(cases), arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("answer ")).removeprefix("answer ")
    )
    assert said["error"] == "OSError", said
    assert "saving step 2" in said["message"] and "make room" in said["message"]
    assert not list((tmp_path / "run/checkpoints").iterdir())


@pytest.mark.parametrize(
    "options", [{"clip": 0.0}, {"clip": -1.0}, {"ema": 1.0}, {"ema": 0.0}, {"min_delta": -1.0}, {"lr": math.nan}]
)
def test_senseless_numbers_are_refused_before_anything_is_written(chips, tmp_path, options):
    from accel_geo import FeatureClassifier, prepare_data

    model = FeatureClassifier(prepare_data(**chips(ROW), cache="memory"), backbone="test_resnet", size="small")
    name = next(iter(options)).replace("_", "-")
    with pytest.raises(ValueError, match=f"--{name} "):
        model.fit(1, **{"lr": 1e-3, **options}, output=tmp_path / "run", cpu=True)
    assert not (tmp_path / "run").exists()
