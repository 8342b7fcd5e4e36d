"""What a user may ask of a fit, in one process: precision, trackers, what is published, and errors that help."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from accel_geo import GeoData, UnetClassifier, prepare_data
from accel_geo.data.scenes import builtin


@pytest.fixture(scope="module")
def data() -> GeoData:
    return prepare_data(builtin("semantic", smoke=True), task="semantic", val_split=0.25, batch_size=3)


def small(data: GeoData) -> UnetClassifier:
    return UnetClassifier(data, backbone="resnet18", size="small")


def fit(model: UnetClassifier, **options: object) -> list[dict]:
    return model.fit(**{"epochs": 1, "lr": 1e-3, "cpu": True, "threads": 1, **options})


def losses(history: list[dict]) -> list[float]:
    return [record["loss"] for record in history if "loss" in record]


def test_bf16_trains_to_finite_losses_near_those_of_float32(data: GeoData) -> None:
    low, full = losses(fit(small(data), precision="bf16")), losses(fit(small(data)))
    assert len(low) == 2
    assert low == pytest.approx(full, rel=0.05) and low != full


def test_fp16_needs_a_gpu_and_says_so(data: GeoData) -> None:
    with pytest.raises(ValueError, match="fp16 needs a GPU.*bf16"):
        fit(small(data), precision="fp16")


def test_a_model_trains_on_after_a_bf16_fit(data: GeoData) -> None:
    model = small(data)
    fit(model, precision="bf16")
    assert all(torch.isfinite(torch.tensor(losses(fit(model)))))


def test_tensorboard_gets_losses_and_metrics(data: GeoData, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(small(data), tracker="tensorboard", output=tmp_path)
    events = next(tmp_path.rglob("events.out.tfevents*")).parent
    read = EventAccumulator(str(events))
    read.Reload()
    tags = set(read.Tags()["scalars"])
    assert {"loss", "losses/cross_entropy", "lr", "valid/miou"} <= tags
    assert [event.step for event in read.Scalars("loss")] == [1, 2]


def test_out_of_memory_says_where_and_what_shrinks_it(data: GeoData, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(data)

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(model, "normalize", exhausted)
    with pytest.raises(
        RuntimeError, match=r"step 1 .*3 samples of \(3, 64, 64\).*--batch-size.*--accumulate.*--precision"
    ):
        fit(model)


def test_the_published_model_is_the_best_and_memory_holds_the_last(data: GeoData, tmp_path: Path) -> None:
    model = small(data)
    # A rate that grows absurd makes the first evaluation the best.
    rates = iter([1e-3] * 2 + [5.0] * 100)

    class Wild(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            self.param_groups[0]["lr"] = next(rates)
            super().step(closure)

    fit(model, epochs=3, optimizer=Wild, schedule="constant", monitor="accuracy", output=tmp_path, keep=1)
    metrics = [r["valid"]["accuracy"] for r in model.history if "valid" in r]
    best = json.loads((tmp_path / "checkpoints/best/training.json").read_text())["step"]
    assert best == 2 * (1 + metrics.index(max(metrics))) < 6
    published, last = load_file(tmp_path / "model/model.safetensors"), model.state_dict()
    assert torch.equal(
        published["head.weight"], load_file(tmp_path / f"checkpoints/step-{best}/model.safetensors")["head.weight"]
    )
    assert not torch.equal(published["head.weight"], last["head.weight"])
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["best", f"step-{best}", "step-6"]


def test_the_moving_average_is_evaluated_and_published(data: GeoData, tmp_path: Path) -> None:
    model = small(data)
    fit(model, ema=0.5, output=tmp_path)
    checkpoint = tmp_path / "checkpoints/step-2"
    average, raw = load_file(checkpoint / "ema.safetensors"), load_file(checkpoint / "model.safetensors")
    published = load_file(tmp_path / "model/model.safetensors")
    assert torch.equal(published["head.weight"], average["head.weight"])
    assert not torch.equal(raw["head.weight"], average["head.weight"])
    again = UnetClassifier.from_model(tmp_path / "model", data).evaluate()
    assert again["miou"] == pytest.approx(model.history[-1]["valid"]["miou"], abs=1e-6)


def test_the_report_is_one_page_with_pictures(data: GeoData, tmp_path: Path) -> None:
    fit(small(data), optimizer=partial(torch.optim.SGD, momentum=0.9), output=tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") >= 3 and 'src="data:image/png' in page and "http" not in page.replace("http-equiv", "")
    assert "SGD(momentum=0.9)" in page
    assert "miou" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "linear"}, "schedule 'linear' is unknown; choose one_cycle"),
        ({"dtype": "float16"}, "dtype 'float16' is unknown"),
        ({"monitor": "map50"}, "--monitor 'map50' is no metric of semantic; choose"),
        ({"epochs": 0}, "--epochs 0 must be at least 1"),
        ({"lr": -1.0}, "--lr -1.0 must be above 0"),
        ({"lr": slice(1e-4, 1e-3)}, r"lr=slice\(0.0001, 0.001, None\) must be a number.* or None: .*--lr auto"),
        ({"lr": "auto"}, "lr='auto' must be a number.* or None"),
        ({"batch_size": 0}, "--batch-size 0 and --accumulate 1 must be at least 1"),
        ({"accumulate": 4}, "smallest 3.*--per-device-batch-size"),
        ({"ema": 1.5}, "--ema 1.5 must lie between"),
    ],
)
def test_contradictory_options_are_refused(data: GeoData, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(small(data), **options)


def test_no_batch_is_as_little_allowed_in_a_range_test(data: GeoData) -> None:
    with pytest.raises(ValueError, match="--batch-size 0"):
        small(data).lr_find(batch_size=0)


def test_without_data_a_model_says_what_it_needs(data: GeoData) -> None:
    with pytest.raises(ValueError, match="fit needs data"):
        UnetClassifier(data.spec, backbone="resnet18", size="small").fit(lr=1e-3)


def test_a_frozen_backbone_stays_and_the_rest_trains(data: GeoData) -> None:
    model = small(data)
    model.freeze()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fit(model)
    after = model.state_dict()
    frozen = [name for name in before if name.startswith("backbone.")]
    assert frozen and all(torch.equal(before[name], after[name]) for name in frozen)
    assert not torch.equal(before["head.weight"], after["head.weight"])
    model.unfreeze()
    fit(model)
    assert not torch.equal(
        before["backbone.layer1.0.bn1.running_mean"], model.state_dict()["backbone.layer1.0.bn1.running_mean"]
    )


def test_all_frozen_is_refused(data: GeoData) -> None:
    model = small(data).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        fit(model)
