"""SingleShotDetector: boxes and classes of single objects in one pass (Liu et al. 2016), on torchvision's parts."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import batched_nms, clip_boxes_to_image, sigmoid_focal_loss

from accel_geo.models.arguments import FLAG, POSITIVE, SHARE, Rule, list_of, number, or_none, whole
from accel_geo.models.base import GeoModel
from accel_geo.nn.anchors import fit_shapes, grid_anchors, match_anchors
from accel_geo.nn.backbones import build_backbone, pad_to_multiple, pretrained_state
from accel_geo.nn.boxes import centred_inside
from accel_geo.nn.sampling import highest, on_rank_grid
from accel_geo.nn.single_shot import SingleShotFeatures, single_shot_head
from accel_geo.nn.weights import load_weights, published
from accel_geo.parallel.reduction import Loss

FIRST_STRIDE = {"full": 8, "small": 4}
# An anchor lies on the coarsest map on which an object of its shape, wherever it is, overlaps by half with an anchor.
SIDES_PER_STRIDE = 2.75
# A chip without objects teaches background as one with this many matched anchors: that many times as many hardest
# negatives as there are for each match, and this many in the count. The paper's network learns nothing from it.
EMPTY_MATCHES = 8
FOCAL = {"alpha": 0.25, "gamma": 2.0}  # Lin et al. 2017
RARE = 0.01  # probability of an object that focal training begins with, likewise
MOST_BOXES = 5000  # that anchors are fitted to
PAIRS = list_of(list_of(POSITIVE, "", 2), "a list of pairs of width and height, each above 0")
PAIRS_BY_MAP = Rule(
    "", lambda v: isinstance(v, list) and any(v) and all(level == [] or PAIRS.fits(level) for level in v)
)
# the arguments for anchors where none is given
UNSAID = {"anchors": None, "grids": None, "zooms": [1.0], "ratios": [[1.0, 1.0]]}


class SingleShotDetector(GeoModel):
    """SSD, the single shot multibox detector (Liu et al. 2016): boxes and classes of single objects in one pass.

    Classes and box offsets are found at all cells of feature maps of several strides, for anchors of several shapes.
    Chips of any size are taken as they are. The anchors' shapes are, in this order: `anchors`; `grids`; those of the
    published SingleShotDetector that `weights` are of; shapes fitted to the boxes of the training chips by k-means;
    without training chips, squares of three and of 4.2 strides and rectangles of ratio 2 on each map. Each is repeated
    for all `zooms` and `ratios`. Fitted ones, and a published model's, are kept in the saved arguments. Maps on which no
    anchor lies are not built.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py. A VGG becomes the paper's network, a MobileNet SSDLite
            (Sandler et al. 2018); others get batch-normalised convolutions behind them.
        weights: None (random), "default" (the backbone's pretrained) or a path, see nn/weights.py. A published
            SingleShotDetector gives its anchors as well, unless anchors, grids, zooms or ratios are given; then the
            heads of maps with other anchors start anew.
        size: "full": maps of stride 8 and more; "small": of stride 4 and more, and narrow ones behind the backbone.
        anchors: (width, height) in pixels; each lies on the coarsest map whose stride is at most its side / 2.75. Or
            such a list for each map, finest first.
        grids: cells along a chip of the training size, such as [16, 8, 4]: a square anchor of a cell's side on the map
            of the nearest stride. Or such a list for each map, finest first.
        zooms: each anchor is also scaled by these.
        ratios: each anchor is also stretched by these, (width, height).
        focal_loss: sigmoid focal loss over all anchors (Lin et al. 2017; alpha 0.25, gamma 2) instead of softmax and
            the hardest negatives.
        iou_thresh: an anchor of at least this overlap with an object is positive.
        positive_fraction: share of positives among the anchors that are trained on; 0.25: three negatives to each.
        score_thresh: detections below this score are dropped.
        nms_thresh: overlap above which a detection is suppressed by a better one of its class.
        detections_per_img: detections of an image at most.
        topk_candidates: detections of a class before suppression.

    Raises:
        ValueError: an unknown backbone or size, impossible anchors, or weights of another backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "detection"
    rules = {
        **GeoModel.rules,
        "anchors": or_none(
            Rule(
                f"{PAIRS.allowed}, or a list of such lists, one for each map",
                lambda value: PAIRS.fits(value) or PAIRS_BY_MAP.fits(value),
            )
        ),
        "grids": or_none(
            Rule(
                "whole numbers of at least 1, the cells along a chip, or a list of such lists, one for each map",
                lambda value: isinstance(value, list) and list_of(whole(1), "").fits(_cells(value)),
            )
        ),
        "zooms": list_of(POSITIVE, "a list of factors above 0"),
        "ratios": PAIRS,
        "focal_loss": FLAG,
        "positive_fraction": number("a number between 0 and 1", lambda x: 0 < x < 1),
        **dict.fromkeys(("iou_thresh", "score_thresh", "nms_thresh"), SHARE),
        **dict.fromkeys(("detections_per_img", "topk_candidates"), whole(1)),
    }
    weights_need = tuple(UNSAID)

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet34",
        weights: str | None = None,
        size: str = "full",
        anchors: Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]] | None = None,
        grids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        zooms: Sequence[float] = (1.0,),
        ratios: Sequence[Sequence[float]] = ((1.0, 1.0),),
        focal_loss: bool = False,
        iou_thresh: float = 0.5,
        positive_fraction: float = 0.25,
        score_thresh: float = 0.01,
        nms_thresh: float = 0.45,
        detections_per_img: int = 200,
        topk_candidates: int = 400,
    ) -> None:
        super().__init__(
            data,
            backbone=backbone,
            size=size,
            anchors=anchors,
            grids=grids,
            zooms=zooms,
            ratios=ratios,
            focal_loss=focal_loss,
            iou_thresh=iou_thresh,
            positive_fraction=positive_fraction,
            score_thresh=score_thresh,
            nms_thresh=nms_thresh,
            detections_per_img=detections_per_img,
            topk_candidates=topk_candidates,
        )
        if anchors is not None and grids is not None:
            raise ValueError("anchors and grids both say the anchors' shapes; give one of them")
        published_anchors = {} if weights is None else self._published_anchors(weights)
        if published_anchors and {name: self.arguments[name] for name in UNSAID} == UNSAID:
            self.arguments["anchors"] = _by_map(published_anchors, FIRST_STRIDE[size])
        elif anchors is None and grids is None:
            self.arguments["anchors"] = fitted_anchors(data)
        if max(_cells(self.arguments["grids"] or []), default=0) > (most := max(self.spec.chip_size)):
            raise ValueError(f"grids={grids}: at most {most} cells, as many as a chip of the training size has pixels")
        self.focal_loss, self.iou_thresh = focal_loss, iou_thresh
        self.negatives_per_positive = (1 - positive_fraction) / positive_fraction
        self.score_thresh, self.nms_thresh = score_thresh, nms_thresh
        self.detections_per_img, self.topk_candidates = detections_per_img, topk_candidates
        self.box_coder = BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))

        name = backbone.removeprefix("timm:")
        style = "vgg" if name.startswith("vgg") else "lite" if name.startswith("mobilenet") else "plain"
        placed = anchor_shapes(self.arguments, self.spec.chip_size)
        self.strides, self.shapes = list(placed), list(placed.values())
        if (side := min(self.spec.chip_size)) <= self.strides[0] / 2:
            raise ValueError(
                f"no anchor is centred in a chip of {side} pixels: the smallest anchors lie on cells of {self.strides[0]} "
                f"pixels, for chips of at least {self.strides[0] // 2 + 1}. Resize the chips, or give smaller anchors"
            )
        deepest = min(self.strides[-1], 16 if style == "vgg" else 32)
        body = build_backbone(backbone, len(self.spec.bands), max_stride=deepest)
        if missing := [stride for stride in self.strides if stride <= body.strides[-1] and stride not in body.strides]:
            raise ValueError(
                f"{backbone} has feature maps of strides {body.strides}, none of {missing} for the anchors"
            )
        self.backbone = SingleShotFeatures(body, self.strides, style, size)
        outputs = len(self.spec.classes) + (not focal_loss)
        self.head = single_shot_head(self.backbone.channels, [len(s) for s in self.shapes], outputs, style)
        if focal_loss:
            for module in self.head.classification_head.module_list:
                last = module[-1] if isinstance(module, nn.Sequential) else module
                nn.init.constant_(last.bias, -math.log((1 - RARE) / RARE))
        if weights is not None:
            theirs = list(published_anchors.items())
            other = [i for i, level in enumerate(placed.items()) if theirs[i : i + 1] != [level]]
            load_weights(
                self,
                weights,
                backbone=body,
                heads=("head.classification_head.",),
                bands=self.spec.bands,
                classes=self.spec.classes,
                default=lambda: pretrained_state(backbone),
                unfit=tuple(f"head.{k}_head.module_list.{i}." for k in ("classification", "regression") for i in other),
            )

    def backbone_modules(self) -> list[nn.Module]:
        """Return what `freeze` freezes."""
        return [self.backbone.body]

    def loss_counts(self, targets: list[dict]) -> dict[str, float]:
        """Return the count of each loss term: matched anchors, known from the targets."""
        matches = [self._match(target, self.anchors_of(target["size"], self.pixel_mean))[0] for target in targets]
        return {
            "bbox_regression": float(sum(int((matched >= 0).sum()) for matched in matches)),
            "classification": float(sum(self._count(t, matched) for t, matched in zip(targets, matches))),
        }

    def anchors_of(self, size: tuple[int, int], like: Tensor) -> Tensor:
        """Return the anchors [A, 4] of an image (H, W) after padding, in dtype and on the device of a tensor."""
        multiple = self.backbone.body.strides[-1]
        padded = tuple(-(-int(side) // multiple) * multiple for side in size)
        return grid_anchors(self.shapes, self.strides, padded, like)

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Find the objects in images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `boxes`, `labels`, and `size`, `ignore` of each image; in evaluation their
                `size` is used where given.

        Returns:
            In training the loss terms; in evaluation per image {"boxes" [N, 4], "labels" [N] 1..K, "scores" [N]}, best
            first.
        """
        normalized = self.normalize(images)
        outputs = self.head(self.backbone(pad_to_multiple(normalized, self.backbone.body.strides[-1])))
        logits, deltas = (outputs[name].to(normalized.dtype) for name in ("cls_logits", "bbox_regression"))
        anchors = self.anchors_of(images.shape[-2:], normalized)
        if self.training:
            return self._losses(logits, deltas, anchors, targets)
        sizes = [images.shape[-2:]] * len(images) if targets is None else [target["size"] for target in targets]
        scores = logits.sigmoid() if self.focal_loss else logits.softmax(-1)[..., 1:]
        return [self._detections(*image, anchors) for image in zip(scores, deltas, sizes)]

    def _published_anchors(self, weights: str) -> dict[int, list[list[float]]]:
        # by stride; none where the weights are not of a published model of this kind
        config = published(weights)
        if config.get("class") != type(self).__name__:
            return {}
        return anchor_shapes(UNSAID | config["arguments"], config["spec"]["chip_size"])

    def _match(self, target: dict, anchors: Tensor) -> tuple[Tensor, Tensor]:
        # the box of each anchor, see match_anchors, and the boxes
        boxes, size = target["boxes"].to(anchors), tuple(int(side) for side in target["size"])
        inside = centred_inside(anchors, size) & (not target.get("ignore", False))
        return match_anchors(boxes, anchors, inside, self.iou_thresh), boxes

    def _count(self, target: dict, matched: Tensor) -> int:
        if target.get("ignore", False):
            return 0
        return int((matched >= 0).sum()) if len(target["boxes"]) else EMPTY_MATCHES

    def _losses(self, logits: Tensor, deltas: Tensor, anchors: Tensor, targets: list[dict]) -> dict[str, Loss]:
        found, wanted, truths, counts = [], [], [], []
        for target in targets:
            matched, boxes = self._match(target, anchors)
            positive = matched >= 0
            wanted.append(self.box_coder.encode_single(boxes[matched[positive]], anchors[positive]))
            truth = torch.where(matched == -1, 0, -1)  # -1: does not count
            truth[positive] = target["labels"].to(truth)[matched[positive]]
            found.append(positive)
            truths.append(truth)
            counts.append(self._count(target, matched))
        positive, truth = torch.stack(found), torch.stack(truths)
        box_total = F.smooth_l1_loss(deltas[positive], torch.cat(wanted), reduction="sum")
        total = self._focal(logits, truth) if self.focal_loss else self._hardest(logits, truth, counts)
        return {
            "bbox_regression": Loss(box_total, positive.sum()),
            "classification": Loss(total, float(sum(counts))),
        }

    def _hardest(self, logits: Tensor, truth: Tensor, counts: list[int]) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), truth.flatten(), ignore_index=-1, reduction="none").view_as(
            truth
        )
        ranks, chosen = on_rank_grid(losses.detach()), truth > 0
        for image, count in enumerate(counts):
            most = math.ceil(self.negatives_per_positive * count)
            chosen[image] |= highest(ranks[image], truth[image] == 0, most)
        return losses[chosen].sum()

    def _focal(self, logits: Tensor, truth: Tensor) -> Tensor:
        counted = truth >= 0
        classes = F.one_hot(truth[counted], 1 + len(self.spec.classes))[:, 1:].to(logits)
        return sigmoid_focal_loss(logits[counted], classes, **FOCAL, reduction="sum")

    def _detections(self, scores: Tensor, deltas: Tensor, size: Sequence[int], anchors: Tensor) -> dict[str, Tensor]:
        size = tuple(int(side) for side in size)
        boxes = clip_boxes_to_image(self.box_coder.decode_single(deltas, anchors), size)
        usable = centred_inside(anchors, size) & (boxes[:, 2:] > boxes[:, :2]).all(1)
        scores, order = scores.masked_fill(~usable[:, None], 0).T.sort(dim=1, descending=True, stable=True)
        scores, order = scores[:, : self.topk_candidates], order[:, : self.topk_candidates]
        kept = scores > self.score_thresh
        labels = torch.arange(1, 1 + len(scores), device=scores.device)[:, None].expand_as(scores)[kept]
        boxes, scores = boxes[order[kept]], scores[kept]
        best = batched_nms(boxes, scores, labels, self.nms_thresh)[: self.detections_per_img]
        return {"boxes": boxes[best], "labels": labels[best], "scores": scores[best]}


def fitted_anchors(data: object) -> list[list[float]] | None:
    """Return shapes fitted to boxes of the training chips; None without chips or boxes.

    They are at most 5000, evenly spread over the boxes in the order of image_id, the same on every process. Where
    training turns chips, boxes count in both orientations.
    """
    chips = getattr(data, "train", None)
    sides = chips.box_sides() if chips else np.empty((0, 2))
    turned = bool(data.spec.map_space) if chips else False
    number = min(len(sides), MOST_BOXES // (1 + turned))
    sides = sides[len(sides) * np.arange(number) // max(number, 1)]
    if turned:
        sides = np.concatenate([sides, sides[:, ::-1]])
    return fit_shapes(sides) if len(sides) else None


def anchor_shapes(arguments: dict[str, object], chip_size: Sequence[int]) -> dict[int, list[list[float]]]:
    """Return (width, height) in pixels of the anchors of each stride that has any, finest first.

    Args:
        arguments: of a SingleShotDetector.
        chip_size: (H, W) that it is trained for.
    """
    anchors, grids, zooms, ratios = (arguments[name] for name in UNSAID)
    placed = _placed(anchors, grids, FIRST_STRIDE[arguments["size"]], chip_size)
    return {
        stride: [[w * zoom * rw, h * zoom * rh] for w, h in placed[stride] for zoom in zooms for rw, rh in ratios]
        for stride in sorted(placed)
    }


def _placed(
    anchors: list | None, grids: list | None, first: int, chip_size: Sequence[int]
) -> dict[int, list[tuple[float, float]]]:
    """Return the shapes of each stride that has any, before zooms and ratios."""
    placed: dict[int, list] = {}
    if anchors is not None:
        for number, of_level in enumerate(anchors):
            nested = not of_level or isinstance(of_level[0], list)
            for width, height in of_level if nested else [of_level]:
                stride = math.sqrt(width * height) / SIDES_PER_STRIDE
                level = number if nested else math.floor(math.log2(max(stride / first, 1)))
                placed.setdefault(first * 2**level, []).append((width, height))
    elif grids is not None:
        height, width = chip_size
        for number, of_level in enumerate(grids):
            nested = isinstance(of_level, list)
            for cells in of_level if nested else [of_level]:
                stride = math.sqrt(height * width) / cells
                level = number if nested else max(round(math.log2(stride / first)), 0)
                placed.setdefault(first * 2**level, []).append((width / cells, height / cells))
    else:
        stride = first
        while stride == first or 3 * stride <= min(chip_size):
            side, root = 3.0 * stride, math.sqrt(2)
            shapes = [(side, side), (side * root, side * root), (side * root, side / root), (side / root, side * root)]
            placed[stride], stride = shapes, 2 * stride
    return placed


def _by_map(shapes: dict[int, list[list[float]]], first: int) -> list[list[list[float]]]:
    """Return the shapes of each stride as a list for each map from the finest, which also gets those of finer ones."""
    number_of = {stride: max(round(math.log2(stride / first)), 0) for stride in shapes}
    maps: list[list] = [[] for _ in range(1 + max(number_of.values()))]
    for stride, of_level in shapes.items():
        maps[number_of[stride]] += of_level
    return maps


def _cells(grids: list) -> list:
    return [n for of_level in grids for n in (of_level if isinstance(of_level, list) else [of_level])]
