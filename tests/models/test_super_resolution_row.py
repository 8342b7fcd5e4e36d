import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from accel_geo.data.chips import padded
from accel_geo.data.spec import DataSpec
from accel_geo.models.super_resolution import SuperResolution
from accel_geo.nn.super_resolution import (
    PerceptualLoss,
    ResidualBlock,
    ResidualTrunk,
    Upsampler,
    clear_padding,
    enlarge,
)
from accel_geo.tasks import TASKS
from accel_geo.tasks.super_resolution import bicubic

SMALL = {
    "edsr": {"architecture": "edsr", "size": "small", "res_blocks": 2},
    "unet": {"backbone": "resnet18", "size": "small"},
    "sr3": {
        "architecture": "sr3",
        "size": "small",
        "inner_channel": 8,
        "channel_mults": [1, 2, 2],
        "n_timestep_inference": 2,
    },
}
ALL = pytest.mark.parametrize("name", SMALL)


@pytest.fixture
def spec():
    def make(bands=3, scale=2, task="super_resolution"):
        names = ("red", "green", "blue", "nir", "swir1", "swir2", "thermal", "height")[:bands]
        values = {"low": 0.0, "high": 255.0, "mean": 0.4, "std": 0.2}
        return DataSpec(
            task=task,
            classes=(),
            class_values=(),
            bands=("pan",) if bands == 1 else names,
            dtype="uint8",
            chip_size=(64, 64),
            scale=scale,
            **{key: (value,) * bands for key, value in values.items()},
        )

    return make


@pytest.fixture
def build(spec):
    def make(name, bands=3, scale=2, **arguments):
        return SuperResolution(spec(bands, scale), **{**SMALL[name], **arguments})

    return make


