"""What each row refuses, before it builds or trains anything: the message says what was found and what is allowed."""

import inspect
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from parallel.chips import write_raster

from accel_geo import prepare_data
from accel_geo.models import MODELS, from_model, model_class
from accel_geo.parallel.batch_norm import convert

ROWS = tuple(MODELS)
every_row = pytest.mark.parametrize("row", ROWS)
LEARN = {
    "classification": "FeatureClassifier",
    "detection": "SingleShotDetector, FasterRCNN",
    "instances": "MaskRCNN",
    "semantic": "UnetClassifier, DeepLab, PSPNetClassifier",
    "edges": "HEDEdgeDetector, BDCNEdgeDetector",
    "super_resolution": "SuperResolution",
}
NAN, INF = math.nan, math.inf


def refused(*words, error=ValueError):
    """Expect an error whose message has all these words."""
    return pytest.raises(error, match="".join(f"(?=.*{re.escape(str(word))})" for word in words))


@pytest.fixture(scope="module")
def models(networks):
    """A small network of each row, built when it is first asked for, in evaluation mode."""
    built = {}

    def model(row):
        if row not in built:
            built[row] = networks.build(row)
        return built[row].eval()

    return model


@pytest.fixture(scope="module")
def saved(models, tmp_path_factory):
    """The folder of a published model of a row."""
    return lambda row: models(row).save(tmp_path_factory.mktemp("models") / row)


# The data -------------------------------------------------------------------------------------------------------------


def test_the_tasks_are_those_of_the_rows():
    assert len(ROWS) == 10 and {row for rows in LEARN.values() for row in rows.split(", ")} == set(ROWS)


@every_row
@pytest.mark.parametrize("task", LEARN)
def test_data_of_another_task(networks, row, task):
    mine = model_class(row).task
    if task == mine:
        assert row in LEARN[task]
        return
    with refused(f"{row} does {mine}, but the data are for {task}", f"are {LEARN[task]}.", f"task='{mine}'"):
        networks.build(row, changes={"task": task})


@every_row
def test_a_task_that_no_model_learns(networks, row):
    with refused(f"{row} does", "the data are for panoptic", "(none)"):
        networks.build(row, changes={"task": "panoptic"})


@every_row
@pytest.mark.parametrize("data", ["folder/of/chips", None, 3])
def test_no_data(row, data):
    with refused(repr(data), "prepare_data(...)", "DataSpec"):
        model_class(row)(data)


@pytest.mark.parametrize("row", ["FeatureClassifier", "UnetClassifier"])
def test_the_task_is_looked_at_before_classes_are_balanced(networks, row):
    chips = SimpleNamespace(spec=networks.spec("MaskRCNN"), seed=1, class_counts={"train": {"objects": [0, 1]}})
    with refused(f"{row} does", "the data are for instances", "MaskRCNN"):
        model_class(row)(chips, class_balancing=True)


# The options ----------------------------------------------------------------------------------------------------------


def options(row):
    names = list(inspect.signature(model_class(row).__init__).parameters)
    return [name for name in names if name not in ("self", "data", "weights")]


def test_all_options_are_swept():
    assert sum(len(options(row)) for row in ROWS) > 100


@every_row
@pytest.mark.parametrize("wrong", [object(), NAN, INF, [NAN], {}, "no such thing"], ids=str)
def test_no_option_takes_anything(networks, row, wrong):
    accepted = []
    for name in options(row):
        if wrong == "no such thing" and name == "perceptual_weights":
            continue  # the name of a file that is not there: another error
        try:
            networks.build(row, **{name: wrong})
        except ValueError as error:
            assert name in str(error) and str(wrong)[:8] in str(error)
        else:
            accepted.append(name)
    assert not accepted


