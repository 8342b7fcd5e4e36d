"""Kinds of label. A new one is a file here and a line below."""

from accel_geo.tasks.base import Task
from accel_geo.tasks.classification import Classification
from accel_geo.tasks.instances import Instances
from accel_geo.tasks.semantic import Semantic

TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Semantic(), Instances())}
