import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import small_networks
import torch
import torchvision
from small_networks import AsTheyAre, check_trains, freeze_statistics, mean
from torch import nn
from torchvision.models.detection._utils import SSDMatcher
from torchvision.models.detection.ssd import SSD, SSDFeatureExtractorVGG
from torchvision.models.vgg import cfgs, make_layers

from accel_geo.models.ssd import EMPTY_MATCHES, SingleShotDetector
from accel_geo.nn.anchors import fit_shapes, grid_anchors, match_anchors, shape_iou
from accel_geo.nn.boxes import centred_inside
from accel_geo.parallel.batch_norm import convert

SMALL = {"backbone": "resnet18", "size": "small"}


build = partial(small_networks.build, "SingleShotDetector")
batch = partial(small_networks.batch, "SingleShotDetector")


class Anchors(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, features):
        return [self.model.anchors_of(images.tensors.shape[-2:], features[0])] * len(images.tensors)


def torchvision_twin(model, **arguments):
    """torchvision's own SSD on the same modules and anchors."""

    class Maps(nn.Module):
        def forward(self, images):
            return dict(enumerate(model.backbone(images)))

    outputs = 1 + len(model.spec.classes)
    twin = SSD(Maps(), Anchors(model), (64, 64), outputs, head=model.head, **arguments)
    twin.transform = AsTheyAre(model)
    return twin


@pytest.mark.parametrize("arguments", [{}, {"backbone": "vgg11", "size": "full"}, {"backbone": "mobilenet_v2"}])
def test_losses_are_torchvisions(arguments):
    model = build(**arguments)
    images, targets = batch([(128, 192)] * 3, objects=[6, 3, 1])
    twin = torchvision_twin(model).train()
    freeze_statistics(model)
    ours, theirs = model(images, targets), twin(list(images), targets)
    assert set(ours) == set(theirs)
    for name, loss in ours.items():
        value = loss.total.item() / float(loss.count)
        assert value == pytest.approx(theirs[name].item(), rel=1e-6), name


def test_vgg16_is_torchvisions_ssd300_up_to_stride_64():
    """Its coarser maps come from windows without padding, which only chips of 300 px have room for."""
    model = build(backbone="vgg16", size="full", anchors=[[22, 22], [44, 44], [88, 88], [176, 176]]).double()
    twin = SSDFeatureExtractorVGG(make_layers(cfgs["D"]), highres=False).double()
    twin.extra = twin.extra[:3]
    assert model.strides == [8, 16, 32, 64]
    convs = [[m for m in net.modules() if isinstance(m, nn.Conv2d)] for net in (model.backbone, twin)]
    assert len(convs[0]) == 13 + 2 + 4
    for mine, other in zip(*convs, strict=True):
        other.load_state_dict(mine.state_dict())
    with torch.no_grad():
        model.backbone.scales["8"].uniform_(15, 25)
        twin.scale_weight.copy_(model.backbone.scales["8"])
        images = torch.rand(1, 3, 128, 64, dtype=torch.float64)
        ours, theirs = model.backbone(images), twin(images).values()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.std() > 0
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


