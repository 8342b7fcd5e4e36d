"""Moving a sample: crops, zooms, turns and mirrorings that keep pixels, labels and objects together.

Labels move by whole pixels or by nearest neighbour, so that they never hold a new value. After a cut, objects and
segments that lost their last pixel are gone from every key. The pixels of the fine image of super-resolution lie
`scale` times as dense as those of the image; their window is `scale` times the window.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d, interpolate

# Keys whose last two dimensions are the pixels of the image. "missing" marks what has no data: the image is 0 there.
SPATIAL = ("image", "mask", "masks", "missing", "edges", "segment_ids")
# The same for the fine image of super-resolution.
FINE = ("image_hr", "ignored_hr")
# What marks the pixels of an image that hold no data.
NO_DATA = {"image": "missing", "image_hr": "ignored_hr"}
# A box that a cut leaves less of than this part of its area is dropped: what is left shows too little of the object.
VISIBLE = 0.25


def window(size: tuple[int, int], wanted: tuple[int, int], draw: list[float] | None) -> tuple[int, int, int, int]:
    """Return the (top, left, height, width) of a crop.

    Args:
        size: (H, W) of the chip.
        wanted: (H, W) of the crop; where the chip is smaller its own size.
        draw: two numbers in [0, 1), where the crop lies; None takes the centre.
    """
    height, width = min(size[0], wanted[0]), min(size[1], wanted[1])
    down, right = draw or (0.5, 0.5)
    return int(down * (size[0] - height + 1)), int(right * (size[1] - width + 1)), height, width


def scale_of(sample: dict) -> int:
    """Return how many times as dense the pixels of the fine image lie; 1 without one."""
    return sample["image_hr"].shape[-2] // sample["image"].shape[-2] if "image_hr" in sample else 1


def crop(sample: dict, top: int, left: int, height: int, width: int) -> dict:
    """Cut a window out of a sample; see `zoom` for what happens to objects."""
    return zoom(sample, top, left, height, width, (height, width))


def zoom(sample: dict, top: int, left: int, height: int, width: int, size: tuple[int, int]) -> dict:
    """Cut a window out of a sample and resize it.

    Images are interpolated linearly between the pixels that hold data; labels take the nearest pixel. Edges that shrink
    keep every pixel, so that a thin line stays closed. Instances that vanish go with box and label, the others get
    tight boxes. Boxes without masks are clipped, and kept where they are at least one pixel wide and high and show at
    least a quarter (`VISIBLE`) of their area. Segments that vanish leave the list.

    Args:
        sample: of any task.
        top: first row of the window, in pixels of the image.
        left: first column.
        height: of the window.
        width: of the window.
        size: (H, W) of the result.
    """
    size = tuple(size)
    if tuple(sample["image"].shape[-2:]) == (height, width) == size:
        return sample
    scale = scale_of(sample)
    places = dict.fromkeys(SPATIAL, 1) | dict.fromkeys(FINE, scale)
    moved = {
        key: sample[key][..., s * top : s * (top + height), s * left : s * (left + width)]
        for key, s in places.items()
        if key in sample
    }
    if (height, width) != size:
        moved = {key: _resized(moved, key, (places[key] * size[0], places[key] * size[1])) for key in moved}
    sample = {**sample, **moved}
    if "boxes" in sample and "masks" not in sample:
        origin, seen, full = (
            torch.tensor(p * 2, dtype=torch.float32) for p in ([left, top], [width, height], size[::-1])
        )
        boxes = (sample["boxes"] - origin) * full / seen
        sample |= clipped(boxes, sample["labels"], size)
    return settled(sample)


def _resized(moved: dict, key: str, size: tuple[int, int]) -> Tensor:
    x = moved[key]
    if key in NO_DATA:
        return _interpolated(x, moved.get(NO_DATA[key]), size)
    result = _nearest(x, size)
    if key == "edges" and size[0] <= x.shape[-2] and size[1] <= x.shape[-1]:
        under = adaptive_max_pool2d((x == 1).float()[None], size)[0]  # all pixels that lie under one of the result
        result = torch.where((under > 0) & (result == 0), 1, result).to(x.dtype)
    return result


def _nearest(x: Tensor, size: tuple[int, int]) -> Tensor:
    # The pixel that holds the centre; as mode="nearest-exact", which knows neither bool nor int64. numpy is faster here.
    rows, columns = ((2 * np.arange(n) + 1) * of // (2 * n) for n, of in zip(size, x.shape[-2:]))
    return torch.from_numpy(x.numpy().take(rows, -2).take(columns, -1))


def _interpolated(image: Tensor, no_data: Tensor | None, size: tuple[int, int]) -> Tensor:
    def linear(x: Tensor) -> Tensor:
        # Bands as a batch are twice as fast; slight shrinking needs no wider filter, which costs as much again.
        shrunk = max(x.shape[-2] / size[0], x.shape[-1] / size[1]) > 1.5
        return interpolate(x[:, None], size, mode="bilinear", align_corners=False, antialias=shrunk)[:, 0]

    if no_data is None or not no_data.any():
        return linear(image)
    no_data = no_data.expand(image.shape[0], *no_data.shape[-2:])
    sums, weights = linear(image.masked_fill(no_data, 0)), linear((~no_data).to(image.dtype))
    # Where the nearest pixel holds data it has a share in the weight, so this divides by 0 only what becomes 0.
    return (sums / weights).masked_fill_(_nearest(no_data, size), 0)


def clipped(boxes: Tensor, labels: Tensor, size: tuple[int, int], visible: float = VISIBLE) -> dict:
    """Clip boxes to an image and drop those of which too little is left.

    Args:
        boxes: float32 [N, 4], x1 y1 x2 y2, reaching beyond the image.
        labels: [N].
        size: (H, W) of the image.
        visible: part of its area that a box must keep; it must also be at least 1 px wide and high.

    Returns:
        The "boxes" and "labels" that are kept.
    """
    limits = torch.tensor([size[1], size[0]] * 2, dtype=torch.float32)
    inside = torch.minimum(boxes.clamp(min=0), limits)
    (width, height), (full_width, full_height) = [(b[:, 2:] - b[:, :2]).unbind(1) for b in (inside, boxes)]
    kept = (width >= 1) & (height >= 1) & (width * height >= visible * full_width * full_height)
    return {"boxes": inside[kept], "labels": labels[kept]}


def settled(sample: dict) -> dict:
    """Drop instances and segments without pixels, and give instances the tight boxes of their masks."""
    if "masks" in sample:
        boxes, kept = _extents(sample["masks"])
        sample = {**sample, "boxes": boxes[kept]}
        if not kept.all():
            sample |= {"masks": sample["masks"][kept], "labels": sample["labels"][kept]}
    if "segments" in sample:
        present = present_ids(sample["segment_ids"])
        sample = {**sample, "segments": [segment for segment in sample["segments"] if segment["id"] in present]}
    return sample


def present_ids(segment_ids: Tensor) -> set[int]:
    """Return the ids, none negative, that occur in [H, W]."""
    flat = segment_ids.flatten()
    if int(flat.max()) < 2**16:  # counting is much faster than sorting
        return set(flat.bincount().nonzero().flatten().tolist())
    return set(flat.unique().tolist())


def tight_boxes(masks: Tensor) -> Tensor:
    """Return the boxes float32 [N, 4] around masks bool [N, H, W], none of which is empty; x2 and y2 lie outside."""
    return _extents(masks)[0]


def _extents(masks: Tensor) -> tuple[Tensor, Tensor]:
    # The boxes [N, 4] around masks, and whether [N] each holds a pixel. numpy looks at bytes 4 times as fast.
    array = masks.numpy()
    columns, rows = array.any(1), array.any(2)
    boxes = np.zeros((len(array), 4), dtype=np.float32)
    for first, line in enumerate((columns, rows)):
        boxes[:, first] = line.argmax(1)
        boxes[:, first + 2] = line.shape[1] - line[:, ::-1].argmax(1)
    return torch.from_numpy(boxes), torch.from_numpy(rows.any(1))


def dihedral(sample: dict, which: int) -> dict:
    """Turn and mirror a sample.

    Args:
        sample: with an image of any size.
        which: 0 to 7: 1 mirrors left and right, 2 up and down, 4 swaps rows and columns first; their sums do both. The
            swap is left out where the sample is not square, so that sizes stay as the index says.
    """
    height, width = sample["image"].shape[-2:]
    across, down, swap = which & 1, which & 2, which & 4 and height == width
    flips = [dim for dim, do in ((-1, across), (-2, down)) if do]

    def move(x: Tensor) -> Tensor:
        x = x.mT if swap else x
        return x.flip(flips) if flips else x

    sample = {**sample, **{key: move(sample[key]) for key in SPATIAL + FINE if key in sample}}
    if "boxes" in sample:
        x1, y1, x2, y2 = sample["boxes"].unbind(1)
        if swap:
            x1, y1, x2, y2 = y1, x1, y2, x2
        if across:
            x1, x2 = width - x2, width - x1
        if down:
            y1, y2 = height - y2, height - y1
        sample["boxes"] = torch.stack([x1, y1, x2, y2], 1)
    return sample


def inverse(which: int, square: bool = True) -> int:
    """Return the `which` of `dihedral` that undoes another one, for square samples or for oblong ones."""
    return {5: 6, 6: 5}.get(which, which) if square else which