def chip(number, size, bands=3, scale=2, ignore=False, holes=0.1, blobs=5):
    """A sample as the data give it: smooth blobs, sharp edges in places, a part without data."""
    draw = torch.Generator().manual_seed(number)
    height, width = (scale * side for side in size)
    sharp = F.interpolate(torch.rand(1, bands, blobs, blobs, generator=draw), (height, width), mode="bilinear")[0]
    sharp[:, height // 3 : height // 2, : width // 2] = torch.rand(bands, 1, 1, generator=draw)
    hidden = torch.rand(height, width, generator=draw) < (1.1 if ignore else holes)
    sharp = sharp.masked_fill(hidden, 0)
    about = {"image_id": number, "key": 1000 + number, "size": tuple(size), "ignore": ignore}
    return {"image": F.avg_pool2d(sharp, scale), "image_hr": sharp, "ignored_hr": hidden} | about


def batch(sizes, start=0, dtype=torch.float32, **arguments):
    size = tuple(map(max, zip(*sizes)))
    samples = [padded(chip(start + i, s, **arguments), size) for i, s in enumerate(sizes)]
    for sample in samples:
        sample |= {key: sample[key].to(dtype) for key in ("image", "image_hr")}
    return torch.stack([sample.pop("image") for sample in samples]), samples


def mean(losses):
    return sum(loss.total / max(float(loss.count), 1.0) for loss in losses.values())


def steps(model, images, targets, count=3, lr=1e-2):
    """Take a few steps, after which no part of the network gives zero any more."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number in range(count):
        optimizer.zero_grad()
        for target in targets:
            target["key"] += number * 10**6
        mean(model.train()(images, targets)).backward()
        optimizer.step()
    return model


# The contract --------------------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("bands, size, scale", [(1, (64, 64), 4), (3, (96, 160), 2), (8, (97, 131), 3)])
def test_trains_and_predicts(build, name, bands, size, scale):
    size = tuple(side // 3 for side in size) if name == "sr3" else size
    model = build(name, bands, scale)
    images, targets = batch([size] * 2, bands=bands, scale=scale)
    losses = model.train()(images, targets)
    assert set(losses) == ({"noise"} if name == "sr3" else {"l1"})
    mean(losses).backward()
    assert all(loss.total.isfinite() and loss.total > 0 for loss in losses.values())
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    with torch.no_grad():
        found = model.eval()(images)
    for prediction in found:
        assert prediction["image_hr"].shape == (bands, *(scale * side for side in size))
        assert prediction["image_hr"].dtype == torch.float32 and prediction["image_hr"].isfinite().all()


@ALL
def test_mixed_sizes_in_float64(build, name):
    model = build(name).double()
    images, targets = batch([(16, 16), (23, 31), (24, 15)], dtype=torch.float64)
    losses = model.train()(images, targets)
    mean(losses).backward()
    assert all(loss.total.dtype == torch.float64 for loss in losses.values())
    valid = sum(int((~target["ignored_hr"]).sum()) for target in targets)
    assert {k: float(loss.count) for k, loss in losses.items()} == dict.fromkeys(losses, 3.0 * valid)
    assert model.loss_counts(targets) == {k: float(loss.count) for k, loss in losses.items()}
    assert model.eval()(images)[0]["image_hr"].dtype == torch.float64


@ALL
def test_only_ignored_pixels(build, name):
    model = build(name)
    images, targets = batch([(16, 16)] * 2, ignore=True)
    losses = model.train()(images, targets)
    assert all(loss.total.item() == 0 and float(loss.count) == 0 for loss in losses.values())
    mean(losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@ALL
def test_halves_add_up(build, name):
    """Totals and counts of two halves are those of the whole batch, as if on two processes."""
    sizes = [(17, 21), (16, 16), (21, 21), (24, 24)]
    images, targets = batch(sizes, dtype=torch.float64)
    targets[3]["ignored_hr"][:] = True
    model = steps(build(name).double(), images, targets).train()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    whole = model(images, targets)
    halves = [model(images[part], targets[part]) for part in (slice(0, 1), slice(1, 4))]
    for term, loss in whole.items():
        assert float(loss.count) == sum(float(half[term].count) for half in halves) > 0
        assert loss.total.item() == pytest.approx(sum(half[term].total.item() for half in halves), rel=1e-12)


@ALL
def test_forward_draws_nothing_from_global_generators(build, name):
    model = build(name)
    images, targets = batch([(16, 16)] * 2)
    state = torch.get_rng_state()
    first, made = model.train()(images, targets), model.eval()(images)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second, again = model.train()(images, targets), model.eval()(images)
    assert all(torch.equal(first[term].total, second[term].total) for term in first)
    assert name == "unet" or torch.equal(made[0]["image_hr"], again[0]["image_hr"])  # batch statistics went on


def test_saved_and_loaded_in_another_process(build, tmp_path):
    images, targets = batch([(16, 20)] * 2)
    expected = {}
    for name in SMALL:
        model = steps(build(name), images, targets).eval()
        with torch.no_grad():
            expected[name] = torch.stack([prediction["image_hr"] for prediction in model(images)])
        assert (expected[name] - enlarge(images, 2)).abs().max() > 1e-5
        model.save(tmp_path / name)
    save_file({"images": images}, tmp_path / "images.safetensors")
    code = f"""
import torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from accel_geo.models import MODELS, from_model
MODELS["SuperResolution"] = "accel_geo.models.super_resolution"
torch.set_num_threads(1)
folder = Path({str(tmp_path)!r})
images, made = load_file(folder / "images.safetensors")["images"], {{}}
with torch.no_grad():
    for name in {[*SMALL]}:
        made[name] = torch.stack([found["image_hr"] for found in from_model(folder / name)(images)])
save_file(made, folder / "made.safetensors")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    made = load_file(tmp_path / "made.safetensors")
    assert all(torch.allclose(made[name], expected[name], atol=1e-6) for name in SMALL)


@pytest.mark.parametrize("name", ["edsr", "unet"])
def test_freeze_and_unfreeze(build, name):
    images, targets = batch([(16, 16)] * 2)
    model = steps(build(name), images, targets)
    model.zero_grad()
    model.freeze()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in model.named_parameters() if n.startswith("backbone.")}
    mean(model.train()(images, targets)).backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
    model.unfreeze()
    assert all(p.requires_grad for p in model.parameters())