PIXELS = ("UnetClassifier", "DeepLab", "PSPNetClassifier")
REGIONS = ("FasterRCNN", "MaskRCNN")
SHARES = ("nms_thresh", "score_thresh", "iou_thresh")
IMPOSSIBLE = [
    *((row, {"size": size}, "'full' or 'small'") for row in ROWS for size in ("tiny", ["small"])),
    *((row, {"class_weights": [1.0, 2.0]}, "5 values of at least 0, background first") for row in PIXELS),
    *((row, {"class_weights": [0] * 5}, "not all 0") for row in PIXELS),
    *((row, {"class_weights": [1, 1, -1, 1, 1]}, "at least 0, background first") for row in PIXELS),
    *((row, {"class_weights": "balanced"}, "a list of numbers") for row in PIXELS),
    *((row, {"gamma": -1.0}, "a number of at least 0") for row in PIXELS),
    *((row, {"gamma": "2"}, "a number of at least 0") for row in PIXELS),
    *((row, {"dice_loss_fraction": 1.5}, "from 0 to 1") for row in PIXELS),
    *((row, {"focal_loss": "no"}, "True or False") for row in PIXELS),
    ("DeepLab", {"output_stride": 4}, "8 or 16"),
    ("DeepLab", {"output_stride": 16.0}, "8 or 16"),
    ("DeepLab", {"plus": 1}, "True or False"),
    ("PSPNetClassifier", {"pyramid_sizes": []}, "a list of whole numbers of at least 1"),
    ("PSPNetClassifier", {"pyramid_sizes": [1, 0]}, "whole numbers of at least 1"),
    ("PSPNetClassifier", {"pyramid_sizes": [1.5]}, "whole numbers of at least 1"),
    ("PSPNetClassifier", {"pyramid_sizes": [1, 65]}, "at most 64, for chips of 64 x 64"),
    ("FeatureClassifier", {"label_smoothing": 1.0}, "at least 0, below 1"),
    ("FeatureClassifier", {"label_smoothing": -0.1}, "at least 0, below 1"),
    ("FeatureClassifier", {"class_weights": [1.0]}, "class 0, class 1, class 2, class 3"),
    ("FeatureClassifier", {"class_weights": [0] * 4}, "not all 0"),
    *((row, {"anchor_sizes": [8, 16]}, "resnet18 needs 5, one for each of its levels") for row in REGIONS),
    *((row, {"anchor_sizes": [[8]] * 5}, "sides above 0 in pixels") for row in REGIONS),
    *((row, {"anchor_sizes": [8, 16, 32, 64, 0]}, "sides above 0 in pixels") for row in REGIONS),
    *((row, {"anchor_ratios": []}, "height / width, each above 0") for row in REGIONS),
    *((row, {"anchor_ratios": [0.5, -1.0]}, "height / width, each above 0") for row in REGIONS),
    *((row, {"bbox_reg_weights": [10, 10]}, "four numbers above 0") for row in REGIONS),
    *((row, {"bbox_reg_weights": [10, 10, 5, 0]}, "four numbers above 0") for row in REGIONS),
    *((row, {"box_detections_per_img": 0}, "a whole number of at least 1") for row in REGIONS),
    *((row, {"rpn_pre_nms_top_n_train": -1}, "a whole number of at least 1") for row in REGIONS),
    *((row, {"rpn_batch_size_per_image": 1.5}, "a whole number of at least 1") for row in REGIONS),
    *((row, {"box_positive_fraction": 0.0}, "above 0, at most 1") for row in REGIONS),
    *((row, {f"box_{name}": 50}, "from 0 to 1") for row in REGIONS for name in SHARES if name != "iou_thresh"),
    *((row, {"rpn_bg_iou_thresh": 0.8}, "at most rpn_fg_iou_thresh, which is 0.7") for row in REGIONS),
    *((row, {"box_bg_iou_thresh": 0.6}, "at most box_fg_iou_thresh, which is 0.5") for row in REGIONS),
    *((row, {"soft_nms": "linear"}, "True or False") for row in REGIONS),
    *(("SingleShotDetector", {name: -0.5}, "from 0 to 1") for name in SHARES),
    ("SingleShotDetector", {"anchors": [8, 8]}, "pairs of width and height, each above 0"),
    ("SingleShotDetector", {"anchors": [[8, 8, 8]]}, "pairs of width and height, each above 0"),
    ("SingleShotDetector", {"anchors": [[INF, 8]]}, "pairs of width and height, each above 0"),
    ("SingleShotDetector", {"anchors": [[800, 800]]}, "no anchor is centred in a chip of 64 pixels"),
    ("SingleShotDetector", {"grids": 4}, "whole numbers of at least 1"),
    ("SingleShotDetector", {"grids": [[], []]}, "whole numbers of at least 1"),
    ("SingleShotDetector", {"grids": [65]}, "at most 64 cells"),
    ("SingleShotDetector", {"grids": [4], "anchors": [[8, 8]]}, "give one of them"),
    ("SingleShotDetector", {"zooms": [0.0]}, "factors above 0"),
    ("SingleShotDetector", {"ratios": [1.0]}, "pairs of width and height, each above 0"),
    ("SingleShotDetector", {"positive_fraction": 1.0}, "between 0 and 1"),
    ("SingleShotDetector", {"topk_candidates": 0}, "a whole number of at least 1"),
    ("HEDEdgeDetector", {"balance_over": "world"}, "batch"),
    ("BDCNEdgeDetector", {"balance_over": None}, "batch"),
    ("SuperResolution", {"architecture": "srgan"}, "one of edsr, unet, sr3"),
    ("SuperResolution", {"architecture": "edsr", "backbone": "resnet18"}, "architecture='unet'"),
    ("SuperResolution", {"inner_channel": 0}, "a whole number of at least 1"),
    ("SuperResolution", {"res_blocks": 0}, "at least 1 for architecture='edsr'"),
    ("SuperResolution", {"res_blocks": True}, "a whole number of at least 0"),
    ("SuperResolution", {"perceptual_factor": -1}, "a number of at least 0"),
    ("SuperResolution", {"perceptual_weights": 5}, "the path of a file"),
    *(
        ("SuperResolution", {"architecture": "sr3", **arguments}, allowed)
        for arguments, allowed in (
            ({"channel_mults": []}, "a list of whole numbers of at least 1"),
            ({"channel_mults": [1, 1.5]}, "a list of whole numbers of at least 1"),
            ({"attn_res": 0}, "whole numbers of at least 1"),
            ({"norm_groups": 0}, "a whole number of at least 1"),
            ({"dropout": 1.0}, "at least 0, below 1"),
            ({"schedule": "warmup"}, "one of linear, cosine"),
            ({"n_timestep": 0}, "a whole number of at least 1"),
            ({"linear_start": 0.0}, "above 0, below 1"),
            ({"linear_start": 0.5, "linear_end": 0.1}, "linear_start <= linear_end"),
            ({"sampling_type": "euler"}, "one of ddim, ddpm"),
            ({"n_timestep_inference": 0}, "a whole number of at least 1"),
            ({"sampling_seed": -1}, "a whole number of at least 0"),
            ({"perceptual_weights": "vgg16.pth"}, "'sr3' learns noise"),
        )
    ),
]


