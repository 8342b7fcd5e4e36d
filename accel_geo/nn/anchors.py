"""Anchors: boxes of given shapes on the grids of feature maps, and shapes that are fitted to a data set's boxes."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou


class PyramidAnchors(AnchorGenerator):
    """torchvision's anchors with given strides: those of a pixel do not depend on how far an image is padded.

    Args:
        sizes: side of the square anchor of each level, in pixels.
        aspect_ratios: height / width.
        strides: of the levels.
    """

    def __init__(self, sizes: Sequence[int], aspect_ratios: Sequence[float], strides: Sequence[int]) -> None:
        super().__init__(tuple((size,) for size in sizes), (tuple(aspect_ratios),) * len(sizes))
        self.strides = list(strides)

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        """Return the anchors [N, 4] of each image."""
        images = image_list.tensors
        self.set_cell_anchors(images.dtype, images.device)
        grids = [feature.shape[-2:] for feature in feature_maps]
        anchors = torch.cat(self.grid_anchors(grids, [(stride, stride) for stride in self.strides]))
        return [anchors] * len(images)


def grid_anchors(
    shapes: Sequence[Sequence[Sequence[float]]], strides: Sequence[int], size: tuple[int, int], like: Tensor
) -> Tensor:
    """Return anchors around the centres of all cells of all levels.

    Args:
        shapes: (width, height) of the anchors of each level, in pixels.
        strides: side of a level's cells, in pixels; a level has as many as touch the image.
        size: (H, W) of the image.
        like: gives dtype and device.

    Returns:
        [N, 4], in the order of level, row, column, shape.
    """
    levels = []
    for of_level, stride in zip(shapes, strides, strict=True):
        rows, columns = (like.new_tensor(range(-(-side // stride))) for side in size)
        y, x = torch.meshgrid((rows + 0.5) * stride, (columns + 0.5) * stride, indexing="ij")
        centre = torch.stack([x, y], -1)[:, :, None]
        half = like.new_tensor(of_level) / 2
        levels.append(torch.cat([centre - half, centre + half], -1).view(-1, 4))
    return torch.cat(levels)


def fit_shapes(sides: np.ndarray, most: int = 9, gain: float = 0.01) -> list[list[float]]:
    """Fit anchor shapes to boxes: k-means with 1 - IoU as the distance (Redmon & Farhadi 2017), the same on each call.

    There are as many shapes as pay: each must raise the mean overlap of a box with its best shape by `gain`.

    Args:
        sides: (width, height) of the boxes [N, 2], in pixels, above 0.
        most: shapes at most.
        gain: what one more shape must bring.

    Returns:
        (width, height) of the shapes, to a hundredth of a pixel, smallest area first.
    """
    sides = np.asarray(sides, dtype=np.float64)
    sides = sides[np.lexsort((sides[:, 0], sides.prod(1)))]
    counts = range(1, min(most, len(np.unique(sides, axis=0))) + 1)
    # all counts are tried: one more shape may bring nothing and two more much, of boxes in both orientations
    best = max((_means(sides, n) for n in counts), key=lambda shapes: _overlap(sides, shapes) - gain * len(shapes))
    return best[np.argsort(best.prod(1), kind="stable")].round(2).tolist()


def _means(sides: np.ndarray, count: int) -> np.ndarray:
    # from the quantiles of area; the median of a cluster is robust against boxes cut by a chip's edge
    shapes = sides[(len(sides) * (2 * np.arange(count) + 1)) // (2 * count)]
    assigned = None
    for _ in range(100):
        previous, assigned = assigned, shape_iou(sides, shapes).argmax(1)
        if np.array_equal(previous, assigned):
            break
        of_cluster = [sides[assigned == cluster] for cluster in range(count)]
        shapes = np.stack([np.median(m, 0) if len(m) else old for m, old in zip(of_cluster, shapes)])
    return shapes


def _overlap(sides: np.ndarray, shapes: np.ndarray) -> float:
    return float(shape_iou(sides, shapes).max(1).mean())


def shape_iou(sides: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """Return the overlaps [N, M] of boxes [N, 2] and [M, 2], (width, height) each, that share their centre."""
    # the sides one by one: numpy is slow along an axis of two
    both = np.minimum(sides[:, :1], shapes[:, 0]) * np.minimum(sides[:, 1:], shapes[:, 1])
    return both / (sides.prod(1)[:, None] + shapes.prod(1) - both)


def match_anchors(boxes: Tensor, anchors: Tensor, inside: Tensor, iou_thresh: float) -> Tensor:
    """Find the box that each anchor stands for.

    It is the box that overlaps most with it, where that is at least `iou_thresh`; and each box has, whatever the
    overlap, the anchor that overlaps most with it. Of equal anchors the first is taken; an anchor that is the best of
    several boxes stands for the last of them, as torchvision's does.

    Args:
        boxes: [G, 4].
        anchors: [A, 4].
        inside: bool [A]; the others stand for nothing.
        iou_thresh: intersection over union, 0 to 1.

    Returns:
        int64 [A]: index of the box, -1 background, -2 not inside.
    """
    matched = torch.where(inside, -1, -2)
    if not len(boxes) or not inside.any():
        return matched
    overlap = box_iou(boxes, anchors[inside])
    most, box = overlap.max(0)
    found = torch.where(most >= iou_thresh, box, -1)
    most, best = overlap.max(1)
    numbers = torch.arange(len(boxes), device=boxes.device)
    # in this form the result does not depend on the order in which a GPU writes
    own = torch.full_like(found, -1).scatter_reduce(0, best, torch.where(most > 0, numbers, -1), "amax")
    matched[inside] = torch.where(own >= 0, own, found)
    return matched
