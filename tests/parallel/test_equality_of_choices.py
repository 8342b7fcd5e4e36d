"""P1 for the choices of each row that its default leaves out: other networks, other losses, other predictions."""

import pytest
from parallel.compare import differences, history, run
from parallel.fixtures import TASKS

from accel_geo import prepare_data

DICE = {"dice_loss_fraction": 0.4, "dice_loss_average": "macro"}
FOCAL = {"focal_loss": True, "gamma": 1.5}
SR3 = {"architecture": "sr3", "inner_channel": 16, "channel_mults": [1, 2], "norm_groups": 8, "n_timestep_inference": 2}
IN_TWO_PARTS = {"epochs": 3, "batch_size": 11, "accumulate": 2}
# name: (row, arguments of the model, of the chips, of the fit)
CHOICES = {
    "unet macro dice weighted": ("UnetClassifier", {**DICE, "class_weights": [0.5, 2.0, 3.0]}, {}, {}),
    "unet focal dice accumulated": ("UnetClassifier", {**FOCAL, "dice_loss_fraction": 0.4}, {}, IN_TWO_PARTS),
    "unet focal dice sparse": ("UnetClassifier", {**FOCAL, **DICE}, {"ignore_background": True}, {}),
    "deeplab plus": ("DeepLab", {"plus": True}, {"kind": "sizes"}, {}),
    "deeplab macro dice weighted": ("DeepLab", {**DICE, "class_weights": [0.5, 2.0, 3.0]}, {}, {}),
    "psp plain": ("PSPNetClassifier", {"use_unet": False}, {"kind": "sizes"}, {}),
    "sr3 dropout": ("SuperResolution", {**SR3, "dropout": 0.3}, {"kind": "sizes"}, {}),
    "sr unet": ("SuperResolution", {"architecture": "unet", "backbone": "test_resnet"}, {"kind": "sizes"}, {}),
    "hed batch": ("HEDEdgeDetector", {"balance_over": "batch"}, {}, {}),
    "bdcn batch": ("BDCNEdgeDetector", {"balance_over": "batch"}, {}, IN_TWO_PARTS),
    "ssd focal fitted": ("SingleShotDetector", {"focal_loss": True, "anchors": None}, {"kind": "sizes"}, {}),
    "frcnn soft nms": ("FasterRCNN", {"soft_nms": True}, {}, {}),
    "labels mixed weighted": (
        "FeatureClassifier",
        {"class_weights": [1.0, 2.5]},
        {"kind": "several", "mixup": 0.4},
        {},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES)
def test_one_two_and_three_processes(worlds, chips, started, tmp_path, name):
    """Six steps, from weights whose metrics are above zero."""
    row, model, chosen, fit = CHOICES[name]
    data = chips(row, **chosen)
    stage = {"epochs": 2, "max_steps": 6, "lr": 1e-3, "batch_size": 6, "eval_every": 3, **fit}
    start = started(row, name, data, model)
    for processes in (1, 2, 3):
        run(worlds, processes, tmp_path, row, data, [stage], start=start, model=model)
    for processes in (2, 3):
        assert differences(tmp_path / "1", tmp_path / str(processes), 1e-9, 6) == []

    opened = prepare_data(**data, cache="memory")
    monitored = opened.task.monitor_for(opened.spec)
    valid = [line["valid"] for line in history(tmp_path / "1") if "valid" in line]
    assert len(valid) == 2 and all(figures[monitored] > 0.05 for figures in valid)


def test_the_choices_are_swept():
    assert len(CHOICES) >= 12 and {row for row, *_ in CHOICES.values()} == set(TASKS) - {"MaskRCNN"}
