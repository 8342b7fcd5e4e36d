import math

import pytest
import torch
from torch.nn import functional as F

from accel_geo.nn.edges import (
    balance_weights,
    balanced_cross_entropy,
    edge_backbone,
    edge_truth,
    level_maps,
    upsample,
)


def truth_of(seed=0, shape=(3, 9, 11)):
    values = torch.tensor([0, 0, 1, 255], dtype=torch.uint8)
    return values[torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("negative", [1.0, 1.1])
def test_the_loss_is_the_papers(negative):
    truth = truth_of()
    logits = torch.randn(truth.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    total, pixels = 0.0, 0
    for of_image, labels in zip(logits.tolist(), truth.tolist()):
        edges = sum(row.count(1) for row in labels)
        others = sum(row.count(0) for row in labels)
        assert edges and others
        beta = others / (edges + others)
        pixels += edges + others
        for values, row in zip(of_image, labels):
            for value, label in zip(values, row):
                probability = 1 / (1 + math.exp(-value))
                if label == 1:
                    total -= beta * math.log(probability)
                elif label == 0:
                    total -= negative * (1 - beta) * math.log(1 - probability)
    loss = balanced_cross_entropy(logits, truth, balance_weights(truth, logits, negative))
    assert loss.total.item() == pytest.approx(total, rel=1e-12) and int(loss.count) == pixels


def test_ignored_pixels_count_nowhere():
    truth, logits = truth_of(), torch.randn(3, 9, 11, requires_grad=True)
    weights = balance_weights(truth, logits)
    loss = balanced_cross_entropy(logits, truth, weights)
    loss.total.backward()
    assert (logits.grad[truth == 255] == 0).all() and (logits.grad[truth != 255] != 0).all()
    wider = F.pad(truth, (0, 4, 0, 3), value=255)
    padded = balanced_cross_entropy(F.pad(logits, (0, 4, 0, 3), value=7.0), wider, balance_weights(wider, logits))
    assert padded.total.item() == pytest.approx(loss.total.item(), rel=1e-6) and padded.count == loss.count


@pytest.mark.parametrize("value", [0, 1, 255])
def test_one_kind_of_pixels_alone(value):
    truth, logits = torch.full((2, 4, 5), value, dtype=torch.uint8), torch.randn(2, 4, 5, requires_grad=True)
    loss = balanced_cross_entropy(logits, truth, balance_weights(truth, logits))
    loss.total.backward()
    assert loss.total.item() == 0 and int(loss.count) == (0 if value == 255 else 40) and (logits.grad == 0).all()


def test_balance_over_the_batch_teaches_images_without_edges():
    truth = truth_of()
    truth[1][truth[1] == 1] = 0
    logits = torch.zeros(3, 9, 11)
    assert balance_weights(truth, logits)[1].sum() == 0
    weights = balance_weights(truth, logits, over="batch")
    edges, others = int((truth == 1).sum()), int((truth == 0).sum())
    assert weights[truth == 1].unique().item() == pytest.approx(others / (edges + others))
    assert weights[truth == 0].unique().item() == pytest.approx(edges / (edges + others))
    # as much for the edges as for all the rest
    assert weights[truth == 1].sum().item() == pytest.approx(weights[truth == 0].sum().item(), rel=1e-5)
    assert (weights[truth == 255] == 0).all()


def test_truth_of_a_chip_to_ignore():
    edges = torch.ones(4, 4, dtype=torch.uint8)
    truth = edge_truth([{"edges": edges, "ignore": False}, {"edges": edges, "ignore": True}], torch.device("cpu"))
    assert truth[0].eq(1).all() and truth[1].eq(255).all() and edges.eq(1).all()


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_upsampled_maps_lie_where_their_cells_are(stride):
    """The mean of each cell of a slope, upsampled, is the slope, but for half a cell at the border."""
    side = 7 * stride - stride // 2
    full = torch.arange(7.0 * stride)[:, None] + 3 * torch.arange(7.0 * stride)
    cells = F.avg_pool2d(full[None, None], stride)
    wide = upsample(cells, stride, (side, side - 1))
    assert wide.shape == (1, 1, side, side - 1)
    inner = slice(stride, side - 2 * stride)
    assert torch.allclose(wide[0, 0, inner, inner], full[inner, inner], atol=1e-4)


@pytest.mark.parametrize(
    "name, size, strides, maps",
    [
        ("vgg16", "full", [1, 2, 4, 8, 16], [2, 2, 3, 3, 3]),
        ("vgg11_bn", "small", [1, 2, 4, 8], [1, 1, 2, 2]),
        ("resnet18", "full", [2, 4, 8, 16, 32], [1] * 5),
        ("resnet18", "small", [2, 4, 8, 16], [1] * 4),
        ("densenet121", "full", [2, 4, 8, 16, 32], [1] * 5),
        ("convnext_tiny", "full", [4, 8, 16, 32], [1] * 4),
        ("timm:vgg11", "full", [1, 2, 4, 8, 16], [1] * 5),
    ],
)
def test_levels(name, size, strides, maps):
    backbone = edge_backbone(name, 3, size).eval()
    assert backbone.strides == strides
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        levels, last = level_maps(backbone, images), backbone(images)
    assert [len(level) for level in levels] == maps
    for level, wanted, stride, channels in zip(levels, last, strides, backbone.channels, strict=True):
        assert torch.equal(level[-1], wanted) and wanted.shape[1] == channels
        assert all(map_.shape[-1] == 64 // stride for map_ in level)


def test_a_single_scale_is_refused():
    assert edge_backbone("timm:shvit_s1", 3, "full").strides == [16, 32]
    with pytest.raises(ValueError, match=r"shvit_s1 has feature maps of strides \[16\] alone.*vgg16"):
        edge_backbone("timm:shvit_s1", 3, "small")