def test_a_chip_without_objects_teaches_background():
    """torchvision's SSD learns nothing from it; here it gives its hardest negatives, like eight matched anchors."""
    model = build()
    twin = torchvision_twin(model).train()
    freeze_statistics(model)
    images, targets = batch([(64, 96)] * 2, objects=[5, 0])
    both, alone = model(images, targets), model(images[1:], targets[1:])
    with_objects = model(images[:1], targets[:1])
    assert twin(list(images[1:]), targets[1:])["classification"] == 0
    logits = model.head(model.backbone(model.normalize(images[1:])))["cls_logits"][0]
    hardest = (-logits.log_softmax(-1)[:, 0]).sort().values[-3 * EMPTY_MATCHES :]
    assert alone["classification"].total.item() == pytest.approx(hardest.sum().item(), rel=1e-5)
    assert float(alone["classification"].count) == EMPTY_MATCHES and float(alone["bbox_regression"].count) == 0
    matched = float(with_objects["classification"].count)
    assert matched == float(with_objects["bbox_regression"].count) >= 5
    assert float(both["classification"].count) == matched + EMPTY_MATCHES
    mean(alone).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_detections_are_torchvisions():
    model = build(score_thresh=0.2, topk_candidates=50).eval()
    for parameter in model.head.regression_head.parameters():
        parameter.data *= 0.1  # no box ends up outside the image: torchvision would keep it, without any extent
    images, _ = batch([(128, 128)] * 2)
    twin = torchvision_twin(model, score_thresh=0.2, topk_candidates=50).eval()
    with torch.no_grad():
        ours, theirs = model(images), twin(list(images))
    for mine, other in zip(ours, theirs):
        assert 20 < len(mine["boxes"]) <= 200
        for name in ("boxes", "labels", "scores"):
            assert torch.equal(mine[name], other[name])


def test_focal_loss_is_the_papers():
    model = freeze_statistics(build(focal_loss=True))
    images, targets = batch([(64, 64), (64, 96)], objects=[3, 0], padded=(64, 96))
    losses = model(images, targets)
    anchors = model.anchors_of((64, 96), images)
    probability = model.head(model.backbone(model.normalize(images)))["cls_logits"].sigmoid()
    assert model.head.classification_head.module_list[0].bias.sigmoid().tolist() == pytest.approx([0.01] * 16)
    total = 0.0
    for scores, target in zip(probability, targets):
        inside = centred_inside(anchors, target["size"])
        matched = match_anchors(target["boxes"], anchors, inside, 0.5)
        for row, match in zip(scores[matched > -2], matched[matched > -2]):
            truth = torch.zeros(4)
            if match >= 0:
                truth[target["labels"][match] - 1] = 1
            p = torch.where(truth == 1, row, 1 - row)
            total += (-torch.where(truth == 1, 0.25, 0.75) * (1 - p) ** 2 * p.log()).sum()
    assert losses["classification"].total.item() == pytest.approx(total.item(), rel=1e-5)
    assert float(losses["classification"].count) == float(losses["bbox_regression"].count) + EMPTY_MATCHES
    with torch.no_grad():
        assert all(set(found) == {"boxes", "labels", "scores"} for found in model.eval()(images))


@pytest.mark.parametrize(
    "backbone, bands, size, classes",
    [
        ("resnet18", 1, (64, 64), 1),
        ("resnet18", 3, (96, 160), 20),
        ("resnet18", 8, (97, 131), 4),
        ("vgg11_bn", 8, (97, 131), 20),
        ("mobilenet_v2", 1, (97, 131), 20),
        ("timm:mobilenetv3_small_050", 3, (64, 64), 4),
    ],
)
def test_trains_and_predicts(backbone, bands, size, classes):
    model = build(bands, classes, backbone=backbone, score_thresh=0.001)
    images, targets = batch([size] * 2, bands=bands, classes=classes)
    check_trains(model, images, targets)
    with torch.no_grad():
        found = model.eval()(images)
    for prediction in found:
        boxes, labels, scores = (prediction[name] for name in ("boxes", "labels", "scores"))
        assert boxes.shape == (len(labels), 4) and len(scores) == len(labels) > 0
        assert 1 <= labels.min() <= labels.max() <= classes and (scores.diff() <= 0).all()
        assert (boxes >= 0).all() and (boxes[:, 2:] <= torch.tensor(size[::-1])).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_one_chip_with_a_map_of_one_cell():
    model = convert(build(size="full", anchors=[[20, 20], [60, 60], [180, 180], [400, 400]]))
    check_trains(model, *batch([(64, 64)]))


