"""P4 and P6: a run that was cut off goes on, on any number of processes, as if nothing had happened."""

import json
import shutil
from pathlib import Path

import pytest
from parallel.compare import differences, history, last_checkpoint, steps_of
from parallel.fixtures import TASKS

from accel_geo.models import MODELS
from accel_geo.tasks import TASKS as KINDS

# 22 chips: batches of 6, 6, 5, 5, four steps an epoch; saves at 3 and 6, evaluations at 2, 4, 6, 8 and 12.
STAGE = {"epochs": 3, "lr": 2e-3, "batch_size": 6, "save_every": 3, "eval_every": 2}
ROW = "FeatureClassifier"
COUNTS = pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.slow)])


def fit(world, output, stages, data, start=None, row=ROW, **more):
    stages = [{"output": str(output), **stage} for stage in stages]
    return world.run("fit", row=row, data=data, stages=stages, start=start, **more)


def copied(source: Path, target: Path) -> Path:
    """A copy of a run folder, its left lock included."""
    shutil.copytree(source, target, symlinks=True)
    return target


def resume(worlds, processes, source, target, stages, data, row=ROW, start=None, **more):
    """Go on with a copy of a run on so many processes; returns what was said."""
    copied(source, target)
    fit(worlds[processes], target, [stage | {"resume": True} for stage in stages], data, start, row, **more)
    return worlds[processes].said()


def killed(worlds, folder, stages, data, row, at, processes=2, **more):
    """Run in processes of their own that are killed by SIGKILL."""
    world = worlds.new(processes)
    try:
        stages = [{"output": str(folder), **stage} for stage in stages]
        world.begin("fit", row=row, data=data, stages=stages, at=at, **more)
        codes = world.wait(240)
    finally:
        world.close()
    assert codes == [-9] * processes
    return folder


RICH = STAGE | {"ema": 0.7, "schedule": "plateau", "min_delta": 0.5, "clip": 1.0, "eval_every": 1}
DATA = {"num_workers": 0, "chip_size": 40}


@pytest.fixture(scope="module")
def broken(worlds, chips, tmp_path_factory):
    """Two processes with a moving average and a plateau, killed between two saves within epoch 2; and unbroken."""
    root, data = tmp_path_factory.mktemp("broken"), chips("UnetClassifier", **DATA)
    fit(worlds[1], root / "unbroken", [RICH], data, row="UnetClassifier")
    # The eleventh step is the third of epoch 2; saved are 3, 6 and 9, and at better evaluations.
    return root / "unbroken", killed(worlds, root / "killed", [RICH], data, "UnetClassifier", {"11": "kill"})


@COUNTS
def test_killed_in_the_middle_of_an_epoch(worlds, chips, broken, tmp_path, processes):
    unbroken, killed = broken
    saved = int(last_checkpoint(killed).name.removeprefix("step-"))
    assert saved == 9 and steps_of(killed) == list(range(1, 11)) and (killed / ".lock").exists()
    rates = [line["lr"] for line in history(unbroken) if "loss" in line]
    assert rates[8] < rates[0], "the plateau must have been reached before the kill"

    said = resume(
        worlds, processes, killed, tmp_path / "run", [RICH], chips("UnetClassifier", **DATA), "UnetClassifier"
    )
    assert differences(unbroken, tmp_path / "run", steps=12) == []
    assert f"resumed at step {saved}" in said
    machines = [(line["step"], line["machine"]["processes"]) for line in history(tmp_path / "run")]
    assert all(count == (2 if step <= saved else processes) for step, count in machines)
    assert not (tmp_path / "run/.lock").exists()


SR3 = {"inner_channel": 16, "channel_mults": [1, 2], "norm_groups": 8, "n_timestep_inference": 2}
# Every row, and the further networks of a row that is several in one.
NETWORKS = {row: (row, {}) for row in TASKS} | {
    "SuperResolution unet": ("SuperResolution", {"architecture": "unet", "backbone": "test_resnet"}),
    "SuperResolution sr3": ("SuperResolution", {"architecture": "sr3", **SR3}),
}
# Eight steps; the kill comes in the seventh, one behind a save, in the middle of the second epoch.
SHORT = STAGE | {"epochs": 2, "eval_every": 4, "ema": 0.7, "clip": 1.0}


