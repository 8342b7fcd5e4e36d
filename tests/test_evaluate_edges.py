"""evaluate measures edges with the tolerance that the model was trained for, unless another one is given."""

import json

import numpy as np
import pytest
import rasterio
import torch

from accel_geo import HEDEdgeDetector, prepare_data
from accel_geo.__main__ import main

READING = {"valid_match": "*[01].tif", "cache": "memory"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four chips with noise and lines, and a network that finds edges anywhere."""
    folder, rng = tmp_path_factory.mktemp("edges"), np.random.default_rng(5)
    for i in range(4):
        lines = np.zeros((1, 64, 64), dtype=np.uint8)
        lines[:, 8 + i :: 20] = 1
        for name, pixels in (("images", rng.integers(0, 255, (3, 64, 64), dtype=np.uint8)), ("edges", lines)):
            (folder / name).mkdir(exist_ok=True)
            shape = {"count": len(pixels), "height": 64, "width": 64, "dtype": "uint8"}
            with rasterio.open(folder / name / f"{i}.tif", "w", driver="GTiff", **shape) as raster:
                raster.write(pixels)
    data = prepare_data(folder, task="edges", edge_tolerance=1, **READING)
    model = HEDEdgeDetector(data, backbone="resnet18", size="small")
    torch.manual_seed(0)
    for conv in model.side:
        torch.nn.init.normal_(conv.weight)
    model.save(folder / "model")
    return folder


def evaluated(capsys, folder, *options: str) -> dict:
    reading = ["--data", str(folder), "--valid-match", READING["valid_match"], "--cache", READING["cache"]]
    main(["evaluate", str(folder / "model"), *reading, *options, "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_models_tolerance_or_another(folder, capsys):
    own = evaluated(capsys, folder)
    assert own["support"][0] > 0
    assert own == evaluated(capsys, folder, "--edge-tolerance", "1")
    assert evaluated(capsys, folder, "--edge-tolerance", "6")["ods"] > own["ods"]


def test_a_model_of_before(folder, capsys):
    three = evaluated(capsys, folder, "--edge-tolerance", "3")
    config = json.loads((folder / "model/config.json").read_text())
    assert config["spec"].pop("edge_tolerance") == 1
    (folder / "model/config.json").write_text(json.dumps(config))
    assert evaluated(capsys, folder) == three
