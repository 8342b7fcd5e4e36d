"""What the three networks that classify pixels promise alike, with each of their decoders."""

import json
from types import SimpleNamespace

import pytest
import torch
from small_networks import check_trains, mean
from torch import nn
from torch.nn import functional as F

from accel_geo.models.deeplab import DeepLab
from accel_geo.models.psp_net import PSPNetClassifier
from accel_geo.models.unet_classifier import UnetClassifier
from accel_geo.parallel.batch_norm import convert

KINDS = {
    "unet": (UnetClassifier, {}),
    "deeplab": (DeepLab, {}),
    "deeplab stride 8": (DeepLab, {"output_stride": 8, "aux_loss": False}),
    "deeplab undilated": (DeepLab, {"keep_dilation": False}),
    "deeplab plus": (DeepLab, {"plus": True}),
    "psp": (PSPNetClassifier, {"use_unet": False}),
    "psp unet": (PSPNetClassifier, {}),
    "psp unet dilated": (PSPNetClassifier, {"keep_dilation": True, "unet_aux_loss": True}),
}
MAIN = ("unet", "deeplab", "psp")
kinds = pytest.mark.parametrize("kind", KINDS)
main = pytest.mark.parametrize("kind", MAIN)


@pytest.fixture
def make(networks):
    def build(kind, bands=3, classes=4, changes=None, **arguments):
        model, options = KINDS[kind]
        spec = networks.spec("UnetClassifier", bands, classes, **(changes or {}))
        return model(spec, **{"backbone": "resnet18", "size": "small", **options, **arguments})

    return build


@pytest.fixture
def batch(networks):
    def build(sizes, **arguments):
        return networks.batch("UnetClassifier", sizes, **arguments)

    return build


@kinds
@pytest.mark.parametrize("bands, size, classes", [(1, (64, 64), 1), (3, (96, 160), 20), (8, (97, 131), 4)])
def test_trains_and_predicts(make, batch, kind, bands, size, classes):
    model = make(kind, bands, classes)
    images, targets = batch([size] * 2, bands=bands, classes=classes)
    losses = check_trains(model, images, targets)
    assert model.loss_counts(targets) == {name: float(loss.count) for name, loss in losses.items()}
    with torch.no_grad():
        prediction = model.eval()(images)[0]
    assert prediction["mask"].shape == size and prediction["mask"].dtype == torch.int64
    assert prediction["scores"].shape == (classes + 1, *size)
    assert torch.equal(prediction["scores"].argmax(0), prediction["mask"])


@kinds
def test_one_chip(make, batch, kind):
    """A map of one chip that is pooled to one cell has no variance: it trains, and those running statistics stay."""
    model = make(kind)
    images, targets = batch([(64, 64)])
    before = {name: b.clone() for name, b in model.named_buffers() if "running" in name}
    check_trains(model, images, targets)
    stay = {name for name, b in model.named_buffers() if "running" in name and b.equal(before[name])}
    assert all(
        name.startswith(("classifier.0.convs.4.", "classifier.aspp.convs.4.", "pyramid.stages.0.")) for name in stay
    )
    assert bool(stay) == (kind != "unet")
    globally = convert(make(kind)).train()
    found, wanted = ([v.total.item() for v in m(images, targets).values()] for m in (globally, model))
    assert found == pytest.approx(wanted, rel=1e-3)


@kinds
@pytest.mark.parametrize("batch_options", [{"objects": 0}, {"ignore": True}])
def test_nothing_to_learn_from(make, batch, kind, batch_options):
    check_trains(make(kind), *batch([(64, 64)] * 2, **batch_options))


@main
def test_halves_add_up(make, networks, kind):
    """Totals and counts of two halves are those of the whole batch, as if on two processes."""
    model = make(kind, focal_loss=True, class_weights=[1, 2, 3, 4, 5]).double().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    sizes = [(97, 131), (64, 64), (97, 100), (80, 131)]
    pairs = [networks.sample("UnetClassifier", i, size, (97, 131)) for i, size in enumerate(sizes)]
    whole = model(*networks.batch_of(pairs))
    halves = [model(*networks.batch_of(part)) for part in (pairs[:3], pairs[3:])]
    for name, loss in whole.items():
        assert float(loss.count) == pytest.approx(sum(float(half[name].count) for half in halves)) and loss.count > 0
        assert loss.total.item() == pytest.approx(sum(half[name].total.item() for half in halves), rel=1e-12)


