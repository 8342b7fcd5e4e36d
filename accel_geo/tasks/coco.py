"""COCO's average precision and run-length masks, through faster_coco_eval: pycocotools' numbers, a few times faster.

Masks are encoded one at a time as soon as a chip is predicted, and are compared as run lengths: no more than one chip's
masks are ever unpacked. The definition is that of https://cocodataset.org/#detection-eval.
"""

from collections.abc import Sequence

import numpy as np

AREAS = ("all", "small", "medium", "large")  # below 32², below 96², from 96² pixels
MAX_DETECTIONS = 100  # of one chip; COCO's limit


def encode_mask(mask: np.ndarray) -> dict:
    """Return a boolean mask [H, W] as a JSON-able compressed run-length encoding {"size": [H, W], "counts": str}."""
    from faster_coco_eval import mask as rle

    size = [int(n) for n in mask.shape]
    encoded = rle.frPyObjects([{"size": size, "counts": run_lengths(mask)}], *size)
    return {"size": size, "counts": encoded[0]["counts"].decode("ascii")}


def run_lengths(mask: np.ndarray) -> list[int]:
    """Return COCO's counts of a boolean mask [H, W]: column by column, pixels outside, inside, outside, …

    Only the columns between which the object lies are looked at one by one: most objects are small.
    """
    height, width = mask.shape
    columns = np.flatnonzero(mask.any(0))
    if not columns.size:
        return [height * width]
    first, last = int(columns[0]), int(columns[-1]) + 1
    inside = np.zeros(height * (last - first) + 2, dtype=bool)  # a pixel outside before the first and after the last
    inside[1:-1] = mask[:, first:last].ravel(order="F")
    changes = np.flatnonzero(inside[1:] != inside[:-1]) + height * first
    bounds = np.zeros(len(changes) + 2, dtype=np.int64)
    bounds[1:-1], bounds[-1] = changes, height * width
    counts = (bounds[1:] - bounds[:-1]).tolist()
    return counts if counts[-1] else counts[:-1]


def mask_area(encoded: dict) -> int:
    """Return the number of pixels of a run-length encoding."""
    from faster_coco_eval import mask as rle

    return int(rle.area([encoded])[0])


def areas(things: Sequence[dict], kind: str) -> list[float]:
    """Return the pixels of objects: `area` where they have one (truth), else those of their masks or boxes."""
    from faster_coco_eval import mask as rle

    if all("area" in thing for thing in things):
        return [thing["area"] for thing in things]
    if kind == "segm":  # in one call: each starts threads
        return rle.area([thing["segmentation"] for thing in things]).tolist()
    return [thing["bbox"][2] * thing["bbox"][3] for thing in things]


def precisions(
    sizes: Sequence[tuple[int, int]],
    truths: Sequence[Sequence[dict]],
    detections: Sequence[Sequence[dict]],
    classes: Sequence[int],
    kind: str,
    ranges: Sequence[str] = AREAS,
) -> np.ndarray:
    """Return the interpolated precisions of COCO's protocol, -1 where undefined (a class without truth).

    Args:
        sizes: (H, W) of each chip.
        truths: of each chip its objects: `label`, `bbox` [x, y, w, h], `area` and, for masks, `segmentation`.
        detections: of each chip its detections, at most 100, by falling score: `label`, `bbox`, `score` and, for
            masks, `segmentation`. Equal scores rank in the order given.
        classes: the labels in the order of the classes.
        kind: "segm" compares masks, "bbox" boxes.
        ranges: the areas that are asked for, of AREAS.

    Returns:
        Array [10 IoU thresholds 0.50:0.95, 101 recalls, K, areas].
    """
    from faster_coco_eval import COCO, COCOeval_faster

    # Ids count from 1: the protocol marks "no match" by 0. The chips keep the order in which they are given.
    images = [{"id": i, "height": h, "width": w} for i, (h, w) in enumerate(sizes, start=1)]
    index = {label: i for i, label in enumerate(classes, start=1)}
    categories = [{"id": i, "name": str(i)} for i in index.values()]
    if not images or not categories:
        return np.full((10, 101, len(categories), len(ranges)), -1.0)
    shape = "segmentation" if kind == "segm" else "bbox"

    def dataset(chips: Sequence[Sequence[dict]]) -> "COCO":
        image_ids = [image_id for image_id, things in enumerate(chips, start=1) for _ in things]
        things = [thing for things in chips for thing in things]
        annotations = []
        for image_id, thing, area in zip(image_ids, things, areas(things, kind)):
            annotation = {"id": len(annotations) + 1, "image_id": image_id, "category_id": index[thing["label"]]}
            annotation |= {"iscrowd": 0, "score": thing.get("score", 1.0), "area": area, shape: thing[shape]}
            annotations.append(annotation)
        return COCO({"images": images, "categories": categories, "annotations": annotations})

    evaluation = COCOeval_faster(dataset(truths), dataset(detections), kind, rle_iou_max_workers=1)
    parameters, chosen = evaluation.params, [AREAS.index(name) for name in ranges]
    parameters.maxDets = [MAX_DETECTIONS]
    parameters.areaRng, parameters.areaRngLbl = [parameters.areaRng[i] for i in chosen], list(ranges)
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"], dtype=np.float64)[..., 0]


def mean_precision(
    values: np.ndarray, iou: float | None = None, area: str = "all", label: int | None = None
) -> float | None:
    """Average the precisions of `precisions` as COCO does; None where nothing is defined.

    Args:
        values: what `precisions` returned.
        iou: one IoU threshold, 0.5, 0.55, … 0.95; None averages over all ten.
        area: one of AREAS.
        label: one class 1..K; None averages over all that have truth.
    """
    values = values[..., AREAS.index(area)]
    if iou is not None:
        values = values[round((iou - 0.5) / 0.05)][None]
    if label is not None:
        values = values[:, :, label - 1]
    defined = values[values > -1]
    return float(np.mean(defined)) if defined.size else None


def boxes_to_xywh(boxes: np.ndarray) -> list[list[float]]:
    """Return boxes [N, 4] x1 y1 x2 y2 as lists [x, y, w, h]."""
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).tolist()
