"""Deep learning on geospatial imagery: plain PyTorch in HuggingFace Accelerate, the same run on any number of devices.

Public names load on first use, so that importing the package costs little more than importing torch.
"""

import importlib

from accel_geo.models import MODELS

__version__ = "0.1.0"

_HOMES = {
    "prepare_data": "accel_geo.prepare",
    "GeoData": "accel_geo.prepare",
    "DataSpec": "accel_geo.data.spec",
    "GeoModel": "accel_geo.models.base",
    "from_model": "accel_geo.models",
    **MODELS,
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'accel_geo' has no attribute {name!r}; it offers {', '.join(sorted(_HOMES))}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
