"""Labeled_Tiles, as exported by ArcGIS Pro: labels/<chip>.xml names the one class of the chip."""

from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from accel_geo.data.formats import boxes, esri
from accel_geo.data.formats.rows import Rows, folder, kept_as_background, some, table
from accel_geo.data.pixels import RASTER_SUFFIXES

TASKS = ("classification",)
LAYOUT = "images/<chip> and labels/<chip>.xml whose <object><name> is the class of the whole chip"
_LOOKED_AT = 20  # label files that show the format where the metadata do not say it


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return kind(path) == "Labeled_Tiles"


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; chips without a label have no value.

    Raises:
        ValueError: a label file cannot be read, or names several classes.
    """
    return read_tiles(path, task, multilabel=False)


def kind(path: Path) -> str:
    """Return Labeled_Tiles, MultiLabeled_Tiles, or "" where a folder is neither.

    Without metadata the first label files decide: labels of whole chips have no box, or one as large as the chip.
    """
    mode, labels = esri.metadata(path).mode, folder(path, "labels")
    if not folder(path, "images") or not labels or mode not in ("", "Labeled_Tiles", "MultiLabeled_Tiles"):
        return ""
    if mode:
        return mode
    several, labelled = False, 0
    for name in boxes.listing(labels, (".xml",))[:_LOOKED_AT]:
        try:
            root = parse(labels / name)
        except ValueError:
            continue
        objects = root.findall("object")
        if root.tag != "annotation" or not all(_whole_chip(entry, root) for entry in objects):
            return ""
        labelled += bool(objects)
        several |= len(objects) > 1 or any("," in (entry.findtext("name") or "") for entry in objects)
    return ("MultiLabeled_Tiles" if several else "Labeled_Tiles") if labelled else ""


def parse(file: Path) -> Element:
    """Parse an XML label file; blanks before its first line do not matter.

    Raises:
        ValueError: it is empty or no XML, or it declares entities.
    """
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    data = file.read_bytes()
    if data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        data = data.removeprefix(b"\xef\xbb\xbf").strip()
    if not data:
        raise ValueError(f"{file} is empty; delete it where the chip has no label, else copy it again")
    try:
        return fromstring(data)
    except ParseError as error:
        raise ValueError(f"{file} is no valid XML ({error}); correct it, or delete it") from error
    except DefusedXmlException as error:
        raise ValueError(f"{file} declares entities, which are not read ({error}); delete the DOCTYPE") from error


def _whole_chip(entry: Element, root: Element) -> bool:
    box, size = entry.find("bndbox"), root.find("size")
    if box is None:
        return True
    try:
        x1, y1, x2, y2 = (float(box.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax"))
        width, height = (float(size.findtext(side, "")) for side in ("width", "height"))
    except (ValueError, AttributeError):
        return False
    return x1 <= 1 and y1 <= 1 and x2 >= width - 1 and y2 >= height - 1


def read_tiles(path: Path, task: str, multilabel: bool) -> Rows:
    """Read the rows of a folder of chips with labels.

    Args:
        path: the folder.
        task: "classification".
        multilabel: chips may have several labels, in several objects or separated by commas in one.

    Raises:
        ValueError: see `read`.
    """
    base, labels, meta = folder(path, "images"), folder(path, "labels"), esri.metadata(path)
    if base is None or labels is None:
        raise ValueError(f"{path} holds no folders images and labels: {LAYOUT}")
    chips = boxes.listing(base, RASTER_SUFFIXES)
    pairs, lonely = boxes.pair(chips, boxes.listing(labels, (".xml",)), str(labels))
    texts = {chip: _texts(labels / label, meta.classes) for chip, label in pairs.items()}
    settled = boxes.settle((text for found in texts.values() for text in found), meta.classes, "the metadata")
    rows = []
    for chip in chips:
        values = dict.fromkeys(settled.value_of[text] for text in texts.get(chip, ()))
        if len(values) > 1 and not multilabel:
            raise ValueError(
                f"{labels / pairs[chip]} names {len(values)} classes ({some(texts[chip])}), one is allowed; several "
                "labels of a chip are read as format MultiLabeled_Tiles"
            )
        rows.append({"file": f"{base.name}/{chip}", "values": list(values), **boxes.placed(chip)})
    without = [row["file"] for row in rows if not row["values"]]
    problems = list(settled.problems)
    if without:
        fate = "they count as chips of no class" if multilabel else "nothing is learned from them"
        problems.append(f"{len(without)} chip(s) without a label, {fate}: {some(without, 3)}")
    problems += kept_as_background([], lonely)
    used = {value for row in rows for value in row["values"]}
    if unused := [name for value, name in settled.classes.items() if value not in used]:
        problems.append(f"no chip of class {', '.join(unused)}")
    return Rows(
        format="MultiLabeled_Tiles" if multilabel else "Labeled_Tiles",
        task=task,
        root=path,
        dataset=table(rows),
        classes=settled.classes,
        named=settled.named,
        bands=meta.bands,
        map_space=meta.map_space,
        multilabel=multilabel,
        sources=[*meta.files, *(labels / label for label in pairs.values())],
        problems=[*esri.disagreements(meta, len(rows)), *problems],
    )


def _texts(file: Path, known: dict[int, str]) -> list[str]:
    # Commas separate classes, unless a class is named so.
    entries = [(entry.findtext("name") or "").strip() for entry in parse(file).findall("object")]
    parts = [[entry] if entry in known.values() else entry.split(",") for entry in entries]
    return [part.strip() for several in parts for part in several if part.strip()]