@pytest.fixture(scope="module")
def broken_networks(worlds, chips, started, tmp_path_factory):
    """A function that runs a network unbroken on one process, and on two that are killed."""
    root = tmp_path_factory.mktemp("networks")

    def make(name: str, data: dict) -> tuple[Path, Path, dict]:
        row, model = NETWORKS[name]
        # Weights from which metrics are above zero; the further networks of a row start from nothing.
        more = {"row": row, "model": model, "start": None if model else started(row)}
        unbroken, broken = root / name / "unbroken", root / name / "killed"
        if not broken.exists():
            fit(worlds[1], unbroken, [SHORT], data, **more)
            killed(worlds, broken, [SHORT], data, at={"7": "kill"}, **more)
        return unbroken, broken, more

    return make


@pytest.mark.slow
@COUNTS
@pytest.mark.parametrize("name", NETWORKS)
def test_every_row_killed_in_the_middle_of_an_epoch(worlds, chips, broken_networks, tmp_path, name, processes):
    data = chips(NETWORKS[name][0], "sizes", chip_size=40)
    unbroken, broken, more = broken_networks(name, data)
    assert steps_of(broken) == [1, 2, 3, 4, 5, 6] and last_checkpoint(broken).name == "step-6"

    said = resume(worlds, processes, broken, tmp_path / "run", [SHORT], data, **more)
    assert differences(unbroken, tmp_path / "run", steps=8) == [] and "resumed at step 6" in said
    machines = [(line["step"], line["machine"]["processes"]) for line in history(tmp_path / "run")]
    assert all(count == (2 if step <= 6 else processes) for step, count in machines)
    valid = [line["valid"] for line in history(unbroken) if "valid" in line]
    assert len(valid) == 2 and all(figures[KINDS[TASKS[more["row"]]].monitor] > 0.01 for figures in valid)


def test_the_rows_are_swept():
    assert {row for row, _ in NETWORKS.values()} == set(MODELS) and len(MODELS) >= 10


@pytest.fixture(scope="module")
def unbroken(worlds, chips, tmp_path_factory):
    """A run that nothing stopped, on one process."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    fit(worlds[1], folder, [STAGE], chips(ROW))
    return folder


@COUNTS
def test_stopped_exactly_at_the_end_of_an_epoch(worlds, chips, unbroken, tmp_path, processes):
    """The signal comes in step 3 and is agreed on in step 4, the last of the epoch, at which an evaluation is due."""
    said = fit(worlds[2], tmp_path / "stopped", [STAGE], chips(ROW), at={"3": "terminate@1"})
    assert [each["exit"] for each in said] == [0, 0] and "saved at step 4" in worlds[2].said()
    training = json.loads((tmp_path / "stopped/checkpoints/step-4/training.json").read_text())
    assert training["epoch"] == 0 and training["batch"] == 4 and not training["evaluated"]
    assert [line["step"] for line in history(tmp_path / "stopped") if "valid" in line] == [2]
    said = resume(worlds, processes, tmp_path / "stopped", tmp_path / "run", [STAGE], chips(ROW))
    assert differences(unbroken, tmp_path / "run", steps=12) == [] and "resumed at step 4" in said


@pytest.mark.parametrize("step", [1, 4, 11])
def test_stopped_by_a_signal_anywhere(worlds, chips, unbroken, tmp_path, step):
    """In the first step, where no save has been; behind an evaluation; at the last step."""
    said = fit(worlds[2], tmp_path / "stopped", [STAGE], chips(ROW), at={str(step): "terminate"})
    assert [each["exit"] for each in said] == [0, 0]
    said = resume(worlds, 1, tmp_path / "stopped", tmp_path / "run", [STAGE], chips(ROW))
    assert differences(unbroken, tmp_path / "run", steps=12) == [] and f"resumed at step {step + 1}" in said


def test_a_stop_leaves_processes_with_exit_code_0(worlds, chips, unbroken, tmp_path):
    """The whole way of a recipe's process: SIGTERM to one of two, both save, stop and end well."""
    world = worlds.new(2)
    stage = {"output": str(tmp_path / "run"), **STAGE}
    try:
        world.begin("fit_and_leave", row=ROW, data=chips(ROW), stages=[stage], at={"6": "terminate@0"})
        assert world.wait(120) == [0, 0], world.output()
    finally:
        world.close()
    assert last_checkpoint(tmp_path / "run").name == "step-7" and not (tmp_path / "run/.lock").exists()


