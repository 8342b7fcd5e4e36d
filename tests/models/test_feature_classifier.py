from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from accel_geo import FeatureClassifier, prepare_data
from accel_geo.models.feature_classifier import _average, balanced_weights


def test_padding_is_left_out_of_the_average():
    features = torch.arange(2 * 3 * 4 * 5, dtype=torch.float64).view(2, 3, 4, 5)
    average = _average(features, [(128, 160), (65, 32)], 32)
    assert torch.allclose(average[0], features[0].mean((1, 2)))
    assert torch.allclose(average[1], features[1, :, :3, :1].mean((1, 2)))


def test_several_labels(networks):
    model = networks.build("FeatureClassifier", changes={"multilabel": True})
    pairs = [networks.sample("FeatureClassifier", i, (64, 64), (64, 64), multilabel=True) for i in range(4)]
    pairs[2][1]["ignore"] = True
    images, targets = networks.batch_of(pairs)
    loss = model.train()(images, targets)["binary_cross_entropy"]
    assert float(loss.count) == 12 == model.loss_counts(targets)["binary_cross_entropy"]
    rest = model(*networks.batch_of(pairs[:2] + pairs[3:]))["binary_cross_entropy"]
    assert float(rest.count) == 12 and loss.total.isfinite()
    with torch.no_grad():
        scores = model.eval()(images)[0]["scores"]
    assert scores.shape == (4,) and ((scores > 0) & (scores < 1)).all()


@pytest.mark.parametrize("backbone, head", [("resnet18", "fc"), ("mobilenet_v2", "classifier.1")])
@pytest.mark.parametrize("multilabel", [False, True])
def test_logits_and_losses_are_torchvisions(networks, backbone, head, multilabel):
    """Both in training, with batch statistics, and with those that the step has moved."""
    options = {"backbone": backbone, "size": "full", "changes": {"multilabel": multilabel}}
    model = networks.build("FeatureClassifier", **options).double()
    twin = torchvision.models.get_model(backbone, weights=None, num_classes=4).double().train()
    state = {name.removeprefix("backbone."): tensor for name, tensor in model.state_dict().items()}
    state = {f"{head}{name[4:]}" if name.startswith("head.") else name: tensor for name, tensor in state.items()}
    twin.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("pixel_")})
    for module in twin.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    pairs = [networks.sample("FeatureClassifier", i, (64, 96), (64, 96), multilabel=multilabel) for i in range(3)]
    images, targets = networks.batch_of(pairs)
    (total, count), *rest = model.train()(images.double(), targets).values()
    logits = twin(model.normalize(images.double()))
    if multilabel:
        wanted = F.binary_cross_entropy_with_logits(logits, torch.stack([t["labels"] for t in targets]).double())
    else:
        wanted = F.cross_entropy(logits, torch.tensor([target["label"] for target in targets]))
    assert not rest and (total / count).item() == pytest.approx(wanted.item(), rel=1e-9)
    model.eval(), twin.eval()
    with torch.no_grad():
        mine, other = (
            model._logits(model._features(images.double()), [(64, 96)] * 3),
            twin(model.normalize(images.double())),
        )
        scores = torch.stack([prediction["scores"] for prediction in model(images.double())])
    assert other.std() > 1e-3
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(scores, other.sigmoid() if multilabel else other.softmax(1), rtol=1e-9, atol=1e-12)


def test_small_drops_the_coarsest_stage(networks):
    small, full = networks.build("FeatureClassifier"), networks.build("FeatureClassifier", size="full")
    assert small.backbone.strides[-1] == 16 and full.backbone.strides[-1] == 32
    assert not any(name.startswith("backbone.layer4") for name in small.state_dict())


def test_label_smoothing(networks):
    images, targets = networks.batch("FeatureClassifier", [(64, 64)] * 2)
    plain = networks.build("FeatureClassifier").train()(images, targets)["cross_entropy"].total
    smooth = networks.build("FeatureClassifier", label_smoothing=0.2).train()(images, targets)["cross_entropy"].total
    assert plain.item() != pytest.approx(smooth.item())
    with pytest.raises(ValueError, match="label_smoothing"):
        networks.build("FeatureClassifier", label_smoothing=0.1, changes={"multilabel": True})


