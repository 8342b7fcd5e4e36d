"""FasterRCNN and MaskRCNN: boxes, and masks, of single objects in regions that a network proposes."""

import re
from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models import WeightsEnum
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights, MaskRCNN_ResNet50_FPN_Weights
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead

from accel_geo.models.arguments import FLAG, POSITIVE, SHARE, list_of, number, or_none, whole
from accel_geo.models.base import GeoModel
from accel_geo.nn.anchors import PyramidAnchors
from accel_geo.nn.backbones import build_backbone, cannot_download, pad_to_multiple, pretrained_state
from accel_geo.nn.regions import FeaturePyramid, RegionHeads, RegionProposals, paste_masks
from accel_geo.nn.weights import load_weights
from accel_geo.parallel.reduction import Loss

# what an argument left at None stands for; "full" is torchvision's
SIZES = {
    "full": {
        "smallest_anchor": 32,
        "rpn_pre_nms_top_n_train": 2000,
        "rpn_pre_nms_top_n_test": 1000,
        "rpn_post_nms_top_n_train": 2000,
        "rpn_post_nms_top_n_test": 1000,
        "rpn_batch_size_per_image": 256,
        "box_batch_size_per_image": 512,
    },
    "small": {
        "smallest_anchor": 8,
        "rpn_pre_nms_top_n_train": 300,
        "rpn_pre_nms_top_n_test": 300,
        "rpn_post_nms_top_n_train": 150,
        "rpn_post_nms_top_n_test": 100,
        "rpn_batch_size_per_image": 64,
        "box_batch_size_per_image": 64,
    },
}
TOP_N = tuple(name for name in SIZES["full"] if name.startswith(("rpn_", "box_")))
SHARES = (
    "rpn_nms_thresh", "rpn_fg_iou_thresh", "rpn_bg_iou_thresh", "rpn_score_thresh",
    "box_score_thresh", "box_nms_thresh", "box_fg_iou_thresh", "box_bg_iou_thresh",
)  # fmt: skip
COCO_OUTPUTS = 91  # scores of a box of torchvision's networks trained on COCO
EPSILON = 1e-5  # of batch normalisation in torchvision's and timm's ResNets
# channels of the pyramid, of the box head, of each mask convolution
WIDTHS = {"full": (256, 1024, (256,) * 4), "small": (64, 256, (64,) * 2)}


