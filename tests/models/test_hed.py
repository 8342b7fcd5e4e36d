from pathlib import Path

import edge_chips
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_networks import check_trains, spec
from torch.nn import functional as F

from accel_geo.models.hed import HEDEdgeDetector
from accel_geo.nn.weights import CAFFE_MEAN

WEIGHTS = Path("weights") / "hed_bsds500_fp16.safetensors"
CHIP = Path("data") / "banepa_oam_osm" / "images" / "OAM-386692-220242-19.tif"


def build(bands=3, **arguments):
    return HEDEdgeDetector(spec("HEDEdgeDetector", bands), **{"backbone": "resnet18", "size": "small", **arguments})


@pytest.fixture(scope="module")
def published(shared):
    return shared / WEIGHTS


def reference(weights, pixels):
    """The published network, written out: fused logits of red, green and blue pixels [B, 3, H, W] of 0 to 255."""
    x = (pixels - torch.tensor(list(CAFFE_MEAN.values())).view(3, 1, 1)).flip(1)
    sides, number = [], 0
    for convs in (2, 2, 3, 3, 3):
        for _ in range(convs):
            x = F.relu(F.conv2d(x, weights[f"features.{number}.weight"], weights[f"features.{number}.bias"], padding=1))
            number += 2
        level = len(sides)
        side = F.conv2d(x, weights[f"side.{level}.weight"], weights[f"side.{level}.bias"])
        sides.append(F.interpolate(side, size=pixels.shape[-2:], mode="bilinear", align_corners=False))
        x, number = F.max_pool2d(x, 2), number + 1
    return F.conv2d(torch.cat(sides, 1), weights["fuse.weight"], weights["fuse.bias"])[:, 0]


def test_the_published_network(published):
    """Equal where the padding has the same colour; near where it has the mean colour of the data."""
    weights = {name: tensor.float() for name, tensor in load_file(published).items()}
    pixels = torch.randint(0, 256, (1, 3, 64, 96), generator=torch.Generator().manual_seed(1)).float()
    wanted = reference(weights, pixels)
    for mean, tolerance in [(tuple(m / 255 for m in CAFFE_MEAN.values()), 1e-3), ((0.4, 0.5, 0.45), 0.1)]:
        data = spec("HEDEdgeDetector", mean=mean, std=(0.1, 0.2, 0.3))
        model = HEDEdgeDetector(data, weights=str(published)).eval()
        assert model.pixel_mean.flatten().tolist() == pytest.approx(mean)
        with torch.no_grad():
            found = model(pixels / 255)[0]["edges"]
        assert (found - wanted[0].sigmoid()).abs().max() < tolerance, mean


def test_the_published_network_on_a_chip(published, shared):
    import rasterio

    with rasterio.open(shared / CHIP) as source:
        pixels = torch.from_numpy(source.read()).float() / 255
    with rasterio.open(shared / CHIP.parents[1] / "edge" / f"{CHIP.stem}.png") as source:
        outline = torch.from_numpy(source.read(1)) > 0
    mean, std = (tuple(f(pixels, (1, 2)).tolist()) for f in (torch.mean, torch.std))
    model = HEDEdgeDetector(spec("HEDEdgeDetector", mean=mean, std=std), weights=str(published))
    edges = model.predict(pixels)["edges"]
    assert edges[outline].mean().item() == pytest.approx(0.668, abs=0.01)
    assert edges[~outline].mean().item() == pytest.approx(0.448, abs=0.01)


def test_weights_of_other_bands_and_sizes(published, capsys):
    model = HEDEdgeDetector(spec("HEDEdgeDetector", 8), size="small", weights=str(published))
    assert "features.0" in model.backbone.input_convs[0] and "20 of 20" in capsys.readouterr().out
    check_trains(model, *edge_chips.batch([(64, 64)], bands=8))
    with pytest.raises(ValueError, match="choose the backbone that the file is for"):
        build(weights=str(published))


def test_a_published_model_of_ours_starts_another(tmp_path):
    first = build(backbone="mobilenet_v2")
    with torch.no_grad():
        first.fuse.bias.fill_(0.5)
    second = build(backbone="mobilenet_v2", weights=str(first.save(tmp_path / "model")))
    images, _ = edge_chips.batch([(64, 64)])
    with torch.no_grad():
        assert torch.equal(first.eval()(images)[0]["edges"], second.eval()(images)[0]["edges"])
    # a plain backbone's filters are taken as they are: its pixels are not Caffe's
    plain = {name.removeprefix("backbone."): t for name, t in first.state_dict().items() if "features" in name}
    save_file({name: tensor.contiguous() for name, tensor in plain.items()}, tmp_path / "plain.safetensors")
    third = build(backbone="mobilenet_v2", weights=str(tmp_path / "plain.safetensors"))
    assert all(torch.equal(third.backbone.state_dict()[name], tensor) for name, tensor in plain.items())


def test_the_first_prediction_is_undecided():
    model = build(backbone="vgg11", size="full")
    assert len(model.side) == 5 and model.fuse.weight.flatten().tolist() == pytest.approx([0.2] * 5)
    images, targets = edge_chips.batch([(64, 64)])
    losses = model(images, targets)
    assert list(losses) == ["side1", "side2", "side3", "side4", "side5", "fuse"]
    with torch.no_grad():
        assert model.eval()(images)[0]["edges"].unique().tolist() == [0.5]
