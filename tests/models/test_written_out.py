"""U-Net, DeepLabV3+ and PSPNet give the scores, losses and gradients of the networks that written_out.py spells out."""

import pytest
import torch
from written_out import DeepLabV3Plus, PSPNet, Unet, copy_in_order, cross_entropy

from accel_geo.models.deeplab import DeepLab
from accel_geo.models.psp_net import PSPNetClassifier
from accel_geo.models.unet_classifier import UnetClassifier

NETWORKS = {
    "unet": (UnetClassifier, {}, Unet),
    "deeplab plus": (DeepLab, {"plus": True}, DeepLabV3Plus),
    "psp": (PSPNetClassifier, {"use_unet": False}, PSPNet),
}


@pytest.fixture(params=NETWORKS)
def pair(request, networks):
    """A network, weights that make every layer matter, and the written-out one with the same weights."""
    row, options, plain = NETWORKS[request.param]
    torch.manual_seed(5)
    model = row(networks.spec("UnetClassifier"), backbone="resnet18", **options).double()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for name, tensor in module.named_parameters():
                torch.nn.init.uniform_(tensor, 0.5 if name == "weight" else -0.3, 1.5 if name == "weight" else 0.3)
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model, copy_in_order(plain(5).double(), model)


def test_scores_losses_and_gradients(pair, networks):
    model, plain = pair
    images, targets = networks.batch("UnetClassifier", [(64, 96)] * 2)
    images = images.double()
    with torch.no_grad():
        scores, *_ = plain.eval()(images)
        found = torch.stack([prediction["scores"] for prediction in model.eval()(images)])
    assert scores.std() > 1e-2
    torch.testing.assert_close(found, scores.softmax(1), rtol=1e-6, atol=1e-9)

    mask = torch.stack([target["mask"] for target in targets])
    wanted = [factor * cross_entropy(each, mask) for factor, each in zip((1, 0.4), plain.train()(images))]
    losses = {name: loss.total / loss.count for name, loss in model.train()(images, targets).items()}
    assert list(losses) == ["cross_entropy", "auxiliary"][: len(wanted)]
    assert [loss.item() for loss in losses.values()] == pytest.approx([loss.item() for loss in wanted], rel=1e-9)
    sum(wanted).backward()
    sum(losses.values()).backward()
    convs = [[m.weight.grad for m in net.modules() if isinstance(m, torch.nn.Conv2d)] for net in pair]
    for mine, other in zip(*convs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9 * float(other.abs().max()))
