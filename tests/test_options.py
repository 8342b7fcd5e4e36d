"""The options that all recipes share: frozen names, DESIGN's defaults, contradictions, help without torch."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from accel_geo.options import Options, Parser

CHECKOUT = Path(__file__).resolve().parents[1]
RECIPES = {
    "bdcnedgedetector": "balance_over thin",
    "deeplab": "plus no_aux_loss output_stride class_balancing focal_loss gamma dice_loss_fraction dice_loss_average",
    "fasterrcnn": "anchor_sizes soft_nms",
    "featureclassifier": "label_smoothing class_balancing mixup oversample",
    "hededgedetector": "balance_over thin",
    "maskrcnn": "anchor_sizes soft_nms",
    "pspnetclassifier": "plain pyramid_sizes unet_aux_loss class_balancing focal_loss gamma dice_loss_fraction "
    "dice_loss_average",
    "singleshotdetector": "grids zooms ratios focal_loss",
    "superresolution": "architecture scale perceptual_weights perceptual_factor noise_schedule n_timestep sampling_type "
    "n_timestep_inference",
    "unetclassifier": "class_balancing focal_loss gamma dice_loss_fraction dice_loss_average",
}
# Frozen: users' scripts and the checks of other people rely on these names. None: the recipe's.
DEFAULTS = {
    "data": None, "format": None, "vectors": None, "class_column": None, "classes": None, "class_mapping": None,
    "bands": None, "limit": None, "val_split": 0.1, "split_by": None, "valid_match": None, "valid": None,
    "stride": None, "area": None, "buffer": None, "ignore_classes": (), "ignore_background": False, "test": None,
    "verify": False,
    "edge_tolerance": None, "resize_to": None, "chip_size": None,
    "cache": "auto", "num_workers": None, "output": None, "resume": False,
    "epochs": None, "max_steps": None, "batch_size": None, "per_device_batch_size": None, "accumulate": 1, "lr": None,
    "scale_lr": "none", "schedule": None, "clip": None, "ema": None, "freeze": False, "backbone": None,
    "weights": "none", "size": None, "seed": 42, "dtype": "float32", "precision": None, "eval_every": None,
    "save_every": None, "keep": 2,
    "monitor": None, "early_stopping": None, "min_delta": 1e-6, "devices": 1, "cpu": False, "threads": None,
    "timeout": 600, "tracker": None, "smoke": False,
}  # fmt: skip
RECIPE = {"task": "semantic", "epochs": 7, "batch_size": 8, "lr": 1e-3, "backbone": "resnet34"}


def parser(**changes: object) -> Parser:
    return Parser("A recipe.\n\nHow to launch it.", **{**RECIPE, **changes})


def recipe(name: str) -> Parser:
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", CHECKOUT / f"recipes/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.parser


def own(p: Parser) -> dict[str, object]:
    return {a.dest: a.default for a in p._actions if a.dest not in ("help", "local_rank")}


def test_names_and_defaults_are_frozen():
    assert own(parser()) == DEFAULTS


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_all_of_them_and_its_own(name):
    more = set((RECIPES[name] or "").split())
    options = own(recipe(name))
    assert set(options) == set(DEFAULTS) | more
    assert {k: v for k, v in options.items() if k in DEFAULTS} == DEFAULTS


def test_all_recipes_are_looked_at():
    assert {path.stem for path in (CHECKOUT / "recipes").glob("*.py")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_help_answers_without_torch_and_states_each_default(name):
    """No clock is looked at: what costs time is the import of torch and its like."""
    code = f"""
import runpy, sys
sys.argv = ["recipes/{name}.py", "--help"]
try:
    runpy.run_path("recipes/{name}.py", run_name="__main__")
except SystemExit as end:
    assert not end.code
