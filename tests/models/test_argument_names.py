"""Arguments that a model does not have: the message says where they belong, or what may have been meant."""

import inspect
import re

import pytest

from accel_geo.models import MODELS, model_class


@pytest.mark.parametrize("row", MODELS)
def test_a_model_names_its_arguments(networks, row):
    """All rows name them one by one; a row that takes any would take mistakes as well."""
    known = [name for name in inspect.signature(model_class(row).__init__).parameters if name not in ("self", "data")]
    with pytest.raises(TypeError) as caught:
        networks.build(row, pointrend=True)
    assert str(caught.value) == f"{row} has no argument pointrend. Its arguments are {', '.join(known)}"
    assert {"backbone", "weights", "size"} <= set(known)


@pytest.mark.parametrize(
    "row, argument, hint",
    [
        ("UnetClassifier", "ignore_classes", "it is one of prepare_data"),
        ("FeatureClassifier", "mixup", "it is one of prepare_data"),
        ("FeatureClassifier", "oversample", "it is one of prepare_data"),
        ("SingleShotDetector", "chip_size", "it is one of prepare_data"),
        ("HEDEdgeDetector", "epochs", "it is one of fit"),
        ("HEDEdgeDetector", "schedule", "it is one of fit"),
        ("MaskRCNN", "devices", "it is one of fit"),
        ("MaskRCNN", "batch_size", "it is one of prepare_data; it is one of fit"),
        ("DeepLab", "backbon", "the nearest is backbone"),
        ("FasterRCNN", "min_size", "the nearest is size"),
    ],
)
def test_where_an_argument_belongs(networks, row, argument, hint):
    with pytest.raises(TypeError, match=re.escape(f"{row} has no argument {argument}; {hint}. Its arguments are ")):
        networks.build(row, **{argument: 1})


@pytest.mark.parametrize(
    "argument, hint",
    [
        ("one_cycle", ""),
        ("pixel_mean", ""),
        ("acumulate", "; the nearest is accumulate"),
        ("chip_size", "; it is one of prepare_data"),
        ("gamma", "; it is one of UnetClassifier"),
    ],
)
def test_fit_names_its_options(networks, argument, hint):
    with pytest.raises(TypeError) as caught:
        networks.build("UnetClassifier").fit(1, 1e-3, **{argument: True})
    said = re.escape(f"fit has no argument {argument}{hint}. Its arguments are epochs, lr, devices, batch_size, ")
    assert re.fullmatch(said + ".*schedule, .*", str(caught.value))


@pytest.mark.parametrize("row", MODELS)
def test_backbones_are_listed(networks, row):
    names = model_class(row).backbones()
    assert {"vgg16", "resnet34", "mobilenet_v3_small"} <= set(names) and len(names) > 50
    arguments = {"architecture": "unet"} if row == "SuperResolution" else {}
    networks.build(row, backbone="mobilenet_v3_small", **arguments)
