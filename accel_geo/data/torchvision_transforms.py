"""torchvision's v2 transforms on samples: wrapped as tv_tensors, transformed, and brought back in order.

A rotation or a padding fills what it turns in with a value of the user's choice, mostly 0, which in a mask would mean
background. So a plane that numbers the pixels of the sample travels along: wherever it comes back without a number,
there was no pixel, and labels become "ignored" whatever the fill. It also says where each pixel came from, which moves
the marks of no data along, and shows whether the two images of super-resolution were moved alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from accel_geo.data.colour import blank
from accel_geo.data.geometry import clipped, scale_of, settled
from accel_geo.data.spec import IGNORED
from accel_geo.parallel import keys

# What labels become where no pixel was.
OUTSIDE = {"mask": IGNORED, "edges": IGNORED, "segment_ids": 0, "masks": 0}
# torchvision moves masks as float32, which holds whole numbers exactly up to here.
EXACT = 2**24


def apply(transform: Callable[[dict], dict], sample: dict, key: int) -> dict:
    """Apply a v2 transform to a sample, its draws a function of the key; global generators are left as they were.

    The transform gets a dict with `image` (tv_tensors.Image), `boxes` (BoundingBoxes, XYXY), `masks`, `mask`, `edges`
    and `segment_ids` (Mask) and the labels, as far as the task has them. Pixels that it brings in from outside are
    ignored: 255 in masks and edges, unlabelled in segments, of no instance. Instances without pixels are dropped and the
    others get tight boxes; boxes without masks are clipped and dropped under 1 px, as v2.SanitizeBoundingBoxes does.
    For super-resolution it is applied to both images with the same draws.

    Args:
        transform: of torchvision.transforms.v2, or a module that takes and returns such a dict.
        sample: of any task.
        key: of the sample's draws.

    Raises:
        ValueError: the transform returned something else, or moved the images of super-resolution differently.
    """
    if "image_hr" in sample:
        return _pair(transform, sample, key)
    if not sample.keys() & {*OUTSIDE, "missing"}:  # no mask at all: RandAugment and its like refuse any
        result = {**sample, **_run(transform, sample, key)}
    else:
        moved, places = _followed(transform, sample, key)
        for name in OUTSIDE.keys() & moved.keys():
            moved[name] = torch.where(places >= 0, moved[name], OUTSIDE[name]).to(sample[name].dtype)
        if "segment_ids" in moved:
            moved["segment_ids"] = _known_ids(sample)[moved["segment_ids"]]
        result = _without_data({**sample, **moved}, places)
    if "boxes" in sample:
        objects = "masks" if "masks" in sample else "boxes"
        if len(result[objects]) != len(result["labels"]):
            raise ValueError(
                f"{_name(transform)} left {len(result[objects])} {objects} but {len(result['labels'])} labels; a "
                "v2.SanitizeBoundingBoxes must have its default labels_getter, or be left out: it is done anyway"
            )
        if objects == "boxes":
            result |= clipped(result["boxes"], result["labels"], result["image"].shape[-2:], visible=0)
    return settled(result)


def _pair(transform: Callable[[dict], dict], sample: dict, key: int) -> dict:
    scale, width = scale_of(sample), sample["image"].shape[-1]
    coarse, places = _followed(transform, {"image": sample["image"]}, key)
    fine, fine_places = _followed(transform, {"image": sample["image_hr"]}, key)
    rows, columns = fine_places // (scale * width) // scale, fine_places % (scale * width) // scale
    under = torch.where(fine_places >= 0, rows * width + columns, -1)  # the coarse pixel that each fine one lies in
    if not torch.equal(under, places.repeat_interleave(scale, 0).repeat_interleave(scale, 1)):
        raise ValueError(
            f"{_name(transform)} moves the coarse and the fine image of super-resolution differently: only mirroring, "
            "quarter turns and colours suit both sizes; give a function (sample, key) -> sample for anything else"
        )
    result = {**sample, "image": coarse["image"], "image_hr": fine["image"]}
    if "ignored_hr" in sample:
        ignored = _follow(sample["ignored_hr"], fine_places, True)
        result |= {"ignored_hr": ignored, "image_hr": fine["image"].masked_fill(ignored, 0)}
    return _without_data(result, places)


def _without_data(sample: dict, places: Tensor) -> dict:
    # Move the marks of no data of a sample whose image has moved; colours may have changed what was 0.
    if "missing" not in sample:
        return sample
    sample["missing"] = _follow(sample["missing"], places, False)
    return {**sample, "image": blank(sample["image"].clone(), sample)}


def _follow(marks: Tensor, places: Tensor, outside: bool) -> Tensor:
    # Move marks bool [..., H, W] to where their pixels came to lie.
    return torch.where(places >= 0, marks.flatten(-2)[..., places.clamp(min=0)], outside)


def _followed(transform: Callable[[dict], dict], sample: dict, key: int) -> tuple[dict, Tensor]:
    # What the transform made of the sample, and the place in the sample that each pixel came from; -1 none.
    size = tuple(sample["image"].shape[-2:])
    if size[0] * size[1] > EXACT:
        raise ValueError(
            f"torchvision's transforms move at most {EXACT} pixels exactly, a sample has {size} (height, width); crop "
            "it with chip_size"
        )
    numbers = -1 - torch.arange(size[0] * size[1]).view(size)  # negative, as no fill is
    if len(sample.get("boxes", ())) == size[0]:
        numbers = numbers[None]  # SanitizeBoundingBoxes takes any mask of the boxes' length for their masks
    moved = _run(transform, sample, key, numbers)
    places, after = -1 - moved.pop("places").long(), tuple(moved["image"].shape[-2:])
    if tuple(places.shape[-2:]) != after:
        raise ValueError(
            f"{_name(transform)} made an image of {after} (height, width) but masks of {tuple(places.shape[-2:])}; "
            "what changes sizes must do so for all tv_tensors"
        )
    return moved, places.view(after).clamp_(min=-1)


def _run(transform: Callable[[dict], dict], sample: dict, key: int, places: Tensor | None = None) -> dict:
    # Wrap what the transform may change, apply it, and return that as plain tensors.
    from torchvision import tv_tensors

    given = {"image": tv_tensors.Image(sample["image"])}
    given |= {name: sample[name] for name in ("label", "labels") if name in sample}
    given |= {name: tv_tensors.Mask(_as_mask(sample, name)) for name in OUTSIDE if name in sample}
    if places is not None:
        given["places"] = tv_tensors.Mask(places)
    if "boxes" in sample:
        size = tuple(sample["image"].shape[-2:])
        given["boxes"] = tv_tensors.BoundingBoxes(sample["boxes"], format="XYXY", canvas_size=size)
    with keys.scope(key, "user"):
        made = transform(given)
    if not isinstance(made, dict) or not given.keys() <= made.keys():
        found = f"a dict of {sorted(made)}" if isinstance(made, dict) else type(made).__name__
        raise ValueError(
            f"{_name(transform)} returned {found}; a module takes a dict, here of {sorted(given)}, and returns one with "
            "the same keys"
        )
    return {name: _plain(made[name], name) for name in given}


def _as_mask(sample: dict, name: str) -> Tensor:
    if name == "segment_ids":  # ids may be larger than torchvision moves exactly; their positions in the list are not
        return torch.searchsorted(_known_ids(sample), sample[name].contiguous())
    return sample[name].to(torch.uint8) if sample[name].dtype == torch.bool else sample[name]


def _known_ids(sample: dict) -> Tensor:
    return torch.tensor(sorted({0} | {segment["id"] for segment in sample["segments"]}))


def _plain(value: object, name: str) -> object:
    from torchvision.transforms.v2 import functional
    from torchvision.tv_tensors import BoundingBoxes

    if isinstance(value, BoundingBoxes) and value.format.value != "XYXY":
        value = functional.convert_bounding_box_format(value, new_format="XYXY")
    if name == "image":
        value = functional.to_dtype(value, torch.float32, scale=True)
    return value.as_subclass(Tensor) if isinstance(value, Tensor) else value


def _name(transform: Callable) -> str:
    return f"transforms={type(transform).__name__}"
