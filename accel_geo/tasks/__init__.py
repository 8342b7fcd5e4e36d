"""Kinds of label. A new one is a file here and a line below."""

from accel_geo.tasks.base import Task
from accel_geo.tasks.classification import Classification
from accel_geo.tasks.detection import Detection
from accel_geo.tasks.edges import Edges
from accel_geo.tasks.instances import Instances
from accel_geo.tasks.panoptic import Panoptic
from accel_geo.tasks.semantic import Semantic
from accel_geo.tasks.super_resolution import SuperResolution

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Classification(),
        Detection(),
        Instances(),
        Semantic(),
        Panoptic(),
        Edges(),
        SuperResolution(),
    )
}
