"""FeatureClassifier: one label, or several, for a whole chip."""

import torch
from torch import Tensor, nn

from accel_geo.models.base import GeoModel
from accel_geo.nn.backbones import build_backbone, pad_to_multiple, pretrained_state
from accel_geo.nn.losses import label_binary_cross_entropy, label_cross_entropy
from accel_geo.nn.weights import load_weights
from accel_geo.parallel.reduction import Loss


class FeatureClassifier(GeoModel):
    """A convolutional network, the average over its last feature map, and a linear head.

    Whether a chip has one label or several follows from the data (`spec.multilabel`): softmax and cross entropy, or
    sigmoid and binary cross entropy. Cells of the feature map beyond a chip's own size are left out of the average.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained) or a path, see nn/weights.py.
        size: "full", or "small": the network without its coarsest stage, for small chips.
        label_smoothing: share of the target that is spread evenly over the classes; one label only.

    Raises:
        ValueError: an unknown backbone or size, or weights that do not belong to the backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "classification"

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet34",
        weights: str | None = None,
        size: str = "full",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(data, backbone=backbone, size=size, label_smoothing=label_smoothing)
        if size not in ("full", "small"):
            raise ValueError(f"size is 'full' or 'small', not {size!r}")
        if not 0 <= label_smoothing < 1 or (label_smoothing and self.spec.multilabel):
            raise ValueError(
                f"label_smoothing={label_smoothing}: at least 0, below 1, and 0 where chips have several labels"
            )
        self.label_smoothing = label_smoothing
        self.backbone = build_backbone(backbone, len(self.spec.bands), max_stride=32 if size == "full" else 16)
        self.head = nn.Linear(self.backbone.channels[-1], len(self.spec.classes))
        if weights is not None:
            load_weights(
                self,
                weights,
                backbone=self.backbone,
                heads=("head.",),
                bands=self.spec.bands,
                classes=self.spec.classes,
                default=lambda: pretrained_state(backbone),
            )

    def backbone_modules(self) -> list[nn.Module]:
        """Return what `freeze` freezes."""
        return [self.backbone]

    def loss_counts(self, targets: list[dict]) -> dict[str, float]:
        """Return the count of each loss term, known from the targets alone."""
        if self.spec.multilabel:
            return {"binary_cross_entropy": sum(not t["ignore"] for t in targets) * float(len(self.spec.classes))}
        return {"cross_entropy": float(sum(not t["ignore"] and int(t["label"]) != -1 for t in targets))}

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Classify images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training; in evaluation their `size` is used where given.

        Returns:
            In training the loss terms; in evaluation one {"scores": [K]} per image.
        """
        stride = self.backbone.strides[-1]
        features = self.backbone(pad_to_multiple(self.normalize(images), stride))[-1]
        sizes = [images.shape[-2:]] * len(images) if targets is None else [target["size"] for target in targets]
        logits = self.head(_average(features, sizes, stride))
        if not self.training:
            scores = logits.sigmoid() if self.spec.multilabel else logits.softmax(1)
            return [{"scores": row} for row in scores]
        device = images.device
        if self.spec.multilabel:
            keep = torch.tensor([not target["ignore"] for target in targets], device=device)
            labels = torch.stack([target["labels"].to(device) for target in targets])
            return {"binary_cross_entropy": label_binary_cross_entropy(logits, labels, keep)}
        labels = torch.tensor([-1 if target["ignore"] else int(target["label"]) for target in targets], device=device)
        return {"cross_entropy": label_cross_entropy(logits, labels, self.label_smoothing)}


def _average(features: Tensor, sizes: list[tuple[int, int]], stride: int) -> Tensor:
    """Average feature maps [B, C, h, w] over the cells that begin inside each image."""
    height, width = features.shape[-2:]
    rows = torch.tensor([-(-size[0] // stride) for size in sizes], device=features.device)
    columns = torch.tensor([-(-size[1] // stride) for size in sizes], device=features.device)
    inside = (torch.arange(height, device=features.device) < rows[:, None])[:, :, None]
    inside = inside & (torch.arange(width, device=features.device) < columns[:, None])[:, None, :]
    return (features * inside[:, None]).sum((2, 3)) / (rows * columns)[:, None]
