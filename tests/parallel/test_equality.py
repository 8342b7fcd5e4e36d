"""P1: loss terms, learning rates, metrics, predictions and weights agree on any number of processes."""

import json
from pathlib import Path

import pytest
from parallel.compare import differences, figure_differences, history, last_checkpoint, run, tensor_differences
from parallel.fixtures import CORE, EMPTY, ROWS, TASKS

from accel_geo.parallel.order import EpochOrder, batch_count, cut
from accel_geo.tasks import TASKS as KINDS

TRAINED = [i for i in range(29) if not 22 <= i <= 28]
# Twelve steps at a moving learning rate; 22 chips in batches of 6, 6, 5, 5.
TWELVE = {"epochs": 3, "lr": 1e-3, "batch_size": 6, "eval_every": 6, "clip": 1.0}
MORE = pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)
COUNTS = pytest.mark.parametrize("processes", [2, *MORE])
rows = pytest.mark.parametrize("row", ROWS)


def both(worlds, processes, folder, row, data, stages, data_there=None, steps=12, rtol=1e-9, **more):
    """Fit on one process and on several; returns the history and what both said."""
    alone = run(worlds, 1, folder, row, data, stages, **more)
    several = run(worlds, processes, folder, row, data_there or data, stages, **more)
    assert differences(folder / "1", folder / str(processes), rtol, steps) == []
    return history(folder / "1"), alone, several


def shares(steps, batch_size, processes, accumulate=1, seed=42):
    """The image_ids that each process has in each part of each of the first steps: [step][part][process]."""
    ids, sizes = TRAINED, [(1, 1)] * len(TRAINED)
    order = EpochOrder(
        ids, sizes, batch_size=batch_size, accumulate=accumulate, seed=seed, fit=0, rank=0, processes=processes
    )
    every = [batch for epoch in range(steps) for batch in order.batches(epoch)][:steps]
    named = [[ids[i] for i in batch] for batch in every]
    parts = [[batch[part] for part in cut(len(batch), accumulate)] for batch in named]
    return [[[part[s] for s in cut(len(part), processes)] for part in step] for step in parts]


@COUNTS
@rows
def test_crops_colours_empty_chips_and_workers(worlds, chips, started, tmp_path, row, processes):
    data = chips(row, chip_size=40, num_workers=0)
    there = data | {"num_workers": 2}
    lines, alone, several = both(worlds, processes, tmp_path, row, data, [TWELVE], there, start=started(row))

    steps = [line for line in lines if "loss" in line]
    assert [line["samples"] for line in steps] == [6, 6, 5, 5] * 3
    assert len({line["lr"] for line in steps}) == 12
    monitored = KINDS[TASKS[row]].monitor
    assert all(line["valid"][monitored] > 0.05 for line in lines if "valid" in line)
    if row == "MaskRCNN":
        for site in ("anchors", "regions"):
            taken = sum(each["sampled"][f"{site} taken"] for each in several)
            assert 0 < taken == alone[0]["sampled"][f"{site} taken"] < 0.7 * alone[0]["sampled"][f"{site} candidates"]


