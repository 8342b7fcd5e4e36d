"""P1 by the recipes as users start them: one run by five launchers, on one to four processes, on exported chips."""

import subprocess
import sys

import pytest
from parallel.compare import differences, history
from parallel.launching import PYTHON, ROOT, TORCHRUN, config, run

pytestmark = pytest.mark.slow
# 31 chips of 256 px, resized: 23 to train on in batches of 12 and 11; crops, turns and colours change.
SAME = "--limit 31 --val-split 0.25 --resize-to 128 --chip-size 96 --threads 1 --cpu --backbone resnet18 --size small"
RUN = "--dtype float64 --batch-size 16 --epochs 6 --eval-every 6 --lr 5e-4"
TORCHRUN_4 = [*TORCHRUN[:-1], "4"]
# Launcher, its options to the recipe, processes; combined pairwise with workers rather than in full.
LAUNCHES = {
    "alone": (PYTHON, "", 1),
    "torchrun": (TORCHRUN, "--num-workers 2", 2),
    "accelerate": (config("cpu_2proc.yaml"), "--cache off", 2),
    "devices": (PYTHON, "--devices 3", 3),
    "torchrun 4": (TORCHRUN_4, "--num-workers 2", 4),
}
ROWS = {
    "featureclassifier": ("Imagenet", "accuracy", "--epochs 6"),
    "unetclassifier": ("Classified_Tiles", "miou", "--epochs 6"),
    "maskrcnn": ("RCNN_Masks", "map50", "--epochs 20 --lr 2e-3"),
}


@pytest.mark.parametrize("recipe", ROWS)
def test_launchers_and_process_counts(shared, tmp_path, recipe):
    export, metric, short = ROWS[recipe]
    common = [str(ROOT / f"recipes/{recipe}.py"), "--data", str(shared / "data/esri_exports" / export), *SAME.split()]
    start = ["--batch-size", "4", *short.split(), "--output", str(tmp_path / "start")]
    started = run([*PYTHON, *common, *start], tmp_path, 600)
    assert started.code == 0, started.errors
    common += [*RUN.split(), "--weights", str(tmp_path / "start/model")]

    folders = []
    for name, (launcher, options, processes) in LAUNCHES.items():
        folder = tmp_path / name.replace(" ", "-")
        done = run([*launcher, *common, *options.split(), "--output", str(folder)], tmp_path, 600)
        assert done.code == 0, (name, done.errors)
        assert {line["machine"]["processes"] for line in history(folder)} == {processes}
        folders.append(folder)
    lines = history(folders[0])
    assert [line["samples"] for line in lines if "loss" in line] == [12, 11] * 6
    assert all(line["valid"][metric] > 0.01 for line in lines if "valid" in line)
    for folder in folders[1:]:
        assert differences(folders[0], folder, 1e-9, 12) == []

    judge = shared / "acceptance/compare_runs.py"
    if judge.exists():
        counts = ",".join(str(processes) for _, _, processes in LAUNCHES.values())
        asked = ["--machine", f"processes={counts}", "--min-steps", "12", "--min-evaluations", "2"]
        verdict = subprocess.run(
            [sys.executable, str(judge), *asked, *map(str, folders)], capture_output=True, text=True
        )
        print(verdict.stdout)
        assert verdict.returncode == 0, verdict.stdout
