"""What a chip's labels are: for each task how they are read from a row's files and shapes, kept compact, and served.

Each module of KINDS has `decode(row, place) -> Label` (files and shapes of a row to the compact form),
`fill(sample, label, spec, index_of) -> sample` (adds the task's target keys to a sample that has an image) and
`empty(spec, size) -> dict` (the target keys of a chip that has no labels).
"""

from types import ModuleType

from accel_geo.data.labels import classification, detection, edges, instances, panoptic, semantic, super_resolution
from accel_geo.data.labels.compact import BACKGROUND, INSIDE, NO_DATA, Label, Place

__all__ = ["BACKGROUND", "INSIDE", "KINDS", "NO_DATA", "Label", "Place"]

KINDS: dict[str, ModuleType] = {
    "classification": classification,
    "detection": detection,
    "instances": instances,
    "semantic": semantic,
    "panoptic": panoptic,
    "edges": edges,
    "super_resolution": super_resolution,
}
