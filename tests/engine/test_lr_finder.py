"""The learning-rate finder: one answer on all processes, weights as they were."""

import math

import pytest
from parallel.compare import figure_differences

from accel_geo.engine.lr_finder import suggest

ROWS = ("FeatureClassifier", *(pytest.param(row, marks=pytest.mark.slow) for row in ("UnetClassifier", "MaskRCNN")))


@pytest.mark.parametrize("row", ROWS)
def test_one_answer_on_any_process_count(worlds, chips, row):
    options = {"row": row, "data": chips(row), "batch_size": 6}
    (alone,), several = worlds[1].run("lr_find", **options), worlds[2].run("lr_find", **options)
    assert 1e-6 < alone["lr"] < 1 and len(alone["curve"]) > 20
    for each in several:
        assert each["lr"] == alone["lr"] and each["untouched"] and alone["untouched"]
        assert figure_differences(alone["curve"], each["curve"], 1e-4) == [], "chaos grows with the rate"
        assert figure_differences(alone["curve"][:10], each["curve"][:10], 1e-9) == []


def curve(losses: list[float]) -> list[tuple[float, float]]:
    return [(10.0 ** (i - 8), loss) for i, loss in enumerate(losses)]


def test_the_steepest_descent_is_suggested():
    assert suggest(curve([1.0, 1.0, 1.0, 0.9, 0.5, 0.3, 0.29, 0.3])) == 1e-4
    assert suggest(curve([1.0, 1.0])) == 1e-8, "too short a curve: the lowest rate"
    tie = curve([2.0, 1.8, 1.6, 1.4, 1.2, 1.0 + 1e-12])
    assert suggest(tie) == 1e-6, "what rounding could decide goes to the lower rate"
    assert math.isfinite(suggest(curve([3.0] * 9)))