class RegionCNN(GeoModel):
    """What Faster and Mask R-CNN share: a feature pyramid, a region proposal network and heads on the proposed regions.

    Chips of any size are taken as they are: nothing is resized. An argument left at None follows `size`, which sets
    how wide and how many things are, never the backbone; "full" is torchvision's network, "small" one for chips of
    about 128 px.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained: on COCO for the full ResNet-50, else the backbone alone) or a
            path, see nn/weights.py.
        size: "full" or "small".
        anchor_sizes: side of the square anchor at each level of the pyramid, finest first, in pixels; None: 32 and its
            doubles, 8 and its doubles for "small".
        anchor_ratios: height / width of the anchors.
        rpn_pre_nms_top_n_train: proposals of a level before non-maximum suppression, in training.
        rpn_pre_nms_top_n_test: the same in evaluation.
        rpn_post_nms_top_n_train: proposals of an image after it, in training.
        rpn_post_nms_top_n_test: the same in evaluation.
        rpn_nms_thresh: intersection over union above which a proposal is suppressed.
        rpn_fg_iou_thresh: an anchor of at least this overlap with an object is positive.
        rpn_bg_iou_thresh: an anchor below this overlap with every object is negative.
        rpn_batch_size_per_image: anchors sampled from an image.
        rpn_positive_fraction: the largest share of positives among them.
        rpn_score_thresh: proposals below this probability are dropped.
        box_score_thresh: detections below this score are dropped.
        box_nms_thresh: overlap above which a detection is suppressed by a better one of its class.
        box_detections_per_img: detections of an image at most.
        box_fg_iou_thresh: a region of at least this overlap with an object is positive.
        box_bg_iou_thresh: a region below this overlap with every object is negative.
        box_batch_size_per_image: regions sampled from an image.
        box_positive_fraction: the largest share of positives among them.
        bbox_reg_weights: weights of the box deltas; None: 10, 10, 5, 5.
        soft_nms: lower the scores of overlapping detections (Bodla et al. 2017, Gaussian) instead of dropping those
            above `box_nms_thresh`; `box_score_thresh` then bounds the lowered scores.

    Raises:
        ValueError: an unknown backbone or size, a wrong number of anchor sizes, or weights of another backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    coco: WeightsEnum
    rules = {
        **GeoModel.rules,
        "anchor_sizes": or_none(list_of(POSITIVE, "a list of sides above 0 in pixels, one for each level")),
        "anchor_ratios": list_of(POSITIVE, "a list of height / width, each above 0"),
        **dict.fromkeys(TOP_N, or_none(whole(1))),
        "box_detections_per_img": whole(1),
        **dict.fromkeys(SHARES, SHARE),
        **dict.fromkeys(
            ("rpn_positive_fraction", "box_positive_fraction"),
            number("a number above 0, at most 1", lambda x: 0 < x <= 1),
        ),
        "bbox_reg_weights": or_none(list_of(POSITIVE, "a list of four numbers above 0", 4)),
        "soft_nms": FLAG,
    }
    weights_need = ("anchor_sizes", "anchor_ratios", "bbox_reg_weights")

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet50",
        weights: str | None = None,
        size: str = "full",
        anchor_sizes: Sequence[int] | None = None,
        anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0),
        rpn_pre_nms_top_n_train: int | None = None,
        rpn_pre_nms_top_n_test: int | None = None,
        rpn_post_nms_top_n_train: int | None = None,
        rpn_post_nms_top_n_test: int | None = None,
        rpn_nms_thresh: float = 0.7,
        rpn_fg_iou_thresh: float = 0.7,
        rpn_bg_iou_thresh: float = 0.3,
        rpn_batch_size_per_image: int | None = None,
        rpn_positive_fraction: float = 0.5,
        rpn_score_thresh: float = 0.0,
        box_score_thresh: float = 0.05,
        box_nms_thresh: float = 0.5,
        box_detections_per_img: int = 100,
        box_fg_iou_thresh: float = 0.5,
        box_bg_iou_thresh: float = 0.5,
        box_batch_size_per_image: int | None = None,
        box_positive_fraction: float = 0.25,
        bbox_reg_weights: Sequence[float] | None = None,
        soft_nms: bool = False,
    ) -> None:
        arguments = {k: v for k, v in locals().items() if k not in ("self", "data", "weights", "__class__")}
        super().__init__(data, **arguments)
        for part in ("rpn", "box"):
            high, low = arguments[f"{part}_fg_iou_thresh"], arguments[f"{part}_bg_iou_thresh"]
            if low > high:
                raise ValueError(f"{part}_bg_iou_thresh={low}: at most {part}_fg_iou_thresh, which is {high}")
        chosen = {k: SIZES[size][k] if v is None and k in SIZES[size] else v for k, v in self.arguments.items()}
        anchor_sizes, anchor_ratios = chosen["anchor_sizes"], chosen["anchor_ratios"]
        width, box_width, _ = WIDTHS[size]
        outputs = 1 + len(self.spec.classes)

        self.backbone = FeaturePyramid(build_backbone(backbone, len(self.spec.bands)), width)
        levels = len(self.backbone.strides)
        if anchor_sizes is None:
            anchor_sizes = [SIZES[size]["smallest_anchor"] * 2**level for level in range(levels)]
        if len(anchor_sizes) != levels:
            raise ValueError(f"anchor_sizes={anchor_sizes}: {backbone} needs {levels}, one for each of its levels")
        self.rpn = RegionProposals(
            PyramidAnchors(anchor_sizes, anchor_ratios, self.backbone.strides),
            RPNHead(width, len(anchor_ratios)),
            fg_iou_thresh=rpn_fg_iou_thresh,
            bg_iou_thresh=rpn_bg_iou_thresh,
            batch_size_per_image=chosen["rpn_batch_size_per_image"],
            positive_fraction=rpn_positive_fraction,
            pre_nms_top_n={"training": chosen["rpn_pre_nms_top_n_train"], "testing": chosen["rpn_pre_nms_top_n_test"]},
            post_nms_top_n={
                "training": chosen["rpn_post_nms_top_n_train"],
                "testing": chosen["rpn_post_nms_top_n_test"],
            },
            nms_thresh=rpn_nms_thresh,
            score_thresh=rpn_score_thresh,
        )
        self.roi_heads = RegionHeads(
            self.backbone.pooling(7),
            TwoMLPHead(width * 7**2, box_width),
            FastRCNNPredictor(box_width, outputs),
            fg_iou_thresh=box_fg_iou_thresh,
            bg_iou_thresh=box_bg_iou_thresh,
            batch_size_per_image=chosen["box_batch_size_per_image"],
            positive_fraction=box_positive_fraction,
            bbox_reg_weights=chosen["bbox_reg_weights"],
            score_thresh=box_score_thresh,
            nms_thresh=box_nms_thresh,
            detections_per_img=box_detections_per_img,
            soft_nms=soft_nms,
            **self.mask_parts(size),
        )
        if weights is not None:
            on_coco = backbone == "resnet50" and size == "full"
            load_weights(
                self,
                weights,
                backbone=self.backbone.body,
                heads=("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits."),
                bands=self.spec.bands,
                classes=self.spec.classes,
                default=self._coco_state if on_coco else lambda: pretrained_state(backbone),
                adapt=adapted,
            )

    def mask_parts(self, size: str) -> dict[str, nn.Module]:
        """Return the mask branch as arguments of `RegionHeads`; none for boxes alone."""
        return {}

    def backbone_modules(self) -> list[nn.Module]:
        """Return what `freeze` freezes."""
        return [self.backbone.body]

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Find the objects in images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `boxes`, `labels`, `masks` (Mask R-CNN), and `size`, `key`, `ignore` of each
                image; in evaluation their `size` is used where given.

        Returns:
            In training the loss terms; in evaluation per image {"boxes" [N, 4], "labels" [N] 1..K, "scores" [N]}, best
            first, of Mask R-CNN also "masks" bool [N, H, W].
        """
        height, width = images.shape[-2:]
        normalized = self.normalize(images)
        if targets is None:
            sizes = [(height, width)] * len(images)
        else:
            sizes = [tuple(int(side) for side in target["size"]) for target in targets]
            targets = [{**target, "boxes": target["boxes"].to(normalized)} for target in targets]
        grid = ImageList(pad_to_multiple(normalized, self.backbone.body.strides[-1]), sizes)
        features = self.backbone(grid.tensors)
        proposals, losses = self.rpn(grid, features, targets)
        results, head_losses = self.roi_heads(features, proposals, sizes, targets)
        if self.training:
            return losses | head_losses
        for result in results:
            if "masks" in result:
                result["masks"] = paste_masks(result["masks"], result["boxes"], (height, width))
        return results

    def _coco_state(self) -> dict[str, Tensor]:
        try:
            return self.coco.get_state_dict(progress=False, check_hash=True)
        except Exception as error:
            raise cannot_download(f"{type(self).__name__} with resnet50", self.coco.url, error) from error