def test_crops_and_colours_change_the_chips(chips):
    from accel_geo import prepare_data
    from accel_geo.parallel.order import Request

    for row in TASKS:
        train = prepare_data(**chips(row, chip_size=40), cache="memory").train
        first, again, other = (train[Request(0, key)]["image"] for key in (5, 5, 6))
        assert first.shape[-2:] == (40 // train.spec.scale,) * 2 and first.equal(again) and not first.equal(other)
        assert TASKS[row] == "super_resolution" or abs(float(first.mean() - other.mean())) > 1e-4


@COUNTS
@rows
def test_mixed_sizes_accumulated_with_a_moving_average(worlds, chips, started, tmp_path, row, processes):
    """22 chips of three sizes in batches of 8, 7, 7, or 11, each in two parts; what is evaluated is the average."""
    batch = 11 if processes == 4 else 8
    stage = {"epochs": 2, "lr": 1e-3, "batch_size": batch, "accumulate": 2, "ema": 0.8, "schedule": "cosine"}
    data = chips(row, "sizes")
    lines, _, _ = both(worlds, processes, tmp_path, row, data, [stage], steps=4, start=started(row))
    assert [line["samples"] for line in lines if "loss" in line] == ([11, 11] if processes == 4 else [8, 7, 7]) * 2
    assert (last_checkpoint(tmp_path / "1") / "ema.safetensors").exists()
    assert len(set(train(data).sizes)) == 3


def train(data):
    """The training split as this process reads it."""
    from accel_geo import prepare_data

    return prepare_data(**data, cache="memory").train


@COUNTS
@pytest.mark.parametrize(
    "row", ["FeatureClassifier", "UnetClassifier", pytest.param("MaskRCNN", marks=pytest.mark.slow)]
)
def test_accumulation_over_four_parts(worlds, chips, started, tmp_path, row, processes):
    stage = {"epochs": 3, "lr": 1e-3, "batch_size": 11 if processes == 2 else 22, "accumulate": 4, "max_steps": 3}
    data = chips(row, chip_size=40)
    both(worlds, processes, tmp_path, row, data, [stage], steps=2, start=started(row))


@COUNTS
@rows
def test_processes_that_have_nothing_to_learn_from(worlds, chips, started, tmp_path, row, processes):
    """About one sample a process: steps in which a process has only an empty chip, or only one that cannot be read."""
    batch = {2: 2, 3: 4, 4: 5}[processes]
    stage = {"epochs": 4, "lr": 3e-4, "batch_size": batch, "max_steps": 12}
    data = chips(row, "problem")
    both(worlds, processes, tmp_path, row, data, [stage], start=started(row))

    alone = [ids for step in shares(12, batch, processes) for part in step for ids in part]
    assert any(ids == [5] for ids in alone) and min(map(len, alone)) == 1
    assert TASKS[row] in ("classification", "super_resolution") or sum(set(ids) <= set(EMPTY) for ids in alone) >= 4
    counted = [line["machine"]["samples_per_process"] for line in history(tmp_path / str(processes)) if "loss" in line]
    assert counted == [[len(ids) for part in step for ids in part] for step in shares(12, batch, processes)]
    assert "unreadable chip, counts zero" in worlds[processes].said()
    assert f"images/{'kind_3/' if row == 'FeatureClassifier' else ''}chip_005.tif" in worlds[processes].said()


@COUNTS
def test_processes_whose_pixels_are_all_ignored(worlds, chips, started, tmp_path, processes):
    batch, row, data = 4 if processes == 2 else 6, "UnetClassifier", chips("UnetClassifier", "nodata")
    stage = {"epochs": 2, "lr": 1e-3, "batch_size": batch, "max_steps": 6}
    both(worlds, processes, tmp_path, row, data, [stage], steps=6, start=started(row))

    split = train(data)
    ignored = {image_id for i, image_id in enumerate(split.ids) if bool((split[i]["mask"] == 255).all())}
    assert len(ignored) >= 8
    assert any(set(ids) <= ignored for step in shares(6, batch, processes) for part in step for ids in part)


@COUNTS
@rows
def test_frozen_then_unfrozen(worlds, chips, started, tmp_path, row, processes):
    """What is frozen does not move, its statistics neither; what is unfrozen trains, alike on all processes."""
    first = {"freeze": True, "epochs": 1, "max_steps": 3, "lr": 1e-3, "batch_size": 6}
    stages = [first, first | {"freeze": False}]
    lines, alone, several = both(worlds, processes, tmp_path, row, chips(row), stages, steps=6, start=started(row))
    for said in (*alone, *several):
        assert said["frozen"] == [True, True] and len(set(said["weights"])) == 2
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["fit"] for line in lines if "loss" in line] == [0, 0, 0, 1, 1, 1]
    from safetensors.torch import load_file

    start = load_file(Path(started(row)) / "model.safetensors")
    frozen, trained = (load_file(tmp_path / f"1/checkpoints/step-{n}/model.safetensors") for n in (3, 6))
    of_backbone = [name for name in frozen if name.startswith("backbone.") and not name.startswith("backbone.fpn")]
    assert row not in CORE or any("running_mean" in name for name in of_backbone)
    for name in of_backbone:
        assert frozen[name].equal(start[name].to(frozen[name].dtype)), name
        assert name.endswith(("num_batches_tracked",)) or not frozen[name].equal(trained[name]), name


@COUNTS
def test_chips_that_are_mixed_repeated_and_weighed(worlds, chips, started, tmp_path, processes):
    """5 and 12 chips of two classes and three sizes: 24 samples an epoch, each blended with another one."""
    row, held_out = "FeatureClassifier", "chip_0[01][024568].tif"
    data = chips(row, "sizes", held_out, chip_size=40, mixup=0.4, oversample=True)
    stage = {"epochs": 2, "lr": 1e-3, "batch_size": 10, "accumulate": 2}
    model = {"class_weights": [1.0, 2.5], "label_smoothing": 0.1}
    more = {"steps": 6, "start": started(row), "model": model}
    lines, _, _ = both(worlds, processes, tmp_path, row, data, [stage], data | {"num_workers": 2}, **more)
    assert [line["samples"] for line in lines if "loss" in line] == [8] * 6
    assert train(data).times.count(1) == 12 and sum(train(data).times) == 24