@pytest.mark.parametrize("row, arguments, allowed", IMPOSSIBLE)
def test_impossible_options(networks, row, arguments, allowed):
    with pytest.raises(ValueError) as caught:
        networks.build(row, **arguments)
    message = str(caught.value)
    assert allowed in message
    if allowed not in ("give one of them", "'sr3' learns noise") and "no anchor" not in allowed:
        assert any(f"{name}=" in message for name in arguments)  # and its value after it
        assert any(repr(value).strip("[]").split(",")[0] in message for value in arguments.values())


def test_every_row_has_impossible_options():
    assert {row for row, *_ in IMPOSSIBLE} == set(ROWS) and len(IMPOSSIBLE) > 90


@every_row
def test_backbones(networks, row):
    with refused("resnet81", "resnet18", "timm:NAME"):
        networks.build(row, backbone="resnet81")
    with refused("vit_tiny_patch16_224 has no feature pyramid", "a convolutional network such as resnet34"):
        networks.build(row, backbone="timm:vit_tiny_patch16_224")


@every_row
def test_weights(networks, row):
    wrong = (5, "", True)[ROWS.index(row) % 3]
    with refused(f"weights={wrong!r}", "None (random)", '"default"', "a published model's folder"):
        networks.build(row, weights=wrong)
    with refused("no/such.pth: no such weights file", error=FileNotFoundError):
        networks.build(row, weights="no/such.pth")