def test_diffusion_has_no_backbone_to_freeze(build):
    with pytest.raises(ValueError, match="no backbone to freeze"):
        build("sr3").freeze()


@ALL
def test_bfloat16_autocast(build, name):
    model = build(name)
    images, targets = batch([(16, 24)] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        losses = model.train()(images, targets)
        mean(losses).backward()
        with torch.no_grad():
            found = model.eval()(images)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert all(prediction["image_hr"].isfinite().all() for prediction in found)
    exact = build(name).train()(images, targets)
    assert mean(losses).item() == pytest.approx(mean(exact).item(), rel=0.02)


@ALL
def test_arguments_rebuild_the_network(build, name):
    first = build(name)
    arguments = json.loads(json.dumps(first.arguments))
    second = SuperResolution(first.spec, **arguments)
    assert second.arguments == arguments
    second.load_state_dict(first.state_dict())


def test_names_of_arcgis_learn(spec):
    assert SuperResolution(spec(), size="small").architecture == "edsr"
    assert SuperResolution(spec(), backbone="resnet18", size="small").architecture == "unet"
    model = SuperResolution(spec(), backbone="SR3", inner_channel=8, channel_mults=[1, 2], attn_res=16, res_blocks=1)
    assert model.architecture == "sr3" and len(model.shares) == 1001
    assert SuperResolution(spec(), **model.arguments).architecture == "sr3"


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"architecture": "srgan"}, "edsr, unet, sr3"),
        ({"architecture": "edsr", "backbone": "resnet18"}, "architecture='unet'"),
        ({"backbone": "resnet43"}, "resnet34"),
        ({"size": "tiny"}, "'full' or 'small'"),
        ({"res_blocks": 0}, "at least 1"),
        ({"architecture": "sr3", "dropout": 1.0}, "dropout"),
        ({"architecture": "sr3", "schedule": "warmup"}, "linear, cosine"),
        ({"architecture": "sr3", "sampling_type": "euler"}, "ddim, ddpm"),
        ({"architecture": "sr3", "perceptual_weights": "vgg16.pth"}, "learns noise"),
    ],
)
def test_wrong_arguments_are_refused(spec, arguments, says):
    with pytest.raises(ValueError, match=says):
        SuperResolution(spec(), **{"size": "small", **arguments})


def test_data_of_another_task_are_refused(spec):
    with pytest.raises(ValueError, match="does super_resolution, but the data are for edges"):
        SuperResolution(spec(task="edges"), size="small")


# What it computes ----------------------------------------------------------------------------------------------------


def test_pixel_shuffle_and_blocks_are_the_papers():
    torch.manual_seed(0)
    block, x = ResidualBlock(5, 0.1).double(), torch.rand(2, 5, 7, 6, dtype=torch.float64)
    first, _, second = block.body
    reference = x + 0.1 * F.conv2d(
        F.conv2d(x, first.weight, first.bias, padding=1).clamp(min=0), second.weight, second.bias, padding=1
    )
    assert torch.allclose(block(x), reference, atol=1e-12)
    trunk = ResidualTrunk(3, 6, 2).double()
    image = torch.rand(1, 3, 7, 6, dtype=torch.float64)
    head = trunk.head(image)
    body = trunk.body[2](trunk.body[1](trunk.body[0](head)))
    assert torch.allclose(trunk(image), head + body, atol=1e-12)
    for scale in (2, 3):
        upsampler = Upsampler(5, 3, scale).double()
        torch.nn.init.normal_(upsampler[-1].weight)
        many = upsampler[0](x)
        fine = torch.zeros(2, 5, scale * 7, scale * 6, dtype=torch.float64)
        for channel in range(5):
            for row in range(scale):
                for column in range(scale):
                    fine[:, channel, row::scale, column::scale] = many[:, channel * scale**2 + row * scale + column]
        assert torch.allclose(upsampler(x), upsampler[-1](fine), atol=1e-12)


