"""Where the anchors of a SingleShotDetector come from: the boxes of the data, or the published model that it starts from."""

import json
from functools import partial

import numpy as np
import pytest
import small_networks
import torch
from parallel.chips import write_raster
from test_ssd import SMALL, chips_with

from accel_geo import prepare_data
from accel_geo.models import ssd
from accel_geo.models.ssd import SingleShotDetector

ROW = "SingleShotDetector"
build = partial(small_networks.build, ROW)
SIDES = np.array([[9.0, 9.0], [30.0, 15.0], [22.0, 60.0]])
OTHER = np.array([[5.0, 4.0], [12.0, 40.0]])


def trained(model):
    """The model with other weights than a fresh one has."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    return model


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A model with anchors fitted to its data, and its published folder."""
    model = trained(SingleShotDetector(chips_with(small_networks.spec(ROW), SIDES), **SMALL))
    return model, str(model.save(tmp_path_factory.mktemp("models") / "first"))


def test_a_published_model_gives_its_anchors_too(first, capsys):
    model, folder = first
    second = SingleShotDetector(chips_with(small_networks.spec(ROW), OTHER), weights=folder, **SMALL)
    own = SingleShotDetector(chips_with(small_networks.spec(ROW), OTHER), **SMALL)
    assert own.shapes != model.shapes == second.shapes and second.strides == model.strides
    assert "new" not in capsys.readouterr().out
    for name, tensor in model.state_dict().items():
        assert torch.equal(second.state_dict()[name], tensor), name
    rebuilt = SingleShotDetector(second.spec, **json.loads(json.dumps(second.arguments)))
    assert rebuilt.shapes == second.shapes
    rebuilt.load_state_dict(second.state_dict())


@pytest.mark.parametrize("anchors", [{"grids": [8, 4, 2], "zooms": [1.0, 0.7]}, {"grids": [[4, 3], [], [2]]}, {}])
@pytest.mark.parametrize("size", ["small", "full"])
def test_anchors_go_over_to_chips_of_another_size(tmp_path, anchors, size):
    """In pixels, on the maps that have learned them, whatever the arguments say of a chip's size."""
    model = trained(build(size=size, **anchors))
    wide = SingleShotDetector(
        chips_with(small_networks.spec(ROW, chip_size=(200, 300)), OTHER),
        backbone="resnet18",
        size=size,
        weights=str(model.save(tmp_path / "model")),
    )
    assert (wide.strides, wide.shapes) == (model.strides, model.shapes)
    heads = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    assert heads and all(torch.equal(wide.state_dict()[name], tensor) for name, tensor in heads.items())


def test_another_size_of_network_places_them_anew(tmp_path, capsys):
    small = build(anchors=[[8, 8], [40, 40]])
    full = build(size="full", weights=str(small.save(tmp_path / "model")))
    assert small.strides == [4, 8] and full.strides == [8] and full.shapes == [[[8, 8], [40, 40]]]
    assert "made for other arguments: head.classification_head.module_list.0.bias" in capsys.readouterr().out


def test_other_anchors_of_ones_own_start_their_heads_anew(tmp_path, capsys):
    """Though the shapes of the weights are the same."""
    model = trained(build(anchors=[[9, 9], [30, 15], [60, 60]]))
    folder = str(model.save(tmp_path / "model"))
    assert model.strides == [4, 16]
    capsys.readouterr()
    for anchors, kept in [
        ({"anchors": [[9, 9], [30, 14], [60, 60]]}, [1]),
        ({"anchors": [[9, 9], [30, 15], [60, 60]], "ratios": [[0.5, 2.0]]}, []),
    ]:
        other = build(weights=folder, **anchors)
        said = capsys.readouterr().out
        assert "new, as they were made for other arguments: head.classification_head" in said
        assert "new head for this class list" not in said
        state = other.state_dict()
        same = {name for name, tensor in model.state_dict().items() if torch.equal(tensor, state[name])}
        for number in range(2):
            for head in ("classification", "regression"):
                assert (f"head.{head}_head.module_list.{number}.weight" in same) == (number in kept)
        assert same >= {name for name in state if name.startswith("backbone.")}
    # the same ones, map by map
    build(weights=folder, anchors=[[[9, 9], [30, 15]], [], [[60, 60]]])
    assert "new" not in capsys.readouterr().out


