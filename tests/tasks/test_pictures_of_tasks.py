"""Every task draws every kind of chip."""

import io

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from accel_geo.report.pictures import DPI, PANEL, to_png
from accel_geo.tasks import TASKS


def labels_of(task, objects, n):
    rng = np.random.default_rng(n)
    if task == "classification":
        return {"label": 1}, {"scores": torch.tensor([0.2, 0.3, 0.5])}
    if task == "semantic":
        mask = torch.from_numpy(rng.integers(0, 4, (64, 64)))
        return {"mask": torch.where(mask == 3, 255, mask)}, {"mask": mask}
    truth = objects(rng, n, 3)
    scores = truth.pop("scores")
    return truth, truth | {"scores": scores}


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("bands", [1, 3, 5])
def test_figures(task, bands, make_spec, make_target, objects):
    spec = make_spec(task, ("<b>", "road $x", "tree"), bands=tuple("abcde"[:bands]))
    chips = [labels_of(task, objects, n) for n in (0, 3, 9)]
    targets = [make_target(i, (64, 60), **truth) for i, (truth, _) in enumerate(chips)]
    targets[1] |= {"ignore": True, "problem": "images/7.tif: truncated"}
    images = [torch.rand(bands, 64, 64)] * 3
    files = ["images/a.tif", "b" * 80, "$c.tif"]
    for predictions in (None, [prediction for _, prediction in chips]):
        figure = TASKS[task].figure(spec, images, targets, predictions, files)
        picture = imread(io.BytesIO(to_png(figure)))
        rows = 3 if predictions and task != "classification" else 1
        assert picture.shape[0] > rows * PANEL * DPI and picture[..., :3].std() > 0.05
    png = TASKS[task].picture(spec, images[0], targets[0], chips[0][1], "a.tif")
    assert png.startswith(b"\x89PNG")


def test_multi_label_figure_and_charts(make_spec, make_target):
    task, spec = TASKS["classification"], make_spec("classification", multilabel=True)
    target, prediction = make_target(0, labels=torch.tensor([1.0, 0, 1])), {"scores": torch.tensor([0.9, 0.1, 0.2])}
    figure = task.figure(spec, [torch.rand(3, 64, 64)], [target], [prediction])
    assert "truth: house, tree" in figure.axes[0].texts[0].get_text()
    assert task.charts(spec, [task.record(spec, prediction, target, "x")]) == []


@pytest.mark.parametrize("task", ["classification", "semantic"])
def test_charts_show_the_confusion(task, make_spec, make_target, objects):
    spec = make_spec(task)
    truth, prediction = labels_of(task, objects, 3)
    ((caption, png),) = TASKS[task].charts(spec, [TASKS[task].record(spec, prediction, make_target(0, **truth), "x")])
    assert "onfusion" in caption and png.startswith(b"\x89PNG")


def test_a_prediction_without_its_truth_is_neither_right_nor_wrong(make_spec):
    from accel_geo.report.pictures import grid

    figure, (axes,) = grid(1, 1)
    task, spec = TASKS["classification"], make_spec("classification")
    task.draw(axes, spec, torch.rand(3, 8, 8), {"scores": torch.tensor([0.1, 0.8, 0.1])}, "prediction")
    assert axes.texts[0].get_text() == "road  0.80" and not axes.lines
