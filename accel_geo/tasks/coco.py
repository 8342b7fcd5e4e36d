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

    encoded = rle.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(n) for n in mask.shape], "counts": encoded["counts"].decode("ascii")}


def mask_area(encoded: dict) -> int:
    """Return the number of pixels of a run-length encoding."""
    from faster_coco_eval import mask as rle

    return int(rle.area([encoded])[0])


def precisions(
    sizes: Sequence[tuple[int, int]],
    truths: Sequence[Sequence[dict]],
    detections: Sequence[Sequence[dict]],
    classes: int,
    kind: str,
) -> np.ndarray:
    """Return the interpolated precisions of COCO's protocol, -1 where undefined (a class without truth).

    Args:
        sizes: (H, W) of each chip.
        truths: of each chip its objects: `label` 1..K, `bbox` [x, y, w, h], `area` and, for masks, `segmentation`.
        detections: of each chip its detections, at most 100, by falling score: `label`, `bbox`, `score` and, for
            masks, `segmentation`. Equal scores rank in the order given.
        classes: K.
        kind: "segm" compares masks, "bbox" boxes.

    Returns:
        Array [10 IoU thresholds 0.50:0.95, 101 recalls, K, 4 areas].
    """
    from faster_coco_eval import COCO, COCOeval_faster

    def dataset(chips: Sequence[Sequence[dict]]) -> "COCO":
        annotations = []
        for image_id, objects in enumerate(chips, start=1):
            for thing in objects:
                annotation = {"id": len(annotations) + 1, "image_id": image_id, "iscrowd": 0, "bbox": thing["bbox"]}
                annotation |= {"category_id": thing["label"], "score": thing.get("score", 1.0)}
                annotation["area"] = area(thing, kind)
                if kind == "segm":
                    annotation["segmentation"] = thing["segmentation"]
                annotations.append(annotation)
        return COCO({"images": images, "categories": categories, "annotations": annotations})

    # Ids count from 1: the protocol marks "no match" by 0. The chips keep the order in which they are given.
    images = [{"id": i, "height": h, "width": w} for i, (h, w) in enumerate(sizes, start=1)]
    categories = [{"id": i, "name": str(i)} for i in range(1, classes + 1)]
    if not images or not classes:
        return np.full((10, 101, classes, len(AREAS)), -1.0)
    evaluation = COCOeval_faster(dataset(truths), dataset(detections), kind, rle_iou_max_workers=1)
    evaluation.params.maxDets = [MAX_DETECTIONS]
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"], dtype=np.float64)[..., 0]


def area(thing: dict, kind: str) -> float:
    """Return the pixels of an object: `area` where it has one (truth), else those of its mask or its box."""
    if "area" in thing:
        return thing["area"]
    return mask_area(thing["segmentation"]) if kind == "segm" else thing["bbox"][2] * thing["bbox"][3]


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