def mixed(targets, classes=4):
    """Targets as mixup makes them: label weights, which are 0 where a chip is ignored."""
    draw = torch.Generator().manual_seed(3)
    for target in targets:
        share, weights = float(torch.rand((), generator=draw)), torch.zeros(classes)
        weights[target["label"]] += share
        weights[int(torch.randint(classes, (), generator=draw))] += 1 - share
        target["label_weights"] = weights * (not target["ignore"])
    return targets


@pytest.mark.parametrize("weights", [None, [0.5, 1, 2, 4]])
@pytest.mark.parametrize("blended", [False, True])
def test_counts_are_known_from_the_targets(networks, weights, blended):
    model = networks.build("FeatureClassifier", class_weights=weights).double().train()
    images, targets = networks.batch("FeatureClassifier", [(64, 64)] * 5)
    targets[1] |= {"ignore": True, "label": -1}
    targets = mixed(targets) if blended else targets
    loss = model(images.double(), targets)["cross_entropy"]
    assert model.loss_counts(targets)["cross_entropy"] == pytest.approx(float(loss.count), rel=1e-12)
    if not blended:
        hard = [target["label"] for target in targets if not target["ignore"]]
        assert float(loss.count) == (4 if weights is None else sum(weights[label] for label in hard))
    with torch.autocast("cpu", torch.bfloat16):
        coarse = model.float()(images, targets)["cross_entropy"]
    model.double()
    assert coarse.total.isfinite() and float(coarse.count) == pytest.approx(float(loss.count), rel=1e-6)
    ignored = [{**target, "ignore": True} for target in targets]
    nothing = model(images.double(), ignored)["cross_entropy"]
    nothing.total.backward()
    assert float(nothing.count) == 0 == nothing.total.item() == model.loss_counts(ignored)["cross_entropy"]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_class_weights_are_of_the_training_and_not_published(networks, tmp_path):
    model = networks.build("FeatureClassifier", class_weights=(1, 2, 3, 4), class_balancing=True)
    assert model.arguments["class_weights"] == [1.0, 2.0, 3.0, 4.0] and "class_weights" not in model.state_dict()
    images, targets = networks.batch("FeatureClassifier", [(64, 64)] * 3)
    again = FeatureClassifier.from_model(model.save(tmp_path / "model"))
    assert again.class_weights.tolist() == [1, 2, 3, 4]
    one, other = (m.train()(images, targets)["cross_entropy"] for m in (model, again))
    assert one.total.item() == pytest.approx(other.total.item(), rel=1e-6)
    for wrong in ([1, 2], [1, 2, 3, -1], [1, 2, 3, float("nan")]):
        with pytest.raises(ValueError, match="class_weights"):
            networks.build("FeatureClassifier", class_weights=wrong)


def counted(networks, counts, multilabel=False, times=None, chips=20):
    spec = networks.spec("FeatureClassifier", multilabel=multilabel)
    train = type("Split", (), {"times": times, "parts": [], "__len__": lambda self: chips})()
    return SimpleNamespace(spec=spec, seed=1, train=train, class_counts={"train": {"chips": [0, *counts]}})


def test_balanced_weights(networks):
    counts, labels = [10, 0, 5, 1], np.repeat([0, 2, 3], [10, 5, 1])
    weights = balanced_weights(counted(networks, counts))
    expected = compute_class_weight("balanced", classes=np.array([0, 2, 3]), y=labels)
    assert [weights[i] for i in (0, 2, 3)] == pytest.approx(expected) and weights[1] == 1
    assert balanced_weights(counted(networks, [10, 0, 5, 20], multilabel=True)) == [1, 1, 3, 0]
    model = FeatureClassifier(counted(networks, counts), backbone="resnet18", size="small", class_balancing=True)
    assert model.class_weights.tolist() == pytest.approx(weights)
    with pytest.raises(ValueError, match="oversample and class_balancing"):
        balanced_weights(counted(networks, counts, times=[2] * 20))
    with pytest.raises(ValueError, match="give the data"):
        networks.build("FeatureClassifier", class_balancing=True)


