"""`fit(devices=2)` in a script or notebook: the weights of one process, and a model that goes on as usual."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from launching import PYTHON, run
from PIL import Image

SCRIPT = """
import json, sys
import torch
from accel_geo import FeatureClassifier, prepare_data

def main():
    torch.set_num_threads(1)
    data = prepare_data(sys.argv[1], task="classification", batch_size=4, val_split=0.25)
    options = dict(epochs=2, lr=1e-3, dtype="float64", cpu=True, threads=1)
    models = []
    for devices in (None, 2):
        model = FeatureClassifier(data, backbone="resnet18")
        history = model.fit(devices=devices, **options)
        assert history == model.history and model.fits == 1 and model.steps == 6
        models.append(model)
    one, two = ({k: v.clone() for k, v in model.state_dict().items()} for model in models)
    models[1].plot_losses()
    more = models[1].fit(epochs=1, lr=1e-3, dtype="float64", cpu=True, threads=1)
    print(json.dumps({
        "difference": max(float((one[k] - two[k]).abs().max()) for k in one), "names": list(one) == list(two),
        "processes": [[h["machine"]["processes"] for h in m.history if "loss" in h] for m in models],
        "losses": [[h["loss"] for h in m.history if "loss" in h][:6] for m in models],
        "metrics": [m.evaluate()["accuracy"] for m in models], "more": [h["fit"] for h in more if "loss" in h],
    }))
"""
GUARDED = SCRIPT + '\nif __name__ == "__main__":\n    main()\n'


@pytest.fixture
def chips(tmp_path) -> Path:
    generator, folder = np.random.default_rng(0), tmp_path / "chips"
    for number in range(16):
        name = ("field", "forest")[number % 2]
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8) // (1 + number % 2)
        Image.fromarray(pixels).save(folder / "images" / name / f"{number:02d}.png")
    return folder


def script(folder: Path, text: str) -> list[str]:
    (folder / "script.py").write_text(text)
    return [*PYTHON, str(folder / "script.py"), str(folder / "chips")]


@pytest.mark.slow
def test_two_devices_give_the_weights_of_one(tmp_path, chips):
    done = run(script(tmp_path, GUARDED), tmp_path)
    assert done.code == 0, done.errors
    found = json.loads(done.output.splitlines()[-1])
    assert found["names"] and found["difference"] < 1e-9
    assert found["processes"] == [[1] * 6, [2] * 6 + [1] * 3]
    assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-9)
    assert all(0 <= metric <= 1 for metric in found["metrics"]) and found["more"][-3:] == [1, 1, 1]


@pytest.mark.slow
def test_a_script_without_the_guard_is_told(tmp_path, chips):
    text = SCRIPT.replace("(None, 2)", "(2,)") + "\nmain()\n"
    done = run(script(tmp_path, text), tmp_path, seconds=60)
    assert done.code != 0 and 'if __name__ == "__main__":' in done.errors and "torchrun" in done.errors


@pytest.mark.slow
def test_a_failing_worker_is_named(tmp_path, chips):
    text = GUARDED.replace("(None, 2)", "(2,)").replace("epochs=2", "epochs=2, seed=0, accumulate=4")
    done = run(script(tmp_path, text), tmp_path, seconds=60)
    assert done.code != 0 and "of 2 failed" in done.errors and "batch" in done.errors


def test_another_number_than_the_launchers_is_refused(monkeypatch):
    from accel_geo import FeatureClassifier

    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    model = FeatureClassifier.__new__(FeatureClassifier)
    torch.nn.Module.__init__(model)
    with pytest.raises(ValueError, match="rank 0 of 4"):
        model.fit(devices=2)
