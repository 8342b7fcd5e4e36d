import pytest
import torch
import torchvision
from small_networks import AsTheyAre, freeze_statistics
from torchvision.models.detection._utils import overwrite_eps
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import project_masks_on_boxes
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from accel_geo.models import from_model, rcnn
from accel_geo.models.rcnn import MaskRCNN, adapted, modern_name
from accel_geo.nn.regions import _cut_masks, paste_masks


def torchvision_twin(model):
    """torchvision's own Mask R-CNN on the same modules, with the same samplers."""
    heads, names = model.roi_heads, ["0", "1", "2", "3"]
    twin = torchvision.models.detection.MaskRCNN(
        model.backbone,
        rpn_anchor_generator=AnchorGenerator(
            tuple((s[0],) for s in model.rpn.anchor_generator.sizes), ((0.5, 1.0, 2.0),) * 5
        ),
        rpn_head=model.rpn.head,
        rpn_pre_nms_top_n_train=300,
        rpn_post_nms_top_n_train=150,
        rpn_pre_nms_top_n_test=300,
        rpn_post_nms_top_n_test=100,
        box_roi_pool=MultiScaleRoIAlign(names, 7, 2),
        box_head=heads.box_head,
        box_predictor=heads.box_predictor,
        mask_roi_pool=MultiScaleRoIAlign(names, 14, 2),
        mask_head=heads.mask_head,
        mask_predictor=heads.mask_predictor,
    )
    twin.transform = AsTheyAre(model)
    twin.rpn.fg_bg_sampler, twin.roi_heads.fg_bg_sampler = model.rpn.fg_bg_sampler, heads.fg_bg_sampler
    return twin


@pytest.mark.parametrize("objects", [(6, 3, 0), (0, 0, 0)])
def test_losses_are_torchvisions(networks, objects):
    model = networks.build("MaskRCNN")
    pairs = [networks.sample("MaskRCNN", i, (128, 192), (128, 192), objects=n) for i, n in enumerate(objects)]
    images, targets = networks.batch_of(pairs)
    twin = torchvision_twin(model).train()
    model.train()
    freeze_statistics(model)
    ours = model(images, targets)
    # the samplers still know these targets
    theirs = twin(list(images), targets)
    assert set(ours) == set(theirs)
    for name, loss in ours.items():
        value = loss.total.item() / max(float(loss.count), 1.0)
        assert value == pytest.approx(theirs[name].item(), rel=1e-6, abs=1e-7), name


def test_detections_are_torchvisions(networks, monkeypatch):
    """Boxes, classes, scores, and the masks' probabilities in the boxes, before they are put into the image."""
    monkeypatch.setattr(rcnn, "paste_masks", lambda masks, boxes, size: masks)
    model = networks.build("MaskRCNN").eval()
    images, _ = networks.batch("MaskRCNN", [(128, 128)] * 2)
    twin = torchvision_twin(model).eval()
    with torch.no_grad():
        ours, theirs = model(images), twin(list(images))
    for mine, other in zip(ours, theirs):
        assert len(mine["boxes"]) and mine["masks"].shape[1:] == (1, 28, 28) and mine["masks"].std() > 1e-4
        for name in ("boxes", "labels", "scores", "masks"):
            assert torch.equal(mine[name], other[name])


def test_full_size_has_torchvisions_names_and_shapes(networks):
    reference = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)
    model = networks.build("MaskRCNN", backbone="resnet50", size="full")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    theirs = {name: tensor.shape for name, tensor in reference.state_dict().items()}
    assert {name: shapes.get(name) for name in theirs} == theirs
    assert set(shapes) - set(theirs) <= {
        n for n in shapes if n.endswith(("num_batches_tracked", "pixel_mean", "pixel_std"))
    }
    assert model.rpn.anchor_generator.sizes == reference.rpn.anchor_generator.sizes
    for name in ("_pre_nms_top_n", "_post_nms_top_n", "nms_thresh", "score_thresh"):
        assert getattr(model.rpn, name) == getattr(reference.rpn, name)
    for name in ("score_thresh", "nms_thresh", "detections_per_img"):
        assert getattr(model.roi_heads, name) == getattr(reference.roi_heads, name)
    for ours, other in ((model.rpn, reference.rpn), (model.roi_heads, reference.roi_heads)):
        for name in ("batch_size_per_image", "positive_fraction"):
            assert getattr(ours.fg_bg_sampler, name) == getattr(other.fg_bg_sampler, name)
        for name in ("high_threshold", "low_threshold", "allow_low_quality_matches"):
            assert getattr(ours.proposal_matcher, name) == getattr(other.proposal_matcher, name)


def test_names_before_torchvision_0_14():
    old = {
        "backbone.fpn.inner_blocks.2.weight": "backbone.fpn.inner_blocks.2.0.weight",
        "backbone.fpn.layer_blocks.0.bias": "backbone.fpn.layer_blocks.0.0.bias",
        "rpn.head.conv.weight": "rpn.head.conv.0.0.weight",
        "roi_heads.mask_head.mask_fcn4.bias": "roi_heads.mask_head.3.0.bias",
        "roi_heads.mask_predictor.conv5_mask.weight": "roi_heads.mask_predictor.conv5_mask.weight",
    }
    for name, new in old.items():
        assert modern_name(name) == new == modern_name(new)


