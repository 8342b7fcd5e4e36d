"""The rows: one file per model, one line here."""

import importlib
import os

MODELS = {
    "FeatureClassifier": "accel_geo.models.feature_classifier",
    "SingleShotDetector": "accel_geo.models.ssd",
    "UnetClassifier": "accel_geo.models.unet_classifier",
    "MaskRCNN": "accel_geo.models.rcnn",
    "FasterRCNN": "accel_geo.models.rcnn",
    "DeepLab": "accel_geo.models.deeplab",
    "PSPNetClassifier": "accel_geo.models.psp_net",
    "SuperResolution": "accel_geo.models.super_resolution",
    "HEDEdgeDetector": "accel_geo.models.hed",
    "BDCNEdgeDetector": "accel_geo.models.bdcn",
}


def model_class(name: str) -> type:
    """Return the class of a row.

    Raises:
        ValueError: no row of that name.
    """
    if name not in MODELS:
        raise ValueError(f"model class {name!r} is unknown; choose {', '.join(sorted(MODELS))}")
    return getattr(importlib.import_module(MODELS[name]), name)


def models_for(task: str) -> list[str]:
    """Return the names of the models that learn a task; loads all of them."""
    return [name for name in MODELS if model_class(name).task == task]


def from_model(path: str | os.PathLike, data: object = None) -> object:
    """Rebuild a published model of any class; see `GeoModel.from_model`."""
    from accel_geo.data.spec import DataSpec
    from accel_geo.engine.checkpoint import load_module_state, read_folder
    from accel_geo.models.agreement import read_like

    found = read_folder(path)
    spec = DataSpec.from_json(found.config["spec"])
    if data is not None:
        data = read_like(spec, data, str(path))
    model = model_class(found.config["class"])(spec, **found.config["arguments"])
    load_module_state(model, found.model, str(path))
    model.data = data
    return model.eval()
