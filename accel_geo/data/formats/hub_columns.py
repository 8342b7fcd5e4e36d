"""The columns of a `datasets` data set: what each holds, which of them is the image, and what the labels are."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from accel_geo.data.formats.rows import some

_IMAGE = ("image", "images", "img", "chip", "tile", "picture", "pixel_values", "jpg", "png", "tif", "tiff")
_MASK = ("mask", "masks", "segmentation_mask", "semantic_mask", "label_mask", "segmentation", "seg")
_MASK += ("label", "labels", "annotation", "annotations")
_LABEL = ("label", "labels", "class", "classes", "category", "categories", "target", "targets", "tags", "cls")
_OBJECTS = ("objects", "object", "annotations", "instances")
_BOXES = ("bbox", "bboxes", "boxes", "box")
_OF_BOXES = ("category", "categories", "category_id", "category_ids", "label", "labels", "class", "classes", "class_id")
_SHAPES = ("segmentation", "segmentations", "segments", "polygon", "polygons")
_CROWDS = ("iscrowd", "is_crowd", "crowd")
_PAIRS = (("lr", "hr"), ("low", "high"), ("low_res", "high_res"), ("low_resolution", "high_resolution"))
_PAIRS += (("lr_image", "hr_image"), ("image_lr", "image_hr"), ("image_low", "image_high"))
ROLES = ("image", "sharp", "mask", "objects", "label")


class Kind(NamedTuple):
    """What a column holds.

    Attributes:
        depth: how many lists lie around the leaf; of arrays the number of dimensions.
        leaf: image, binary, class, int, float, bool, string, struct or other.
        names: of the classes, where the leaf is a class.
        dtype: type of numbers, or None where it is not known.
        fields: of a struct.
    """

    depth: int
    leaf: str
    names: tuple[str, ...] = ()
    dtype: str | None = None
    fields: Mapping[str, "Kind"] = {}

    @property
    def pixels(self) -> bool:
        """Whether it may be an image: an encoded one, or an array of two or three dimensions."""
        return not self.depth and self.leaf in ("image", "binary") or self.depth in (2, 3) and bool(self.number)

    @property
    def number(self) -> bool:
        """Whether the leaf is a number."""
        return self.leaf in ("int", "float", "bool")


def kind_of(feature: object) -> Kind:
    """Return what a column of this feature (of `datasets.Features`) holds."""
    import datasets

    depth = 0
    while isinstance(feature, list | tuple) or hasattr(feature, "feature"):
        feature = feature[0] if isinstance(feature, list | tuple) else feature.feature
        depth += 1
    if isinstance(feature, Mapping):
        return Kind(depth, "struct", fields={name: kind_of(inner) for name, inner in feature.items()})
    if isinstance(feature, datasets.Image):
        return Kind(depth, "image")
    if isinstance(feature, datasets.ClassLabel):
        return Kind(depth, "class", names=tuple(feature.names))
    dtype = str(getattr(feature, "dtype", ""))
    leaves = {
        "int": "int",
        "uint": "int",
        "float": "float",
        "bool": "bool",
        "string": "string",
        "large_string": "string",
    }
    leaves |= {"binary": "binary", "large_binary": "binary"}
    leaf = leaves.get(dtype.rstrip("0123456789"), "other")
    number = dtype if leaf in ("int", "float", "bool") else None
    return Kind(depth + len(getattr(feature, "shape", None) or ()), leaf, dtype=number)


def kind_of_value(value: object) -> Kind:
    """Return what a column holds by its first value, where a stream does not say its features."""
    if isinstance(value, Mapping):
        if "bytes" in value or "path" in value:
            return Kind(0, "image")
        return Kind(0, "struct", fields={name: kind_of_value(inner) for name, inner in value.items()})
    if isinstance(value, list | tuple):
        inner = kind_of_value(value[0]) if len(value) else Kind(0, "other")
        return inner._replace(depth=inner.depth + 1)
    if hasattr(value, "getbands"):
        return Kind(0, "image")
    if isinstance(value, np.ndarray | np.generic):
        leaf = {"i": "int", "u": "int", "f": "float", "b": "bool"}.get(value.dtype.kind, "other")
        return Kind(value.ndim, leaf, dtype=value.dtype.name)
    leaves = {bytes: "binary", str: "string", bool: "bool", int: "int", float: "float"}
    return Kind(0, leaves.get(type(value), "other"))


def listed(kinds: Mapping[str, Kind]) -> str:
    """Return the columns and what they hold, for a message."""

    def text(kind: Kind) -> str:
        inner = f"{{{listed(kind.fields)}}}" if kind.leaf == "struct" else kind.dtype or kind.leaf
        inner += f" ({some(kind.names, 4)})" if kind.names else ""
        return "list of " * kind.depth + inner

    return "; ".join(f"{name}: {text(kind)}" for name, kind in kinds.items()) or "none"


@dataclass(frozen=True)
class Columns:
    """Which column is what; None where there is none.

    Attributes:
        image: of the chip; of a pair the coarse one.
        sharp: the sharp image of a pair.
        mask: class values of the pixels.
        objects: boxes and shapes with their classes, one struct, or the boxes alone.
        label: of the whole chip.
    """

    image: str
    sharp: str | None = None
    mask: str | None = None
    objects: str | None = None
    label: str | None = None


def find(kinds: Mapping[str, Kind], chosen: Mapping[str, str]) -> Columns:
    """Find the columns by what they hold and by their names.

    Args:
        kinds: of all columns.
        chosen: columns that the user names, by role.

    Raises:
        ValueError: there is no image, or several; or a chosen column does not exist.
    """
    for role, name in chosen.items():
        if role not in ROLES or name not in kinds:
            what = f"the role {role!r} is not one of {', '.join(ROLES)}" if role not in ROLES else f"no column {name!r}"
            raise ValueError(f"columns={dict(chosen)}: {what}; the columns are {listed(kinds)}")
    by_name = {name.casefold(): name for name in kinds}
    images = [name for name, kind in kinds.items() if kind.pixels and name.casefold() not in _BOXES]
    found: dict[str, str | None] = dict.fromkeys(ROLES)
    for pair in _PAIRS:
        if all(by_name.get(name) in images for name in pair):
            found["image"], found["sharp"] = (by_name[name] for name in pair)
            break
    found |= chosen
    found["image"] = found["image"] or _first(_IMAGE, by_name, images)
    if found["image"] is None:
        left = [name for name in images if name.casefold() not in _MASK and name not in chosen.values()]
        if len(left) != 1:
            what = f"several columns that may be the image ({', '.join(left)})" if left else "no image column"
            raise ValueError(
                f"the data set has {what}; its columns are {listed(kinds)}. An image is an Image, encoded bytes, or an "
                "array [H, W], [C, H, W] or [H, W, C]; name it 'image' (dataset.rename_column), or give "
                "columns={'image': NAME}"
            )
        found["image"] = left[0]
    free = [name for name in kinds if name not in found.values()]
    found["mask"] = found["mask"] or _first(_MASK, by_name, [name for name in free if name in images])
    free = [name for name in free if name != found["mask"]]
    structs = [name for name in free if kinds[name].leaf == "struct" and set(kinds[name].fields) & {*_BOXES, *_SHAPES}]
    boxes = [name for name in free if kinds[name].depth == 2 and kinds[name].number]
    found["objects"] = found["objects"] or _first(_OBJECTS, by_name, structs) or _first(_BOXES, by_name, boxes)
    found["objects"] = found["objects"] or (structs[0] if len(structs) == 1 else None)
    free = [name for name in free if name != found["objects"]]
    labels = [name for name in free if kinds[name].depth < 2 and kinds[name].leaf in ("class", "int", "string", "bool")]
    classes = [name for name in labels if kinds[name].leaf == "class"]
    found["label"] = found["label"] or _first(_LABEL, by_name, labels) or (classes[0] if len(classes) == 1 else None)
    return Columns(**found)


def _first(names: Iterable[str], by_name: Mapping[str, str], among: Iterable[str]) -> str | None:
    return next((by_name[name] for name in names if by_name.get(name) in among), None)


class Classes:
    """Class values of the entries of a column: class indexes and whole numbers are values, texts are numbered."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.seen, self._texts = kind, set(), {}

    def value(self, entry: object) -> int | None:
        """Return the value of an entry, None where it has none; the hub writes -1 for "not known"."""
        text = str(entry).strip() if self.kind.leaf == "string" else ""
        if entry is None or (entry == -1 if self.kind.leaf != "string" else not text):
            return None
        value = self._texts.setdefault(text, len(self._texts)) if text else int(entry)
        if self.kind.names and not 0 <= value < len(self.kind.names):
            raise ValueError(f"class {value} is none of {some(self.kind.names)}")
        self.seen.add(value)
        return value

    def settle(self) -> tuple[dict[int, str], bool, dict[int, int]]:
        """Return the classes, whether they have names, and for texts the final value of each given: 1.. by name."""
        if self.kind.leaf == "string":
            final = {text: number for number, text in enumerate(sorted(self._texts), 1)}
            return {n: text for text, n in final.items()}, True, {n: final[text] for text, n in self._texts.items()}
        names = self.kind.names or (("False", "True") if self.kind.leaf == "bool" else ())
        classes = dict(enumerate(names)) or {value: str(value) for value in sorted(self.seen)}
        return classes, bool(names), {}


