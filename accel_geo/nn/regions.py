"""Region networks (Faster and Mask R-CNN) from torchvision's parts; what an image adds depends on that image alone.

Beside torchvision: losses are totals and counts; samples are keyed; anchors centred in an image's padding neither train
nor propose; strides are given, not guessed from the sizes of the images at hand; ties are broken by index; boxes
are computed in the precision of the images also under autocast.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference, project_masks_on_boxes
from torchvision.models.detection.rpn import RegionProposalNetwork, concat_box_prediction_layers
from torchvision.ops import (
    FeaturePyramidNetwork,
    MultiScaleRoIAlign,
    batched_nms,
    clip_boxes_to_image,
    remove_small_boxes,
)
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import LevelMapper

from accel_geo.nn.boxes import centred_inside, soft_nms
from accel_geo.nn.sampling import KeyedSampler, on_rank_grid
from accel_geo.parallel.reduction import Loss


class FeaturePyramid(nn.Module):
    """Feature maps of one width from a backbone's levels of stride 4 and more, and one level more by subsampling.

    Args:
        body: a backbone, see nn/backbones.py.
        width: channels of every map.
    """

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.levels = [i for i, stride in enumerate(body.strides) if stride >= 4]
        strides = [body.strides[i] for i in self.levels]
        self.fpn = FeaturePyramidNetwork([body.channels[i] for i in self.levels], width, LastLevelMaxPool())
        self.strides = [*strides, 2 * strides[-1]]
        self.out_channels = width

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps of an image batch, finest first, under torchvision's names "0", "1", ..., "pool"."""
        features = self.body(images)
        return self.fpn(OrderedDict((str(n), features[i]) for n, i in enumerate(self.levels)))

    def pooling(self, output_size: int) -> MultiScaleRoIAlign:
        """Return the layer that cuts regions of output_size x output_size cells out of the maps."""
        strides = self.strides[:-1]
        pool = MultiScaleRoIAlign([str(n) for n in range(len(strides))], output_size, sampling_ratio=2)
        # torchvision would infer these from the first images it sees, once
        pool.scales = [1 / stride for stride in strides]
        pool.map_levels = LevelMapper(strides[0].bit_length() - 1, strides[-1].bit_length() - 1)
        return pool