def test_an_image_does_not_depend_on_its_company(networks):
    """Proposals, samples and losses of one image, alone and beside others of other sizes."""
    model = networks.build("MaskRCNN").double().train()
    freeze_statistics(model)
    pairs = [
        networks.sample("MaskRCNN", i, size, (128, 128)) for i, size in enumerate([(64, 64), (128, 128), (100, 90)])
    ]
    alone = [model(*networks.batch_of([pair])) for pair in pairs]
    together = model(*networks.batch_of(pairs))
    for name, loss in together.items():
        assert loss.total.item() == pytest.approx(sum(each[name].total.item() for each in alone), rel=1e-12)


def test_padding_does_not_propose_or_train(networks):
    model = networks.build("MaskRCNN").train()
    freeze_statistics(model)
    images, targets = networks.batch("MaskRCNN", [(64, 60)], padded=(128, 192))
    seen = {}
    model.rpn.fg_bg_sampler, original = (
        lambda labels: seen.setdefault("labels", labels) and original(labels),
        (model.rpn.fg_bg_sampler),
    )
    model.rpn.fg_bg_sampler.begin = original.begin
    proposals = model.rpn(
        ImageList(model.normalize(images), [(64, 60)]), model.backbone(model.normalize(images)), targets
    )[0][0]
    assert len(proposals) and (proposals >= 0).all() and (proposals[:, 2] <= 60).all() and (proposals[:, 3] <= 64).all()
    anchors = model.rpn.anchor_generator(ImageList(images, [(64, 60)]), list(model.backbone(images).values()))[0]
    centre = (anchors[:, :2] + anchors[:, 2:]) / 2
    outside = (centre[:, 0] >= 60) | (centre[:, 1] >= 64)
    assert outside.any() and (seen["labels"][0][outside] == -1).all() and (seen["labels"][0][~outside] >= 0).any()


def test_ties_are_broken_by_index(networks):
    """A blank image: equal scores but for rounding; the first anchors are proposed."""
    model = networks.build("MaskRCNN").double().eval()
    n = 200
    boxes = torch.rand(1, n, 4, dtype=torch.float64) * 5
    boxes[..., :2] = torch.arange(n).view(1, n, 1) * 10.0
    boxes[..., 2:] = boxes[..., :2] + 8
    scores = torch.full((1, n), 0.3, dtype=torch.float64) + torch.randn(1, n, dtype=torch.float64) * 1e-14
    inside = torch.ones(1, n, dtype=torch.bool)
    chosen = model.rpn.select(boxes, scores, inside, [(5000, 5000)], [n])[0]
    assert torch.equal(chosen, boxes[0, :100])


def test_only_sampled_instances_are_cut():
    masks = torch.rand(5, 32, 32) > 0.3
    boxes, matched = torch.tensor([[4.0, 4, 20, 12], [1.5, 3, 9, 30], [2, 2, 5, 6.5]]), torch.tensor([3, 1, 3])
    assert torch.equal(_cut_masks(masks, boxes, matched, 14), project_masks_on_boxes(masks, boxes, matched, 14))


def test_masks_return_to_their_place():
    # the box of an object at any fraction of a pixel: what is cut out of the truth and pasted again is the truth
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(48.0), indexing="ij")
    disc = ((x - 20.3) ** 2 + (y - 30.8) ** 2) ** 0.5 <= 9.4
    boxes = torch.tensor([[10.2, 20.9, 30.1, 40.7], [8.0, 19.5, 31.9, 42.0], [-3.0, -5.0, 60.0, 70.0]])
    masks = _cut_masks(disc[None], boxes, torch.zeros(3, dtype=torch.int64), 28)[:, None]
    pasted = paste_masks(masks, boxes, (64, 48))
    assert pasted.shape == (3, 64, 48) and pasted.dtype == torch.bool
    for mask, least in zip(pasted, (0.95, 0.95, 0.9)):
        assert (mask & disc).sum() / (mask | disc).sum() >= least
    assert paste_masks(masks[:0], boxes[:0], (64, 48)).shape == (0, 64, 48)


def test_anchor_sizes_must_fit_the_levels(networks):
    with pytest.raises(ValueError, match="needs 5"):
        networks.build("MaskRCNN", anchor_sizes=[8, 16])
    assert isinstance(networks.build("MaskRCNN", anchor_sizes=[4, 8, 16, 32, 64]), MaskRCNN)


def test_coco_networks_compute_as_torchvisions(networks, tmp_path):
    """torchvision sets the epsilon of their normalisation to 0, which no state dict tells."""
    twin = torchvision.models.resnet18(weights=None, norm_layer=FrozenBatchNorm2d)
    twin = _resnet_fpn_extractor(twin, 3)
    for module in twin.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.running_var.uniform_(1e-6, 1e-4)  # where an epsilon of 1e-5 counts
            module.weight.fill_(5e-3)
    overwrite_eps(twin, 0.0)
    state = {f"backbone.{name}": tensor for name, tensor in twin.state_dict().items()}
    state |= {"roi_heads.box_predictor.cls_score.bias": torch.zeros(91)}
    torch.save(state, tmp_path / "coco.pth")
    model = networks.build("FasterRCNN", weights=str(tmp_path / "coco.pth")).eval()
    again = from_model(model.save(tmp_path / "model"))
    images = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        wanted, found = list(twin.body(images).values()), model.backbone.body(images)[-4:]
        for mine, other, loaded in zip(found, wanted, again.backbone.body(images)[-4:], strict=True):
            assert (mine - other).abs().max() < 1e-4 * other.std()
            assert torch.equal(mine, loaded)
    # the epsilon of a network that somebody has trained is what it is
    other = state | {"roi_heads.box_predictor.cls_score.bias": torch.zeros(5)}
    name = "backbone.body.bn1.running_var"
    assert torch.equal(adapted(other)[name], other[name]) and not torch.equal(adapted(state)[name], state[name])