def test_other_classes_take_the_boxes_head(first, capsys):
    model, folder = first
    few = build(classes=2, weights=folder)
    assert few.shapes == model.shapes and "new head for this class list" in capsys.readouterr().out
    name = "head.regression_head.module_list.0.weight"
    assert torch.equal(few.state_dict()[name], model.state_dict()[name])


def test_heads_of_unknown_anchors_are_not_taken(first, tmp_path, capsys):
    """A file alone does not say what its anchors were."""
    model, folder = first
    torch.save(model.state_dict(), tmp_path / "alone.pth")
    other = build(weights=str(tmp_path / "alone.pth"), anchors=model.arguments["anchors"])
    name = "head.regression_head.module_list.0.weight"
    assert not torch.equal(other.state_dict()[name], model.state_dict()[name])
    assert "made for other arguments" in capsys.readouterr().out


def test_anchors_map_by_map():
    model = build(anchors=[[[9, 9], [30, 30]], [], [[8, 8]]])
    assert model.strides == [4, 16] and model.shapes == [[[9, 9], [30, 30]], [[8, 8]]]
    for wrong in ([[], []], [[[8, 8]], [[8]]], [[[8, 8]], [8, 8]], [[8, 8], []]):
        with pytest.raises(ValueError, match="pairs of width and height, each above 0, or a list of such lists"):
            build(anchors=wrong)


def test_boxes_are_counted_without_reading_pixels(tmp_path, monkeypatch):
    """Of the kept classes, in the order of image_id, as large as a crop shows them."""
    folder = write_boxes(tmp_path / "data", chips=6)
    options = {"task": "detection", "val_split": 0, "cache": "memory"}
    data = prepare_data(folder, **options)
    wanted = [data.train[i]["boxes"].numpy() for i in range(len(data.train))]
    wanted = np.concatenate([boxes[:, 2:] - boxes[:, :2] for boxes in wanted])
    monkeypatch.setattr(type(data.train.parts[0].store), "chip", None)
    assert len(wanted) > 12 and np.array_equal(data.train.box_sides(), wanted)
    one = prepare_data(folder, **options, classes=data.spec.classes[:1])
    cropped = prepare_data(folder, **options, chip_size=20)
    assert 0 < len(one.train.box_sides()) < len(wanted)
    assert np.array_equal(cropped.train.box_sides(), wanted.clip(max=20)) and wanted.max() > 20


def write_boxes(folder, chips):
    """Chips with boxes of two classes, as COCO has them."""
    draw = np.random.default_rng(0)
    images, annotations = [], []
    (folder / "images").mkdir(parents=True)
    for i in range(chips):
        write_raster(folder / "images" / f"{i}.tif", draw.integers(0, 255, (3, 48, 64), dtype=np.uint8))
        images.append({"id": i, "file_name": f"{i}.tif", "width": 64, "height": 48})
        for _ in range(4 if i else 0):
            w, h = (int(n) for n in draw.integers(4, 30, 2))
            annotation = {"id": len(annotations), "image_id": i, "category_id": 1 + len(annotations) % 2, "area": w * h}
            annotations.append(annotation | {"bbox": [3, 5, w, h], "iscrowd": 0})
    categories = [{"id": 1, "name": "roof"}, {"id": 2, "name": "tree"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


def test_many_boxes_are_thinned_evenly(monkeypatch):
    """On every process alike: what is fitted to does not depend on chance."""
    seen = []
    monkeypatch.setattr(ssd, "fit_shapes", lambda sides: seen.append(sides) or [[8.0, 8.0]])
    sides = np.arange(1.0, 24_001.0).reshape(-1, 2)
    for turned in (False, True):
        ssd.fitted_anchors(chips_with(small_networks.spec(ROW, map_space=turned), sides))
    straight, both = seen
    assert len(straight) == ssd.MOST_BOXES == len(both)
    steps = np.diff(straight[:, 0])
    assert straight[0, 0] == 1 and straight[-1, 0] > 23_990 and set(steps) == {4.0, 6.0}
    assert np.array_equal(both[: len(both) // 2], both[len(both) // 2 :, ::-1])
    few = ssd.fitted_anchors(chips_with(small_networks.spec(ROW, map_space=False), sides[:7]))
    assert few and np.array_equal(seen[-1], sides[:7])