class FasterRCNN(RegionCNN):
    """Boxes and classes of single objects (Ren et al. 2015; feature pyramid: Lin et al. 2017), on torchvision's parts.

    Arguments: see `RegionCNN`.
    """

    task = "detection"
    coco = FasterRCNN_ResNet50_FPN_Weights.COCO_V1


class MaskRCNN(RegionCNN):
    """Boxes, classes and masks of single objects (He et al. 2017), on torchvision's parts.

    Arguments: see `RegionCNN`.
    """

    task = "instances"
    coco = MaskRCNN_ResNet50_FPN_Weights.COCO_V1

    def mask_parts(self, size: str) -> dict[str, nn.Module]:
        """Return the mask branch as arguments of `RegionHeads`."""
        width, _, mask_widths = WIDTHS[size]
        return {
            "mask_roi_pool": self.backbone.pooling(14),
            "mask_head": MaskRCNNHeads(width, mask_widths, 1),
            "mask_predictor": MaskRCNNPredictor(mask_widths[-1], mask_widths[-1], 1 + len(self.spec.classes)),
        }


def adapted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what a state dict of torchvision's Faster and Mask R-CNN is here.

    Names are today's. The normalisation of its COCO_V1 networks (91 outputs, without counts of batches) has no epsilon:
    torchvision sets it to 0 once they are loaded. Here it stays, and is taken off the variances instead, so that the
    network computes the same, and still does after it has been saved.
    """
    state = {modern_name(name): tensor for name, tensor in state.items()}
    outputs = [len(tensor) for name, tensor in state.items() if name.endswith("box_predictor.cls_score.bias")]
    if outputs == [COCO_OUTPUTS] and not any(name.endswith("num_batches_tracked") for name in state):
        variances = {name: tensor - EPSILON for name, tensor in state.items() if name.endswith("running_var")}
        state |= variances
    return state


def modern_name(name: str) -> str:
    """Return today's torchvision name of a tensor of a Mask R-CNN published before torchvision 0.14."""
    name = re.sub(r"((?:inner|layer)_blocks\.\d+)\.(weight|bias)$", r"\1.0.\2", name)
    name = re.sub(r"(rpn\.head\.conv)\.(weight|bias)$", r"\1.0.0.\2", name)
    return re.sub(r"mask_fcn(\d)\.(weight|bias)$", lambda m: f"{int(m[1]) - 1}.0.{m[2]}", name)
