from functools import partial

import pytest
import small_networks
import torch
import torchvision
from small_networks import AsTheyAre, freeze_statistics
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, box_iou

from accel_geo.models.rcnn import FasterRCNN, MaskRCNN
from accel_geo.nn.boxes import soft_nms


def torchvision_twin(model, **arguments):
    """torchvision's own Faster R-CNN on the same modules."""
    heads, sizes = model.roi_heads, [(s[0],) for s in model.rpn.anchor_generator.sizes]
    twin = torchvision.models.detection.FasterRCNN(
        model.backbone,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5),
        rpn_head=model.rpn.head,
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2),
        box_head=heads.box_head,
        box_predictor=heads.box_predictor,
        **arguments,
    )
    twin.transform = AsTheyAre(model)
    return twin


build, batch = partial(small_networks.build, "FasterRCNN"), partial(small_networks.batch, "FasterRCNN")
OPTIONS = {
    "rpn_pre_nms_top_n_train": 90,
    "rpn_pre_nms_top_n_test": 80,
    "rpn_post_nms_top_n_train": 70,
    "rpn_post_nms_top_n_test": 60,
    "rpn_nms_thresh": 0.6,
    "rpn_fg_iou_thresh": 0.5,
    "rpn_bg_iou_thresh": 0.25,
    "rpn_batch_size_per_image": 100_000,
    "rpn_positive_fraction": 1.0,
    "rpn_score_thresh": 0.01,
    "box_score_thresh": 0.06,
    "box_nms_thresh": 0.4,
    "box_detections_per_img": 30,
    "box_fg_iou_thresh": 0.4,
    "box_bg_iou_thresh": 0.3,
    "box_batch_size_per_image": 100_000,
    "box_positive_fraction": 1.0,
    "bbox_reg_weights": (8.0, 8.0, 4.0, 4.0),
}


@pytest.mark.parametrize("objects", [5, 0])
def test_losses_are_torchvisions_with_all_options(objects):
    """Its own samplers: all anchors and regions are taken, so that nothing is drawn."""
    model = build(**OPTIONS)
    twin = torchvision_twin(model, **OPTIONS).train()
    freeze_statistics(model)
    images, targets = batch([(96, 128)] * 2, objects=objects)
    ours, theirs = model(images, targets), twin(list(images), targets)
    assert set(ours) == set(theirs) == {"loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"}
    for name, loss in ours.items():
        value = loss.total.item() / max(float(loss.count), 1.0)
        assert value == pytest.approx(theirs[name].item(), rel=1e-6, abs=1e-7), name


def test_detections_are_torchvisions_with_all_options():
    model = build(**OPTIONS).eval()
    images, _ = batch([(128, 128)] * 2)
    twin = torchvision_twin(model, **OPTIONS).eval()
    with torch.no_grad():
        ours, theirs = model(images), twin(list(images))
    for mine, other in zip(ours, theirs):
        assert 0 < len(mine["boxes"]) <= 30 and set(mine) == set(other)
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_names_and_shapes_of_torchvisions_full_size():
    reference = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)
    shapes = {name: tensor.shape for name, tensor in build(backbone="resnet50", size="full").state_dict().items()}
    theirs = {name: tensor.shape for name, tensor in reference.state_dict().items()}
    assert {name: shapes.get(name) for name in theirs} == theirs
    assert all(n.endswith(("num_batches_tracked", "pixel_mean", "pixel_std")) for n in set(shapes) - set(theirs))


def test_padded_chips_are_cut_at_their_size():
    for soft in (False, True):
        model = build(box_score_thresh=0.01, soft_nms=soft).eval()
        images, targets = batch([(40, 52)], padded=(64, 128))
        with torch.no_grad():
            boxes = model(images, targets)[0]["boxes"]
        assert len(boxes) and (boxes[:, 2] <= 52).all() and (boxes[:, 3] <= 40).all()


@pytest.mark.parametrize("row", [FasterRCNN, MaskRCNN])
def test_soft_nms_at_prediction(networks, row):
    spec = networks.spec("MaskRCNN", task=row.task)
    options = {"backbone": "resnet18", "size": "small", "box_score_thresh": 1e-3, "box_detections_per_img": 1000}
    models = [row(spec, soft_nms=soft, **options).eval() for soft in (False, True)]
    images, _ = networks.batch("MaskRCNN", [(128, 128)])
    with torch.no_grad():
        hard, soft = (model(images)[0] for model in models)
    assert len(soft["boxes"]) > len(hard["boxes"]) > 0 and set(soft) == set(hard)
    assert torch.equal(soft["scores"][0], hard["scores"][0]) and torch.equal(soft["boxes"][0], hard["boxes"][0])
    assert (soft["scores"].diff() <= 0).all() and (soft["scores"] > 1e-3).all()


def written_out(boxes, scores, labels, sigma, least):
    """Algorithm 1 of Bodla et al. 2017 for each class."""
    found = []
    for label in set(labels.tolist()):
        rest = [[float(s), i] for i, s in enumerate(scores) if labels[i] == label]
        while rest:
            rest.sort(key=lambda pair: (-pair[0], pair[1]))
            score, best = rest.pop(0)
            found.append((score, best))
            for pair in rest:
                overlap = float(box_iou(boxes[best][None], boxes[pair[1]][None]))
                pair[0] *= 2.718281828459045 ** (-(overlap**2) / sigma)
    return sorted([pair for pair in found if pair[0] > least], key=lambda pair: (-pair[0], pair[1]))


def test_soft_nms_is_the_papers():
    draw = torch.Generator().manual_seed(5)
    corners = torch.rand(60, 2, generator=draw, dtype=torch.float64) * 30
    boxes = torch.cat([corners, corners + 5 + torch.rand(60, 2, generator=draw, dtype=torch.float64) * 20], 1)
    scores = torch.rand(60, generator=draw, dtype=torch.float64)
    labels = torch.randint(1, 4, (60,), generator=draw)
    for sigma, least, count in ((0.5, 0.05, 100), (0.3, 0.0, 20)):
        index, lowered = soft_nms(boxes, scores, labels, score_thresh=least, count=count, sigma=sigma)
        expected = written_out(boxes, scores, labels, sigma, least)[:count]
        assert index.tolist() == [i for _, i in expected]
        assert lowered.tolist() == pytest.approx([score for score, _ in expected], rel=1e-12)
    index, lowered = soft_nms(boxes[:0], scores[:0], labels[:0], score_thresh=0.05, count=9)
    assert index.shape == lowered.shape == (0,) and lowered.dtype == scores.dtype
    twice = torch.tensor([[0.0, 0, 4, 4], [8, 8, 12, 12], [20, 0, 24, 4]])
    assert soft_nms(twice, torch.full((3,), 0.5), torch.ones(3), score_thresh=0.1, count=9)[0].tolist() == [0, 1, 2]


def test_task_must_be_detection(networks):
    with pytest.raises(ValueError, match="FasterRCNN does detection"):
        FasterRCNN(networks.spec("MaskRCNN"))
    assert not issubclass(MaskRCNN, FasterRCNN)  # from_model tells them apart
