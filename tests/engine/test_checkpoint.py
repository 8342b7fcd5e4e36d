"""P3: checkpoints of safetensors and JSON, without rank or pickle, whole or refused."""

import json
import os
import pickletools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from parallel.compare import last_checkpoint
from safetensors.torch import load_file
from torch import nn

from accel_geo.engine import checkpoint as ckpt

STAGE = {"epochs": 1, "max_steps": 2, "lr": 1e-3, "batch_size": 6}
CONFIG = {"class": "Net", "arguments": {}, "spec": {}}
ROWS = ("FeatureClassifier", "UnetClassifier", "MaskRCNN")


@pytest.fixture(scope="module")
def runs(worlds, chips, tmp_path_factory):
    """The run folders of one and of two processes, of each row; whole runs with report and published model."""
    root = tmp_path_factory.mktemp("runs")
    for row in ROWS:
        for processes in (1, 2):
            stage = STAGE | {"output": str(root / row / str(processes)), "ema": 0.5}
            worlds[processes].run("fit", row=row, data=chips(row), stages=[stage], publish=row == "FeatureClassifier")
    return root


@pytest.mark.parametrize("row", ROWS)
def test_same_keys_from_any_process_count(runs, row):
    one, two = (last_checkpoint(runs / row / n) for n in ("1", "2"))
    for name in ("model", "optimizer", "ema"):
        a, b = load_file(one / f"{name}.safetensors"), load_file(two / f"{name}.safetensors")
        assert list(a) == list(b) and len(a) > 10
        assert not [key for key in a if "module." in key or "_orig_mod" in key]
        assert [(t.shape, t.dtype) for t in a.values()] == [(t.shape, t.dtype) for t in b.values()]
    configs = [json.loads((folder / "config.json").read_text()) for folder in (one, two)]
    assert configs[0] == configs[1] and set(configs[0]) == {"class", "arguments", "spec", "versions"}


def test_same_keys_after_compiling_a_submodule(worlds, chips, runs, tmp_path):
    row = "FeatureClassifier"
    for processes in (1, 2):
        stage = STAGE | {"output": str(tmp_path / str(processes)), "ema": 0.5}
        said = worlds[processes].run("fit", row=row, data=chips(row), stages=[stage], compiled=True)
        assert any("_orig_mod" in name for name in said[0]["names"]), "it must have been compiled"
        for name in ("model", "optimizer", "ema"):
            file = f"{name}.safetensors"
            plain, compiled = (
                load_file(last_checkpoint(run) / file) for run in (runs / row / "1", tmp_path / str(processes))
            )
            assert list(plain) == list(compiled)
        model = ckpt.read_folder(last_checkpoint(tmp_path / str(processes)))
        assert len(model.model) > 10


def test_a_process_without_accelerate_opens_it(runs):
    """Plain safetensors and torch; `import accelerate` fails, and accel_geo is not imported."""
    folder = last_checkpoint(runs / "UnetClassifier/2")
    code = f"""
import sys
sys.modules["accelerate"] = None
from pathlib import Path
import json, torch
from safetensors.torch import load_file
folder = Path({str(folder)!r})
total = 0
for file in sorted(folder.glob("*.safetensors")):
    tensors = load_file(file)
    assert tensors and all(isinstance(t, torch.Tensor) and t.device.type == "cpu" for t in tensors.values())
    total += sum(t.numel() for t in tensors.values())
assert json.loads((folder / "config.json").read_text())["class"] == "UnetClassifier"
assert json.loads((folder / "training.json").read_text())["step"] == 2
try:
    import accelerate
except ImportError:
    pass
else:
    raise SystemExit("accelerate was there")
assert not any(name.startswith("accel_geo") for name in sys.modules)
print("numbers", total)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 1_000_000


def test_a_published_model_predicts_without_accelerate(runs, chips):
    data = chips("FeatureClassifier")
    code = f"""
import sys
sys.modules["accelerate"] = None
from accel_geo import FeatureClassifier
model = FeatureClassifier.from_model({str(runs / "FeatureClassifier/2/model")!r})
print(model.predict({data["path"]!r} + "/images/kind_1/chip_000.tif")["scores"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout.splitlines()[-1])) == pytest.approx(1, abs=1e-5)


