import copy

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch.nn import functional as F

from accel_geo.models.deeplab import DeepLab


@pytest.fixture(scope="module")
def torchvisions():
    """torchvision's network with weights that make every branch matter."""
    torch.manual_seed(3)
    network = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=5, aux_loss=True
    )
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.8, 1.2)
    return network.eval()


@pytest.fixture
def model(networks):
    return DeepLab(networks.spec("UnetClassifier"), backbone="resnet50", output_stride=8)


@pytest.fixture
def twins(torchvisions, model):
    """Both networks with the same weights in double precision, torchvision's without its dropout."""
    model.load_state_dict(torchvisions.state_dict() | {n: b for n, b in model.state_dict().items() if "pixel_" in n})
    twin = copy.deepcopy(torchvisions).double()
    for module in twin.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.double(), twin


def test_equals_torchvision(twins):
    model, twin = twins
    images = torch.rand(2, 3, 64, 96, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        wanted = twin(model.normalize(images))
        found = model.class_scores(model.normalize(images), [(64, 96)] * 2)[0]
        found = F.interpolate(found, (64, 96), mode="bilinear", align_corners=False)
        aux = model.aux_classifier(model.backbone(model.normalize(images))[-2])
        aux = F.interpolate(aux, (64, 96), mode="bilinear", align_corners=False)
        scores = torch.stack([prediction["scores"] for prediction in model(images)])
    assert wanted["out"].std() > 1e-2
    torch.testing.assert_close(found, wanted["out"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(aux, wanted["aux"], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(scores, wanted["out"].softmax(1), rtol=1e-6, atol=1e-9)


def test_losses_are_torchvisions(twins, networks):
    """With batch statistics; 0.4 is the weight of the auxiliary loss in Zhao et al. 2017."""
    model, twin = twins
    images, targets = networks.batch("UnetClassifier", [(64, 64)] * 2)
    truth = torch.stack([target["mask"] for target in targets])
    outputs = twin.train()(model.normalize(images.double()))
    wanted = {name: F.cross_entropy(scores, truth, ignore_index=255).item() for name, scores in outputs.items()}
    losses = {name: (loss.total / loss.count).item() for name, loss in model.train()(images.double(), targets).items()}
    assert set(losses) == {"cross_entropy", "auxiliary"} and abs(wanted["out"] - wanted["aux"]) > 1e-3
    assert losses["cross_entropy"] == pytest.approx(wanted["out"], rel=1e-9)
    assert losses["auxiliary"] == pytest.approx(0.4 * wanted["aux"], rel=1e-9)


def test_torchvisions_weights_load_by_name(torchvisions, networks, tmp_path, capsys):
    save_file(torchvisions.state_dict(), tmp_path / "coco.safetensors")
    start = {"backbone": "resnet50", "weights": str(tmp_path / "coco.safetensors")}
    model = DeepLab(networks.spec("UnetClassifier", classes=2), **start)
    state, source = model.state_dict(), torchvisions.state_dict()
    other = [name for name, tensor in source.items() if not state[name].equal(tensor)]
    assert {name.rsplit(".", 1)[0] for name in other} == {"classifier.4", "aux_classifier.4"}
    assert "new head" in capsys.readouterr().out


@pytest.mark.parametrize("stride, rates", [(8, [12, 24, 36]), (16, [6, 12, 18]), (None, [3, 6, 9])])
def test_dilations_follow_the_stride(networks, stride, rates):
    options = {"keep_dilation": False} if stride is None else {"output_stride": stride}
    model = DeepLab(networks.spec("UnetClassifier"), backbone="resnet18", size="small", **options)
    branches = list(model.classifier[0].convs)[1:4]
    assert [branch[0].dilation[0] for branch in branches] == rates
    assert model.backbone.strides[-1] == (stride or 32)


def test_plus_refines_at_stride_four(networks):
    model = DeepLab(networks.spec("UnetClassifier"), backbone="resnet18", plus=True).eval()
    with torch.no_grad():
        scores = model.class_scores(torch.rand(1, 3, 64, 96), [(64, 96)])[0]
    assert scores.shape == (1, 5, 16, 24)
    assert model.classifier.project[0].out_channels == 48


@pytest.mark.parametrize(
    "backbone", ["vgg11_bn", "densenet121", "mobilenet_v2", "timm:convnext_atto", "timm:resnet10t"]
)
@pytest.mark.parametrize("plus", [False, True])
def test_backbones(networks, backbone, plus):
    model = DeepLab(networks.spec("UnetClassifier"), backbone=backbone, size="small", plus=plus).eval()
    images, _ = networks.batch("UnetClassifier", [(70, 66)])
    with torch.no_grad():
        assert model(images)[0]["mask"].shape == (70, 66)
