"""Boxes: where they lie, and which of many overlapping detections stay."""

import torch
from torch import Tensor
from torchvision.ops import box_iou


def centred_inside(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Say which boxes [N, 4] have their centre inside an image of this (H, W)."""
    x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    return (x < size[1]) & (y < size[0])


def soft_nms(
    boxes: Tensor, scores: Tensor, labels: Tensor, *, score_thresh: float, count: int, sigma: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Lower the scores of detections by their overlap with better ones of their class (Bodla et al. 2017, Gaussian).

    Args:
        boxes: [N, 4].
        scores: [N].
        labels: [N].
        score_thresh: detections whose lowered score is not above it are dropped.
        count: detections at most.
        sigma: a score is multiplied by exp(-IoU^2 / sigma).

    Returns:
        Index and lowered score of the detections that stay, best first; of equal ones the first.
    """
    scores, chosen, values = scores.clone(), [], []
    for _ in range(min(count, len(scores))):
        best = int(scores.argmax())
        if not scores[best] > score_thresh:
            break
        chosen.append(best)
        values.append(scores[best].clone())
        overlap = box_iou(boxes[best : best + 1], boxes)[0]
        scores = torch.where(labels == labels[best], scores * torch.exp(-(overlap**2) / sigma), scores)
        scores[best] = float("-inf")
    index = torch.tensor(chosen, dtype=torch.int64, device=boxes.device)
    return index, torch.stack(values) if values else scores[:0]