def test_no_pickle_in_a_run_folder(runs):
    files = [file for file in runs.rglob("*") if file.is_file() and not file.is_symlink()]
    names = {file.name for file in files}
    assert {
        "history.jsonl",
        "log.txt",
        "predictions.json",
        "report.html",
        "training.json",
        "optimizer.safetensors",
    } <= names
    assert {file.suffix for file in files} <= {".safetensors", ".json", ".jsonl", ".txt", ".html"}
    for file in files:
        head = file.read_bytes()[:4096]
        assert head[:2] != b"PK" and not (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"), file
        with pytest.raises(ValueError):
            list(pickletools.genops(file.read_bytes()))


def checkpoint_of(module: nn.Module) -> ckpt.Checkpoint:
    return ckpt.Checkpoint(
        model=ckpt.module_state(module), config=CONFIG, optimizer={"a": torch.ones(2)}, training={"step": 1}
    )


class Tied(nn.Module):
    """Two names of one parameter, and a parameter that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.across = nn.Parameter(torch.arange(6.0).view(2, 3).t())
        self.picture = nn.Parameter(torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last))


def test_tied_and_non_contiguous_parameters(tmp_path):
    net, other = Tied(), Tied()
    assert not net.across.is_contiguous() and not net.picture.is_contiguous()
    ckpt.write_folder(tmp_path / "step-1", checkpoint_of(net))
    stored = ckpt.read_folder(tmp_path / "step-1").model
    assert set(stored) == set(net.state_dict()) and stored["across"].equal(net.across)
    ckpt.load_module_state(other, stored, "test")
    assert all(a.equal(b) for a, b in zip(net.state_dict().values(), other.state_dict().values()))
    assert other.first.weight is other.second.weight and other.across.stride() == net.across.stride()


def test_tied_parameters_train_and_resume_by_name():
    from accel_geo.engine.optimizers import adamw, build_optimizer, load_optimizer_state, optimizer_state

    net, other = Tied(), Tied()
    other.load_state_dict(net.state_dict())
    first, second = (build_optimizer(n, adamw, 1e-2) for n in (net, other))

    def step(n, optimizer):
        optimizer.zero_grad()
        (n.second(n.first(torch.ones(1, 4))).sum() + n.across.square().sum() + n.picture.square().sum()).backward()
        optimizer.step()

    step(net, first)
    state = optimizer_state(first, net)
    assert "first.weight/exp_avg" in state and not any(name.startswith("second.weight") for name in state)
    other.load_state_dict(net.state_dict())
    load_optimizer_state(second, other, state)
    step(net, first), step(other, second)
    assert all(a.equal(b) for a, b in zip(net.state_dict().values(), other.state_dict().values()))


@pytest.fixture
def folder(tmp_path) -> Path:
    ckpt.write_folder(tmp_path / "step-1", checkpoint_of(nn.Linear(3, 2)))
    return tmp_path / "step-1"


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("keep", [0, 5, -3])
def test_a_truncated_file_is_refused(folder, file, keep):
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[:keep])
    with pytest.raises(ValueError, match=f"{file} is truncated or no safetensors file.*another checkpoint"):
        ckpt.read_folder(folder, resuming=True)


def test_foreign_or_missing_files_are_refused(folder, tmp_path):
    for text, message in (
        ("{", "not whole"),
        ("[]", "no model description"),
        ('{"model_type": "bert"}', "no model description"),
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=f"config.json.*{message}"):
            ckpt.read_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="config.json not found.*model.safetensors"):
        ckpt.read_folder(folder)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        ckpt.read_folder(tmp_path / "nowhere")


def test_another_models_folder_is_refused(runs, chips):
    from accel_geo import FeatureClassifier, MaskRCNN, UnetClassifier, prepare_data

    unet = last_checkpoint(runs / "UnetClassifier/1")
    data = prepare_data(**chips("FeatureClassifier"), cache="memory")
    model = FeatureClassifier(data, backbone="test_resnet", size="small")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="holds a UnetClassifier, not a FeatureClassifier"):
        model.load(unet)
    with pytest.raises(ValueError, match="holds a UnetClassifier, not a MaskRCNN; use UnetClassifier.from_model"):
        MaskRCNN.from_model(unet)
    wider = FeatureClassifier(data, backbone="test_resnet", size="full")
    with pytest.raises(ValueError, match="another network|this network has"):
        wider.load(last_checkpoint(runs / "FeatureClassifier/1"))
    assert all(before[name].equal(value) for name, value in model.state_dict().items())
    model.double().load(last_checkpoint(runs / "FeatureClassifier/1"))
    assert UnetClassifier.from_model(unet).spec.task == "semantic"


def test_a_failed_save_leaves_the_old_one_whole(folder, monkeypatch):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("save_file", "_flush"):
        with monkeypatch.context() as patched:
            patched.setattr(ckpt, name, full)
            with pytest.raises(OSError, match="No space"):
                ckpt.write_folder(folder, checkpoint_of(nn.Linear(3, 2)))
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
        assert [p.name for p in folder.parent.iterdir()] == ["step-1"]
    ckpt.write_folder(folder, checkpoint_of(nn.Linear(3, 2)))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} != before


def test_the_newest_whole_checkpoint_and_the_best(tmp_path):
    for step in (1, 2, 10):
        ckpt.write_folder(tmp_path / f"step-{step}", checkpoint_of(nn.Linear(3, 2)))
    (tmp_path / ".tmp-step-11-1").mkdir()
    (tmp_path / "step-x").mkdir()
    assert ckpt.steps(tmp_path) == [1, 2, 10]
    ckpt.point_best(tmp_path, 1)
    assert os.readlink(tmp_path / "best") == "step-1" and ckpt.best_step(tmp_path) == 1
    (tmp_path / "step-10/model.safetensors").write_bytes(b"")
    said = []
    assert ckpt.newest(tmp_path, said.append).training == {"step": 1} and "step-10" in said[0]
    ckpt.prune(tmp_path, 1)
    assert ckpt.steps(tmp_path) == [1, 10], "the last, and the best"
    moved = tmp_path.parent / "moved"
    shutil.move(tmp_path, moved)
    assert (moved / "best/model.safetensors").exists(), "the link is relative"
    moved.rename(tmp_path)
