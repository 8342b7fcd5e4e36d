"""Chips: one split of a data set as a torch Dataset, and how samples become a batch."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from accel_geo.data.labels import KINDS, super_resolution
from accel_geo.data.mixup import mix, partner
from accel_geo.data.spec import IGNORED, DataSpec
from accel_geo.data.store import Chip, Store
from accel_geo.data.transforms import Transform
from accel_geo.parallel.order import Request


class Part(NamedTuple):
    """Chips of one store.

    Attributes:
        store: the decoded chips.
        positions: which of them are meant.
        first_id: image_id of the store's first chip.
        names: path of each chip of the store relative to the data folder.
        index_of: class index of each value on disk: 0 background or left out, 1..K, 255 ignored.
    """

    store: Store
    positions: Sequence[int]
    first_id: int
    names: Sequence[str]
    index_of: dict[int, int]


class Chips(Dataset):
    """The samples of one split.

    Attributes:
        spec: summary of the data.
        ids: image_id of each chip.
        files: path of each chip relative to the data folder.
        sizes: (H, W) of each sample before padding, known without loading.
        parts: the chips of each store.
        training: random transforms are applied.
        times: how often each chip occurs in an epoch; None: once.
        mixup: alpha of the Beta distribution that training samples are mixed by; 0 mixes none.
    """

    def __init__(
        self,
        spec: DataSpec,
        parts: Sequence[Part],
        *,
        transform: Transform | None = None,
        training: bool = False,
        chip_size: tuple[int, int] | None = None,
        times: Sequence[int] | None = None,
        mixup: float = 0.0,
    ) -> None:
        """Choose chips of stores.

        Args:
            spec: summary of the data.
            parts: which chips belong to the split, in order of image_id.
            transform: applied to each sample; with a random crop it must give `chip_size`.
            training: random transforms are applied.
            chip_size: (H, W) that the transform crops larger chips to.
            times: how often each chip occurs in an epoch.
            mixup: see `mixup`; samples without a key are not mixed.
        """
        self.spec, self.training, self.times, self.mixup = spec, training, times, mixup
        self.ids = [part.first_id + position for part in parts for position in part.positions]
        self.files = [part.names[position] for part in parts for position in part.positions]
        self.parts, self._transform = list(parts), transform
        self._ends = list(accumulate(len(part.positions) for part in parts))
        self._full = [size for part in parts for size in part.store.sizes(part.positions)]
        usual = spec.resize_to or (spec.chip_size[0] * spec.scale, spec.chip_size[1] * spec.scale)
        full = [size if size != (0, 0) else usual for size in self._full]
        if spec.task == "super_resolution":
            shapes = [shape for part in parts for shape in part.store.label_shapes(part.positions)]
            full = super_resolution.sample_sizes(full, shapes, spec)
        crop = chip_size or (2**31, 2**31)
        self.sizes = [(min(h, crop[0]), min(w, crop[1])) for h, w in full]
        self._occurrences = range(1, len(self.ids) + 1) if times is None else list(accumulate(times))

    def __len__(self) -> int:
        return len(self.ids)

    def box_sides(self) -> np.ndarray:
        """Return (width, height) of all boxes (detection) [N, 2], in pixels, in the order of image_id; reads no pixels.

        Of a box that is larger than the crop, what a crop can show of it.
        """
        sides, sizes = [np.empty((0, 2), dtype=np.float32)], iter(self.sizes)
        for store, positions, _, _, index_of in self.parts:
            room = np.zeros((len(store), 2), dtype=np.float32)
            room[list(positions)] = [(width, height) for _, (height, width) in zip(positions, sizes)]
            values, boxes = store.values, store.boxes.flat.reshape(-1, 4)
            kept = np.isin(values.flat, [value for value, index in index_of.items() if index > 0])
            kept &= room[values.rows].any(1)
            sides.append(np.minimum(boxes[kept, 2:] - boxes[kept, :2], room[values.rows[kept]]))
        return np.concatenate(sides)

    def __getitem__(self, request: Request | int) -> dict:
        """Return a sample; see DESIGN.md section 3 for its keys.

        Args:
            request: which sample, the key of its random draws, and the size to pad to; or just an index.
        """
        index, key, size = request if isinstance(request, tuple) else Request(int(request))
        sample = self._sample(index, key)
        if self.mixup and key:
            other, its_key, share = partner(key, self.mixup, index, self._occurrences)
            sample = mix(sample, self._sample(other, its_key), share, self.spec)
        return padded(sample, size)

    def _sample(self, index: int, key: int) -> dict:
        # One sample by itself, without padding.
        number = bisect_right(self._ends, index)
        part = self.parts[number]
        chip = part.store.chip(part.positions[index - (self._ends[number - 1] if number else 0)])
        if chip.pixels is not None and chip.pixels.values.shape[1:] != self._full[index]:
            chip = Chip(None, chip.label, f"{self.files[index]}: its size changed since the run began")
        if chip.pixels is None:
            size_here = self.sizes[index]
            sample = {"image": torch.zeros((len(self.spec.bands), *size_here)), **empty_labels(self.spec, size_here)}
        else:
            values, missing, _ = chip.pixels
            sample = {"image": torch.from_numpy(self.spec.scaled(values, missing))}
            if missing is not None:
                sample["missing"] = torch.from_numpy(missing)
            sample = KINDS[self.spec.task].fill(sample, chip.label, self.spec, part.index_of)
            if self._transform is not None:
                sample = self._transformed(sample, key if self.training else 0, self.files[index])
            sample.pop("missing", None)
        height, width = sample["image"].shape[-2:]
        if (height, width) != self.sizes[index]:
            raise ValueError(
                f"the transform made {(height, width)} pixels of {self.files[index]}, not {self.sizes[index]} (height, "
                "width): sizes must be known before loading; crop with chip_size and resize with resize_to"
            )
        sample |= {"image_id": self.ids[index], "key": key, "size": (height, width), "ignore": chip.pixels is None}
        if chip.pixels is None:
            sample["problem"] = chip.problem
        return sample

    def _transformed(self, sample: dict, key: int, file: str) -> dict:
        # What the transform makes of a sample: it may be a user's own, so what is wrong with it is said with the chip.
        try:
            made = self._transform(sample, key)
        except Exception as error:  # whatever it raises; of some types a loading process could not tell the message
            raise ValueError(f"the transform failed on {file}: {type(error).__name__}: {error}") from error
        if not isinstance(made, dict) or not isinstance(made.get("image"), Tensor):
            found = "a dict without an image" if isinstance(made, dict) else f"{made!r:.50}"
            raise ValueError(
                f"the transform returned {found} for {file}, but must return the sample, a dict: return sample"
            )
        return made


def empty_labels(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return the task's label keys of a chip (H, W) that has no labels."""
    return KINDS[spec.task].empty(spec, size)


