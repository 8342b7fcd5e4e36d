"""Super-resolution: a sharper image of the same ground."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from accel_geo.tasks.base import Metrics, Table, Task, array, counted, mean, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from accel_geo.data.spec import DataSpec

MOST_PSNR = 100.0  # dB; that of identical images is infinite, which JSON has no number for
LARGEST = 1e4  # what is not finite counts as this value, and so does what lies beyond
SIGMA, REACH = 1.5, 5  # of the Gaussian window of SSIM: 11 x 11 pixels
C1, C2 = 0.01**2, 0.03**2  # SSIM's constants for a range of 1.0


class SuperResolution(Task):
    """PSNR (dB) and SSIM (Wang et al. 2004) of each chip, then their means over the chips.

    Images are compared as networks see them, in the scaled values of DataSpec with a range of 1.0, all bands together
    (PSNR) or averaged (SSIM); nothing is clipped. PSNR is at most 100 dB. `psnr` is the monitor; bicubic interpolation
    of the coarse image stands beside it as `psnr_bicubic` and `ssim_bicubic`, and `psnr_gain` is how far above it the
    network is.
    """

    name = "super_resolution"
    needs_image = True
    monitor = "psnr"

    def record(self, spec: DataSpec, prediction: dict, target: dict, file: str) -> dict:
        """Return the record of one chip.

        `prediction` holds `psnr` and `ssim`, `truth` the same of bicubic interpolation where the target has the coarse
        `image`. Ignored pixels do not count, for SSIM neither do windows that hold one; a chip of ignored pixels alone
        has neither, one smaller than 11 pixels has no SSIM.

        Raises:
            ValueError: the prediction has another size than the truth.
        """
        record = {"image_id": int(target["image_id"]), "file": file, "truth": None}
        if target["ignore"]:
            return record | {"prediction": {"psnr": None, "ssim": None}}
        h, w = target["size"]
        cut = (..., slice(spec.scale * h), slice(spec.scale * w))
        truth, ignored = array(target["image_hr"])[cut], array(target["ignored_hr"])[cut]
        predicted = array(prediction["image_hr"])[cut]
        if predicted.shape != truth.shape:
            raise ValueError(
                f"{file}: the network made {list(predicted.shape)} of a chip whose sharp image is {list(truth.shape)} "
                f"(bands, height, width); with a scale of {spec.scale} both must agree"
            )
        images = {"prediction": predicted}
        if "image" in target:
            images["truth"] = bicubic(array(target["image"])[:, :h, :w], spec.scale)
        qualities = quality(truth, ignored, list(images.values()))
        return record | {"truth": {}} | {key: {"psnr": p, "ssim": s} for key, (p, s) in zip(images, qualities)}

    def metrics(self, spec: DataSpec, records: Iterable[dict]) -> Metrics:
        """Return the means over the chips where they are defined."""
        records = counted(records)
        ours, bicubics = ([record[key] for record in records] for key in ("prediction", "truth"))
        pairs = [(a["psnr"], b["psnr"]) for a, b in zip(ours, bicubics) if b.get("psnr") is not None]
        return {
            "psnr": mean(values["psnr"] for values in ours),
            "ssim": mean(values["ssim"] for values in ours),
            "psnr_bicubic": mean(values.get("psnr") for values in bicubics),
            "ssim_bicubic": mean(values.get("ssim") for values in bicubics),
            "psnr_gain": mean(a - b for a, b in pairs),
        }

    def table(self, spec: DataSpec, metrics: Metrics) -> Table:
        """Return PSNR and SSIM of bicubic interpolation and of the network."""
        rows = [
            [name, *(show(metrics[key + suffix]) for key in ("psnr", "ssim"))]
            for name, suffix in (("bicubic", "_bicubic"), ("network", ""))
        ]
        return ["image", "PSNR (dB)", "SSIM"], rows

    def legend(self, spec: DataSpec) -> list[tuple[str, tuple]]:
        """Return nothing: all pictures are images."""
        return []

    def panels(self, target: dict, prediction: dict | None) -> list[tuple[str, dict]]:
        """Return the coarse image, the sharp one, and between them what bicubic interpolation and the network make."""
        if prediction is None:
            return [("image", {}), ("truth", target)]
        predicted = prediction | {"truth": target}
        return [("image", {}), ("bicubic", {"truth": target}), ("prediction", predicted), ("truth", target)]

    def draw(self, axes: Axes, spec: DataSpec, image: Tensor | np.ndarray, labels: dict, kind: str) -> str:
        """Draw an image with the stretch of the coarse one; what was made is captioned with its PSNR."""
        from accel_geo.report import pictures

        coarse = array(image)
        made = bicubic(coarse, spec.scale) if kind == "bicubic" else array(labels["image_hr"])
        pictures.show_image(axes, pictures.stretch(made, spec.bands, like=coarse))
        if "truth" not in labels:
            return kind
        truth = labels["truth"]
        psnr, _ = quality(array(truth["image_hr"]), array(truth["ignored_hr"]), [made])[0]
        return kind if psnr is None else f"{kind}: {psnr:.2f} dB"


def bicubic(image: np.ndarray, scale: int) -> np.ndarray:
    """Enlarge an image [C, H, W] by bicubic interpolation (Keys 1981, a = -0.5), pixel areas aligned; float64."""
    values = torch.from_numpy(image.astype(np.float64))[None]
    # Without antialias torch takes a = -0.75; otherwise the two are the same where an image grows.
    enlarged = torch.nn.functional.interpolate(values, scale_factor=scale, mode="bicubic", antialias=True)
    return enlarged[0].numpy()


def quality(
    truth: np.ndarray, ignored: np.ndarray, images: Iterable[np.ndarray]
) -> list[tuple[float | None, float | None]]:
    """Return PSNR and SSIM of images of a range of 1.0, computed in float64.

    Args:
        truth: [C, H, W].
        ignored: bool [H, W], True where pixels do not count.
        images: each [C, H, W].

    Returns:
        For each image (PSNR in dB, SSIM), None where no pixel or no window counts.
    """
    valid = ~ignored
    whole = np.zeros_like(valid)  # the middles of windows that lie inside the image and hold no ignored pixel
    inside = (slice(REACH, -REACH),) * 2
    whole[inside] = ndimage.minimum_filter(valid, 2 * REACH + 1)[inside]
    truth = np.where(valid, truth, 0).astype(np.float64)
    images = [np.nan_to_num(np.where(valid, image, 0).astype(np.float64), nan=LARGEST) for image in images]
    images = [image.clip(-LARGEST, LARGEST) for image in images]
    similarities = ssim(truth, images, whole) if whole.any() else [None] * len(images)
    return [(psnr(truth, image, valid) if valid.any() else None, s) for image, s in zip(images, similarities)]


def psnr(truth: np.ndarray, image: np.ndarray, valid: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB over the valid pixels [H, W] of all bands."""
    error = float(np.mean((truth - image)[:, valid] ** 2))
    return min(-10 * math.log10(error), MOST_PSNR) if error else MOST_PSNR


def ssim(truth: np.ndarray, images: Iterable[np.ndarray], whole: np.ndarray) -> list[float]:
    """Return the structural similarity of each image, the mean over bands and the windows [H, W] that are whole."""

    def blurred(values: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(values, (0, SIGMA, SIGMA), radius=(0, REACH, REACH))

    mean_x, square_x = blurred(truth), blurred(truth**2)
    out = []
    for image in images:
        mean_y, square_y, product = blurred(image), blurred(image**2), blurred(truth * image)
        both = mean_x * mean_y
        squares = mean_x**2 + mean_y**2
        similarity = (2 * both + C1) * (2 * (product - both) + C2)
        similarity /= (squares + C1) * (square_x + square_y - squares + C2)
        out.append(float(similarity[:, whole].mean()))
    return out
