import pytest
import torch

from accel_geo.models.feature_classifier import _average


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