class RegionProposals(RegionProposalNetwork):
    """Where objects may be: torchvision's region proposal network; arguments as there."""

    def __init__(
        self,
        anchor_generator: AnchorGenerator,
        head: nn.Module,
        *,
        fg_iou_thresh: float,
        bg_iou_thresh: float,
        batch_size_per_image: int,
        positive_fraction: float,
        pre_nms_top_n: dict[str, int],
        post_nms_top_n: dict[str, int],
        nms_thresh: float,
        score_thresh: float,
    ) -> None:
        super().__init__(
            anchor_generator,
            head,
            fg_iou_thresh,
            bg_iou_thresh,
            batch_size_per_image,
            positive_fraction,
            pre_nms_top_n,
            post_nms_top_n,
            nms_thresh,
            score_thresh,
        )
        self.fg_bg_sampler = KeyedSampler(batch_size_per_image, positive_fraction, "anchors")

    def forward(
        self, images: ImageList, features: dict[str, Tensor], targets: list[dict] | None = None
    ) -> tuple[list[Tensor], dict[str, Loss]]:
        """Return the proposals [N, 4] of each image, and in training the loss terms."""
        maps, dtype = list(features.values()), images.tensors.dtype
        objectness, deltas = self.head(maps)
        per_level = [scores[0].numel() for scores in objectness]
        anchors = self.anchor_generator(images, maps)
        objectness, deltas = concat_box_prediction_layers(objectness, deltas)
        objectness, deltas = objectness.flatten().to(dtype), deltas.to(dtype)
        inside = [centred_inside(boxes, size) for boxes, size in zip(anchors, images.image_sizes)]
        boxes = self.box_coder.decode(deltas.detach(), anchors).view(len(anchors), -1, 4)
        scores = objectness.detach().view(len(anchors), -1)
        proposals = self.select(boxes, scores, torch.stack(inside), images.image_sizes, per_level)
        if not self.training:
            return proposals, {}
        labels, matched = self.assign(anchors, inside, targets)
        self.fg_bg_sampler.begin(targets)
        regression_targets = self.box_coder.encode(matched, anchors)
        return proposals, self.compute_loss(objectness, deltas, labels, regression_targets)

    def select(
        self, boxes: Tensor, scores: Tensor, inside: Tensor, sizes: list[tuple[int, int]], per_level: list[int]
    ) -> list[Tensor]:
        """Return the best boxes of each image after non-maximum suppression within each level.

        Args:
            boxes: [B, N, 4] of all levels.
            scores: logits [B, N].
            inside: bool [B, N], False proposes nothing.
            sizes: (H, W) of each image.
            per_level: how many of the N belong to each level.
        """
        scores = on_rank_grid(scores).masked_fill(~inside, float("-inf"))
        best, levels, offset = [], [], 0
        for level, of_level in enumerate(scores.split(per_level, 1)):
            order = of_level.sort(dim=1, descending=True, stable=True).indices[:, : self.pre_nms_top_n()]
            best.append(order + offset)
            levels.append(torch.full_like(order[0], level))
            offset += of_level.shape[1]
        best, levels = torch.cat(best, 1), torch.cat(levels)
        proposals = []
        for image, size in enumerate(sizes):
            candidates = clip_boxes_to_image(boxes[image, best[image]], size)
            probability = scores[image, best[image]].sigmoid()
            keep = remove_small_boxes(candidates, self.min_size)
            keep = keep[inside[image, best[image][keep]] & (probability[keep] >= self.score_thresh)]
            candidates, probability = candidates[keep], probability[keep]
            kept = batched_nms(candidates, probability, levels[keep], self.nms_thresh)
            proposals.append(candidates[kept[: self.post_nms_top_n()]])
        return proposals

    def assign(
        self, anchors: list[Tensor], inside: list[Tensor], targets: list[dict]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the label (1, 0, -1) and matched box of each anchor; anchors centred in the padding are -1."""
        found = self.assign_targets_to_anchors([a[i] for a, i in zip(anchors, inside)], targets)
        labels, boxes = [], []
        for image_anchors, image_inside, label, box in zip(anchors, inside, *found):
            labels.append(label.new_full((len(image_anchors),), -1).masked_scatter(image_inside, label))
            matched = image_anchors.clone()
            matched[image_inside] = box.to(matched.dtype)
            boxes.append(matched)
        return labels, boxes

    def compute_loss(
        self, objectness: Tensor, deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> dict[str, Loss]:
        """Return the loss terms over the sampled anchors."""
        positive, negative = (torch.cat(masks) for masks in self.fg_bg_sampler(labels))
        sampled = positive | negative
        truth, wanted = torch.cat(labels)[sampled].to(objectness.dtype), torch.cat(regression_targets)[positive]
        classes = F.binary_cross_entropy_with_logits(objectness[sampled], truth, reduction="sum")
        boxes = F.smooth_l1_loss(deltas[positive], wanted, beta=1 / 9, reduction="sum")
        count = sampled.sum()
        return {"loss_objectness": Loss(classes, count), "loss_rpn_box_reg": Loss(boxes, count)}


class RegionHeads(RoIHeads):
    """What is in a region: torchvision's box head and, where given, mask head; arguments as there.

    Beside them `soft_nms`: overlapping detections get lower scores instead of being dropped by `nms_thresh`.
    """

    def __init__(
        self,
        box_roi_pool: nn.Module,
        box_head: nn.Module,
        box_predictor: nn.Module,
        *,
        fg_iou_thresh: float,
        bg_iou_thresh: float,
        batch_size_per_image: int,
        positive_fraction: float,
        bbox_reg_weights: Sequence[float] | None,
        score_thresh: float,
        nms_thresh: float,
        detections_per_img: int,
        soft_nms: bool = False,
        mask_roi_pool: nn.Module | None = None,
        mask_head: nn.Module | None = None,
        mask_predictor: nn.Module | None = None,
    ) -> None:
        super().__init__(
            box_roi_pool,
            box_head,
            box_predictor,
            fg_iou_thresh,
            bg_iou_thresh,
            batch_size_per_image,
            positive_fraction,
            bbox_reg_weights,
            score_thresh,
            nms_thresh,
            detections_per_img,
            mask_roi_pool,
            mask_head,
            mask_predictor,
        )
        self.fg_bg_sampler = KeyedSampler(batch_size_per_image, positive_fraction, "regions")
        self.soft_nms = soft_nms

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict] | None = None,
    ) -> tuple[list[dict], dict[str, Loss]]:
        """Return the detections of each image (masks as probabilities in their boxes), in training the loss terms."""
        if self.training:
            return [], self.losses(features, proposals, image_shapes, targets)
        logits, deltas = self.box_outputs(features, proposals, image_shapes)
        boxes, scores, labels = self.postprocess_detections(logits, deltas, proposals, image_shapes)
        results = [{"boxes": b, "labels": n, "scores": s} for b, n, s in zip(boxes, labels, scores)]
        if self.has_mask():
            mask_logits = self.mask_outputs(features, boxes, image_shapes)
            for result, masks in zip(results, maskrcnn_inference(mask_logits, labels)):
                result["masks"] = masks
        return results, {}

    def losses(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict],
    ) -> dict[str, Loss]:
        """Return the loss terms over the sampled regions."""
        self.fg_bg_sampler.begin(targets)
        proposals, matched, labels, regression_targets = self.select_training_samples(proposals, targets)
        logits, deltas = self.box_outputs(features, proposals, image_shapes)
        truth, wanted = torch.cat(labels), torch.cat(regression_targets)
        positive = torch.where(truth > 0)[0]
        of_class = deltas.view(len(truth), logits.shape[1], 4)[positive, truth[positive]]
        losses = {
            "loss_classifier": Loss(F.cross_entropy(logits, truth, reduction="sum"), float(len(truth))),
            "loss_box_reg": Loss(
                F.smooth_l1_loss(of_class, wanted[positive], beta=1 / 9, reduction="sum"), float(len(truth))
            ),
        }
        if self.has_mask():
            chosen = [torch.where(label > 0)[0] for label in labels]
            boxes = [proposal[index] for proposal, index in zip(proposals, chosen)]
            matched = [match[index] for match, index in zip(matched, chosen)]
            mask_logits = self.mask_outputs(features, boxes, image_shapes)
            of_class = mask_logits[torch.arange(len(positive), device=truth.device), truth[positive]]
            masks = torch.cat(
                [_cut_masks(t["masks"], b, m, of_class.shape[-1]) for t, b, m in zip(targets, boxes, matched)]
            )
            total = F.binary_cross_entropy_with_logits(of_class, masks, reduction="sum")
            losses["loss_mask"] = Loss(total, float(masks.numel()))
        return losses

    def postprocess_detections(
        self, logits: Tensor, deltas: Tensor, proposals: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return boxes [N, 4], scores [N] and labels [N] of each image, best first."""
        if not self.soft_nms:
            return super().postprocess_detections(logits, deltas, proposals, image_shapes)
        found, lengths = [], [len(regions) for regions in proposals]
        for boxes, scores, size in zip(
            self.box_coder.decode(deltas, proposals).split(lengths), logits.softmax(-1).split(lengths), image_shapes
        ):
            boxes, scores = clip_boxes_to_image(boxes, size)[:, 1:].flatten(0, 1), scores[:, 1:]
            labels = torch.arange(1, 1 + scores.shape[1], device=scores.device).expand_as(scores).flatten()
            scores = scores.flatten()
            keep = torch.where(scores > self.score_thresh)[0]
            keep = keep[remove_small_boxes(boxes[keep], min_size=1e-2)]
            best, scores = soft_nms(
                boxes[keep], scores[keep], labels[keep], score_thresh=self.score_thresh, count=self.detections_per_img
            )
            found.append((boxes[keep][best], scores, labels[keep][best]))
        return tuple(map(list, zip(*found)))

    def box_outputs(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Return class logits [R, K + 1] and box deltas [R, 4 (K + 1)] of all regions."""
        outputs = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, image_shapes)))
        return tuple(output.to(proposals[0].dtype) for output in outputs)

    def mask_outputs(
        self, features: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> Tensor:
        """Return mask logits [R, K + 1, M, M] of all boxes."""
        return self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, image_shapes))).to(boxes[0].dtype)


def paste_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Put masks into the image, where torchvision rounds their boxes down to whole pixels, to the fraction of a pixel.

    Args:
        masks: probabilities [N, 1, M, M] on the M x M cells of each box.
        boxes: [N, 4].
        size: (H, W) of the image.

    Returns:
        bool [N, H, W]: the probability, interpolated between the centres of the cells, is at least one half.
    """
    rows, columns = (_hat(boxes[:, axis], boxes[:, axis + 2], size[1 - axis], masks) for axis in (1, 0))
    return rows @ masks[:, 0] @ columns.transpose(1, 2) >= 0.5


def _hat(start: Tensor, stop: Tensor, side: int, masks: Tensor) -> Tensor:
    # weights [N, side, M] of bilinear interpolation; pixel centres are whole numbers, as in roi_align in training
    cells = masks.shape[-1]
    pixels = torch.arange(side, device=masks.device, dtype=masks.dtype)
    position = (pixels - start[:, None]) * (cells / (stop - start))[:, None] - 0.5
    return (1 - (position[..., None] - torch.arange(cells, device=masks.device)).abs()).clamp(min=0)


def _cut_masks(masks: Tensor, boxes: Tensor, matched: Tensor, side: int) -> Tensor:
    # only the instances that were sampled become floating point: a chip may hold more than a thousand
    used, matched = matched.unique(return_inverse=True)
    return project_masks_on_boxes(masks[used], boxes, matched, side)