loaded = {{"torch", "numpy", "accelerate", "rasterio", "timm", "transformers", "datasets"}} & set(sys.modules)
assert not loaded, loaded
print("modules", len(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for action in recipe(name)._actions:
        if action.dest not in ("help", "local_rank"):
            assert f"--{action.dest.replace('_', '-')}" in done.stdout
            assert "default: " in action.help, action.dest
    assert "accelerate launch" in done.stdout and "--local" not in done.stdout


def test_the_recipes_defaults_are_taken_and_given_ones_win(tmp_path):
    taken = parser(schedule="cosine", clip=1.0).parse(["--data", str(tmp_path)])
    assert (taken.epochs, taken.batch_size, taken.lr, taken.backbone, taken.schedule, taken.clip) == (
        7,
        8,
        1e-3,
        "resnet34",
        "cosine",
        1.0,
    )
    given = parser().parse(["--data", str(tmp_path), "--epochs", "2", "--lr", "auto", "--backbone", "resnet18"])
    assert (given.epochs, given.scaled_lr(), given.backbone) == (2, None, "resnet18")
    builtin = parser(builtin={"epochs": 3}).parse([])
    assert builtin.epochs == 3 and builtin.model_size == "small" and taken.model_size == "full"


def test_the_global_batch_and_how_the_rate_follows(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    base = ["--data", str(tmp_path), "--per-device-batch-size", "8"]
    linear, root, none = (parser().parse([*base, "--scale-lr", kind]) for kind in ("linear", "sqrt", "none"))
    assert linear.global_batch == root.global_batch == none.global_batch == 32
    assert [o.scaled_lr() for o in (linear, root, none)] == pytest.approx([4e-3, 2e-3, 1e-3])
    plain = parser().parse(["--data", str(tmp_path), "--batch-size", "16", "--scale-lr", "linear"])
    assert plain.global_batch == 16 and plain.scaled_lr() == pytest.approx(2e-3)
    assert linear.for_fit()["batch_size"] == linear.for_data()["batch_size"] == 32


CONTRADICTIONS = [
    (["--vectors", "a.gpkg"], "--vectors needs --data"),
    (["--class-column", "kind"], "--data"),
    (["--valid", "a", "--valid-match", "b*"], "--valid and --valid-match"),
    (["--batch-size", "8", "--per-device-batch-size", "4"], "--batch-size and --per-device-batch-size"),
    (["--resume"], "--resume needs --output"),
    (["--smoke", "--resume", "--output", "x"], "--smoke starts afresh"),
    (["--num-workers", "-1"], "--num-workers"),
    (["--weights", "nowhere.safetensors"], "no such file"),
    (["--data", "nowhere"], "no such folder"),
    (["--epochs", "0"], "at least 1"),
    (["--val-split", "1"], "below 1"),
    (["--lr", "0"], "above 0"),
    (["--lr", "fast"], "--lr"),
    (["--class-mapping", "a"], "OLD=NEW"),
    (["--schedule", "linear"], "one_cycle"),
    (["--dtype", "float16"], "float64"),
    (["--clip", "-1"], "--clip"),
    (["--edge-tolerance", "0"], "above 0"),
    (["--ema", "1.5"], "--ema"),
    (["--early-stopping", "0"], "at least 1"),
    (["--timeout", "0"], "--timeout"),
    (["--split-by", "size"], "--split-by"),
    (["--min-delta", "-1"], "--min-delta"),
    (["--no-such-option"], "unrecognized arguments"),
    (["--epoch", "3"], "unrecognized arguments"),
]


@pytest.mark.parametrize(("arguments", "message"), CONTRADICTIONS)
def test_contradictions_are_refused_before_anything_is_read(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        parser().parse(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_what_fit_and_prepare_data_take():
    """Every option reaches the part that it is for, under the name that this part has."""
    import inspect

    from accel_geo import prepare_data
    from accel_geo.engine.loop import fit

    options: Options = parser().parse([])
    assert set(options.for_data()) <= set(inspect.signature(prepare_data).parameters)
    assert set(options.for_fit()) <= set(inspect.signature(fit).parameters)
    reached = set(options.for_data()) | set(options.for_fit()) | set(options.for_model())
    elsewhere = {"data", "valid", "test", "scale_lr", "per_device_batch_size", "freeze", "devices", "smoke"}
    assert set(DEFAULTS) - elsewhere <= reached and not elsewhere - set(DEFAULTS)


def test_recipes_name_the_models_that_learn_what_the_data_hold(shared, monkeypatch, capsys):
    """The message for data of another task ends with the models that they can teach."""
    from accel_geo.options import end_with_message
    from accel_geo.prepare import prepare_data

    monkeypatch.setattr("os._exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    with pytest.raises(SystemExit), end_with_message():
        prepare_data(shared / "data" / "esri_exports" / "Labeled_Tiles", task="semantic")
    said = capsys.readouterr().err
    assert "It is in the format Labeled_Tiles (classification)" in said
    assert said.rstrip().endswith("Models for such data: FeatureClassifier")


@pytest.mark.parametrize(
    "name, option, value, allowed",
    [
        ("singleshotdetector", "--grids", "0", "at least 1"),
        ("singleshotdetector", "--zooms", "0", "above 0"),
        ("singleshotdetector", "--ratios", "-2", "above 0"),
        ("maskrcnn", "--anchor-sizes", "0", "at least 1"),
        ("fasterrcnn", "--anchor-sizes", "-8", "at least 1"),
    ],
)
def test_anchors_of_impossible_shapes_are_refused(name, option, value, allowed, capsys):
    with pytest.raises(SystemExit) as end:
        recipe(name).parse([option, "1", value])
    assert end.value.code == 2 and f"argument {option}: {value} must be {allowed}" in capsys.readouterr().err