@pytest.mark.parametrize("kind", ["deeplab", "deeplab plus", "psp"])
def test_pooling_leaves_padding_out(make, kind):
    """What stands in the padding reaches a chip through convolutions only, not from afar through the poolings."""
    model = make(kind).eval()
    head = model.pyramid if kind == "psp" else model.classifier
    shapes = [(channels, 40 * 16 // stride) for channels, stride in zip(model.backbone.channels, (2, 4, 8, 16, 16))]
    features = [torch.rand(1, channels, side, side) for channels, side in shapes]

    def corner(cells):
        given = features[-1] if kind == "psp" else features
        return head(given, [cells])[..., :4, :4]

    with torch.no_grad():
        own, whole = corner((4, 4)), corner((40, 40))
        features[-1][..., 30:, 30:] = 9
        assert torch.equal(corner((4, 4)), own)
        assert not torch.allclose(corner((40, 40)), whole, atol=1e-4)


@kinds
def test_size_of_the_target_bounds_the_pooling(make, batch, kind):
    model = make(kind).eval()
    images, targets = batch([(32, 32)], padded=(160, 160))
    with torch.no_grad():
        same = torch.allclose(model(images, targets)[0]["scores"], model(images)[0]["scores"], atol=1e-5)
    assert same == (kind == "unet")


@main
def test_sparse_labels(make, batch, kind):
    model = make(kind, changes={"ignore_background": True}, dice_loss_fraction=0.3, dice_loss_average="macro")
    images, targets = batch([(64, 64)] * 2)
    losses = check_trains(model, images, targets)
    labelled = sum(int(((target["mask"] > 0) & (target["mask"] < 255)).sum()) for target in targets)
    assert float(losses["cross_entropy"].count) == labelled
    with torch.no_grad():
        prediction = model.eval()(images)[0]
    assert prediction["mask"].min() >= 1 and (prediction["scores"][0] == 0).all()


@main
def test_dice_is_added_in_its_share(make, batch, kind):
    images, targets = batch([(64, 64)] * 2)
    plain = make(kind).train()(images, targets)
    model = make(kind, dice_loss_fraction=0.25).train()
    mixed = model(images, targets)
    assert mixed["cross_entropy"].total.item() == pytest.approx(0.75 * plain["cross_entropy"].total.item())
    assert 0 < mixed["dice"].total.item() < 0.25 and mixed["dice"].count == 1
    assert set(model.loss_counts(targets)) == set(mixed) - {"dice"}
    _, ignored = batch([(64, 64)] * 2, ignore=True)
    assert model(images, ignored)["dice"].total.item() == pytest.approx(0, abs=1e-6)


def test_auxiliary_head_weighs_two_fifths(make, batch):
    images, targets = batch([(64, 64)] * 2)
    model = make("deeplab").train()
    loss = model(images, targets)["auxiliary"]
    scores = model.aux_classifier(model.backbone(model.normalize(images))[-2])
    scores = F.interpolate(scores, (64, 64), mode="bilinear", align_corners=False)
    truth = torch.stack([target["mask"] for target in targets])
    wanted = 0.4 * F.cross_entropy(scores, truth, ignore_index=255)
    assert (loss.total / loss.count).item() == pytest.approx(wanted.item(), rel=1e-5)


@main
def test_class_balancing_counts_the_training_chips(networks, kind):
    build, options = KINDS[kind]
    spec = networks.spec("UnetClassifier", classes=3)
    data = SimpleNamespace(spec=spec, seed=1, class_counts={"train": {"pixels": [5, 1, 3, 0]}})
    options = {**options, "backbone": "resnet18", "size": "small", "class_balancing": True}
    model = build(data, **options)
    assert model.arguments["class_weights"] == pytest.approx([9 / 5, 9 / 1, 9 / 3, 1])
    again = build(spec, **json.loads(json.dumps(model.arguments)))
    assert again.loss.class_weights.tolist() == pytest.approx(model.arguments["class_weights"])
    with pytest.raises(ValueError, match="class_weights"):
        build(spec, **options)


@main
def test_saved_and_loaded(make, batch, tmp_path, kind):
    model, images = make(kind).eval(), batch([(48, 64)])[0]
    model.save(tmp_path / "model")
    other = type(model)(model.spec, **json.loads(json.dumps(model.arguments))).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
        other.load(tmp_path / "model")
        assert torch.equal(other(images)[0]["scores"], model(images)[0]["scores"])


@main
def test_freezing(make, batch, kind):
    model = make(kind)
    model.freeze()
    mean(model.train()(*batch([(64, 64)] * 2))).backward()
    assert all((p.grad is None) == name.startswith("backbone.") for name, p in model.named_parameters())
    model.unfreeze()
    check_trains(model, *batch([(64, 64)] * 2))


@main
def test_bfloat16(make, batch, kind):
    images, targets = batch([(64, 96)] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        model = make(kind, dice_loss_fraction=0.5, dice_loss_average="macro").train()
        losses = model(images, targets)
    mean(losses).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("unet", {"class_weights": [1, 2]}, "5 values"),
        ("unet", {"gamma": -1}, "gamma=-1"),
        ("unet", {"dice_loss_fraction": 1.5}, "from 0 to 1"),
        ("unet", {"dice_loss_average": "mean"}, "'micro' or 'macro'"),
        ("deeplab", {"output_stride": 4}, "8 or 16"),
        ("deeplab", {"backbone": "timm:hrnet_w18_small"}, "cannot be dilated"),
        ("psp", {"pyramid_sizes": [0, 2]}, "pyramid_sizes"),
        ("psp", {"size": "tiny"}, "'full' or 'small'"),
    ],
)
def test_wrong_arguments(make, kind, options, message):
    with pytest.raises(ValueError, match=message):
        make(kind, **options)
