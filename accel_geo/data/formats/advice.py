"""What a message says of a path that no format recognises: what lies there, and what may have been meant."""

from pathlib import Path

from accel_geo.data.formats import boxes, esri, image_masks
from accel_geo.data.formats.rows import folder, has_raster, read_json, some
from accel_geo.data.pixels import RASTER_SUFFIXES

_VECTORS = (".geojson", ".gpkg", ".shp", ".fgb", ".kml")
_LABELS = (*RASTER_SUFFIXES, ".xml", ".txt")


def found(path: Path) -> str:
    """Return a sentence that lists what lies in a folder."""
    if path.is_file():
        size, suffix = path.stat().st_size, path.suffix.lower()
        scene = " A raster is chipped where a file of labels is given as vectors." if suffix in RASTER_SUFFIXES else ""
        labels = " Vectors label a scene: give that as the path and this file as vectors." if suffix in _VECTORS else ""
        return f"It is a file of {size} bytes.{scene}{labels}"
    entries = sorted(path.iterdir())
    if not entries:
        return "It is empty."
    folders = [f"{e.name}/ ({sum(1 for _ in e.iterdir())} entries)" for e in entries if e.is_dir()]
    files = [e.name for e in entries if not e.is_dir()]
    listed = folders[:12] + files[: max(12 - len(folders), 4)]
    more = len(entries) - len(listed)
    mode = esri.metadata(path).mode
    said = f" Its metadata call it {mode}." if mode else ""
    images = " Chips lie in the folder itself, without labels beside them." if has_raster(path) else ""
    drawn = [name for name in files if name.lower().endswith(_VECTORS)]
    vectors = f" A scene there is chipped where {some(drawn, 2)} is given as vectors." if images and drawn else ""
    told = f"{said}{images}{vectors}{_unpaired(path)}{_broken(path)}"
    return f"Found there: {', '.join(listed)}{f' and {more} more' if more else ''}.{told}"


def _broken(path: Path) -> str:
    # A sentence on each JSON file that is none: what it is for cannot be told.
    text = ""
    for name in boxes.listing(path, (".json",), deep=False):
        try:
            read_json(path / name)
        except ValueError as error:
            text += f" {error}."
    return text


def _unpaired(path: Path) -> str:
    # A sentence on folders of labels where no file is named like a chip.
    images, text = folder(path, *image_masks.IMAGES), ""
    chips = {boxes.stem(name): name for name in boxes.listing(images, RASTER_SUFFIXES)} if images else {}
    for name in image_masks.MASKS if chips else ():
        labels = boxes.listing(place, _LABELS, deep=False) if (place := folder(path, name)) else []
        if labels and not chips.keys() & set(map(boxes.stem, labels)):
            text += (
                f" No file in {place.name}/ ({labels[0]}) is named like one in {images.name}/ ({min(chips.values())})."
            )
    return text


def nearby(path: Path) -> str:
    """Return a sentence on what there is where a path leads to nothing."""
    parent = next((p for p in path.parents if p.exists()), Path("."))
    names = sorted(entry.name for entry in parent.iterdir())
    return f"Check the path; in {parent} there are: {some(names, 12) or 'no files'}"