def test_halves_add_up_and_counts_are_known_from_the_targets():
    model = freeze_statistics(build().double())
    images, targets = batch([(97, 131), (64, 64), (97, 100), (64, 96)], objects=[5, 0, 9, 3])
    targets[2]["ignore"] = True
    whole = model(images, targets)
    halves = [model(images[part], targets[part]) for part in (slice(0, 1), slice(1, 4))]
    for name, loss in whole.items():
        assert float(loss.count) == sum(float(half[name].count) for half in halves) > 0
        assert loss.total.item() == pytest.approx(sum(half[name].total.item() for half in halves), rel=1e-12)
    assert model.loss_counts(targets) == {name: float(loss.count) for name, loss in whole.items()}


def test_ignored_chips_count_nothing():
    for focal_loss in (False, True):
        images, targets = batch([(64, 64)] * 2, ignore=True)
        losses = check_trains(build(focal_loss=focal_loss), images, targets)
        assert all(loss.total.item() == 0 and float(loss.count) == 0 for loss in losses.values())


def test_padding_neither_trains_nor_predicts():
    model = freeze_statistics(build(score_thresh=0.0, detections_per_img=10_000, topk_candidates=10_000))
    images, targets = batch([(40, 52)], padded=(64, 128))
    anchors = model.anchors_of((64, 128), images)
    matched, _ = model._match(targets[0], anchors)
    wholly_outside = (anchors[:, 0] >= 52) | (anchors[:, 1] >= 40)
    assert wholly_outside.any() and (matched[wholly_outside] == -2).all() and (matched[~wholly_outside] >= -1).any()
    with torch.no_grad():
        found = model.eval()(images, targets)[0]["boxes"]
    assert len(found) and (found[:, 2] <= 52).all() and (found[:, 3] <= 40).all()


def test_hard_negatives_with_equal_losses_are_the_first():
    model = build().double()
    _, targets = batch([(64, 64)], objects=0)
    anchors = model.anchors_of((64, 64), torch.zeros(1, dtype=torch.float64))
    logits = (torch.randn(1, len(anchors), 5, dtype=torch.float64) * 1e-13).requires_grad_()
    model._losses(logits, torch.zeros(1, len(anchors), 4, dtype=torch.float64), anchors, targets)[
        "classification"
    ].total.backward()
    trained = logits.grad[0].abs().sum(1) > 0
    assert trained.sum() == 3 * EMPTY_MATCHES
    inside = torch.where(centred_inside(anchors, (64, 64)))[0]
    assert torch.equal(torch.where(trained)[0], inside[: 3 * EMPTY_MATCHES])


def test_matches_are_torchvisions_and_of_equal_ones_the_first():
    anchors = grid_anchors([[[8.0, 8.0], [12.0, 6.0]], [[24.0, 24.0]]], [4, 8], (64, 64), torch.zeros(()))
    inside = torch.ones(len(anchors), dtype=torch.bool)
    draw = torch.Generator().manual_seed(3)
    matcher = SSDMatcher(0.5)
    for _ in range(20):
        corners = torch.rand(9, 2, generator=draw) * 50
        boxes = torch.cat([corners, corners + 2 + torch.rand(9, 2, generator=draw) * 20], 1)
        theirs = matcher(torchvision.ops.box_iou(boxes, anchors))
        assert torch.equal(match_anchors(boxes, anchors, inside, 0.5), theirs)
    # halfway between four anchors: the first is its own
    own = match_anchors(torch.tensor([[2.0, 2.0, 6.0, 6.0]]), anchors, inside, 0.9)
    assert own.argmax() == 0 and (own >= 0).sum() == 1
    assert (match_anchors(boxes, anchors, ~inside, 0.5) == -2).all()


def chips_with(spec, sides):
    """Data whose training boxes have these sides (width, height)."""

    class Chips(list):
        def box_sides(self):
            return np.asarray(sides).reshape(-1, 2)

    return SimpleNamespace(spec=spec, seed=1, train=Chips(["a chip"]))


