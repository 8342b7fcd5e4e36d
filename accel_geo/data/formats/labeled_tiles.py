"""Labeled_Tiles, as exported by ArcGIS Pro: labels/<chip>.xml names the one class of the chip."""

from itertools import islice
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from accel_geo.data.formats import esri
from accel_geo.data.formats.rows import Rows, folder, rasters, relative, some, stem, table

TASKS = ("classification",)
LAYOUT = "images/<chip> and labels/<chip>.xml whose <object><name> is the class of the whole chip"
_LOOKED_AT = 20  # label files that show the format where the metadata do not say it


def recognise(path: Path) -> bool:
    """Say whether a folder is in this format."""
    return kind(path) == "Labeled_Tiles"


def read(path: Path, task: str) -> Rows:
    """Read the rows of a folder; chips without a label have no value.

    Raises:
        ValueError: a label file cannot be read, names several classes or one that is in no class list.
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
    several = False
    looked_at = 0
    for file in islice(_label_files(labels), _LOOKED_AT):
        try:
            root = parse(file)
        except ValueError:
            continue
        objects = root.findall("object")
        if not all(_whole_chip(entry, root) for entry in objects):
            return ""
        looked_at += bool(objects)
        several |= len(objects) > 1 or any("," in (entry.findtext("name") or "") for entry in objects)
    return ("MultiLabeled_Tiles" if several else "Labeled_Tiles") if looked_at else ""


def _label_files(labels: Path) -> list[Path]:
    return sorted(f for f in labels.iterdir() if f.name.lower().endswith(".xml") and not is_litter(f.name))


def is_litter(name: str) -> bool:
    """Say whether an XML file is no label: GDAL's sidecars, hidden files."""
    return name.lower().endswith(".aux.xml") or name.startswith(".")


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
    files = rasters(base)
    names = _names(files, base, labels)
    classes = dict(meta.classes) or _found_classes(names)
    rows = []
    for file in files:
        label, found = names.get(file, (None, []))
        values = dict.fromkeys(_value(name, classes, label) for name in found)
        if len(values) > 1 and not multilabel:
            raise ValueError(
                f"{label} names {len(values)} classes ({some(found)}), one is allowed; several labels of a chip are read "
                "as format MultiLabeled_Tiles"
            )
        rows.append({"file": relative(file, path), "values": list(values)})
    without = [row["file"] for row in rows if not row["values"]]
    problems = []
    if without:
        fate = "they count as chips of no class" if multilabel else "nothing is learned from them"
        problems.append(f"{len(without)} chip(s) without a label, {fate}: {some(without, 3)}")
    if lonely := sum(1 for _ in _label_files(labels)) - len(names):
        problems.append(f"{lonely} label file(s) without a chip were left out")
    used = {value for row in rows for value in row["values"]}
    if unused := [name for value, name in classes.items() if value not in used]:
        problems.append(f"no chip of class {', '.join(unused)}")
    return Rows(
        format="MultiLabeled_Tiles" if multilabel else "Labeled_Tiles",
        task=task,
        root=path,
        dataset=table(rows),
        classes=dict(sorted(classes.items())),
        bands=meta.bands,
        map_space=meta.map_space,
        multilabel=multilabel,
        sources=[*meta.files, *(label for label, _ in names.values())],
        problems=[*esri.disagreements(meta, len(rows)), *problems],
    )


def _names(files: list[Path], base: Path, labels: Path) -> dict[Path, tuple[Path, list[str]]]:
    # The label file of each chip that has one, and the class names in it.
    by_stem: dict[str, Path] = {}
    for label in _label_files(labels):
        other = by_stem.setdefault(stem(label, labels), label)
        if other != label:
            raise ValueError(f"two label files for one chip: {other} and {label}; keep one of them")
    names = {}
    for file in files:
        label = by_stem.get(stem(file, base))
        if label is not None:
            entries = [entry.findtext("name") or "" for entry in parse(label).findall("object")]
            names[file] = label, [part.strip() for entry in entries for part in entry.split(",") if part.strip()]
    return names


def _found_classes(names: dict[Path, tuple[Path, list[str]]]) -> dict[int, str]:
    # Without a class list: numbers are class values, names get values in their order.
    found = sorted({name for _, entries in names.values() for name in entries})
    if all(name.lstrip("-").isdecimal() for name in found):
        return {int(name): name for name in found}
    return dict(enumerate(found, 1))


def _value(name: str, classes: dict[int, str], label: Path) -> int:
    # A class list of the metadata may give names, while labels hold values, and the other way round.
    number = int(name) if name.lstrip("-").isdecimal() else None
    value = number if number in classes else esri.class_value(name, classes)
    if value is None:
        listed = ", ".join(f"{known} ({value})" for value, known in classes.items())
        raise ValueError(
            f"{label} names the class {name!r}, which does not exist: the classes are {listed}. Add it to the class list "
            "of the metadata, or correct the label"
        )
    return value
