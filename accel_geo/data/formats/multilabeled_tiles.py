"""MultiLabeled_Tiles, as exported by ArcGIS Pro: labels/<chip>.xml names all classes of the chip."""

from pathlib import Path

from accel_geo.data.formats import labeled_tiles
from accel_geo.data.formats.rows import Rows

TASKS = ("classification",)
LAYOUT = "images/<chip> and labels/<chip>.xml whose <object><name> are the classes of the whole chip, comma separated"


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return labeled_tiles.kind(path) == "MultiLabeled_Tiles"


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; chips without labels are chips of no class.

    Raises:
        ValueError: a label file cannot be read.
    """
    return labeled_tiles.read_tiles(path, task, multilabel=True)