class Objects(NamedTuple):
    """The objects of one chip as rows want them."""

    values: list[int]
    boxes: list[float]
    segments: list[str]
    crowd: list[int]


class ObjectReader:
    """Reads the column of objects: a struct of lists, a list of structs, or boxes beside a column of their classes."""

    def __init__(self, column: str, kinds: Mapping[str, Kind], box_format: str) -> None:
        kind, self._column, self._format = kinds[column], column, box_format
        self._struct = kind.leaf == "struct"
        fields = kind.fields if self._struct else {name: k for name, k in kinds.items() if name != column}
        by_name = {name.casefold(): name for name in fields}
        depth = 0 if self._struct and kind.depth else 1  # lists around the class of one object
        plain = [n for n, k in fields.items() if k.leaf in ("class", "int", "string") and k.depth == depth]
        self.category = _first(_OF_BOXES, by_name, plain)
        self.classes = Classes(fields[self.category]) if self.category else None
        inner = by_name if self._struct else {}
        self._box = _first(_BOXES, inner, fields) if self._struct else column
        self._shape, self._crowd = _first(_SHAPES, inner, fields), _first(_CROWDS, inner, fields)
        self.shapes, self._largest, self.count = self._shape is not None, 0.0, 0

    @property
    def fractions(self) -> bool:
        """Whether all boxes lie between 0 and 1: they are parts of the chip, not pixels."""
        return self.count > 0 and 0 < self._largest <= 1

    def read(self, example: Mapping) -> Objects:
        """Read the objects of one example.

        Raises:
            ValueError: there are more boxes than classes or the reverse, or a box is not four numbers.
        """
        lists = self._lists(example)
        boxes, shapes = lists[self._box], lists[self._shape]
        number = len(boxes) or len(shapes)
        classes = lists[self.category] if self.category else ["object"] * number
        lengths = {len(boxes), len(shapes), len(classes)} - {0}
        if len(lengths) > 1 or (number and not len(classes)):
            raise ValueError(
                f"{len(boxes)} boxes, {len(shapes)} shapes and {len(classes)} classes do not belong together"
            )
        result, crowds = Objects([], [], [], []), lists[self._crowd] or [0] * number
        for i in range(number):
            value = self.classes.value(classes[i]) if self.classes else 1
            if value is None:
                continue
            if crowds[i]:
                result.crowd.append(len(result.values))
            result.values.append(value)
            if len(boxes):
                result.boxes.extend(self._corners(boxes[i]))
            if len(shapes):
                result.segments.append(json.dumps(_polygons(shapes[i])))
        return result

    def _lists(self, example: Mapping) -> dict[str | None, list]:
        # The list of each field, [] where there is none.
        names = (self._box, self._shape, self.category, self._crowd)
        value = example[self._column] if self._struct else example
        if isinstance(value, list):
            value = {name: [entry[name] for entry in value] for name in names if name}
        lists = {name: (value or {}).get(name) if name else None for name in names}
        return {name: [] if found is None else found for name, found in lists.items()} | {None: []}

    def _corners(self, box: object) -> list[float]:
        numbers = [float(number) for number in box] if isinstance(box, list | tuple | np.ndarray) else []
        if len(numbers) != 4:
            raise ValueError(f"the box {box} is not four numbers")
        self.count += 1
        self._largest = max(self._largest, *map(abs, numbers))
        x, y, right, lower = numbers
        return numbers if self._format == "xyxy" else [x, y, x + right, y + lower]


def _polygons(shape: object) -> object:
    # COCO's list of flat polygons, also from one flat polygon or lists of points; run lengths as they are.
    if isinstance(shape, Mapping):
        return {**shape, "counts": c.decode() if isinstance(c := shape["counts"], bytes) else c}
    parts = list(shape) if shape is not None else []
    if parts and not isinstance(parts[0], list | tuple | np.ndarray):
        parts = [parts]
    elif parts and all(len(part) == 2 for part in parts):
        parts = [parts]  # points of one polygon
    return [np.asarray(part, dtype=np.float64).ravel().tolist() for part in parts]
