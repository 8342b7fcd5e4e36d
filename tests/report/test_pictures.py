import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from accel_geo.report import charts, pictures


def pixels(png):
    assert png.startswith(b"\x89PNG")
    return imread(io.BytesIO(png))[..., :3]


def drawn(figure):
    image = pixels(pictures.to_png(figure))
    width, height = figure.get_size_inches() * pictures.DPI
    assert abs(image.shape[0] - height) <= 1 and abs(image.shape[1] - width) <= 1
    assert image.std() > 0.02
    return image


@pytest.fixture
def rgb():
    return np.random.default_rng(0).random((48, 64, 3))


def test_colours_are_distinct_and_do_not_depend_on_their_number():
    assert pictures.colours(60)[:5] == pictures.colours(5)
    assert len(set(pictures.colours(60))) == 60 and pictures.colours(0) == []


def test_stretch_takes_bands_by_name():
    image = np.stack([np.full((4, 4), value) + np.eye(4) * k for k, value in enumerate((9, 5, 7, 1), start=1)])
    by_name = pictures.stretch(image, ("nir", "Blue", "green", "red"))
    assert np.allclose(by_name, pictures.stretch(image[[3, 2, 1]]))
    grey = pictures.stretch(image[:1])
    assert grey.shape == (4, 4, 3) and (grey[..., 0] == grey[..., 2]).all()
    assert pictures.stretch(image, ("a", "b", "c", "d")).max() <= 1


@pytest.mark.parametrize("value", [0.0, 7.5, np.nan, np.inf])
def test_stretch_of_constant_or_missing_pixels_is_finite(value):
    out = pictures.stretch(np.full((3, 5, 5), value, dtype=np.float32))
    assert np.isfinite(out).all() and out.min() >= 0 and out.max() <= 1


def test_stretch_is_not_hurt_by_outliers():
    image = np.random.default_rng(0).normal(100, 10, (3, 64, 64))
    image[:, 0, 0] = 1e9
    assert pictures.stretch(image).std() > 0.2


def test_mask_colours_its_pixels_and_hatches_the_ignored(rgb):
    mask = np.zeros((48, 64), int)
    mask[10:30, 10:30], mask[30:, 40:] = 2, 255
    figure, (axes,) = pictures.grid(1, 1, legend=[("a", (1, 0, 0)), ("b", (0, 1, 0))])
    pictures.show_mask(axes, rgb, mask, [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
    image = drawn(figure)
    assert (image[..., 1] - image[..., 0]).max() > 0.5


@pytest.mark.parametrize("n", [0, 1, 12, 45])
@pytest.mark.parametrize("with_masks", [True, False])
def test_instances(n, with_masks, rgb):
    rng = np.random.default_rng(n)
    corner = rng.uniform(0, 40, (n, 2))
    boxes = np.concatenate([corner, corner + 6], 1)
    masks = np.zeros((n, 48, 64), bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int)):
        mask[y1:y2, x1:x2] = True
    figure, (axes,) = pictures.grid(1, 1)
    labels, scores = rng.integers(1, 31, n), rng.random(n)
    names = [f"class {i}" for i in range(30)]
    pictures.show_instances(axes, rgb, boxes, labels, masks if with_masks else None, scores, names)
    drawn(figure)
    assert axes.get_xlim() == (0, 64) and axes.get_ylim() == (48, 0)


@pytest.mark.parametrize("prediction, colour", [("road", pictures.RIGHT), ("house", pictures.WRONG)])
def test_frame_tells_right_from_wrong(prediction, colour, rgb):
    figure, (axes,) = pictures.grid(1, 1)
    pictures.show_class(axes, rgb, "road", prediction, 0.8)
    assert axes.lines[0].get_color() == colour
    drawn(figure)


@pytest.mark.filterwarnings("error")
def test_odd_names_are_written_as_they_are(rgb):
    names = [r"$\frac$", "_hidden", r"a\b_{c}$x$"]
    figure, (axes,) = pictures.grid(1, 1, legend=[(name, (1, 0, 0)) for name in names])
    boxes, masks = np.array([[1, 1, 30, 30.0]] * 3), np.zeros((3, 48, 64), bool)
    pictures.show_instances(axes, rgb, boxes, np.array([1, 2, 3]), masks, None, names)
    pictures.caption(axes, names[0], names[2])
    assert len(figure.legends[0].get_texts()) == 3
    drawn(figure)
    drawn(charts.confusion_matrix(np.eye(3), names))


@pytest.mark.parametrize("classes", [1, 5, 25])
def test_confusion_matrix(classes):
    counts = np.random.default_rng(0).integers(0, 50, (classes, classes))
    counts[0] = 0
    drawn(charts.confusion_matrix(counts, [f"$class_{i}" for i in range(classes)]))


def test_curves_of_two_fits_with_gaps():
    history = [
        {
            "fit": i // 60,
            "epoch": 0,
            "step": i + 1,
            "loss": 1 / (i + 1),
            "losses": {"a": 0.1, "b": 0.2},
            "lr": [1e-3, 1e-4],
        }
        for i in range(100)
    ]
    history[3]["loss"] = float("nan")
    history.insert(50, {"fit": 0, "epoch": 0, "step": 50, "valid": {"map50": None, "ap": [None, 0.1]}})
    history.append({"fit": 1, "epoch": 0, "step": 100, "valid": {"map50": 0.5, "ap": [None, 0.1]}})
    drawn(pictures.curves(history, monitor="map50"))


@pytest.mark.parametrize("history", [[], [{"fit": 0, "epoch": 0, "step": 1, "loss": 1.0, "losses": {}, "lr": 0.1}]])
def test_curves_of_a_run_that_just_began(history):
    drawn(pictures.curves(history))


def test_pictures_are_the_same_each_time(rgb):
    def once():
        figure, (axes,) = pictures.grid(1, 1, legend=[("a", (1, 0, 0))])
        pictures.show_image(axes, rgb)
        return pictures.to_png(figure)

    assert once() == once()


def test_pyplot_stays_out():
    code = "import sys; from accel_geo.report import pictures, page; assert 'matplotlib' not in sys.modules;"
    code += "pictures.to_png(pictures.curves([])); assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_decibels_and_fractions_have_axes_of_their_own():
    line = {"fit": 0, "epoch": 0, "step": 1, "valid": {"psnr": 30.0, "ssim": 0.9, "psnr_gain": None}}
    figure = pictures.curves([line], monitor="psnr")
    drawn(figure)
    assert [place.get_title(loc="left") for place in figure.axes].count("validation metrics") == 2
    line = line | {"valid": {"ssim": 0.9}}
    assert len(pictures.curves([line]).axes) == 3


@pytest.mark.parametrize("n", [1, 30])
def test_precision_over_recall(n):
    recall = np.linspace(0, 1, 11)
    lines = [(f"$class_{i}", recall, 1 - recall**2) for i in range(n)]
    figure = charts.precision_recall(lines, mark=(0.5, 0.75, "best"))
    drawn(figure)
    assert (figure.axes[0].get_legend() is None) == (n == 30)
