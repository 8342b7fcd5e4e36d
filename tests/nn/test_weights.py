import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from accel_geo.nn.backbones import build_backbone
from accel_geo.nn.weights import CAFFE_MEAN, from_caffe_pixels, load_weights, read_weights


class Network(nn.Module):
    def __init__(self, name="mobilenet_v2", bands=3, classes=4):
        super().__init__()
        self.register_buffer("pixel_mean", torch.zeros(bands))
        self.backbone = build_backbone(name, bands)
        self.decoder = nn.Linear(5, 5)
        self.head = nn.Linear(5, classes)
        self.bands = ("red", "green", "blue", "nir", "swir")[:bands]

    def start(self, weights, classes="abcd", default=None):
        arguments = {"backbone": self.backbone, "heads": ("head.",), "bands": self.bands, "classes": tuple(classes)}
        return load_weights(self, weights, default=default, **arguments)


@pytest.fixture(scope="module")
def features():
    state = torchvision.models.mobilenet_v2(weights=None).state_dict()
    return {name: tensor for name, tensor in state.items() if name.startswith("features.")}


def same(network, features):
    state = network.backbone.state_dict()
    return all(torch.equal(state[name], tensor) for name, tensor in features.items())


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: "module." + name,
        lambda name: "module.model.backbone." + name,
        lambda name: "encoder." + name,
        lambda name: "backbone.body." + name,
        lambda name: name.removeprefix("features."),
        lambda name: "module.encoder." + name.removeprefix("features."),
    ],
)
def test_prefixes_are_tolerated(features, tmp_path, rename, capsys):
    save_file({rename(name): tensor for name, tensor in features.items()}, tmp_path / "w.safetensors")
    network = Network()
    network.start(tmp_path / "w.safetensors")
    assert same(network, features)
    assert "260 of 260" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrap", [lambda state: state, lambda state: {"epoch": 3, "state_dict": state}, lambda state: {"model": state}]
)
def test_torch_files(features, tmp_path, wrap):
    torch.save(wrap(features), tmp_path / "w.pth")
    network = Network()
    network.start(tmp_path / "w.pth")
    assert same(network, features)


def test_whole_classifier_of_the_library(tmp_path):
    state = torchvision.models.mobilenet_v2(weights=None).state_dict()
    torch.save(state, tmp_path / "w.pt")
    network = Network()
    network.start(tmp_path / "w.pt")
    assert same(network, {name: tensor for name, tensor in state.items() if name.startswith("features.")})


def test_timm_names(tmp_path):
    import timm

    network = timm.create_model("convnext_atto", pretrained=False)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    mine = Network("timm:convnext_atto")
    mine.start(tmp_path / "w.safetensors")
    assert torch.equal(
        mine.backbone.state_dict()["stages_0.blocks.0.conv_dw.weight"], network.stages[0].blocks[0].conv_dw.weight
    )


def test_other_bands_follow_the_stem_rule(features, tmp_path):
    save_file(features, tmp_path / "w.safetensors")
    network = Network(bands=5)
    network.start(tmp_path / "w.safetensors")
    stem = features["features.0.0.weight"]
    mine = network.backbone.get_parameter("features.0.0.weight")
    assert torch.allclose(mine[:, :3], stem * 3 / 5) and torch.allclose(mine[:, 3], stem.mean(1) * 3 / 5)


def test_filters_for_caffes_pixels():
    draw = torch.Generator().manual_seed(1)
    filters, bias = (torch.randn(*shape, dtype=torch.float64, generator=draw) for shape in [(5, 3, 3, 3), (5,)])
    pixels = torch.randint(0, 256, (2, 3, 12, 12), generator=draw).double()  # red, green, blue
    bgr = (pixels - torch.tensor(list(CAFFE_MEAN.values()), dtype=torch.float64).view(3, 1, 1)).flip(1)
    wanted = F.conv2d(bgr, filters, bias)
    mean, std = (torch.tensor(v, dtype=torch.float64) for v in ([0.3, 0.5, 0.4], [0.1, 0.2, 0.3]))
    for bands in [("red", "green", "blue"), ("Band_1", "Band_2", "Band_3")]:
        conv = from_caffe_pixels(filters, bias, bands, mean.view(-1, 1, 1), std.view(-1, 1, 1))
        found = F.conv2d((pixels / 255 - mean[:, None, None]) / std[:, None, None], *conv)
        assert torch.allclose(found, wanted)
    # bands in another order: each keeps its own filters and mean
    conv = from_caffe_pixels(filters, bias, ("blue", "red", "green"), mean[[2, 0, 1]], std[[2, 0, 1]])
    found = F.conv2d(((pixels / 255 - mean[:, None, None]) / std[:, None, None])[:, [2, 0, 1]], *conv)
    assert torch.allclose(found, wanted)
    # one grey band answers like the same grey in three
    grey = pixels[:, :1]
    one = from_caffe_pixels(filters, bias, ("pan",), mean[:1], std[:1])
    centre = F.conv2d(grey.expand(-1, 3, -1, -1) - sum(CAFFE_MEAN.values()) / 3, filters, bias)
    assert torch.allclose(F.conv2d((grey / 255 - mean[0]) / std[0], *one), centre)


