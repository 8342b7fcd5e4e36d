"""Every task draws every kind of chip."""

import io

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from accel_geo.report.pictures import DPI, PANEL, to_png
from accel_geo.tasks import TASKS


def labels_of(task, objects, n, bands=3):
    """Truth and prediction of a chip of 64 x 64 pixels with n objects where the task has such."""
    rng = np.random.default_rng(n)
    if task == "classification":
        return {"label": 1}, {"scores": torch.tensor([0.2, 0.3, 0.5])}
    if task == "semantic":
        mask = torch.from_numpy(rng.integers(0, 4, (64, 64)))
        return {"mask": torch.where(mask == 3, 255, mask)}, {"mask": mask}
    if task == "super_resolution":
        sharp = torch.rand(bands, 128, 128)
        ignored = torch.zeros(128, 128, dtype=torch.bool)
        return {"image_hr": sharp, "ignored_hr": ignored}, {"image_hr": (sharp + 0.1).bfloat16()}
    truth = objects(rng, n, 3)
    scores, masks = truth.pop("scores"), truth["masks"]
    if task == "edges":
        edges = (masks & ~masks.roll(1, 1)).any(0).to(torch.uint8)
        edges[:, 50:] = 255
        return {"edges": edges}, {"edges": torch.rand(64, 64, dtype=torch.bfloat16)}
    if task == "panoptic":
        ids = torch.zeros(64, 64, dtype=torch.int64)
        for i, mask in enumerate(masks):
            ids[mask] = 3 * i + 2
        segments = [
            {"id": 3 * i + 2, "label": int(label), "isthing": True, "iscrowd": i == 1}
            for i, label in enumerate(truth["labels"])
        ]
        return {"segment_ids": ids, "segments": segments}, {"segment_ids": ids.roll(2, 0), "segments": segments[:5]}
    if task == "detection":
        del truth["masks"]
    return truth, truth | {"scores": scores}


def spec_of(task, make_spec, **changes):
    classes = {"edges": ("edge",), "super_resolution": ()}.get(task, ("<b>", "road $x", "tree"))
    changes |= {"scale": 2} if task == "super_resolution" else {}
    changes |= {"isthing": (True, False, True)} if task == "panoptic" else {}
    return make_spec(task, classes, **changes)


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("bands", [1, 3, 5])
def test_figures(task, bands, make_spec, make_target, objects):
    spec = spec_of(task, make_spec, bands=tuple("abcde"[:bands]))
    chips = [labels_of(task, objects, n, bands) for n in (0, 3, 9)]
    targets = [make_target(i, (64, 60), **truth) for i, (truth, _) in enumerate(chips)]
    targets[1] |= {"ignore": True, "problem": "images/7.tif: truncated"}
    images = [torch.rand(bands, 64, 64)] * 3
    files = ["images/a.tif", "b" * 80, "$c.tif"]
    for predictions in (None, [prediction for _, prediction in chips]):
        figure = TASKS[task].figure(spec, images, targets, predictions, files)
        picture = imread(io.BytesIO(to_png(figure)))
        rows = 3 if predictions and task != "classification" else 1
        assert picture.shape[0] > rows * PANEL * DPI and picture[..., :3].std() > 0.05
        titles = [title for title in (place.get_title() for place in figure.axes) if title]
        assert sum(title.startswith("images/a.tif") for title in titles) == 1
        assert sum("not counted:" in title for title in titles) == len(titles) // 3
    png = TASKS[task].picture(spec, images[0], targets[0], chips[0][1], "a.tif")
    assert png.startswith(b"\x89PNG")


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"classification"}))
def test_padding_is_not_drawn(task, make_spec, make_target, objects):
    spec, (truth, prediction) = spec_of(task, make_spec), labels_of(task, objects, 4)
    figure = TASKS[task].figure(spec, [torch.rand(3, 64, 64)], [make_target(0, (40, 30), **truth)], [prediction])
    for place in figure.axes:
        assert place.get_xlim() == (0, 30 * spec.scale) and place.get_ylim() == (40 * spec.scale, 0)
        for shown in place.images:  # an image of fewer rows would be stretched over them
            assert shown.get_array().shape[:2] == (40 * spec.scale, 30 * spec.scale)


def test_kinds_choose_the_pictures(make_spec, make_target, objects):
    for task in set(TASKS) - {"classification"}:
        spec, (truth, prediction) = spec_of(task, make_spec), labels_of(task, objects, 4)
        chips = [torch.rand(3, 64, 64)], [make_target(0, **truth)], [prediction]
        figure = TASKS[task].figure(spec, *chips, ["a.tif"], kinds=("image", "prediction"))
        titles = [place.get_title() for place in figure.axes]
        assert len(titles) == 2 and titles[0] == "a.tif  image" and titles[1].startswith("prediction")


def test_super_resolution_stands_between_bicubic_and_truth(make_spec, make_target):
    task, spec = TASKS["super_resolution"], spec_of("super_resolution", make_spec)
    sharp, ignored = torch.rand(3, 20, 20), torch.zeros(20, 20, dtype=torch.bool)
    target = make_target(0, (10, 10), image_hr=sharp, ignored_hr=ignored)
    figure = task.figure(spec, [torch.rand(3, 10, 10)], [target], [{"image_hr": sharp + 0.1}], ["a.tif"])
    titles = [place.get_title() for place in figure.axes]
    assert titles[0] == "a.tif  image" and titles[2:] == ["prediction: 20.00 dB", "truth"]
    assert titles[1].startswith("bicubic: ") and titles[1].endswith(" dB") and not figure.legends
    pairs = task.figure(spec, [torch.rand(3, 10, 10)] * 3, [target] * 3)
    assert len({round(place.get_position().y0, 6) for place in pairs.axes[:4]}) == 1  # two pairs in a row


def test_multi_label_figure_and_charts(make_spec, make_target):
    task, spec = TASKS["classification"], make_spec("classification", multilabel=True)
    target, prediction = make_target(0, labels=torch.tensor([1.0, 0, 1])), {"scores": torch.tensor([0.9, 0.1, 0.2])}
    figure = task.figure(spec, [torch.rand(3, 64, 64)], [target], [prediction])
    assert "truth: house, tree" in figure.axes[0].texts[0].get_text()
    charts = task.charts(spec, [task.record(spec, prediction, target, "x")])
    assert [caption for caption, _ in charts] == ["Confusion of chips"]


CHARTS = {"classification": "Confusion", "semantic": "Confusion"}
CHARTS |= dict.fromkeys(("detection", "instances", "edges"), "Precision and recall")


@pytest.mark.parametrize("task", sorted(TASKS))
def test_charts(task, make_spec, make_target, objects):
    spec, chip = spec_of(task, make_spec), labels_of(task, objects, 3)
    record = TASKS[task].record(spec, chip[1], make_target(0, **chip[0]), "x")
    charts = TASKS[task].charts(spec, [record])
    assert [caption.startswith(CHARTS[task]) for caption, _ in charts] == [True] * (task in CHARTS)
    assert all(png.startswith(b"\x89PNG") for _, png in charts)
    assert isinstance(TASKS[task].charts(spec, []), list)


def test_a_prediction_without_its_truth_is_neither_right_nor_wrong(make_spec):
    from accel_geo.report.pictures import grid

    figure, (axes,) = grid(1, 1)
    task, spec = TASKS["classification"], make_spec("classification")
    task.draw(axes, spec, torch.rand(3, 8, 8), {"scores": torch.tensor([0.1, 0.8, 0.1])}, "prediction")
    assert axes.texts[0].get_text() == "road  0.80" and not axes.lines