def test_numbers_of_numpy_and_tuples_are_as_good(networks):
    model = networks.build("SingleShotDetector", anchors=np.array([[8.0, 12.0]]), iou_thresh=np.float32(0.5))
    assert model.arguments["anchors"] == [[8.0, 12.0]] and type(model.arguments["iou_thresh"]) is float
    assert networks.build("PSPNetClassifier", pyramid_sizes=(1, np.int64(2))).arguments["pyramid_sizes"] == [1, 2]
    weights = torch.ones(5)
    assert networks.build("UnetClassifier", class_weights=weights).arguments["class_weights"] == [1.0] * 5


# A model and other data -----------------------------------------------------------------------------------------------

OTHER = {
    "bands": ("bands", ("nir", "red", "green")),
    "order of bands": ("bands", ("blue", "green", "red")),
    "classes": ("classes", ("roof", "road", "class 2", "class 3")),
    "order of classes": ("classes", ("class 3", "class 2", "class 1", "class 0")),
    "scale": ("scale", 4),
}


def other_specs(networks, row):
    """Specs that differ in one thing, and in one more band or class."""
    spec = networks.spec(row)
    found = [networks.spec(row, bands=4)]
    for name, value in OTHER.values():
        if name == "classes" and len(spec.classes) == 1:
            value = ("kerb",)
        if name == "classes" and not spec.classes or name == "scale" and spec.scale == 1:
            continue
        found.append(replace(spec, **{name: value}))
    if len(spec.classes) > 1:
        found.append(networks.spec(row, classes=5))
    if row == "FeatureClassifier":
        found.append(replace(spec, multilabel=True))
    return found


@every_row
def test_other_data(networks, models, saved, row):
    folder, model, spec = saved(row), models(row), models(row).spec
    specs = other_specs(networks, row)
    assert len(specs) >= 4 - (not spec.classes)
    for other in specs:
        name = next(n for n in ("multilabel", "classes", "bands", "scale") if getattr(spec, n) != getattr(other, n))
        lists = [list(v) if isinstance(v := getattr(s, name), tuple) else v for s in (spec, other)]
        both = (f"was trained with {name} {lists[0]}, the data have {lists[1]}", "weights=PATH")
        order = (
            ("the same in another order",) if name in ("bands", "classes") and set(lists[0]) == set(lists[1]) else ()
        )
        data = SimpleNamespace(spec=other, splits={})
        with refused(folder, *both, *order):
            from_model(folder, data)
        with refused("the model", *both, *order):
            model.evaluate(data)
        try:
            model.spec = other
            with refused(folder, *both, *order):
                model.load(folder)
        finally:
            model.spec = spec


@every_row
def test_weights_go_over_to_other_classes_and_bands(networks, saved, row, capsys):
    model = networks.build(row, bands=4, classes=2, weights=str(saved(row)))
    said = capsys.readouterr().out
    assert len(model.spec.bands) == 4 and re.search(r"weights: .*: (\d+) of \1 tensors of the backbone", said)
    whole_head = row == "FeatureClassifier" or len(networks.spec(row).classes) < 2
    assert whole_head or "new head for this class list" in said


@pytest.mark.parametrize(
    "row, first, second",
    [
        ("SingleShotDetector", {"anchors": [[8, 8]]}, {"anchors": [[9, 9]]}),
        ("MaskRCNN", {}, {"anchor_ratios": [1.0, 2.0, 3.0]}),
        ("DeepLab", {"output_stride": 16}, {"output_stride": 8}),
        ("PSPNetClassifier", {}, {"pyramid_sizes": [1, 2, 4, 8]}),
    ],
)
def test_load_refuses_weights_for_other_arguments(networks, tmp_path, row, first, second):
    networks.build(row, **first).save(tmp_path / "model")
    (name, value), *_ = second.items()
    with refused(tmp_path, f"trained with {name}=", f"this model has {name}={value}", "from_model"):
        networks.build(row, **second).load(tmp_path / "model")


