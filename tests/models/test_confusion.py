"""The confusion matrix of the rows that give a class to each pixel; that of chips: test_feature_classifier.py."""

import pytest

from accel_geo import MaskRCNN, UnetClassifier, prepare_data


def test_pixels(tmp_path):
    from parallel.chips import write_chips

    path = write_chips(tmp_path / "set", "semantic", 6)
    data = prepare_data(path, task="semantic", cache="memory", val_split=0.5)
    model = UnetClassifier(data, backbone="resnet18", size="small")
    (axes,) = model.plot_confusion_matrix(tmp_path / "confusion.png").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["background", *data.spec.classes]
    assert (tmp_path / "confusion.png").stat().st_size > 3000
    model.data = prepare_data(path, task="semantic", cache="memory", val_split=0)
    with pytest.raises(ValueError, match="plot_confusion_matrix draws validation chips, and there are none"):
        model.plot_confusion_matrix()
    assert not hasattr(MaskRCNN, "plot_confusion_matrix")