@COUNTS
@pytest.mark.parametrize("row", ["FeatureClassifier", "UnetClassifier"])
def test_plateau_and_early_stopping(worlds, chips, tmp_path, row, processes):
    """The decisions that depend on the metric are taken once for all: rate cut, best kept, training ended."""
    stage = {"epochs": 20, "lr": 1e-4, "batch_size": 8, "eval_every": 1, "schedule": "plateau", "early_stopping": 6}
    stage |= {"min_delta": 0.3, "keep": 1}
    lines, _, _ = both(worlds, processes, tmp_path, row, chips(row), [stage], steps=6)
    rates = [line["lr"] for line in lines if "loss" in line]
    assert len(rates) < 60 and rates[-1] == rates[0] / 2
    best = {(tmp_path / str(n) / "checkpoints/best").resolve().name for n in (1, processes)}
    kept = [sorted(p.name for p in (tmp_path / str(n) / "checkpoints").glob("step-*")) for n in (1, processes)]
    assert len(best) == 1 and kept[0] == kept[1] and len(kept[0]) <= 2


@pytest.mark.parametrize("row", ["FeatureClassifier", "UnetClassifier"])
def test_accumulations_agree_where_batch_norm_is_frozen(worlds, chips, started, tmp_path, row):
    """With all counts known from the targets and no statistics trained, one, two and four parts are one and the same."""
    data, parts = chips(row, "problem"), (1, 2, 4)
    for number, accumulate in enumerate(parts):
        stage = {"freeze": "norms", "epochs": 2, "lr": 1e-3, "batch_size": 11, "accumulate": accumulate}
        stage |= {"output": str(tmp_path / str(accumulate))}
        said = worlds[1 + number % 2].run("fit", row=row, data=data, stages=[stage], start=started(row))
        assert all(each["frozen"] == [True] for each in said)
    for accumulate in parts[1:]:
        assert differences(tmp_path / "1", tmp_path / str(accumulate), 1e-9, 4) == []


@rows
def test_float32_first_step(worlds, chips, started, tmp_path, row):
    stage = {"epochs": 1, "lr": 1e-3, "batch_size": 16, "max_steps": 1, "dtype": "float32"}
    for processes in (1, 2):
        run(worlds, processes, tmp_path, row, chips(row), [stage], start=started(row))
    first, second = (next(line for line in history(tmp_path / n) if "loss" in line) for n in ("1", "2"))
    a, b = ({k: v for k, v in line.items() if k != "machine"} for line in (first, second))
    assert figure_differences(a, b, 1e-5) == [] and len(a["losses"]) >= 1


def test_the_comparison_finds_differences(tmp_path):
    import torch

    lines = [{"fit": 0, "epoch": 0, "step": s, "loss": 1.0 / s, "losses": {"a": 1.0 / s}} for s in (1, 2)]
    assert figure_differences(lines[0], lines[0], 1e-9) == []
    assert figure_differences(lines[0], lines[0] | {"loss": 1 + 1e-8}, 1e-9)
    assert figure_differences(lines[0], {k: v for k, v in lines[0].items() if k != "losses"}, 1e-9)
    assert figure_differences([1.0, None], [1.0, 0.0], 1e-9) and figure_differences(
        {"a": float("nan")}, {"a": float("nan")}, 1
    )
    assert figure_differences({"boxes": []}, {"boxes": [1]}, 1e-9)
    w = {"w": torch.ones(2), "n": torch.tensor(3)}
    assert tensor_differences(w, w, 1e-9) == [] and tensor_differences(w, {"w": torch.ones(2)}, 1e-9)
    assert tensor_differences(w, w | {"w": torch.ones(2) + 1e-6}, 1e-9)
    assert tensor_differences(w, w | {"n": torch.tensor(4)}, 1e-9)
    assert tensor_differences(w, w | {"w": torch.ones(2).double()}, 1e-9)
    assert tensor_differences(w, w | {"w": torch.tensor([1.0, float("nan")])}, 1e-9)
    with pytest.raises(AssertionError):
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[1]]))
        history(tmp_path)


def test_the_first_batches_are_cut_as_assumed():
    assert batch_count(len(TRAINED), 6) == 4 and len(TRAINED) == 22
    assert [sum(map(len, part)) for step in shares(4, 6, 2) for part in step] == [6, 6, 5, 5]
