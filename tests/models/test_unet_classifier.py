import pytest
import torch
from torch.nn import functional as F


def logits_of(model, images):
    return model.head(model.decoder(model.backbone(model.normalize(images))))


@pytest.mark.parametrize("weights", [None, [0.5, 1, 2, 3, 0]])
def test_loss_is_the_mean_over_labelled_pixels(networks, weights):
    model = networks.build("UnetClassifier", class_weights=weights).train()
    images, targets = networks.batch("UnetClassifier", [(64, 64)] * 3)
    truth = torch.stack([target["mask"] for target in targets])
    total, count = model(images, targets)["cross_entropy"]
    given = None if weights is None else torch.tensor(weights)
    wanted = F.cross_entropy(logits_of(model, images), truth, given, ignore_index=255)
    assert (total / count).item() == pytest.approx(wanted.item(), rel=1e-5)
    assert model.loss_counts(targets)["cross_entropy"] == pytest.approx(float(count))


@pytest.mark.parametrize("backbone", ["vgg11_bn", "densenet121", "timm:convnext_atto", "mobilenet_v2"])
def test_encoders_of_other_strides(networks, backbone):
    model = networks.build("UnetClassifier", backbone=backbone).eval()
    images, _ = networks.batch("UnetClassifier", [(70, 66)])
    with torch.no_grad():
        assert model(images)[0]["mask"].shape == (70, 66)
