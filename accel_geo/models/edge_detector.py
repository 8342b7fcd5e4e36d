"""What the networks that find edges share: arguments, class-balanced losses, predictions."""

import torch
from torch import Tensor

from accel_geo.models.arguments import FLAG, one_of
from accel_geo.models.base import GeoModel
from accel_geo.nn.backbones import pad_to_multiple, pretrained_state
from accel_geo.nn.edges import balance_weights, balanced_cross_entropy, edge_backbone, edge_truth
from accel_geo.nn.losses import pixel_count
from accel_geo.nn.thinning import thinned
from accel_geo.nn.weights import load_weights
from accel_geo.parallel.reduction import Loss


class EdgeDetector(GeoModel):
    """A network that gives edge maps from several levels of a backbone, and one that is fused from them.

    All are trained on the same truth with the class-balanced cross entropy of Xie & Tu 2015. A subclass gives
    `build_sides` and `edge_maps`, and says how the losses weigh.

    Args:
        data: the data, or their DataSpec.
        backbone: a torchvision or timm name, see nn/backbones.py.
        weights: None (random), "default" (pretrained backbone) or a path, see nn/weights.py.
        size: "full" or "small".
        balance_over: "image": edges are balanced in each image, as published; an image without edges then teaches
            nothing. "batch": over the global batch.
        output: what is predicted: "fuse": the fused map; "mean": the mean of the probabilities of all maps.
        thin: predictions are thinned to lines one pixel wide, see nn/thinning.py. Metrics thin in any case.

    Raises:
        ValueError: an unknown backbone, size or balance, a backbone of a single level, or weights that do not belong to
            the backbone.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "edges"
    rules = {**GeoModel.rules, "balance_over": one_of("image", "batch"), "output": one_of("fuse", "mean"), "thin": FLAG}
    terms: dict[str, float]  # the weight of each loss term; "fuse" is that of the fused map
    negative = 1.0  # further weight of pixels that are no edges

    def __init__(
        self,
        data: object,
        *,
        backbone: str = "vgg16",
        weights: str | None = None,
        size: str = "full",
        balance_over: str = "image",
        output: str = "fuse",
        thin: bool = False,
    ) -> None:
        super().__init__(data, backbone=backbone, size=size, balance_over=balance_over, output=output, thin=thin)
        self.balance_over, self.output, self.thin = balance_over, output, thin
        self.backbone = edge_backbone(backbone, len(self.spec.bands), size)
        self.build_sides(size)
        if weights is not None:
            load_weights(
                self,
                weights,
                backbone=self.backbone,
                heads=(),
                bands=self.spec.bands,
                classes=self.spec.classes,
                default=lambda: pretrained_state(backbone),
                adapt=_of_the_backbone,
            )

    def build_sides(self, size: str) -> None:
        """Add the layers behind `self.backbone`, "full" or "small"."""
        raise TypeError(f"{type(self).__name__} must define build_sides(size)")

    def edge_maps(self, images: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return the maps of each loss term as logits [B, N, H, W]; of "fuse" one.

        Args:
            images: [B, C, H', W'], normalised, padded to a multiple of the coarsest stride.
            size: (H, W) before that.
        """
        raise TypeError(f"{type(self).__name__} must define edge_maps(images, size)")

    def loss_counts(self, targets: list[dict]) -> dict[str, float] | None:
        """Return the count of each loss term, its pixels; None where the balance is that of a part of the batch."""
        if self.balance_over == "batch":
            return None
        return dict.fromkeys(self.terms, float(pixel_count(edge_truth(targets, torch.device("cpu")))))

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Find the edges in images [B, C, H, W].

        Args:
            images: scaled to 0..1, padded on the right and below.
            targets: needed in training: `edges` uint8 [H, W], 0, 1 and 255, ignored.

        Returns:
            In training the loss terms; in evaluation per image {"edges": probability [H, W]}.
        """
        padded = pad_to_multiple(self.normalize(images), self.backbone.strides[-1])
        maps = self.edge_maps(padded, images.shape[-2:])
        if not self.training:
            logits = torch.cat(list(maps.values()), 1) if self.output == "mean" else maps["fuse"]
            found = logits.to(images.dtype).sigmoid().mean(1)
            return [{"edges": _thin(edges) if self.thin else edges} for edges in found]
        truth = edge_truth(targets, images.device)
        weights = balance_weights(truth, images, self.negative, self.balance_over)
        losses = {}
        for name, factor in self.terms.items():
            terms = [balanced_cross_entropy(edges, truth, weights) for edges in maps[name].unbind(1)]
            losses[name] = Loss(factor * torch.stack([term.total for term in terms]).sum(), terms[0].count)
        return losses


def _thin(probability: Tensor) -> Tensor:
    return torch.from_numpy(thinned(probability.double().cpu().numpy())).to(probability)


def _of_the_backbone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    # a network published as a whole has the backbone's names beside those of its sides
    return {f"backbone.{name}" if name.startswith("features.") else name: tensor for name, tensor in state.items()}