def test_a_save_cut_short_by_the_kill(worlds, chips, unbroken, tmp_path):
    """Killed while the checkpoint of step 6 is being written: step 3 stands, and what was left is cleared away."""
    world = worlds.new(1)
    try:
        world.begin(
            "killed_in_save", step=6, row=ROW, data=chips(ROW), stages=[{"output": str(tmp_path / "killed"), **STAGE}]
        )
        assert world.wait(120) == [-9]
    finally:
        world.close()
    left = [p.name for p in (tmp_path / "killed/checkpoints").iterdir() if p.name.startswith(".tmp-")]
    assert len(left) == 1 and (tmp_path / "killed/checkpoints" / left[0] / "model.safetensors").exists()
    before = int(last_checkpoint(tmp_path / "killed").name.removeprefix("step-"))
    assert before < 6 and steps_of(tmp_path / "killed")[-1] == 6
    said = resume(worlds, 2, tmp_path / "killed", tmp_path / "run", [STAGE], chips(ROW))
    assert differences(unbroken, tmp_path / "run", steps=12) == [] and f"resumed at step {before}" in said
    assert not [p for p in (tmp_path / "run/checkpoints").iterdir() if p.name.startswith(".tmp-")]


@pytest.fixture(scope="module")
def stopped_at_8(worlds, chips, tmp_path_factory):
    """A run of two processes that a signal stopped in the last step of the second epoch; every save is kept."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    fit(worlds[2], folder, [STAGE | {"keep": 9}], chips(ROW), at={"7": "terminate"})
    return folder


@pytest.mark.parametrize("harm", ["truncated", "no training.json", "foreign JSON", "torn history"])
def test_a_damaged_checkpoint_is_passed_over(worlds, chips, unbroken, stopped_at_8, tmp_path, harm):
    stopped = copied(stopped_at_8, tmp_path / "stopped")
    newest, (older, _) = last_checkpoint(stopped), sorted((stopped / "checkpoints").glob("step-[0-9]*"))[-2:]
    assert newest.name == "step-8" and older != newest
    if harm == "truncated":
        file = newest / "optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
    elif harm == "no training.json":
        (newest / "training.json").unlink()
    elif harm == "foreign JSON":
        (newest / "config.json").write_text('{"architectures": ["ResNet"]}')
    else:
        with open(stopped / "history.jsonl", "a") as file:
            file.write('{"fit": 0, "epoch": 2, "st')
    expected = newest if harm == "torn history" else older
    said = resume(worlds, 2, stopped, tmp_path / "run", [STAGE | {"keep": 9}], chips(ROW))
    assert f"resumed at {expected.name.replace('-', ' ')}" in said
    assert harm == "torn history" or ("skipped a checkpoint" in said and newest.name in said)
    assert differences(unbroken, tmp_path / "run", steps=12) == []


def test_no_checkpoint_is_whole(worlds, chips, stopped_at_8, tmp_path):
    copied(stopped_at_8, tmp_path / "run")
    for file in (tmp_path / "run/checkpoints").glob("*/model.safetensors"):
        file.write_bytes(b"")
    stage = STAGE | {"output": str(tmp_path / "run"), "resume": True}
    for said in worlds[2].run("refused", row=ROW, data=chips(ROW), stages=[stage]):
        assert said["error"] == "ValueError" and "whole" in said["message"] and "step-8" in said["message"]


# Evaluations at the ends alone: better ones save as well.
TWO = [
    stage | {"eval_every": 99}
    for stage in (STAGE | {"freeze": True, "epochs": 1, "ema": 0.5}, STAGE | {"freeze": False, "epochs": 2})
]


@pytest.fixture(scope="module")
def two(worlds, chips, tmp_path_factory):
    """Two fits that nothing stopped."""
    folder = tmp_path_factory.mktemp("two") / "run"
    fit(worlds[1], folder, TWO, chips(ROW))
    assert steps_of(folder) == list(range(1, 13)) and {line["fit"] for line in history(folder)} == {0, 1}
    return folder


@pytest.mark.parametrize(
    ("step", "saved", "processes"),
    [(5, 4, 1), (9, 7, 2), (2, 0, 2), *(pytest.param(*case, 4, marks=pytest.mark.slow) for case in ((5, 4), (9, 7)))],
)
def test_two_fits_in_a_script(worlds, chips, two, tmp_path, step, saved, processes):
    """Broken off in the second fit before it has saved, after it has, and in the first; four steps and eight."""
    said = fit(worlds[2], tmp_path / "crashed", TWO, chips(ROW), at={str(step): "crash"})
    assert all(each["crashed"] for each in said)
    said = resume(worlds, processes, tmp_path / "crashed", tmp_path / "run", TWO, chips(ROW))
    assert differences(two, tmp_path / "run", steps=12) == []
    assert (f"resumed at step {saved}" if saved else "nothing to resume: starting afresh") in said


def test_changed_options_that_define_the_run_are_refused(worlds, chips, unbroken, tmp_path):
    stage = STAGE | {"output": str(copied(unbroken, tmp_path / "run")), "resume": True}
    changes = ({"lr": 1e-4}, {"seed": 7}, {"accumulate": 2}, {"schedule": "cosine"}, {"dtype": "float32"}, {"ema": 0.9})
    for changed in (*changes, {"eval_every": 5}, {"clip": 1.0}, {"early_stopping": 2}):
        for said in worlds[2].run("refused", row=ROW, data=chips(ROW), stages=[stage | changed]):
            assert said["error"] == "ValueError" and f"{next(iter(changed))} was" in said["message"], said
        assert history(tmp_path / "run") == history(unbroken) and not (tmp_path / "run/.lock").exists()


def test_other_data_or_another_network_are_refused(worlds, chips, unbroken, tmp_path):
    stage = STAGE | {"output": str(copied(unbroken, tmp_path / "run")), "resume": True}
    for other in (
        {"data": chips(ROW, "plain-12", valid="chip_00*")},
        {"model": {"label_smoothing": 0.1}},
        {"model": {"size": "full"}},
    ):
        for said in worlds[2].run("refused", row=ROW, **{"data": chips(ROW), "stages": [stage], **other}):
            assert said["error"] == "ValueError" and "run" in said["message"], (other, said)
        assert history(tmp_path / "run") == history(unbroken)


def test_raised_epochs_go_on(worlds, chips, unbroken, tmp_path):
    """With a constant rate a run of three epochs that is raised to four is the run of four."""
    constant = STAGE | {"schedule": "constant"}
    fit(worlds[1], tmp_path / "four", [constant | {"epochs": 4}], chips(ROW))
    fit(worlds[2], tmp_path / "three", [constant], chips(ROW))
    said = resume(worlds, 2, tmp_path / "three", tmp_path / "run", [constant | {"epochs": 4}], chips(ROW))
    assert "resumed at step 12" in said and "raised from 12 to 16" in said
    assert steps_of(tmp_path / "run") == list(range(1, 17))
    assert differences(tmp_path / "four", tmp_path / "run", steps=16) == []


def test_lowered_epochs_are_not_taken(worlds, chips, unbroken, stopped_at_8, tmp_path):
    said = resume(worlds, 2, stopped_at_8, tmp_path / "run", [STAGE | {"epochs": 2}], chips(ROW))
    assert "horizon of 12 steps is kept" in said and differences(unbroken, tmp_path / "run", steps=12) == []


def test_the_batch_of_the_run_wins_and_is_said(worlds, chips, unbroken, stopped_at_8, tmp_path):
    other = STAGE | {"batch_size": 12, "lr": 4e-3}  # as --per-device-batch-size with --scale-lr gives on other devices
    said = resume(worlds, 2, stopped_at_8, tmp_path / "run", [other], chips(ROW))
    assert "global batch of 6" in said and "12" in said and differences(unbroken, tmp_path / "run", steps=12) == []


def test_a_finished_run_stays_as_it_is(worlds, chips, unbroken, tmp_path):
    said = resume(worlds, 2, unbroken, tmp_path / "run", [STAGE], chips(ROW))
    assert "resumed at step 12" in said and differences(unbroken, tmp_path / "run", steps=12) == []
    assert history(tmp_path / "run") == history(unbroken)


def test_resume_without_a_run_starts_afresh_and_says_so(worlds, chips, unbroken, tmp_path):
    fit(worlds[2], tmp_path / "run", [STAGE | {"resume": True}], chips(ROW))
    assert "nothing to resume: starting afresh" in worlds[2].said()
    assert differences(unbroken, tmp_path / "run", steps=12) == []
