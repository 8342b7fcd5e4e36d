"""DataSpec: what a model needs to know of its data, small enough for JSON."""

import math
from dataclasses import MISSING, asdict, dataclass, fields

import numpy as np

IGNORED = 255  # in a semantic mask: nodata, padding, outside the labelled area


@dataclass(frozen=True)
class DataSpec:
    """The summary of a data set that a model is built from and stored with.

    Attributes:
        task: name of the task, such as "semantic".
        classes: the K class names, never background.
        class_values: value on disk of each class; class i has index i + 1 in masks and labels.
        bands: names of the chosen bands, C of them.
        dtype: type of the pixels on disk, such as "uint8" or "int16".
        low: pixel value of each band that becomes 0: 0 for uint8, else the exact minimum of the training chips.
        high: pixel value of each band that becomes 1: 255 for uint8, else the exact maximum. Nothing is clipped.
        mean: mean of each band of the scaled image over the valid pixels of the training chips.
        std: population standard deviation likewise; 1 for a constant band, never 0.
        chip_size: (H, W) that training typically sees.
        multilabel: a chip may have several labels (classification).
        ignore_background: background is neither trained nor predicted (sparse labels).
        band_indexes: positions of the bands in the files, from 1.
        all_bands: the files hold no other bands, but for alpha; False where bands were chosen, or an older model does not
            tell.
        file_dtypes: types of the pixels in the files, which `dtype` holds together.
        resize_to: (H, W) that each chip is resized to before anything else.
        nodata: pixel value that means "no data" in the files; NaN always does.
        map_space: imagery seen from above in map orientation, which may be turned and mirrored at will.
        scale: how many times finer the sharp image is than the one that networks see (super-resolution).
        isthing: whether objects of a class are counted one by one, for each class (panoptic).
        edge_tolerance: pixels between centres within which an edge counts as found (edges).
    """

    task: str
    classes: tuple[str, ...]
    class_values: tuple[int, ...]
    bands: tuple[str, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    chip_size: tuple[int, int]
    multilabel: bool = False
    ignore_background: bool = False
    band_indexes: tuple[int, ...] = ()
    resize_to: tuple[int, int] | None = None
    nodata: float | None = None
    map_space: bool = True
    scale: int = 1
    isthing: tuple[bool, ...] = ()
    edge_tolerance: float = 3.0
    all_bands: bool = False
    file_dtypes: tuple[str, ...] = ()

    def scaled(self, pixels: np.ndarray, missing: np.ndarray | None = None) -> np.ndarray:
        """Scale pixels [C, H, W] of the chosen bands to the float32 image that networks see.

        Args:
            pixels: as they are on disk, any type.
            missing: bool [H, W] or [C, H, W], True where there is no data: the image is 0 there.

        Returns:
            float32 [C, H, W], a new array.
        """
        exact = np.float32 if pixels.dtype.itemsize <= 2 or pixels.dtype == np.float32 else np.float64
        low = np.asarray(self.low, dtype=exact)[:, None, None]
        extent = np.asarray(self.high, dtype=exact)[:, None, None] - low
        image = np.subtract(pixels, low, dtype=exact) if low.any() else pixels
        image = np.divide(image, extent, dtype=exact).astype(np.float32, copy=False)
        if missing is not None:
            image[np.broadcast_to(missing, image.shape)] = 0
        return image

    def to_json(self) -> dict:
        """Return the spec as plain JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: dict) -> "DataSpec":
        """Build the spec from the values that `to_json` gave.

        Raises:
            ValueError: a key is missing or unknown, or a value has another kind than expected.
        """
        known = {field.name for field in fields(cls)}
        needed = {
            field.name for field in fields(cls) if field.default is MISSING
        }  # models saved before a field existed
        if not isinstance(values, dict) or not needed <= set(values) <= known:
            found = set(values) if isinstance(values, dict) else set()
            raise ValueError(
                f"this is no DataSpec: missing {sorted(needed - found) or 'nothing'}, unknown "
                f"{sorted(map(str, found - known)) or 'nothing'}; it is written by a model's save()"
            )
        spec = cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
        bands = len(spec.bands)
        lists = {name: getattr(spec, name) for name in ("low", "high", "mean", "std")}
        for name, numbers in lists.items():
            if len(numbers) != bands or not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
                raise ValueError(f"DataSpec: {name} must hold {bands} finite numbers, one for each band, not {numbers}")
        if len(spec.classes) != len(spec.class_values):
            raise ValueError(f"DataSpec: {len(spec.classes)} classes but {len(spec.class_values)} class values")
        return spec
