import pytest
import torch
from torch.nn import functional as F

from accel_geo.models.psp_net import PSPNetClassifier
from accel_geo.nn.semantic_heads import PyramidPooling, pool_inside, spread_inside


def average(x, side):
    """Zhao et al. 2017 and the usual adaptive pooling: window i of n covers floor(i h / n) up to ceil((i + 1) h / n)."""
    _, _, h, w = x.shape
    pooled = torch.zeros(*x.shape[:2], side, side, dtype=x.dtype)
    for i in range(side):
        for j in range(side):
            top, bottom = i * h // side, -(-(i + 1) * h // side)
            left, right = j * w // side, -(-(j + 1) * w // side)
            pooled[:, :, i, j] = x[:, :, top:bottom, left:right].mean((2, 3))
    return pooled


def enlarged(pooled, h, w):
    """Bilinear interpolation between the centres of cells, the border repeated."""
    side = pooled.shape[-1]

    def weights(count):
        at = ((torch.arange(count, dtype=pooled.dtype) + 0.5) * side / count - 0.5).clamp(0, side - 1)
        return (1 - (at[:, None] - torch.arange(side)).abs()).clamp(min=0)

    return weights(h) @ pooled @ weights(w).T


def norm(x, layer):
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    shape = (1, -1, 1, 1)
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight.view(shape) + layer.bias.view(shape)


@pytest.mark.parametrize("cells", [[(7, 9)] * 3, [(7, 9), (4, 5), (1, 2)]])
def test_pyramid_pooling_as_written_in_the_paper(cells):
    torch.manual_seed(1)
    module = PyramidPooling(8, (1, 2, 3, 6), 16).double().train()
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(layer.weight)
            torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 8, 7, 9, dtype=torch.float64)
    parts = [x]
    for side, (conv, layer, _) in zip((1, 2, 3, 6), module.stages):
        pooled = torch.cat([average(x[i : i + 1, :, :h, :w], side) for i, (h, w) in enumerate(cells)])
        pooled = norm(torch.einsum("oc,bchw->bohw", conv.weight[:, :, 0, 0], pooled), layer).relu()
        part = torch.zeros(3, 2, 7, 9, dtype=torch.float64)
        for i, (h, w) in enumerate(cells):
            part[i, :, :h, :w] = enlarged(pooled[i], h, w)
        parts.append(part)
    conv, layer, _ = module.bottleneck
    wanted = norm(F.conv2d(torch.cat(parts, 1), conv.weight, padding=1), layer).relu()
    torch.testing.assert_close(module(x, cells), wanted, rtol=1e-9, atol=1e-9)


def test_pooling_sees_a_maps_own_cells_only():
    x = torch.rand(2, 3, 6, 8)
    x[1, :, 4:], x[1, :, :, 5:] = 1e9, 1e9
    pooled = pool_inside(x, [(6, 8), (4, 5)], 2)
    torch.testing.assert_close(pooled[1:], F.adaptive_avg_pool2d(x[1:, :, :4, :5], 2))
    spread = spread_inside(pooled, [(6, 8), (4, 5)], (6, 8))
    assert spread.shape == x.shape and (spread[1, :, 4:] == 0).all() and (spread[1, :, :, 5:] == 0).all()


def test_the_plain_network_is_the_papers(networks):
    spec = networks.spec("UnetClassifier")
    model = PSPNetClassifier(spec, backbone="resnet50", use_unet=False)
    assert model.backbone.strides == [2, 4, 8, 8, 8] and model.decoder is None
    assert [stage[0].out_channels for stage in model.pyramid.stages] == [512] * 4
    assert model.pyramid.bottleneck[0].in_channels == 4096 and model.head.in_channels == 512
    assert model.aux_classifier is not None


def test_with_a_unet_decoder(networks):
    spec = networks.spec("UnetClassifier")
    model = PSPNetClassifier(spec, backbone="resnet18", size="small").eval()
    assert model.backbone.strides[-1] == 32 and model.aux_classifier is None
    with torch.no_grad():
        assert model.class_scores(torch.rand(1, 3, 64, 96), [(64, 96)])[0].shape == (1, 5, 64, 96)


def test_other_pyramids(networks):
    spec = networks.spec("UnetClassifier")
    model = PSPNetClassifier(spec, backbone="mobilenet_v2", size="small", pyramid_sizes=(1, 4), use_unet=False)
    assert model.arguments["pyramid_sizes"] == [1, 4] and len(model.pyramid.stages) == 2
    images, targets = networks.batch("UnetClassifier", [(70, 66)] * 2)
    assert torch.isfinite(model.train()(images, targets)["cross_entropy"].total)