def test_anchors_are_fitted_to_the_data(networks):
    draw = np.random.default_rng(1)
    kinds = np.array([[9.0, 9.0], [30.0, 15.0], [22.0, 60.0]])
    sides = kinds[np.arange(300) % 3] * (1 + 0.1 * draw.standard_normal((300, 2)))
    fitted = fit_shapes(sides)
    assert shape_iou(kinds, np.array(fitted)).max(1).min() > 0.85 and 3 <= len(fitted) <= 9
    assert fit_shapes(sides[::-1]) == fitted  # the order of the chips does not matter
    assert fit_shapes(np.array([[5.0, 7.0]] * 4)) == [[5.0, 7.0]]

    spec = networks.spec("SingleShotDetector", map_space=False)
    model = SingleShotDetector(chips_with(spec, sides), **SMALL)
    assert np.abs(np.array(model.arguments["anchors"]) - np.array(fitted)).max() < 0.02
    rebuilt = SingleShotDetector(spec, **json.loads(json.dumps(model.arguments)))
    assert rebuilt.arguments == model.arguments
    rebuilt.load_state_dict(model.state_dict())
    turned = networks.spec("SingleShotDetector")  # imagery from above, which training turns
    shapes = SingleShotDetector(chips_with(turned, sides), **SMALL).arguments["anchors"]
    overlaps = [shape_iou(kinds[:, ::-1], np.array(found)).max(1).min() for found in (shapes, fitted)]
    assert overlaps[0] > 0.85 > 0.4 > overlaps[1]
    without = SingleShotDetector(chips_with(spec, sides[:0]), **SMALL)
    assert without.arguments["anchors"] is None and without.shapes == SingleShotDetector(spec, **SMALL).shapes


def test_grids_zooms_and_ratios():
    model = build(size="full", grids=[8, 4, 2], zooms=[1.0, 0.5], ratios=[[1.0, 1.0], [2.0, 1.0]])
    assert model.strides == [8, 16, 32]  # of a chip of 64 px
    assert model.shapes[0] == [[8, 8], [16, 8], [4, 4], [8, 4]] and model.shapes[2][0] == [32, 32]
    nested = build(size="full", grids=[[4, 3], [], [2]])
    assert nested.strides == [8, 32] and nested.shapes[0] == [[16, 16], [64 / 3, 64 / 3]]
    assert not any(name.startswith("backbone.body.fc") for name, _ in nested.named_parameters())
    # a map beyond the backbone
    assert build(size="full", anchors=[[20, 20], [400, 300]]).strides == [8, 64]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"size": "tiny"}, "'full' or 'small'"),
        ({"backbone": "resnet43"}, "resnet34"),
        ({"grids": [0]}, "whole numbers"),
        ({"grids": []}, "whole numbers"),
        ({"grids": [4], "anchors": [[8, 8]]}, "give one"),
        ({"anchors": [[8, 0]]}, "pairs"),
        ({"zooms": [0.0]}, "factors above 0"),
        ({"ratios": []}, "pairs"),
        ({"positive_fraction": 1.0}, "between 0 and 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_wrong_task_is_refused(networks):
    with pytest.raises(ValueError, match="does detection"):
        SingleShotDetector(SimpleNamespace(spec=networks.spec("MaskRCNN"), seed=1, train=[{}]))


def test_freeze_leaves_the_maps_behind_the_backbone():
    model = build(size="full", anchors=[[20, 20], [400, 400]])
    model.freeze()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("backbone.body.")}
    assert any(name.startswith("backbone.") for name, p in model.named_parameters() if p.requires_grad)


def test_backbone_weights_load(tmp_path):
    source = torchvision.models.resnet18(weights=None)
    torch.save(source.state_dict(), tmp_path / "resnet18.pth")
    model = build(weights=str(tmp_path / "resnet18.pth"))
    assert torch.equal(model.backbone.body.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