def test_branches_that_see_the_image_follow_the_stem_rule(tmp_path):
    first, second = Network("timm:repvgg_a0"), Network("timm:repvgg_a0", bands=5)
    save_file(first.backbone.state_dict(), tmp_path / "w.safetensors")
    second.start(tmp_path / "w.safetensors")
    assert set(second.backbone.input_convs) == {"stem.conv_kxk.conv", "stem.conv_1x1.conv"}
    for name in second.backbone.input_convs:
        stem, mine = (network.backbone.get_parameter(f"{name}.weight") for network in (first, second))
        assert torch.allclose(mine[:, :3], stem * 3 / 5) and torch.allclose(mine[:, 3], stem.mean(1) * 3 / 5)


def published(folder, network, classes, bands):
    import json

    folder.mkdir()
    save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"spec": {"classes": list(classes), "bands": bands}}))
    return folder


def test_published_model(tmp_path, capsys):
    first = Network()
    nn.init.normal_(first.pixel_mean)
    folder = published(tmp_path / "model", first, "abcd", ["red", "green", "blue"])
    same_classes, other_names, other_count = Network(), Network(), Network(classes=7)
    own = other_names.head.weight.clone()
    same_classes.start(folder)
    assert torch.equal(same_classes.head.weight, first.head.weight)
    assert torch.equal(same_classes.decoder.weight, first.decoder.weight) and (same_classes.pixel_mean == 0).all()
    assert "new head" not in capsys.readouterr().out
    other_names.start(folder, "abcx")
    assert torch.equal(other_names.head.weight, own) and torch.equal(other_names.decoder.weight, first.decoder.weight)
    assert "new head" in capsys.readouterr().out
    other_count.start(folder / "model.safetensors", "abcdefg")
    assert same(other_count, first.backbone.state_dict()) and torch.equal(
        other_count.decoder.weight, first.decoder.weight
    )
    assert "new head" in capsys.readouterr().out


def test_published_model_of_other_bands(tmp_path):
    first = Network(bands=3)
    folder = published(tmp_path / "model", first, "abcd", ["nir", "red", "swir"])
    second = Network(bands=2)
    second.start(folder)
    stem, mine = (net.backbone.get_parameter("features.0.0.weight") for net in (first, second))
    assert torch.allclose(mine, torch.stack([stem[:, 1], stem.mean(1)], 1) * 1.5)


def test_a_file_of_another_network_is_refused(features, tmp_path):
    save_file(features, tmp_path / "w.safetensors")
    before = Network("resnet18")
    state = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"w.safetensors: 0 of the backbone's 100 tensors.*features.0.0.weight.*bn1.bias"
    ):
        before.start(tmp_path / "w.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in before.state_dict().items())
    # one stage alone is not the network
    save_file({n: t for n, t in features.items() if n.startswith("features.1.")}, tmp_path / "part.safetensors")
    with pytest.raises(ValueError, match="of the backbone's 260"):
        Network().start(tmp_path / "part.safetensors")


def test_wrong_files_are_refused(tmp_path):
    network = Network("resnet18")
    with pytest.raises(FileNotFoundError, match="no such weights file.*holds nothing"):
        network.start(tmp_path / "w.pth")
    with pytest.raises(FileNotFoundError, match="no model.safetensors"):
        network.start(tmp_path)
    cases = {"w.npz": b"x", "cut.safetensors": b"\x10\0\0\0\0\0\0\0{", "cut.pth": b"nothing"}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            network.start(tmp_path / name)
    torch.save({"model": network}, tmp_path / "objects.pth")
    with pytest.raises(ValueError, match="Python objects"):
        read_weights(tmp_path / "objects.pth")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="no state dict"):
        read_weights(tmp_path / "list.pt")


def test_default_takes_the_librarys(features):
    network = Network()
    network.start("default", default=lambda: features)
    assert same(network, features)


@pytest.mark.parametrize("row, task", [("UnetClassifier", "semantic"), ("FeatureClassifier", "classification")])
def test_real_mobilenet(shared, row, task):
    from accel_geo.data.spec import DataSpec
    from accel_geo.models import model_class

    three = {"low": (0.0,) * 3, "high": (255.0,) * 3, "mean": (0.5,) * 3, "std": (0.2,) * 3}
    spec = DataSpec(
        task=task,
        classes=("building",),
        class_values=(1,),
        bands=("red", "green", "blue"),
        dtype="uint8",
        chip_size=(64, 64),
        **three,
    )
    file = shared / "weights" / "mobilenet_v2_imagenet_features.safetensors"
    model = model_class(row)(spec, backbone="mobilenet_v2", weights=str(file))
    assert same(model, read_weights(file))
    assert model.arguments["backbone"] == "mobilenet_v2" and "weights" not in model.arguments