# What stands in the padding of each key that has pixels.
_PADDING = {"image": 0, "mask": IGNORED, "masks": False, "edges": IGNORED, "segment_ids": 0}
_PADDING_HR = {"image_hr": 0, "ignored_hr": True}


def padded(sample: dict, size: tuple[int, int] | None) -> dict:
    """Pad a sample on the right and below: image 0, no label, nothing that counts.

    Raises:
        ValueError: the sample is larger.
    """
    height, width = sample["image"].shape[-2:]
    if size is None or (height, width) == tuple(size):
        # Views of larger arrays would travel whole from a worker.
        return {key: value.contiguous() if isinstance(value, Tensor) else value for key, value in sample.items()}
    right, below = size[1] - width, size[0] - height
    if right < 0 or below < 0:
        raise ValueError(f"a sample of {(height, width)} (height, width) cannot be padded to {tuple(size)}")
    sample = dict(sample)
    for fills, scale in (
        (_PADDING, 1),
        (_PADDING_HR, sample["image_hr"].shape[-1] // width if "image_hr" in sample else 1),
    ):
        for name in fills.keys() & sample.keys():
            sample[name] = pad(sample[name], (0, scale * right, 0, scale * below), value=fills[name])
    return sample


def collate(samples: list[dict]) -> tuple[Tensor, list[dict]]:
    """Stack the images of samples into a batch.

    Args:
        samples: all of one padded size.

    Returns:
        Images float32 [B, C, H, W] and a target for each: the sample without its image.
    """
    images = torch.stack([sample["image"] for sample in samples])
    return images, [{k: v for k, v in sample.items() if k != "image"} for sample in samples]
