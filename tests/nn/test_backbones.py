import pytest
import torch
from torchvision.models import regnet

from accel_geo.nn.backbones import build_backbone, extend_stem, pad_to_multiple, pretrained_state, torchvision_names

NAMES = (
    "resnet18",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "vgg11_bn",
    "densenet121",
    "efficientnet_b0",
    "convnext_tiny",
)


@pytest.mark.parametrize(
    "name", [*NAMES, "regnet_x_400mf", "timm:resnet10t", "timm:convnext_atto", "mobilenetv3_small_050"]
)
def test_pyramid(name):
    backbone = build_backbone(name, 2).train()
    features = backbone(torch.rand(2, 2, 64, 96))
    assert [f.shape[1:] for f in features] == [
        (c, 64 // s, 96 // s) for c, s in zip(backbone.channels, backbone.strides)
    ]
    assert backbone.strides[-1] == 32 and backbone.get_submodule(backbone.input_convs[0]).in_channels == 2
    sum(feature.sum() for feature in features).backward()
    assert all(p.grad is not None for p in backbone.parameters())


def test_torchvision_is_preferred():
    assert build_backbone("resnet18", 3).source == "torchvision"
    assert build_backbone("timm:resnet18", 3).source == "timm"
    assert "vit_b_16" not in torchvision_names() and len(torchvision_names()) > 50


def test_features_are_torchvisions():
    import torchvision

    network = torchvision.models.densenet121(weights=None).eval()
    backbone = build_backbone("densenet121", 3).eval()
    backbone.load_state_dict({k: v for k, v in network.state_dict().items() if k.startswith("features.")})
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(backbone(images)[-1], network.features(images).relu())


def test_a_function_of_the_input_alone():
    backbone = build_backbone("efficientnet_b0", 3).train()
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(backbone(images)[-1], backbone(images)[-1])


@pytest.mark.parametrize("name", ["resnet18", "timm:mobilenetv3_small_050", "timm:hrnet_w18_small", "timm:dla34"])
def test_coarse_levels_can_be_left_out(name):
    backbone = build_backbone(name, 3, max_stride=8)
    assert backbone.strides[-3:] == [2, 4, 8]
    features = backbone(torch.rand(1, 3, 64, 64))
    sum(feature.sum() for feature in features).backward()
    assert len(features) == len(backbone.strides) and all(p.grad is not None for p in backbone.parameters())


# A network of each convolutional family of timm that has small ones; several see the image by more than one convolution.
FAMILIES = {
    "timm:repvgg_a0": 2,
    "timm:mobileone_s0": 2,
    "timm:fastvit_t8": 2,
    "timm:mobilenetv3_small_050": 1,
    "timm:efficientnet_lite0": 1,
    "timm:regnetx_002": 1,
    "timm:dla34": 1,
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bands", [1, 8])
def test_every_convolution_that_sees_the_image_takes_its_bands(name, bands):
    backbone = build_backbone(name, bands)
    assert [backbone.get_submodule(conv).in_channels for conv in backbone.input_convs] == [bands] * FAMILIES[name]
    features = backbone(torch.rand(2, bands, 64, 96))
    assert [f.shape[1:] for f in features] == [
        (c, 64 // s, 96 // s) for c, s in zip(backbone.channels, backbone.strides)
    ]
    assert backbone.strides[-1] == 32
    sum(feature.sum() for feature in features).backward()
    assert all(p.grad is not None for p in backbone.parameters())


@pytest.mark.slow
def test_all_of_torchvisions_take_any_bands(monkeypatch):
    """By their shapes alone, without memory for the weights."""
    widths = regnet.BlockParams.from_init_params

    def on_the_cpu(*args, **kwargs):  # it reads the numbers that it computes
        with torch.device("cpu"):
            return widths(*args, **kwargs)

    monkeypatch.setattr(regnet.BlockParams, "from_init_params", on_the_cpu)
    names = torchvision_names()
    assert len(names) > 50
    for name in names:
        with torch.device("meta"):
            backbone = build_backbone(name, 4)
            features = backbone(torch.rand(2, 4, 64, 96))
        assert [f.shape[1:] for f in features] == [
            (c, 64 // s, 96 // s) for c, s in zip(backbone.channels, backbone.strides)
        ], name
        assert backbone.strides[-1] == 32


def test_without_a_level_that_is_fine_enough():
    with pytest.raises(ValueError, match="shvit_s1 has feature maps of strides 16, 32, 64, none of 8 or less"):
        build_backbone("timm:shvit_s1", 3, max_stride=8)


def test_unknown_names_list_close_ones():
    with pytest.raises(ValueError, match="no backbone is called 'resnet43'.*resnet34"):
        build_backbone("resnet43", 3)
    with pytest.raises(ValueError, match="no backbone is called 'timm:resnet1o'.*resnet18"):
        build_backbone("timm:resnet1o", 3)


@pytest.mark.parametrize(
    "name, says",
    [
        ("vit_tiny_patch16_224", "no feature pyramid"),
        ("swin_tiny_patch4_window7_224", "no feature pyramid for 3 bands and any image size.*doesn't match"),
        ("mambaout_femto", "not .B, C, H / stride, W / stride"),  # its channels come last
        ("xcit_nano_12_p8_224", "not .B, C, H / stride, W / stride"),  # all levels of one stride
    ],
)
def test_networks_without_a_pyramid_are_refused(name, says):
    with pytest.raises(ValueError, match=f"{says}.*take a convolutional network"):
        build_backbone(name, 3)


@pytest.mark.parametrize("name, file", [("resnet18", "resnet18-"), ("timm:resnet10t", "hub repository timm/resnet10t")])
def test_without_a_network_the_file_is_named(monkeypatch, tmp_path, name, file):
    import timm.models._builder
    import torchvision.models._api

    def unreachable(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.models._api, "load_state_dict_from_url", unreachable)
    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", unreachable)
    with pytest.raises(FileNotFoundError, match=f"{file}.*--weights PATH"):
        pretrained_state(name)


def test_stem_rule():
    weight = torch.randn(4, 3, 3, 3)
    red, green, blue = weight.unbind(1)
    mean = weight.mean(1)
    assert torch.equal(extend_stem(weight, ("red", "green", "blue")), weight)
    assert torch.equal(extend_stem(weight, ("b1", "b2", "b3")), weight)
    assert torch.equal(extend_stem(weight, ("Blue", "Green", "Red")), torch.stack([blue, green, red], 1))
    four = extend_stem(weight, ("red", "green", "blue", "nir"))
    assert torch.allclose(four, torch.stack([red, green, blue, mean], 1) * 3 / 4)
    assert torch.allclose(extend_stem(weight, ("pan",)), weight.sum(1, keepdim=True))
    # one grey image gives the same response, whatever the bands
    assert torch.allclose(extend_stem(weight, tuple("abcdefgh")).sum(1), weight.sum(1), atol=1e-6)
    own = extend_stem(weight, ("nir", "red"), ("red", "nir", "swir"))
    assert torch.allclose(own, torch.stack([weight[:, 1], weight[:, 0]], 1) * 1.5)


def test_padding():
    padded = pad_to_multiple(torch.ones(1, 1, 33, 64), 32)
    assert padded.shape == (1, 1, 64, 64) and padded.sum() == 33 * 64
