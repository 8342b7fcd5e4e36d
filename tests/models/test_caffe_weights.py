"""A published edge detector on Caffe's VGG16 starts any row: its first layer answers as it did to Caffe's pixels."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from accel_geo.models import MODELS
from accel_geo.nn.weights import CAFFE_MEAN

PUBLISHED = "hed_bsds500_fp16.safetensors"
# each row builds a VGG, seconds: one whose backbone is a part of another module, and one whose is not, stand for all
FAST = ("SingleShotDetector", "UnetClassifier")
ROWS = [row if row in FAST else pytest.param(row, marks=pytest.mark.slow) for row in MODELS]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Random weights under a published edge detector's names, on a VGG11."""
    draw, state, inputs = torch.Generator().manual_seed(1), {}, 3
    for number, outputs in zip((0, 3, 6, 8, 11, 13, 16, 18), (64, 128, 256, 256, 512, 512, 512, 512)):
        state[f"features.{number}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=draw) / 50
        state[f"features.{number}.bias"] = torch.randn(outputs, generator=draw)
        inputs = outputs
    state |= {"side.0.weight": torch.randn(1, 64, 1, 1, generator=draw), "side.0.bias": torch.zeros(1)}
    path = tmp_path_factory.mktemp("caffe") / "edges.safetensors"
    save_file({name: tensor.half() for name, tensor in state.items()}, path)
    return path


def check_first_layer(model, path):
    weights = {name: tensor.float() for name, tensor in load_file(path).items()}
    pixels = torch.randint(0, 256, (2, 3, 32, 48), generator=torch.Generator().manual_seed(2)).float()
    bgr = (pixels - torch.tensor(list(CAFFE_MEAN.values())).view(3, 1, 1)).flip(1)
    wanted = F.conv2d(bgr, weights["features.0.weight"], weights["features.0.bias"])
    conv = next(layer for layer in model.backbone_modules()[0].modules() if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        # beyond the image lies the mean colour of the data instead of ImageNet's: the rim differs
        found = conv(model.normalize(pixels / 255))[..., 1:-1, 1:-1]
    assert wanted.std() > 1 and torch.allclose(found, wanted, rtol=1e-4, atol=1e-4 * wanted.std().item())


@pytest.mark.parametrize("row", ROWS)
def test_first_layer(networks, row, file, capsys):
    changes = {"mean": (0.3, 0.5, 0.4), "std": (0.1, 0.2, 0.3)}
    model = networks.build(row, changes=changes, backbone="vgg11", weights=str(file))
    assert "rewritten" in capsys.readouterr().out
    check_first_layer(model, file)


def test_the_published_file_starts_a_detector(networks, shared, capsys):
    path = shared / "weights" / PUBLISHED
    model = networks.build("SingleShotDetector", backbone="vgg16", weights=str(path))
    assert "26 of 26 tensors of the backbone" in capsys.readouterr().out
    check_first_layer(model, path)
