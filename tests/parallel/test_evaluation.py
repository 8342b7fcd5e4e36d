"""P5: each chip once, for any number of chips and processes; the same metric and the same predictions."""

import json

import pytest
from parallel.compare import figure_differences
from parallel.fixtures import ROWS

COUNTS = pytest.mark.parametrize(
    "processes", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
MATCH = {1: "chip_007.tif", 5: "chip_00[2-6].tif"}


@COUNTS
@pytest.mark.parametrize("n", [1, 5, 21])
@pytest.mark.parametrize("row", ROWS)
def test_the_same_metric_and_predictions(worlds, chips, started, tmp_path, row, n, processes):
    data = chips(row, valid=MATCH.get(n))
    if n == 21:
        data["valid_path"] = chips(row, "sizes-21")["path"]
    arguments = {"row": row, "data": data, "model": started(row)}
    alone = worlds[1].run("evaluation", **arguments, predictions=str(tmp_path / "1"))[0]
    several = worlds[processes].run("evaluation", **arguments, predictions=str(tmp_path / "n"))
    assert len(alone["ids"]) == n and alone["mine"] == alone["ids"]
    for each in several:
        assert figure_differences(alone["metrics"], each["metrics"], 1e-12) == []
    done = [i for each in several for i in each["mine"]]
    assert sorted(done) == sorted(alone["ids"]), "each chip once"
    assert n < 21 or all(each["mine"] for each in several[:2]), "the work is shared"
    one, other = ((tmp_path / name / "predictions.json").read_text() for name in ("1", "n"))
    assert one == other and [record["image_id"] for record in json.loads(one)] == alone["ids"]
    assert any(value for name, value in alone["metrics"].items() if not isinstance(value, list))


@pytest.mark.parametrize("row", ROWS)
def test_evaluate_and_predict_on_the_main_process_alone(worlds, chips, tmp_path, row):
    data = chips(row)
    kind = "kind_1/" if row == "FeatureClassifier" else ""
    chip = f"{data['path']}/images/{kind}chip_024.tif"
    said = worlds[2].run("main_alone", timeout=60, row=row, data=data, output=str(tmp_path / "run"), chip=chip)
    assert said[1] == {} and said[0]["metrics"] and said[0]["keys"]
    # The world goes on: nobody waits for an answer that never comes.
    assert worlds[2].run("reduction", timeout=60, values=[1.0, 2.0])[1]["total"] == 3.0


def test_undefined_metrics_are_null(worlds, chips, started, tmp_path):
    """A validation split without any object has no average precision."""
    data = chips("MaskRCNN", valid="chip_010.tif")  # an empty chip
    for processes in (1, 2):
        said = worlds[processes].run(
            "evaluation",
            row="MaskRCNN",
            data=data,
            model=started("MaskRCNN"),
            predictions=str(tmp_path / str(processes)),
        )
        assert all(each["metrics"]["map50"] is None for each in said)
