from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from accel_geo.models.unet_classifier import UnetClassifier


def test_loss_is_the_mean_over_labelled_pixels(networks):
    model = networks.build("UnetClassifier").train()
    images, targets = networks.batch("UnetClassifier", [(64, 64)] * 3)
    truth = torch.stack([target["mask"] for target in targets])
    total, count = model(images, targets)["cross_entropy"]
    logits = model.head(model.decoder(model.backbone(model.normalize(images))))
    assert (total / count).item() == pytest.approx(F.cross_entropy(logits, truth, ignore_index=255).item(), rel=1e-5)


def test_class_weights(networks):
    weights = [0.5, 1, 2, 3, 0]
    model = networks.build("UnetClassifier", class_weights=weights).train()
    images, targets = networks.batch("UnetClassifier", [(64, 64)] * 3)
    truth = torch.stack([target["mask"] for target in targets])
    total, count = model(images, targets)["cross_entropy"]
    logits = model.head(model.decoder(model.backbone(model.normalize(images))))
    wanted = F.cross_entropy(logits, truth, torch.tensor(weights), ignore_index=255)
    assert (total / count).item() == pytest.approx(wanted.item(), rel=1e-5)
    assert model.loss_counts(targets)["cross_entropy"] == pytest.approx(float(count))
    with pytest.raises(ValueError, match="5 values"):
        networks.build("UnetClassifier", class_weights=[1, 2])


def test_class_balancing_counts_the_training_chips(networks):
    masks = [torch.tensor([[0, 0, 1], [2, 255, 0]]), torch.tensor([[0, 2, 2], [255, 255, 0]])]
    spec = networks.spec("UnetClassifier", classes=3)
    data = SimpleNamespace(spec=spec, seed=1, train=[{"mask": mask} for mask in masks])
    model = UnetClassifier(data, backbone="resnet18", size="small", class_balancing=True)
    assert model.arguments["class_weights"] == pytest.approx([9 / 5, 9 / 1, 9 / 3, 1])
    assert type(model)(spec, **model.arguments).class_weights.tolist() == pytest.approx(
        model.arguments["class_weights"]
    )
    with pytest.raises(ValueError, match="class_weights"):
        UnetClassifier(spec, class_balancing=True)


def test_background_may_be_unlabelled(networks):
    model = networks.build("UnetClassifier", changes={"ignore_background": True})
    images, targets = networks.batch("UnetClassifier", [(64, 64)] * 2)
    loss = model.train()(images, targets)["cross_entropy"]
    labelled = sum(int(((target["mask"] > 0) & (target["mask"] < 255)).sum()) for target in targets)
    assert float(loss.count) == labelled == model.loss_counts(targets)["cross_entropy"]
    loss.total.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        prediction = model.eval()(images)[0]
    assert prediction["mask"].min() >= 1 and (prediction["scores"][0] == 0).all()


def test_dice_is_added_in_its_share(networks):
    images, targets = networks.batch("UnetClassifier", [(64, 64)] * 2)
    plain = networks.build("UnetClassifier").train()(images, targets)
    model = networks.build("UnetClassifier", dice_loss_fraction=0.25).train()
    mixed = model(images, targets)
    assert mixed["cross_entropy"].total.item() == pytest.approx(0.75 * plain["cross_entropy"].total.item())
    assert 0 < mixed["dice"].total.item() < 0.25 and mixed["dice"].count == 1
    assert model.loss_counts(targets) is None
    _, ignored = networks.batch("UnetClassifier", [(64, 64)] * 2, ignore=True)
    assert model(images, ignored)["dice"].total.item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("backbone", ["vgg11_bn", "densenet121", "timm:convnext_atto", "mobilenet_v2"])
def test_encoders_of_other_strides(networks, backbone):
    model = networks.build("UnetClassifier", backbone=backbone).eval()
    images, _ = networks.batch("UnetClassifier", [(70, 66)])
    with torch.no_grad():
        assert model(images)[0]["mask"].shape == (70, 66)
