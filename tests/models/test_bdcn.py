import edge_chips
import pytest
import torch
from small_networks import check_trains, spec
from torch.nn import functional as F

from accel_geo.models.bdcn import BDCNEdgeDetector, ScaleEnhancement, cascade


def build(bands=3, **arguments):
    return BDCNEdgeDetector(spec("BDCNEdgeDetector", bands), **{"backbone": "resnet18", "size": "small", **arguments})


def lively(model):
    """Larger weights than the first ones, so that every map matters."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in (*model.scales.parameters(), *model.fusion.parameters()):
            parameter.normal_(std=0.1)
    return model


def reference(model, images):
    """The published program's side and fused logits of a VGG, written out."""
    h, w = images.shape[-2:]
    x = F.pad(model.normalize(images), (0, -w % 16, 0, -h % 16))
    layers = dict(model.backbone.features.named_children())
    features, block = [[]], 0
    for layer in layers.values():
        x = layer(x)
        if isinstance(layer, torch.nn.MaxPool2d):
            features.append([])
            block += 1
        if isinstance(layer, torch.nn.ReLU):
            features[block].append(x)
    one, two = [], []
    for scale, maps in zip(model.scales, features, strict=True):
        total = 0
        for module, reduce, x in zip(scale.enhance, scale.reduce, maps, strict=True):
            o = F.relu(module.conv(x))
            o1, o2, o3 = (
                F.relu(F.conv2d(o, conv.weight, conv.bias, padding=d, dilation=d))
                for conv, d in zip(module.dilated, (4, 8, 12), strict=True)
            )
            total = total + reduce(o + o1 + o2 + o3)
        both = F.interpolate(scale.score(total), size=x_size(h, w), mode="bilinear", align_corners=False)
        one.append(both[:, :1, :h, :w])
        two.append(both[:, 1:, :h, :w])
    s1, s2, s3, s4, s5 = one
    d1, d2, d3, d4, d5 = two
    o1, o2, o3, o4, _ = (s.detach() for s in one)
    _, e2, e3, e4, e5 = (s.detach() for s in two)
    s2d = [s1, s2 + o1, s3 + o2 + o1, s4 + o3 + o2 + o1, s5 + o4 + o3 + o2 + o1]
    d2s = [d1 + e2 + e3 + e4 + e5, d2 + e3 + e4 + e5, d3 + e4 + e5, d4 + e5, d5]
    return s2d, d2s, model.fusion(torch.cat(s2d + d2s, 1))


def x_size(h, w):
    return h + -h % 16, w + -w % 16


def published_loss(logits, truth):
    """Sum over pixels with the weights of the published program."""
    total = 0
    for values, labels in zip(logits[:, 0], truth):
        pos, neg = (labels == 1).sum().double(), (labels == 0).sum().double()
        weights = torch.zeros_like(values)
        weights[labels == 1] = neg / (pos + neg)
        weights[labels == 0] = pos * 1.1 / (pos + neg)
        total = total + F.binary_cross_entropy(values.sigmoid(), (labels == 1).double(), weights, reduction="sum")
    return total


def test_losses_predictions_and_gradients_are_the_papers():
    model = lively(build(backbone="vgg11", size="full")).double().train()
    images, targets = edge_chips.batch([(33, 50)] * 2)
    images = images.double()
    truth = torch.stack([target["edges"] for target in targets])
    losses = model(images, targets)
    pixels = float((truth != 255).sum())
    sum(loss.total for loss in losses.values()).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    s2d, d2s, fused = reference(model, images)
    wanted = {
        "shallow_to_deep": 0.5 * sum(published_loss(logits, truth) for logits in s2d),
        "deep_to_shallow": 0.5 * sum(published_loss(logits, truth) for logits in d2s),
        "fuse": 1.1 * published_loss(fused, truth),
    }
    assert set(losses) == set(wanted)
    for name, loss in losses.items():
        assert float(loss.count) == pixels and loss.total.item() == pytest.approx(wanted[name].item(), rel=1e-9)
    model.zero_grad()
    sum(wanted.values()).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=1e-6, atol=1e-9), name
    with torch.no_grad():
        edges = model.eval()(images)
    for prediction, logits in zip(edges, fused):
        assert torch.allclose(prediction["edges"], logits[0].detach().sigmoid(), atol=1e-9)


def test_a_cascade_is_without_gradient_to_what_came_before():
    maps = [torch.full((1, 1, 2, 2), float(i), requires_grad=True) for i in (1, 10, 100)]
    sums = cascade(maps)
    assert [float(m[0, 0, 0, 0].detach()) for m in sums] == [1, 11, 111]
    sums[2].sum().backward()
    assert maps[2].grad.eq(1).all() and maps[0].grad is None and maps[1].grad is None


def test_scale_enhancement_reaches_twelve_cells_further():
    module = ScaleEnhancement(2, 4)
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter)  # positive, so that nothing is cut off
    x = torch.zeros(1, 2, 41, 41)
    base = module(x)
    x[:, :, 20, 20] = 1
    touched = torch.where((module(x) - base).abs().sum((0, 1)).sum(0) > 1e-6)[0]
    assert (int(touched.min()), int(touched.max())) == (20 - 13, 20 + 13)


def test_sizes_of_the_published_network():
    model = BDCNEdgeDetector(spec("BDCNEdgeDetector"))
    assert [len(scale.enhance) for scale in model.scales] == [2, 2, 3, 3, 3]
    assert model.fusion.weight.flatten().tolist() == pytest.approx([0.08] * 10)
    assert {conv.out_channels for scale in model.scales for conv in scale.reduce} == {21}
    assert all(module.conv.out_channels == 32 for scale in model.scales for module in scale.enhance)


def test_the_backbone_of_a_published_edge_detector(shared, capsys):
    path = shared / "weights" / "hed_bsds500_fp16.safetensors"
    model = BDCNEdgeDetector(spec("BDCNEdgeDetector"), weights=str(path))
    said = capsys.readouterr().out
    assert "26 of 26 tensors of the backbone" in said and "others" not in said  # nothing of its sides
    # Caffe's pixels of 0 to 255, in the model's own normalisation
    assert model.backbone.features.get_submodule("0").weight.abs().max() > 10
    check_trains(model, *edge_chips.batch([(64, 64)]))


def test_a_timm_backbone_and_batch_normalisation():
    model = build(bands=4, backbone="timm:mobilenetv3_small_050")
    check_trains(model, *edge_chips.batch([(64, 64)] * 2, bands=4))
    # finding the channels counts no statistics
    statistics = [m for m in build().backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert statistics and all(int(m.num_batches_tracked) == 0 and m.training for m in statistics)
