"""FeatureClassifier: one label, or several, for a whole chip."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.models.arguments import FLAG, NOT_NEGATIVE, list_of, number, or_none
from accel_geo.models.base import GeoModel
from accel_geo.models.confusion import PlotsConfusion
from accel_geo.nn.backbones import build_backbone, pad_to_multiple, pretrained_state, use_levels
from accel_geo.nn.losses import label_binary_cross_entropy, label_count, label_cross_entropy
from accel_geo.nn.weights import load_weights
from accel_geo.parallel.reduction import Loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FeatureClassifier(PlotsConfusion, GeoModel):
    """A convolutional network, the average over its last feature map, and a linear head: by default a ResNet (He et al. 2016).

    Whether a chip has one label or several follows from the data (`spec.multilabel`): softmax and cross entropy, or
    sigmoid and binary cross entropy. Cells of the feature map beyond a chip's own size are left out of the average.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained) or a path, see nn/weights.py.
        size: "full", or "small": the network without its coarsest stage, for small chips.
        label_smoothing: share of the target that is spread evenly over the classes; one label only.
        class_balancing: weigh classes by how few of the training chips have them, see `balanced_weights`.
        class_weights: a weight for each class; with one label a chip weighs as its class does, with several it says how
            many times as much a class counts where it is there. Computed where `class_balancing` asks for them.

    Raises:
        ValueError: an unknown backbone or size, weights that do not belong to the backbone, or a loss option that is not
            allowed.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "classification"
    rules = {
        **GeoModel.rules,
        "label_smoothing": number("a number of at least 0, below 1", lambda x: 0 <= x < 1),
        "class_balancing": FLAG,
        "class_weights": or_none(list_of(NOT_NEGATIVE, "a list of numbers of at least 0, one for each class")),
    }

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "resnet34",
        weights: str | None = None,
        size: str = "full",
        label_smoothing: float = 0.0,
        class_balancing: bool = False,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        loss = {"label_smoothing": label_smoothing, "class_balancing": class_balancing, "class_weights": class_weights}
        super().__init__(data, backbone=backbone, size=size, **loss)
        if label_smoothing and self.spec.multilabel:
            raise ValueError(f"label_smoothing={label_smoothing}: 0 where chips have several labels")
        if class_balancing and class_weights is None:
            self.arguments["class_weights"] = balanced_weights(data)
        class_weights = self.arguments["class_weights"]
        if class_weights is not None and (len(class_weights) != len(self.spec.classes) or not any(class_weights)):
            raise ValueError(
                f"class_weights={class_weights}: a number for each of {', '.join(self.spec.classes)}, not all 0"
            )
        self.label_smoothing = label_smoothing
        weights_now = None if class_weights is None else torch.tensor(class_weights, dtype=torch.get_default_dtype())
        self.register_buffer("class_weights", weights_now, persistent=False)  # of this training, not published
        self.backbone = build_backbone(backbone, len(self.spec.bands), max_stride=32 if size == "full" else 16)
        use_levels(self.backbone, len(self.spec.bands), [-1])
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

    def loss_counts(self, targets: list[dict]) -> dict[str, float]:
        """Return the count of each loss term, known from the targets alone."""
        if self.spec.multilabel:
            return {"binary_cross_entropy": sum(not t["ignore"] for t in targets) * float(len(self.spec.classes))}
        return {"cross_entropy": float(label_count(self._labels(targets), self.class_weights))}

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Classify images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `label`, or `label_weights` [K] of mixed chips, or `labels` [K]; in evaluation
                their `size` is used where given.

        Returns:
            In training the loss terms; in evaluation one {"scores": [K]} per image.
        """
        sizes = [images.shape[-2:]] * len(images) if targets is None else [target["size"] for target in targets]
        logits = self._logits(self._features(images), sizes)
        if not self.training:
            logits = logits.to(images.dtype)  # of autocast
            scores = logits.sigmoid() if self.spec.multilabel else logits.softmax(1)
            return [{"scores": row} for row in scores]
        if self.spec.multilabel:
            keep = torch.tensor([not target["ignore"] for target in targets], device=images.device)
            labels = torch.stack([target["labels"].to(images.device) for target in targets])
            return {"binary_cross_entropy": label_binary_cross_entropy(logits, labels, keep, self.class_weights)}
        labels = self._labels(targets)
        return {"cross_entropy": label_cross_entropy(logits, labels, self.label_smoothing, self.class_weights)}

    def _labels(self, targets: list[dict]) -> Tensor:
        # int64 [B], -1 ignored; of mixed chips the weight of each class [B, K], all 0 ignored.
        device = self.pixel_mean.device
        if "label_weights" in targets[0]:
            return torch.stack([target["label_weights"].to(device) * (not target["ignore"]) for target in targets])
        return torch.tensor([-1 if target["ignore"] else int(target["label"]) for target in targets], device=device)

    def _features(self, images: Tensor) -> Tensor:
        return self.backbone(pad_to_multiple(self.normalize(images), self.backbone.strides[-1]))[-1]

    def _logits(self, features: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        return self.head(_average(features, sizes, self.backbone.strides[-1]))

    # Pictures --------------------------------------------------------------------------------------------------------

    def grad_cam(self, image: str | os.PathLike | Tensor, label: str | int | None = None) -> Tensor:
        """Return where a network looks to see a class: Grad-CAM (Selvaraju et al. 2017) of the last feature map.

        Args:
            image: path of a raster, or a tensor [C, H, W], as for `predict`.
            label: name of the class, or its value; None: the one that is predicted.

        Returns:
            [H, W] from 0 to 1, the largest being 1; 0 everywhere where nothing speaks for the class.

        Raises:
            ValueError: no such class.
        """
        image = self._image(image)
        height, width = image.shape[-2:]
        named = {key: i for i, keys in enumerate(zip(self.spec.class_values, self.spec.classes)) for key in keys}
        if label is not None and label not in named:
            raise ValueError(f"no class {label!r}; there are {', '.join(map(str, named))}")
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                features = self._features(image[None])
            # After the last feature map stands the head alone: no gradient is needed before it.
            with torch.enable_grad():
                logits = self._logits(features.requires_grad_(), [(height, width)])[0]
                chosen = int(logits.argmax()) if label is None else named[label]
                (slope,) = torch.autograd.grad(logits[chosen], features)
        finally:
            self.train(training)
        heat = (slope.mean((2, 3), keepdim=True) * features.detach()).sum(1, keepdim=True).relu()
        stride = self.backbone.strides[-1]
        size = [stride * cells for cells in heat.shape[-2:]]
        heat = F.interpolate(heat, size, mode="bilinear", align_corners=False)[0, 0, :height, :width]
        return (heat / heat.max().clamp(min=torch.finfo(heat.dtype).tiny)).float().cpu()

    def plot_grad_cam(self, rows: int = 4, path: str | os.PathLike | None = None) -> "Figure":
        """Draw validation chips beside where the network looks for the predicted class, and for the true one.

        Args:
            rows: chips.
            path: also write the picture there.

        Raises:
            ValueError: there are no validation chips, or no rows.
        """
        from accel_geo.engine.publish import interesting
        from accel_geo.parallel.order import Request
        from accel_geo.report import charts, pictures

        data, drawn = self._validated("plot_grad_cam", rows), []
        for index in interesting(data.valid, rows):
            sample = data.valid[Request(index)]
            image, scores = sample["image"], self.predict(sample["image"])["scores"]
            predicted = self.spec.classes[int(scores.argmax())]
            there = sample["labels"] >= 0.5 if self.spec.multilabel else torch.arange(len(scores)) == sample["label"]
            truth = [self.spec.classes[int(i)] for i in there.nonzero()[:1]]  # of several the first
            rgb = pictures.stretch(image.numpy(), self.spec.bands)
            row = [(rgb, None, data.file(sample["image_id"]), "")]
            row.append((rgb, self.grad_cam(image, predicted).numpy(), "", f"predicted: {predicted}"))
            heat = self.grad_cam(image, truth[0]).numpy() if truth else None
            drawn.append([*row, (rgb, heat, "", f"truth: {truth[0] if truth else 'none'}")])
        return _written(charts.heat_maps(drawn), path)

    def plot_hard_examples(self, rows: int = 4, path: str | os.PathLike | None = None) -> "Figure":
        """Draw the validation chips with the highest loss, the worst first.

        Args:
            rows: rows of four chips.
            path: also write the picture there.

        Raises:
            ValueError: there are no validation chips, none with labels, or no rows.
        """
        from accel_geo.parallel.order import Request

        data = self._validated("plot_hard_examples", rows)
        places = {image_id: index for index, image_id in enumerate(data.valid.ids)}
        hardest = data.task.hardest(self.spec, self._evaluation("plot_hard_examples").records, 4 * rows)
        if not hardest:
            raise ValueError("plot_hard_examples: no validation chip can be read and has labels that count")
        samples = [data.valid[Request(places[image_id])] for image_id in hardest]
        images, files = [sample.pop("image") for sample in samples], [data.file(image_id) for image_id in hardest]
        return _written(data.task.figure(self.spec, images, samples, self.predict(images), files), path)


def _written(figure: "Figure", path: str | os.PathLike | None) -> "Figure":
    if path:
        figure.savefig(path)
    return figure


def balanced_weights(data: object) -> list[float]:
    """Return a weight for each class from the training chips that have it; 1 where none has.

    With one label a chip: (chips) / (classes x chips of the class). With several: (chips without the class) / (chips with
    it), which makes its presence and absence count alike.

    Raises:
        ValueError: there are no training chips to count, or oversampling balances them already.
    """
    if not hasattr(data, "class_counts"):
        raise ValueError("class_balancing counts the training chips: give the data, or class_weights=[...]")
    if data.train.times:
        raise ValueError(
            "oversample and class_balancing each balance the classes; leave one out, or give class_weights"
        )
    counts = data.class_counts["train"]["chips"][1:]
    if not data.spec.multilabel:
        present = sum(count > 0 for count in counts)
        return [sum(counts) / (present * count) if count else 1.0 for count in counts]
    chips = len(data.train) - sum(i in part.store.problems for part in data.train.parts for i in part.positions)
    return [(chips - count) / count if count else 1.0 for count in counts]


def _average(features: Tensor, sizes: list[tuple[int, int]], stride: int) -> Tensor:
    """Average feature maps [B, C, h, w] over the cells that begin inside each image."""
    height, width = features.shape[-2:]
    rows = torch.tensor([-(-size[0] // stride) for size in sizes], device=features.device)
    columns = torch.tensor([-(-size[1] // stride) for size in sizes], device=features.device)
    inside = (torch.arange(height, device=features.device) < rows[:, None])[:, :, None]
    inside = inside & (torch.arange(width, device=features.device) < columns[:, None])[:, None, :]
    return (features * inside[:, None]).sum((2, 3)) / (rows * columns)[:, None]
