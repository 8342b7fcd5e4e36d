"""Chips: one split of a data set as a torch Dataset, and how samples become a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from accel_geo.data import labels
from accel_geo.data.spec import IGNORED, DataSpec
from accel_geo.data.store import Chip, Store
from accel_geo.data.transforms import Transform
from accel_geo.parallel.order import Request


class Chips(Dataset):
    """The samples of one split.

    Attributes:
        spec: summary of the data.
        ids: image_id of each chip.
        files: path of each chip relative to the data folder.
        sizes: (H, W) of each sample before padding, known without loading.
        training: random transforms are applied.
    """

    def __init__(
        self,
        spec: DataSpec,
        store: Store,
        positions: Sequence[int],
        ids: Sequence[int],
        files: Sequence[str],
        index_of: dict[int, int],
        *,
        transform: Transform | None = None,
        training: bool = False,
        chip_size: tuple[int, int] | None = None,
    ) -> None:
        """Choose chips of a store.

        Args:
            spec: summary of the data.
            store: the decoded chips.
            positions: which of them belong to the split.
            ids: image_id of each.
            files: path of each relative to the data folder.
            index_of: class index of each value on disk: 0 background or left out, 1..K, 255 ignored.
            transform: applied to each sample; with a random crop it must give `chip_size`.
            training: random transforms are applied.
            chip_size: (H, W) that the transform crops larger chips to.
        """
        self.spec, self.training = spec, training
        self.ids, self.files = list(ids), list(files)
        self._store, self._positions, self._index_of, self._transform = store, list(positions), index_of, transform
        usual = spec.resize_to or spec.chip_size
        self._full = [usual if p in store.problems else (store.heights[p], store.widths[p]) for p in self._positions]
        crop = chip_size or (2**31, 2**31)
        self.sizes = [(min(h, crop[0]), min(w, crop[1])) for h, w in self._full]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, request: Request | int) -> dict:
        """Return a sample; see DESIGN.md section 3 for its keys.

        Args:
            request: which sample, the key of its random draws, and the size to pad to; or just an index.
        """
        index, key, size = request if isinstance(request, tuple) else Request(int(request))
        chip = self._store.chip(self._positions[index])
        if chip.pixels is not None and chip.pixels.values.shape[1:] != self._full[index]:
            chip = Chip(None, chip.label, f"{self.files[index]}: its size changed since the run began")
        if chip.pixels is None:
            size_here = self.sizes[index]
            sample = {"image": torch.zeros((len(self.spec.bands), *size_here)), **empty_labels(self.spec, size_here)}
        else:
            sample = self._sample(chip, self._full[index])
            if self._transform is not None:
                sample = self._transform(sample, key if self.training else 0)
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
        return padded(sample, size)

    def _sample(self, chip: Chip, size: tuple[int, int]) -> dict:
        values, missing, _ = chip.pixels
        sample = {"image": torch.from_numpy(self.spec.scale(values, missing))}
        if missing is not None:
            sample["missing"] = torch.from_numpy(missing)
        if self.spec.task == "semantic":
            mask = labels.semantic_mask(chip.label, size, self._index_of)
            return sample | {"mask": torch.from_numpy(mask)}
        if self.spec.task == "instances":
            arrays = labels.instance_arrays(chip.label, size, self._index_of)
            return sample | dict(zip(("boxes", "labels", "masks"), map(torch.from_numpy, arrays)))
        indexes = [self._index_of[value] - 1 for value in chip.label.values]
        if self.spec.multilabel:
            return sample | {"labels": several(self.spec, indexes)}
        return sample | {"label": indexes[0]}


def several(spec: DataSpec, indexes: Sequence[int]) -> Tensor:
    """Return float32 [K], 1 for the classes of these indexes; negative ones are left out."""
    hot = torch.zeros(len(spec.classes))
    hot[[i for i in indexes if i >= 0]] = 1
    return hot


def empty_labels(spec: DataSpec, size: tuple[int, int]) -> dict:
    """Return the task's label keys of a chip (H, W) that has no labels."""
    if spec.task == "semantic":
        return {"mask": torch.full(size, IGNORED, dtype=torch.int64)}
    if spec.task == "instances":
        empty = {"boxes": torch.zeros((0, 4)), "labels": torch.zeros(0, dtype=torch.int64)}
        return empty | {"masks": torch.zeros((0, *size), dtype=torch.bool)}
    return {"labels": several(spec, [])} if spec.multilabel else {"label": -1}


def padded(sample: dict, size: tuple[int, int] | None) -> dict:
    """Pad a sample on the right and below: image 0, mask 255, no instance.

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
    fill = {"image": 0, "mask": IGNORED, "masks": False}
    return {**sample, **{k: pad(sample[k], (0, right, 0, below), value=fill[k]) for k in fill if k in sample}}


def collate(samples: list[dict]) -> tuple[Tensor, list[dict]]:
    """Stack the images of samples into a batch.

    Args:
        samples: all of one padded size.

    Returns:
        Images float32 [B, C, H, W] and a target for each: the sample without its image.
    """
    images = torch.stack([sample["image"] for sample in samples])
    return images, [{k: v for k, v in sample.items() if k != "image"} for sample in samples]
