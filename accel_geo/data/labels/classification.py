"""Classification: one class for a chip, or several."""

from collections.abc import Mapping

import torch

from accel_geo.data.labels.compact import Label, Place
from accel_geo.data.spec import DataSpec


def decode(row: dict, place: Place) -> Label:
    """Take the labels that the row gives, each once."""
    values = list(dict.fromkeys(row["values"]))
    return Label(values, [1] * len(values))


def fill(sample: dict, label: Label, spec: DataSpec, index_of: Mapping[int, int]) -> dict:
    """Add `label`, or `labels` where a chip may have several; classes left out are no labels."""
    indexes = [index_of[value] - 1 for value in label.values if index_of[value]]
    result = empty(spec, sample["image"].shape[-2:])
    if spec.multilabel:
        result["labels"][indexes] = 1
    elif indexes:
        result["label"] = indexes[0]
    return sample | result


def empty(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return no label: -1, or zeros where a chip may have several."""
    return {"labels": torch.zeros(len(spec.classes))} if spec.multilabel else {"label": -1}
