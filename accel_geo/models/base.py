"""GeoModel: the module that users hold, with the verbs that they know."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from accel_geo.data.spec import DataSpec
from accel_geo.models import models_for
from accel_geo.models.agreement import check_data, read_like
from accel_geo.models.arguments import NAME, SIZE, Rule, check, check_fit_names, check_names, plain
from accel_geo.nn.backbones import torchvision_names
from accel_geo.parallel import keys
from accel_geo.parallel.reduction import Loss, is_main

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accel_geo.prepare import GeoData

# How each split comes to have chips.
FILLED_BY = {
    "train": "give prepare_data a val_split below 1",
    "valid": "give prepare_data a val_split above 0, valid_match or valid_path (--valid)",
    "test": "give prepare_data a test_path (--test), or data with a test split",
}


class _Row(type):
    """Refuses arguments that a model does not have.

    Draws initial weights by the data's seed, so that they do not depend on the process or on what was drawn before.
    """

    def __call__(cls, data: object, *args: object, **kwargs: object) -> "GeoModel":
        check_names(cls, kwargs)
        with keys.scope(getattr(data, "seed", 42), "weights"):
            return super().__call__(data, *args, **kwargs)


class GeoModel(nn.Module, metaclass=_Row):
    """A network for one task, built from a DataSpec: `forward(images, targets=None)` gives losses or predictions.

    In training `forward` returns a dict of `Loss` terms, each a total and a count; in evaluation a list with one
    prediction for each image. A subclass sets `task`, `rules` for its keyword arguments, which JSON can hold, and
    `weights_need`: arguments that its weights are made for though the shapes of the tensors do not tell.

    Attributes:
        arguments: rebuild the model, and are stored with it.
        training_only: what defines its training beside them but is no part of the model, such as a network that only a
            loss needs; JSON-able. A run whose values differ is not resumed.

    Args:
        data: the data to train on, or only their DataSpec (for prediction).
        arguments: the subclass's arguments.

    Raises:
        ValueError: the data are of another task, or an argument breaks its rule.
    """

    task: str
    rules: dict[str, Rule] = {"backbone": NAME, "size": SIZE}
    weights_need: tuple[str, ...] = ()

    def __init__(self, data: "GeoData | DataSpec", **arguments: object) -> None:
        super().__init__()
        self.spec: DataSpec = data if isinstance(data, DataSpec) else getattr(data, "spec", None)
        if self.spec is None:
            raise ValueError(f"data is {data!r}, but must be what prepare_data(...) returns, or a DataSpec")
        if self.spec.task != self.task:
            raise ValueError(
                f"{type(self).__name__} does {self.task}, but the data are for {self.spec.task}: models for such data "
                f"are {', '.join(models_for(self.spec.task)) or '(none)'}. If the data have other labels too, read them "
                f"with prepare_data(..., task={self.task!r})"
            )
        self.data = None if isinstance(data, DataSpec) else data
        self.arguments = {name: plain(value) for name, value in arguments.items()}
        self.training_only: dict[str, object] = {}
        check(self.arguments, self.rules)
        self.fits, self.steps, self.run_folder = 0, 0, None
        self.history: list[dict] = []
        self._frozen: list[nn.Module] = []
        column = (-1, 1, 1)
        self.register_buffer("pixel_mean", torch.tensor(self.spec.mean).view(column))
        self.register_buffer("pixel_std", torch.tensor(self.spec.std).view(column))

    def __call__(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Check the images and call `forward`.

        Raises:
            ValueError: images of another shape or type than the network takes, or no targets in training.
        """
        bands = self.spec.bands
        if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] != len(bands) or not images.numel():
            raise ValueError(
                f"images are {_described(images)}, but must be a tensor [B, {len(bands)}, H, W] of the bands "
                f"{', '.join(bands)}, each of at least 1 x 1 pixels"
            )
        wanted = self.pixel_mean.dtype
        if not images.is_floating_point() or torch.promote_types(images.dtype, wanted) != wanted:
            raise ValueError(
                f"images are {_described(images)}, but the network takes {wanted} of scaled pixels: scale whole numbers "
                "by spec.scaled(pixels); else give images.to(model.pixel_mean.dtype), or convert the model"
            )
        if self.training and (targets is None or len(targets) != len(images)):
            found = "none" if targets is None else f"{len(targets)}"
            raise ValueError(
                f"in training a target is needed for each of {len(images)} image(s), but there are {found}; call "
                "model.eval() first to predict"
            )
        return super().__call__(images, targets)

    # What a subclass gives -------------------------------------------------------------------------------------------

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Return loss terms in training, predictions in evaluation.

        Args:
            images: [B, C, H, W], scaled as the DataSpec says, padded on the right and below.
            targets: one for each image, needed in training.
        """
        raise TypeError(f"{type(self).__name__} must define forward(images, targets=None)")

    @staticmethod
    def backbones() -> list[str]:
        """Return the names of torchvision's networks that fit as backbones; timm's convolutional networks do as well."""
        return torchvision_names()

    def backbone_modules(self) -> list[nn.Module]:
        """Return the modules that `freeze` freezes."""
        return [self.backbone]

    def loss_counts(self, targets: list[dict]) -> dict[str, float] | None:
        """Return the count of each loss term where the targets alone tell it: accumulation is then exact, else None."""
        return None

    def normalize(self, images: Tensor) -> Tensor:
        """Bring images to mean 0 and standard deviation 1 over the training chips."""
        return (images - self.pixel_mean) / self.pixel_std

    # Verbs -----------------------------------------------------------------------------------------------------------

    def fit(
        self, epochs: int = 10, lr: float | None = None, *, devices: int | None = None, **options: object
    ) -> list[dict]:
        """Train on the model's data; collective in a distributed run. Options: see `accel_geo.engine.loop.fit`.

        Args:
            epochs: passes over the training split.
            lr: largest learning rate; None finds it by `lr_find`.
            devices: start so many processes on this machine and train on all of them; for scripts and notebooks that
                no launcher started. Guard the script by `if __name__ == "__main__":`.
            options: of the loop: batch_size, accumulate, schedule, clip, ema, output, resume, ...

        Returns:
            The run's history: the records of history.jsonl.

        Raises:
            TypeError: there is no such option.
            ValueError: what the loop's `fit` refuses.
        """
        from accel_geo.engine import loop
        from accel_geo.models import multi_process
        from accel_geo.parallel.launch import check_environment, launched

        check_fit_names(type(self), options)
        if devices and devices > 1 and not launched():
            return multi_process.fit_in_processes(self, devices, {"epochs": epochs, "lr": lr, **options})
        if devices and devices > 1 and str(devices) != os.environ.get("WORLD_SIZE"):
            check_environment(devices)  # says that a launcher started another number
        return loop.fit(self, self._data("fit"), epochs=epochs, lr=lr, **options)

    def lr_find(self, show: bool = False, **options: object) -> float:
        """Return a learning rate from a range test; collective. The weights stay as they are.

        Args:
            show: print the curve.
            options: batch_size, accumulate, cpu, precision.
        """
        from accel_geo.engine import loop

        lr, curve = loop.lr_find(self, self._data("lr_find"), **options)
        if show and is_main():
            print("\n".join(f"{rate:.2e}  {loss:.4f}" for rate, loss in curve))
        return lr

    def evaluate(
        self, data: "GeoData | None" = None, *, split: str = "valid", distributed: bool = False
    ) -> dict[str, object]:
        """Return the metrics on a split.

        Args:
            data: other data of the same classes and bands.
            split: "train", "valid" or "test".
            distributed: share the chips over all processes of a launched run; collective. Else this process does all.

        Raises:
            ValueError: there are no data, they are of other classes or bands, or there is no such split, or no chip in it.
        """
        from accel_geo.engine.evaluation import evaluate
        from accel_geo.parallel.watch import watching

        if data is not None:
            data = read_like(self.spec, data, "the model")
        data = data or self._data("evaluate")
        if split not in data.splits:
            raise ValueError(f"split={split!r}: one of {', '.join(data.splits)}")
        if not len(data.splits[split]):
            raise ValueError(f"split={split!r} has no chips: {FILLED_BY[split]}")
        device = next(self.parameters()).device
        with watching() if distributed else nullcontext():
            found = evaluate(self, data.splits[split], data.task, device=device, distributed=distributed)
        if found.unreadable and (is_main() or not distributed):
            print("unreadable chips, which count in no metric:", *found.unreadable.values(), sep="\n  ", flush=True)
        return found.metrics

    @torch.no_grad()
    def predict(self, source: "str | os.PathLike | np.ndarray | Tensor | Sequence") -> "dict | list[dict]":
        """Predict chips.

        Args:
            source: path of a raster with the bands of the training data, or among others those of their names; or a
                numpy array [C, H, W] of the pixels of these bands as such a raster has them, in the units of the training
                data, where NaN and their nodata value are no data: both are scaled here, as the DataSpec says. Or a
                tensor [C, H, W] that is scaled already, finite; or a list of such.

        Returns:
            For each a dict of tensors on the CPU, in pixels of what the network sees (an image that is resized where the
            training data were: `spec.resize_to`), keys by task:
            classification: `scores` [K].
            detection: `boxes` [N, 4], `labels` [N] 1..K, `scores` [N], best first; instances: `masks` bool [N, H, W] too.
            semantic: `mask` [H, W], `scores` [K + 1, H, W], background first.
            edges: `edges` [H, W], probabilities.
            super_resolution: `image_hr` [C, sH, sW] of a scale s, scaled as the image.
            panoptic: `segment_ids` [H, W], and `segments`, a list of {id, label, isthing, score}.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no image, another shape, other bands or another type of pixels than the model was trained on.
        """
        if isinstance(source, list | tuple):
            return [self.predict(item) for item in source]
        image, training = self._image(source), self.training
        self.eval()
        try:
            prediction = self(image[None])[0]
        finally:
            self.train(training)
        return {k: v.cpu() if isinstance(v, Tensor) else v for k, v in prediction.items()}

    def show_results(self, rows: int = 4, path: str | os.PathLike | None = None) -> "Figure":
        """Draw validation chips, truth beside prediction.

        Args:
            rows: chips.
            path: also write the picture there.

        Raises:
            ValueError: there are no validation chips, or no rows.
        """
        from accel_geo.engine.publish import interesting
        from accel_geo.parallel.order import Request

        data = self._validated("show_results", rows)
        samples = [data.valid[Request(i)] for i in interesting(data.valid, rows)]
        images = [sample.pop("image") for sample in samples]
        files = [data.file(sample["image_id"]) for sample in samples]
        figure = data.task.figure(self.spec, images, samples, self.predict(images), files)
        if path:
            figure.savefig(path)
        return figure

    def plot_losses(self, path: str | os.PathLike | None = None) -> "Figure":
        """Draw loss, learning rate and metrics over the steps of all fits."""
        from accel_geo.report.pictures import curves

        figure = curves(self.history)
        if path:
            figure.savefig(path)
        return figure

    def save(self, path: str | os.PathLike) -> Path:
        """Write the published model, model.safetensors and config.json, into a folder; on the main process only.

        Returns:
            The folder.
        """
        from accel_geo.engine import checkpoint

        if is_main():
            state = checkpoint.module_state(self)
            checkpoint.write_folder(Path(path), checkpoint.Checkpoint(model=state, config=self.config()))
        return Path(path)

    def load(self, path: str | os.PathLike) -> "GeoModel":
        """Load the weights of a published model of the same class, arguments and class list.

        Raises:
            FileNotFoundError: no model there.
            ValueError: another class of model, other classes, bands, arguments or shapes, or a file that is not whole.
        """
        from accel_geo.engine import checkpoint

        found = checkpoint.read_folder(path)
        if found.config["class"] != type(self).__name__:
            raise ValueError(f"{path} holds a {found.config['class']}, not a {type(self).__name__}; use from_model")
        check_data(DataSpec.from_json(found.config["spec"]), self.spec, str(path))
        for name in self.weights_need:
            mine = self.arguments[name]
            theirs = found.config["arguments"].get(name, mine)  # a model may be older than an argument
            if theirs != mine:
                raise ValueError(
                    f"{path} was trained with {name}={theirs}, this model has {name}={mine}; give the constructor the "
                    "same, or use from_model, which does"
                )
        checkpoint.load_module_state(self, found.model, str(path))
        return self

    @classmethod
    def from_model(cls, path: str | os.PathLike, data: "GeoData | None" = None) -> "GeoModel":
        """Rebuild a published model; with data of the same classes and bands it can be trained on.

        Raises:
            FileNotFoundError: no model there.
            ValueError: the folder holds another class of model, or data of other classes or bands are given.
        """
        from accel_geo.models import from_model

        model = from_model(path, data)
        if not isinstance(model, cls):
            raise ValueError(
                f"{path} holds a {type(model).__name__}, not a {cls.__name__}; use {type(model).__name__}.from_model"
            )
        return model

    def freeze(self) -> None:
        """Freeze the backbone: its parameters are not trained and its normalisation keeps its statistics."""
        self._frozen = self.backbone_modules()
        for module in self._frozen:
            module.requires_grad_(False)
        self.train(self.training)

    def unfreeze(self) -> None:
        """Train everything."""
        self._frozen = []
        self.requires_grad_(True)
        self.train(self.training)

    def train(self, mode: bool = True) -> "GeoModel":
        """Set training or evaluation mode; what is frozen stays in evaluation mode."""
        super().train(mode)
        for module in self._frozen:
            module.eval()
        return self

    def config(self) -> dict[str, object]:
        """Return what rebuilds the model: class, arguments, DataSpec; and the versions that wrote it."""
        from accel_geo.engine.publish import versions

        return {
            "class": type(self).__name__,
            "arguments": self.arguments,
            "spec": self.spec.to_json(),
            "versions": versions(),
        }

    def _image(self, source: "str | os.PathLike | np.ndarray | Tensor") -> Tensor:
        # A raster or an image as `predict` takes it, [C, H, W] where and in the type that the network is.
        from accel_geo.data.images import array_image, read_image

        if not isinstance(source, str | os.PathLike | np.ndarray | Tensor):
            raise ValueError(
                f"{_described(source)} is no image: give the path of a raster, an array [C, H, W] of its pixels, or a tensor "
                "[C, H, W] of scaled ones"
            )
        bands, image = self.spec.bands, source
        if not isinstance(source, Tensor):
            image = (array_image if isinstance(source, np.ndarray) else read_image)(source, self.spec)
        if image.dim() != 3 or image.shape[0] != len(bands) or not image.numel():
            raise ValueError(
                f"an image must be [{len(bands)}, H, W] of the bands {', '.join(bands)}, not {list(image.shape)}"
            )
        if image is source and not (image.is_floating_point() and image.isfinite().all()):
            raise ValueError(
                f"the image is {_described(image)}, but a tensor must hold finite, scaled pixels: give the raster's path, or "
                "its pixels as a numpy array (tensor.numpy()), which is scaled here as spec.scaled(pixels, missing) does"
            )
        parameter = next(self.parameters())
        return image.to(parameter.device, parameter.dtype)

    def _data(self, verb: str) -> "GeoData":
        if self.data is None:
            raise ValueError(f"{verb} needs data: build the model from prepare_data(...), or from_model(path, data)")
        return self.data

    def _validated(self, verb: str, rows: int = 1) -> "GeoData":
        # The data of a verb that draws so many rows of validation chips.
        data = self._data(verb)
        if not isinstance(rows, Integral) or rows < 1:
            raise ValueError(f"{verb}: rows={rows!r} must be a whole number of at least 1")
        if not len(data.valid):
            raise ValueError(f"{verb} draws validation chips, and there are none: {FILLED_BY['valid']}")
        return data


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"
