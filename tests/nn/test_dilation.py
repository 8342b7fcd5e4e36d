import pytest
import torch
import torchvision

from accel_geo.nn.backbones import build_backbone


@pytest.mark.parametrize("stride", [8, 16])
def test_resnets_are_torchvisions(stride):
    network = torchvision.models.resnet50(weights=None, replace_stride_with_dilation=[False, stride == 8, True])
    backbone = build_backbone("resnet50", 3, output_stride=stride)
    layers = dict(network.named_modules())
    convs = {name: m for name, m in backbone.named_modules() if isinstance(m, torch.nn.Conv2d)}
    assert len(convs) == 53 and backbone.strides == [2, 4, 8, stride, stride]
    for name, conv in convs.items():
        theirs = layers[name]
        assert (conv.stride, conv.dilation, conv.padding) == (theirs.stride, theirs.dilation, theirs.padding), name


NAMES = (
    "resnet18",
    "densenet121",
    "vgg11_bn",
    "convnext_tiny",
    "regnet_x_400mf",
    "timm:resnet26d",
    "timm:convnext_atto",
)


@pytest.mark.parametrize("name", NAMES)
def test_every_other_cell_is_the_undilated_map(name):
    plain = build_backbone(name, 2).double().eval()
    dilated = build_backbone(name, 2, output_stride=8).double().eval()
    dilated.load_state_dict(plain.state_dict())
    images = torch.rand(1, 2, 128, 96, dtype=torch.float64)
    with torch.no_grad():
        coarse, fine = plain(images), dilated(images)
    assert dilated.channels == plain.channels and dilated.strides == [min(8, s) for s in plain.strides]
    for before, after, stride in zip(coarse, fine, plain.strides):
        step = max(1, stride // 8)
        torch.testing.assert_close(after[..., ::step, ::step], before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0", "timm:mobilenetv3_small_050"])
def test_sizes_and_gradients(name):
    backbone = build_backbone(name, 4, output_stride=16).train()
    features = backbone(torch.rand(2, 4, 64, 96))
    assert backbone.strides == [2, 4, 8, 16, 16]
    sizes = [(c, 64 // s, 96 // s) for c, s in zip(backbone.channels, backbone.strides)]
    assert [tuple(feature.shape[1:]) for feature in features] == sizes
    features[-1].sum().backward()
    assert all(p.grad is not None for p in backbone.parameters())


def test_the_seed_and_the_statistics_stay():
    torch.manual_seed(1)
    plain = build_backbone("resnet18", 3)
    torch.manual_seed(1)
    dilated = build_backbone("resnet18", 3, output_stride=8)
    assert dilated.training and all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), dilated.state_dict().values())
    )


def test_others_are_refused():
    with pytest.raises(ValueError, match="cannot be dilated to stride 16"):
        build_backbone("timm:hrnet_w18_small", 3, output_stride=16)