def write_chips(root, high, seed, dtype=np.uint16):
    draw = np.random.default_rng(seed)
    for number in range(4):
        pixels = draw.integers(0, high, (3, 32, 32)).astype(dtype)
        write_raster(root / "images" / f"{number}.tif", pixels)
        write_raster(root / "masks" / f"{number}.tif", (pixels[:1] > high / 2).astype(np.uint8))
    return root


def test_other_data_are_scaled_as_the_model_was_trained(networks, tmp_path):
    """Each data set brings the extremes of its own training chips along, but a model knows only one scaling."""
    options = {"task": "semantic", "val_split": 0.5, "cache": "memory"}
    first, second = (
        prepare_data(write_chips(tmp_path / name, high, high), **options) for name, high in (("a", 1000), ("b", 4000))
    )
    assert first.spec.high != second.spec.high
    model = model_class("UnetClassifier")(first, backbone="resnet18", size="small")
    again = from_model(model.save(tmp_path / "model"), second)
    file = tmp_path / "b" / second.valid.files[0]
    scores = again.predict(again.data.valid[0]["image"])["scores"]
    assert torch.equal(scores, again.predict(file)["scores"])
    assert not torch.equal(scores, again.predict(second.valid[0]["image"])["scores"])
    assert again.evaluate(second) == again.evaluate() and again.data.spec.high == first.spec.high
    assert from_model(tmp_path / "model", first).data is first


def test_background_that_a_model_has_never_seen_counts_nowhere(tmp_path):
    """Data read without `ignore_background` are read as the model's; a model of background takes no sparse labels."""
    options = {"task": "semantic", "val_split": 0.5, "cache": "memory"}
    folder, build, small = (
        write_chips(tmp_path / "data", 256, 1, np.uint8),
        model_class("UnetClassifier"),
        {"size": "small"},
    )
    dense, sparse = prepare_data(folder, **options), prepare_data(folder, **options, ignore_background=True)
    model = build(sparse, backbone="resnet18", **small)
    metrics = model.evaluate()
    assert metrics["iou_background"] is None and model.evaluate(dense) == metrics
    again = from_model(model.save(tmp_path / "sparse"), dense)
    assert again.data.spec.ignore_background and again.evaluate() == metrics and not dense.train.spec.ignore_background
    model = build(dense, backbone="resnet18", **small)
    both = ("trained with ignore_background False, the data have True", "ignore_background=")
    with refused("the model", *both):
        model.evaluate(sparse)
    with refused(tmp_path, *both):
        from_model(model.save(tmp_path / "dense"), sparse)
    with refused("trained with ignore_background True, the data have False"):
        model.load(tmp_path / "sparse")


def test_a_run_is_not_resumed_on_other_data(tmp_path):
    folder = write_chips(tmp_path / "data", 256, 1, np.uint8)
    run = {"cpu": True, "threads": 1, "output": tmp_path / "run"}
    options = {"task": "semantic", "val_split": 0.5, "cache": "memory", "batch_size": 2}
    build, small = model_class("UnetClassifier"), {"backbone": "resnet18", "size": "small"}
    history = build(prepare_data(folder, **options), **small).fit(1, 1e-3, **run)
    same = prepare_data(folder, **options, bands=[1, 2, 3])  # chosen, but the same
    assert build(same, **small).fit(1, 1e-3, **run, resume=True) == history
    other = prepare_data(folder, **options, class_mapping={"1": "roof"}, bands=[3, 2, 1])
    with refused(
        "classes was ['1'], now ['roof']",
        "band_indexes was [1, 2, 3], now [3, 2, 1]",
        "cannot change on --resume",
        "use another --output",
    ):
        build(other, **small).fit(2, 1e-3, **run, resume=True)


# Images and targets ---------------------------------------------------------------------------------------------------