def test_wide_trunks_are_damped():
    assert ResidualTrunk(3, 256, 1).body[0].damping == 0.1 and ResidualTrunk(3, 64, 1).body[0].damping == 1


@pytest.mark.parametrize("scale", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", ["edsr", "unet"])
def test_an_untrained_network_gives_bicubic(build, name, scale):
    model = build(name, scale=scale).double().eval()
    images, _ = batch([(15, 22)] * 2, scale=scale)
    made = model(images.double())
    for image, prediction in zip(images.double(), made):
        assert np.abs(prediction["image_hr"].detach().numpy() - bicubic(image.numpy(), scale)).max() < 1e-6


def test_ignored_pixels_count_nothing(build):
    images, targets = batch([(16, 16)] * 2)
    model = steps(build("edsr"), images, targets).train()
    before = model(images, targets)["l1"]
    for target in targets:
        target["image_hr"] = target["image_hr"].masked_fill(target["ignored_hr"], 7.0)
    after = model(images, targets)["l1"]
    assert torch.equal(before.total, after.total) and torch.equal(before.count, after.count)
    made = torch.stack([p["image_hr"] for p in model.eval()(images)])
    difference = sum(
        ((m - t["image_hr"]).abs() * ~t["ignored_hr"] / model.pixel_std).sum() for m, t in zip(made, targets)
    )
    assert before.total.item() == pytest.approx(difference.item(), rel=1e-5)


def test_an_untrained_networks_loss_knows_no_padding(build):
    images, targets = batch([(24, 20)])
    wide = padded({"image": images[0], **targets[0]}, (40, 36))
    model = build("edsr").train()
    plain, much = model(images, targets)["l1"], model(wide.pop("image")[None], [wide])["l1"]
    assert plain.count == much.count and torch.allclose(plain.total, much.total, rtol=1e-6)


def test_padding_is_cleared():
    images = torch.arange(2 * 1 * 3 * 4.0).view(2, 1, 3, 4)
    cleared = clear_padding(images, [(3, 4), (2, 1)])
    assert torch.equal(cleared[0], images[0])
    assert cleared[1, 0].tolist() == [[12.0, 0, 0, 0], [16.0, 0, 0, 0], [0.0] * 4]


def vgg_file(path, change=None):
    draw = torch.Generator().manual_seed(3)
    tensors, inputs = {}, 3
    for place, outputs in ((0, 64), (2, 64), (5, 128), (7, 128), (10, 256), (12, 256), (14, 256)):
        tensors[f"features.{place}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=draw) / (3 * inputs**0.5)
        tensors[f"features.{place}.bias"] = torch.randn(outputs, generator=draw) / 10
        inputs = outputs
    save_file(tensors | (change or {}), path)
    return str(path)


def test_perceptual_loss_is_that_of_torchvisions_vgg(tmp_path):
    import torchvision

    vgg = torchvision.models.vgg16(weights=None).features[:16].double()
    file = tmp_path / "vgg16.safetensors"
    save_file({f"features.{n}": t.contiguous() for n, t in vgg.state_dict().items()}, file)
    loss = PerceptualLoss(file, ("red", "green", "blue")).double()
    made, truth = torch.rand(2, 2, 3, 32, 40, dtype=torch.float64)
    found = loss(made, truth, torch.zeros(2, 32, 40, dtype=torch.bool))
    terms = [F.mse_loss(vgg[:end](made), vgg[:end](truth)) for end in (4, 9, 16)]
    assert float(found.count) == 2 * 32 * 40
    assert (found.total / found.count).item() == pytest.approx(sum(terms).item() / 3, rel=1e-9)


def test_perceptual_loss_in_training(build, tmp_path):
    model = build("edsr", perceptual_weights=vgg_file(tmp_path / "vgg.safetensors"))
    plain = build("edsr")
    assert model.state_dict().keys() == plain.state_dict().keys() and model.arguments == plain.arguments
    assert len(list(model.parameters())) == len(list(plain.parameters()))
    images, targets = batch([(16, 16), (13, 15)])
    losses = model.train()(images, targets)
    assert set(losses) == {"l1", "perceptual"}
    assert model.loss_counts(targets) == {term: float(loss.count) for term, loss in losses.items()}
    losses["perceptual"].total.backward()
    assert model.head[-1].weight.grad.abs().max() > 0
    for target in targets:
        target["image_hr"] = target["image_hr"].masked_fill(target["ignored_hr"], 7.0)
    assert model(images, targets)["perceptual"].total.item() == pytest.approx(
        losses["perceptual"].total.item(), rel=1e-3
    )
    _, ignored = batch([(16, 16)] * 2, ignore=True)
    assert model(images, ignored)["perceptual"].total.item() == 0
    assert model.double().train()(images.double(), targets)["perceptual"].total.dtype == torch.float64


def test_perceptual_loss_of_any_bands_and_bad_files(tmp_path):
    file = vgg_file(tmp_path / "vgg.safetensors")
    loss = PerceptualLoss(file, ("red", "green", "blue", "nir"))
    assert loss.weight0.shape == (64, 4, 3, 3)
    assert torch.allclose(loss.weight0[:, :3] * 4 / 3, PerceptualLoss(file, ("red", "green", "blue")).weight0)
    with pytest.raises(FileNotFoundError, match="vgg16"):
        PerceptualLoss(tmp_path / "nothing.pth", ("red",))
    bad = vgg_file(tmp_path / "bad.safetensors", {"features.10.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"features\.10\.weight is \[3\].*\[256, 128, 3, 3\]"):
        PerceptualLoss(bad, ("red", "green", "blue"))


def test_perceptual_loss_takes_torchvisions_weights_but_no_edge_detectors(build, tmp_path, monkeypatch):
    file = vgg_file(tmp_path / "vgg.safetensors")
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *args, **kwargs: load_file(file))
    default, loss = PerceptualLoss("default", ("red",)), PerceptualLoss(file, ("red",))
    assert torch.equal(default.weight14, loss.weight14) and default.digest == loss.digest

    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(FileNotFoundError, match=r"vgg16-.*\.pth.*perceptual_weights=PATH.*--perceptual-weights PATH"):
        build("edsr", perceptual_weights="default")
    caffe = vgg_file(tmp_path / "hed.safetensors", {"side.0.weight": torch.zeros(1, 64, 1, 1)})
    with pytest.raises(ValueError, match="hed.safetensors holds a VGG16 inside an edge detector"):
        build("edsr", perceptual_weights=caffe)


def test_a_run_with_another_loss_is_not_resumed(tmp_path):
    from parallel.chips import write_chips

    from accel_geo import prepare_data

    file = vgg_file(tmp_path / "vgg.safetensors")
    other = vgg_file(tmp_path / "other.safetensors", {"features.14.bias": torch.zeros(256)})
    options = {"task": "super_resolution", "cache": "memory", "scale": 2, "batch_size": 2}
    data = prepare_data(write_chips(tmp_path / "set", "super_resolution", 4, size=32), **options)
    run = {"lr": 1e-3, "cpu": True, "threads": 1, "output": tmp_path / "run"}

    def row(**arguments):
        return SuperResolution(data, **SMALL["edsr"], **arguments)

    row(perceptual_weights=file, perceptual_factor=0.2).fit(1, **run)
    stored = json.loads(next((tmp_path / "run/checkpoints").glob("step-*/training.json")).read_text())
    assert stored["training_only"]["perceptual_factor"] == 0.2
    for arguments, text in (
        ({}, "perceptual_factor was 0.2, now None, perceptual_weights was VGG [0-9a-f]+, now None"),
        (
            {"perceptual_weights": other, "perceptual_factor": 0.2},
            "perceptual_weights was VGG [0-9a-f]+, now VGG [0-9a-f]+",
        ),
        ({"perceptual_weights": file}, "perceptual_factor was 0.2, now 0.1"),
    ):
        with pytest.raises(ValueError, match=text):
            row(**arguments).fit(2, **run, resume=True)
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes((tmp_path / "vgg.safetensors").read_bytes())
    history = row(perceptual_weights=str(moved), perceptual_factor=0.2).fit(2, **run, resume=True)
    assert [r["epoch"] for r in history if "loss" in r] == [0, 0, 1, 1]


# Weights -------------------------------------------------------------------------------------------------------------


@ALL
def test_weights_of_a_published_model(build, name, tmp_path, capsys):
    images, targets = batch([(16, 16)] * 2)
    first = steps(build(name), images, targets).eval()
    first.save(tmp_path / "model")
    second = build(name, weights=str(tmp_path / "model")).eval()
    assert "weights:" in capsys.readouterr().out
    assert torch.equal(first(images)[0]["image_hr"], second(images)[0]["image_hr"])


@ALL
def test_weights_for_other_bands(build, name, tmp_path):
    images, targets = batch([(16, 16)] * 2)
    steps(build(name), images, targets).save(tmp_path / "model")
    images, targets = batch([(16, 16)] * 2, bands=4)
    model = build(name, bands=4, weights=str(tmp_path / "model"))
    assert mean(model.train()(images, targets)).isfinite()


def test_another_scale_takes_the_trunk_and_begins_at_bicubic(build, tmp_path):
    images, targets = batch([(16, 16)] * 2)
    first = steps(build("edsr"), images, targets)
    first.save(tmp_path / "model")
    second = build("edsr", scale=3, weights=str(tmp_path / "model")).eval()
    assert torch.equal(first.backbone.head.weight, second.backbone.head.weight)
    assert torch.allclose(second(images)[0]["image_hr"], enlarge(images, 3)[0], atol=1e-6)


def test_no_published_weights(build):
    with pytest.raises(FileNotFoundError, match="weights=PATH"):
        build("edsr", weights="default")


# Diffusion -----------------------------------------------------------------------------------------------------------


def test_noise_is_a_function_of_the_chips_key(build):
    images, targets = batch([(12, 12), (16, 16)])
    model = steps(build("sr3"), images, targets).train()
    loss = model(images, targets)["noise"].total
    swapped = model(images.flip(0), targets[::-1])["noise"].total
    assert loss.item() == pytest.approx(swapped.item(), rel=1e-5)
    targets[0]["key"] += 1
    assert model(images, targets)["noise"].total.item() != pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("sampling", ["ddim", "ddpm"])
def test_a_chips_prediction_is_the_same_in_any_company(build, sampling):
    images, targets = batch([(16, 16)] * 3)
    model = steps(build("sr3", sampling_type=sampling), images, targets).double().eval()
    with torch.no_grad():
        together, alone = model(images.double()), model(images[2:].double())
        other = build("sr3", sampling_type=sampling, sampling_seed=1).double()
        other.load_state_dict(model.state_dict())
        assert not torch.equal(other.eval()(images[2:].double())[0]["image_hr"], alone[0]["image_hr"])
    assert torch.allclose(together[2]["image_hr"], alone[0]["image_hr"], atol=1e-12)
    assert (alone[0]["image_hr"] >= -1e-9).all() and (alone[0]["image_hr"] <= 1 + 1e-9).all()
    single = model.float()(images)[2]["image_hr"]
    assert torch.allclose(single, alone[0]["image_hr"].float(), atol=1e-3)  # the same noise in another precision


def test_sampling_can_be_changed_after_training(build, tmp_path):
    images, targets = batch([(16, 16)] * 2)
    model = steps(build("sr3"), images, targets).eval()
    with torch.no_grad():
        before = model(images)[0]["image_hr"]
        model.set_sampling(sampling_type="ddpm", n_timestep_inference=3)
        after = model(images)[0]["image_hr"]
        again = SuperResolution.from_model(model.save(tmp_path / "model"))
        assert not torch.equal(before, after) and torch.equal(again(images)[0]["image_hr"], after)
    for wrong, allowed in (
        ({"sampling_type": "euler"}, "one of ddim, ddpm"),
        ({"n_timestep_inference": 0}, "at least 1"),
        ({"schedule": "cosine"}, "it takes sampling_type"),
    ):
        with pytest.raises(ValueError, match=allowed):
            model.set_sampling(**wrong)
    with pytest.raises(ValueError, match="architecture='sr3'"):
        build("edsr").set_sampling(sampling_seed=1)


def test_dropout_is_keyed(build):
    images, targets = batch([(16, 16)] * 2)
    model = steps(build("sr3", dropout=0.3), images, targets).train()
    first, second = (model(images, targets)["noise"].total.item() for _ in range(2))
    plain = build("sr3").train()
    plain.load_state_dict(model.state_dict())
    assert first == second != plain(images, targets)["noise"].total.item()


def test_the_noise_loss_falls(build):
    images, targets = batch([(12, 12)] * 4, holes=0.0)
    model = build("sr3", scale=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    values = []
    for step in range(40):
        optimizer.zero_grad()
        loss = mean(model(images, [{**target, "key": target["key"] + 1000 * step} for target in targets]))
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[0] == pytest.approx((2 / torch.pi) ** 0.5, abs=0.02)  # E|noise|: the network begins at zero
    assert sum(values[-10:]) / 10 < 0.85 * values[0]


# Overfitting ---------------------------------------------------------------------------------------------------------


def psnr_of(model, images, targets):
    with torch.no_grad():
        predictions = model.eval()(images)
    task = TASKS["super_resolution"]
    records = [
        task.record(model.spec, prediction, {**target, "image": image}, "chip")
        for image, prediction, target in zip(images, predictions, targets)
    ]
    return task.metrics(model.spec, records)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["edsr", "unet"])
def test_overfits_four_chips(build, name):
    images, targets = batch([(16, 16)] * 4, scale=2, holes=0.02)
    model = build(name, scale=2, **({"res_blocks": 8} if name == "edsr" else {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=1200)
    before = psnr_of(model, images, targets)
    for _ in range(1200):
        optimizer.zero_grad()
        mean(model.train()(images, targets)).backward()
        optimizer.step()
        schedule.step()
    after = psnr_of(model, images, targets)
    assert before["psnr_gain"] == pytest.approx(0, abs=1e-3) and after["psnr"] > 35, after


@pytest.mark.slow
def test_diffusion_overfits_one_chip(build):
    images, targets = batch([(16, 16)], scale=4, holes=0.0, blobs=32)  # finer than the coarse image can show
    model = build("sr3", scale=4, inner_channel=32, n_timestep_inference=25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=300)
    values = []
    for step in range(300):
        optimizer.zero_grad()
        many = [{**targets[0], "key": 4 * step + i} for i in range(4)]
        loss = mean(model.train()(images.expand(4, -1, -1, -1), many))
        loss.backward()
        optimizer.step()
        schedule.step()
        values.append(loss.item())
    metrics = psnr_of(model, images, targets)
    assert sum(values[-20:]) < 0.4 * sum(values[:20]) and metrics["psnr_gain"] > 1, metrics