@pytest.mark.parametrize("size", [(64, 64), (97, 131)])
def test_grad_cam_is_the_class_activation_map(networks, size):
    """Before an average and a linear layer the gradient is the layer's weights (Selvaraju et al. 2017, section 3.1)."""
    model = networks.build("FeatureClassifier").double().train()
    images, _ = networks.batch("FeatureClassifier", [size])
    for label in (None, "class 2", 3):
        heat = model.grad_cam(images[0], label)
        assert heat.shape == size and heat.dtype == torch.float32 and model.training
        model.eval()
        with torch.no_grad():
            features = model._features(images.double())
            scores = model(images.double())[0]["scores"]
        model.train()
        chosen = int(scores.argmax()) if label is None else 2  # "class 2" has the value 3
        plain = torch.einsum("c,bchw->bhw", model.head.weight[chosen], features).relu()
        whole = F.interpolate(plain[None], scale_factor=16, mode="bilinear")[0, 0, : size[0], : size[1]]
        expected = whole / whole.max() if whole.max() > 0 else whole
        torch.testing.assert_close(heat, expected.float(), rtol=1e-5, atol=1e-6)
        assert float(heat.max()) in (0, 1)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ValueError, match="no class 'roof'.*class 0"):
        model.grad_cam(images[0], "roof")
    with pytest.raises(ValueError, match=r"\[3, H, W\]"):
        model.grad_cam(images[0, :2])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from parallel.chips import write_chips

    folder = write_chips(tmp_path_factory.mktemp("chips") / "set", "classification", 20)
    data = prepare_data(folder, cache="memory", val_split=0.4, mixup=0.4, oversample=True)
    model = FeatureClassifier(data, backbone="resnet18", size="small")
    model.fit(1, lr=1e-3, cpu=True, max_steps=2, output=folder.parent / "run")
    return model, folder.parent / "run"


def test_pictures(trained, tmp_path):
    model, run = trained
    figures = {
        "hard": model.plot_hard_examples(1, tmp_path / "hard.png"),
        "heat": model.plot_grad_cam(2, tmp_path / "heat.png"),
        "confusion": model.plot_confusion_matrix(tmp_path / "confusion.png"),
    }
    assert {name: len(figure.axes) for name, figure in figures.items()} == {"hard": 4, "heat": 6, "confusion": 1}
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in figures)
    page = (run / "report.html").read_text()
    assert page.count("predicted worst: ") >= 6 and "Confusion of chips" in page


def test_hard_examples_are_those_of_the_highest_loss(trained):
    model, _ = trained
    data, losses = model.data, {}
    for i in range(len(data.valid)):
        sample = data.valid[i]
        losses[sample["image_id"]] = -float(model.predict(sample["image"])["scores"][sample["label"]].log())
    hardest = data.task.hardest(data.spec, model._evaluation("").records, 5)
    assert [losses[i] for i in hardest] == pytest.approx(sorted(losses.values(), reverse=True)[:5], rel=1e-4)


def test_a_run_with_other_mixing_is_not_resumed(trained):
    model, run = trained
    folder = model.data.path
    for changed, text in (({"mixup": 0.2}, "mixup was 0.4, now 0.2"), ({"oversample": False}, "samples an epoch was")):
        options = {"cache": "memory", "val_split": 0.4, "mixup": 0.4, "oversample": True, **changed}
        other = FeatureClassifier(prepare_data(folder, **options), backbone="resnet18", size="small")
        with pytest.raises(ValueError, match=text):
            other.fit(1, lr=1e-3, cpu=True, max_steps=2, output=run, resume=True)


def test_pictures_of_nothing_are_refused(trained):
    model, _ = trained
    for draw in (model.plot_grad_cam, model.plot_hard_examples, model.show_results):
        with pytest.raises(ValueError, match=f"{draw.__name__}: rows=0 must be a whole number of at least 1"):
            draw(0)
    without = prepare_data(model.data.path, cache="memory", val_split=0)
    unvalidated = FeatureClassifier(without, backbone="resnet18", size="small")
    for name in ("plot_grad_cam", "plot_hard_examples", "plot_confusion_matrix", "show_results"):
        with pytest.raises(ValueError, match=f"{name} draws validation chips, and there are none: .*val_split above 0"):
            getattr(unvalidated, name)()


def test_chips_without_labels_are_no_picture(trained, monkeypatch):
    model, _ = trained
    records = [{**record, "truth": None} for record in model._evaluation("").records]
    monkeypatch.setattr(model, "_evaluation", lambda verb: SimpleNamespace(records=records))
    for draw in (model.plot_hard_examples, model.plot_confusion_matrix):
        with pytest.raises(ValueError, match=f"{draw.__name__}: no validation chip can be read and has labels"):
            draw()