@every_row
def test_images(models, row):
    model, image = models(row), torch.rand(3, 64, 64)
    allowed = "[3, H, W] of the bands red, green, blue"
    for wrong, found in [
        (torch.rand(4, 64, 64), [4, 64, 64]),
        (image[None], [1, 3, 64, 64]),
        (image[:, :0], [3, 0, 64]),
    ]:
        with refused(allowed, found):
            model.predict(wrong)
    for wrong, found in [((image * 255).byte(), "torch.uint8"), (torch.full_like(image, NAN), "finite")]:
        with refused(found, "spec.scaled", "a numpy array (tensor.numpy())"):
            model.predict(wrong)
    with refused("a dict is no image", "the path of a raster", "an array [C, H, W]"):
        model.predict({})
    with refused("the array is float32", "pixels of uint8", "a tensor"):
        model.predict(image.numpy())
    with refused("not found", "a raster file", error=FileNotFoundError):
        model.predict("no/such.tif")
    with refused(". is a folder", "name its rasters: ./*.tif"):
        model.predict(".")
    for wrong, *words in [
        (torch.rand(2, 4, 64, 64), "[2, 4, 64, 64]", "[B, 3, H, W]", "red, green, blue"),
        (image, "[3, 64, 64]", "[B, 3, H, W]"),
        (image[None].double(), "torch.float64", "the network takes torch.float32", "convert the model"),
        ((image[None] * 255).byte(), "torch.uint8", "spec.scaled"),
        ([image], "a list", "[B, 3, H, W]"),
    ]:
        with refused(*words):
            model(wrong)


@every_row
def test_pixels_in_memory_are_scaled_as_those_of_a_file(models, row):
    pixels = np.random.default_rng(1).integers(0, 256, (3, 64, 64)).astype(np.uint8)
    of_array, of_tensor = models(row).predict([pixels, torch.from_numpy(pixels / np.float32(255))])
    assert of_array.keys() == of_tensor.keys()
    assert all(torch.equal(v, of_tensor[k]) for k, v in of_array.items() if isinstance(v, torch.Tensor))


@every_row
def test_targets_are_needed_in_training(networks, models, row):
    model = models(row).train()
    images, targets = networks.batch(row, [(64, 64)] * 2)
    with refused("target", "each of 2 image(s)", "there are none", "model.eval()"):
        model(images)
    with refused("each of 2 image(s)", "there are 1"):
        model(images, targets[:1])


def test_splits(models):
    chips = SimpleNamespace(spec=models("UnetClassifier").spec, splits={"train": [], "valid": []})
    with refused("split='val'", "one of train, valid"):
        models("UnetClassifier").evaluate(chips, split="val")
    chips.splits["test"] = []
    for split, way in (("valid", "a val_split above 0"), ("test", "test_path")):
        with refused(f"split='{split}' has no chips", way):
            models("UnetClassifier").evaluate(chips, split=split)


# Tiny chips -----------------------------------------------------------------------------------------------------------

SMALLEST = {"SingleShotDetector": 3}  # half a cell of its finest map, and one pixel


@every_row
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 8), (16, 16)], ids=str)
def test_tiny_chips(networks, row, size):
    """They are padded within the network and cropped again, or refused before training."""
    if min(size) < SMALLEST.get(row, 1):
        with refused(f"a chip of {min(size)} pixels", f"at least {SMALLEST[row]}"):
            networks.build(row, changes={"chip_size": size})
        return
    model = convert(networks.build(row, changes={"chip_size": size}))  # as `fit` does
    images, targets = networks.batch(row, [size] * 2, objects=0)
    for target in targets:  # one object that fills the chip
        if "boxes" in target:
            target |= {"boxes": torch.tensor([[0.0, 0.0, size[1], size[0]]]), "labels": torch.tensor([1])}
        if "masks" in target:
            target["masks"] = torch.ones(1, *size, dtype=torch.bool)
    losses = model.train()(images, targets)
    sum(loss.total for loss in losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(loss.total.isfinite() for loss in losses.values())
    with torch.no_grad():
        predictions = model.eval()(images)
    shapes = {"mask": size, "edges": size, "image_hr": (3, 2 * size[0], 2 * size[1])}
    for prediction in predictions:
        assert all(prediction[key].shape == shapes[key] for key in shapes.keys() & prediction.keys())
        assert all(v.isfinite().all() for v in prediction.values() if v.is_floating_point())
