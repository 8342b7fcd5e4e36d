"""Whether data agree with those that a model was trained on, and how they come to be read alike."""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from accel_geo.data.spec import DataSpec

if TYPE_CHECKING:
    from accel_geo.prepare import GeoData

# with the options of prepare_data that choose them
AGREES = {
    "task": "task=",
    "multilabel": None,
    "classes": "classes= or class_mapping=",
    "bands": "bands=",
    "scale": "scale=",
    "ignore_background": "ignore_background=",
}
SCALING = ("low", "high", "mean", "std")


def check_data(trained: DataSpec, given: DataSpec, model: str) -> None:
    """Refuse data of another kind than a model was trained on.

    Args:
        trained: of the data that the model was trained on.
        given: of the data at hand.
        model: names the model in the message.

    Raises:
        ValueError: task, kind of labels, classes, bands, scale or what background is differ; the message shows both.
    """
    for name, option in AGREES.items():
        theirs, mine = (list(v) if isinstance(v := getattr(spec, name), tuple) else v for spec in (trained, given))
        if theirs == mine:
            continue
        reordered = isinstance(mine, list) and sorted(theirs) == sorted(mine)
        raise ValueError(
            f"{model} was trained with {name} {theirs}, the data have {mine}"
            + (", the same in another order" if reordered else "")
            + (f"; read the data with prepare_data(..., {option}...) to have the model's" if option else "")
            + ", or start another model from these weights: give weights=PATH to its constructor"
        )


def read_like(trained: DataSpec, data: "GeoData", model: str) -> "GeoData":
    """Return data that are read as those that a model was trained on.

    Pixels are scaled as `predict` scales a raster: data bring the scaling of their own training chips along, which
    differs where pixels are not uint8. Where a model has never seen background (`ignore_background`), background counts
    nowhere; a model that has learned it cannot take sparse labels.

    Args:
        trained: of the data that the model was trained on.
        data: at hand.
        model: names the model in the message.

    Raises:
        ValueError: the data are of another kind, see `check_data`.
    """
    alike = {name: getattr(trained, name) for name in SCALING}
    if trained.ignore_background:
        alike["ignore_background"] = True
    spec = replace(data.spec, **alike)
    check_data(trained, spec, model)
    if spec == data.spec:
        return data
    splits = {name: copy.copy(chips) for name, chips in data.splits.items()}
    for chips in splits.values():
        chips.spec = spec
    return replace(data, spec=spec, **splits)
