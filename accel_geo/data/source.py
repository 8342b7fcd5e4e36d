"""Source: one folder of chips, its rows and their store; a data set is one, or two where validation has its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.data.cache import prepare_store
from accel_geo.data.classes import PIXELS
from accel_geo.data.formats import esri
from accel_geo.data.formats.rows import Rows, relative, some
from accel_geo.data.labels import Place
from accel_geo.data.labels.edges import hold_areas
from accel_geo.data.pixels import Bands, chip_name, describe_bands, located, read_error
from accel_geo.data.spec import IGNORED
from accel_geo.data.statistics import Moments, merge
from accel_geo.data.store import Decoder, Store

if TYPE_CHECKING:
    from datasets import Dataset

OBJECTS = ("detection", "instances", "panoptic")  # tasks that count objects
_HUGE = 1e30  # no instrument measures such values
_LOOKED_AT = 64  # class rasters, spread over a folder, that tell whether it holds lines or areas
_TRIED = 20  # chips to open in search of the first readable one


@dataclass
class Source:
    """One folder of chips.

    Attributes:
        rows: as the format lists them.
        store: the decoded chips, in the same order.
        bands: the bands read.
        names: path of each chip relative to the data folder; of a window with its place in the scene.
        role: "train", "valid" or "test" where all its chips belong to that split, else "".
        first_id: image_id of the first chip.
        note: what to tell of the store, or "".
    """

    rows: Rows
    store: Store
    bands: Bands
    names: list[str]
    role: str = ""
    first_id: int = 0
    note: str = ""

    def problems(self) -> list[str]:
        """Return what was odd in the files."""
        store, problems = self.store, [*self.rows.problems, *([self.note] if self.note else [])]
        problems += [f"cannot be read, counts nothing: {problem}" for problem in store.problems.values()]
        if self.rows.filled:
            problems.append("the class rasters hold filled areas, not lines: the outlines of the areas are the edges")
        problems += self._odd_pixels() + self._other_statistics()
        dropped = store.index["dropped"].to_numpy()
        if dropped.any():
            what = (
                "cover no pixel of their chip, or have no area" if self.rows.task == "detection" else "cover no pixel"
            )
            files = some([self.names[i] for i in dropped.nonzero()[0]], 3)
            problems.append(f"{dropped.sum()} object(s) that {what} were left out: {files}")
        hidden = store.index["hidden"].to_numpy()
        if hidden.any():
            text = f"{np.count_nonzero(hidden)} chip(s) have pixels without data, {hidden.mean():.2%} of all pixels"
            blank = [self.names[i] for i in np.flatnonzero(hidden == 1)]
            problems.append(text + (f"; {len(blank)} hold nothing else: {some(blank, 3)}" if blank else ""))
        return problems

    def _odd_pixels(self) -> list[str]:
        problems, store = [], self.store
        if not self.bands.alpha and not self.bands.chosen:
            problems.append("a band is tagged as alpha but holds many values: it is read like any other band")
        if "palette" in self.bands.names:
            problems.append(
                "the pixels are indexes of a palette, not colours, and are read as numbers; write the chips as RGB "
                "(gdal_translate -expand rgb)"
            )
        if len(store.dtypes) > 1:
            problems.append(f"chips of different pixel types ({', '.join(sorted(store.dtypes))}) are scaled alike")
        ends = np.where(store.moments.count > 0, np.maximum(-store.moments.low, store.moments.high), 0)
        if (huge := np.flatnonzero((ends > _HUGE).any(1))).size:
            problems.append(
                f"{len(huge)} chip(s) hold values beyond {_HUGE:g}, likely no data that their files do not declare "
                f"(gdal_edit -a_nodata): {some([self.names[i] for i in huge], 3)}"
            )
        return problems

    def _other_statistics(self) -> list[str]:
        # Where the metadata of an export have other statistics than the pixels; those of the pixels are used.
        told = esri.metadata(self.rows.root).statistics
        if len(told) != max(self.bands.indexes) or len(self.store.problems) == len(self.store):
            return []
        found, differing = self.moments(range(len(self.store))), []
        for place, (index, name) in enumerate(zip(self.bands.indexes, self.bands.names)):
            low, high, mean = found.low[place], found.high[place], found.mean[place]
            said = told[index - 1]
            if abs(said.mean - mean) > 0.02 * max(high - low, 1) or said.low > low or said.high < high:
                here = f"{low:g} to {high:g}, mean {mean:.4g}"
                differing.append(f"{name} {here}, said to be {said.low:g} to {said.high:g}, mean {said.mean:.4g}")
        return [f"the metadata have other band statistics than the pixels: {some(differing, 3)}"] if differing else []

    def check(self, index_of: Mapping[int, int], listed: str) -> None:
        """Refuse labels with values of no class, and several labels where a chip has one.

        Args:
            index_of: the known values.
            listed: the classes, for the message.
        """
        values = self.store.values
        unknown = [value for value in self.store.present_values() if value not in index_of]
        if unknown:
            where = np.isin(values.flat, unknown)
            self._refuse_value(
                int(values.rows[where][0]), int(values.flat[where][0]), len(np.unique(values.rows[where])), listed
            )
        if self.rows.task == "classification" and not self.rows.multilabel:
            several = np.flatnonzero(values.lengths > 1)
            if len(several):
                raise ValueError(
                    f"{self._label_file(several[0])} has the labels {values[several[0]].tolist()}, but a chip has one label "
                    f"in the format {self.rows.format} ({len(several)} such chips); keep one, or use a format for several"
                )

    def _refuse_value(self, position: int, value: int, files: int, listed: str) -> None:
        counted = f" ({files} files hold such values)" if files > 1 else ""
        raise ValueError(
            f"{self._label_file(position)} holds the label value {value}, which is no class{counted}: the classes are "
            f"{listed}. Add it to the class list of the metadata, or correct the label"
        )

    def _label_file(self, position: int) -> str:
        row = self.rows.dataset[int(position)]
        file = next(filter(None, row["label_files"]), None)
        return str(self.rows.root / file) if file else f"the label of {self.rows.root / self.names[position]}"

    def kept(self, index_of: Mapping[int, int]) -> list[int]:
        """Return the chips to use; unreadable ones keep their place.

        With one label a chip, those without a label, or with that of a class left out, go.
        """
        store = self.store
        if self.rows.task != "classification" or self.rows.multilabel:
            return list(range(len(store)))
        used = np.zeros(len(store), dtype=bool)
        used[store.values.rows] = _indexes(store.values.flat, index_of) > 0
        used[list(store.problems)] = True
        return np.flatnonzero(used).tolist()

    def moments(self, positions: Sequence[int]) -> Moments:
        """Return the band statistics over some chips."""
        return merge(Moments(*(values[np.asarray(positions, dtype=np.int64)] for values in self.store.moments)))

    def counts(self, positions: Sequence[int], index_of: Mapping[int, int], classes: int) -> dict[str, np.ndarray]:
        """Count chips, and objects and pixels where the task has any, of each class index 0..K among some chips.

        Index 0 counts the pixels of background; among chips those without any class, or without objects.
        """
        task, store = self.rows.task, self.store
        used = np.zeros(len(store), dtype=bool)
        used[np.asarray(positions, dtype=np.int64)] = True
        used[list(store.problems)] = False
        rows, here = store.values.rows, used[store.values.rows]
        rows, indexes = rows[here], _indexes(store.values.flat[here], index_of)
        held = (indexes != 0) & (indexes != IGNORED)
        counted = held
        if task in OBJECTS:
            crowd = np.zeros(len(here), dtype=bool)
            crowd[store.values.offsets[store.crowds.rows] + store.crowds.flat] = True
            counted = held & ~crowd[here]
        if task == "panoptic":
            counted &= np.isin(indexes, [index_of[value] for value in self.rows.things if value in index_of])
        size = classes + 1
        present = np.zeros((len(store), size), dtype=bool)  # each class once a chip
        present[rows[held], indexes[held]] = True
        result = {"chips": present.sum(0)}
        if task != "super_resolution":
            filled = np.zeros(len(store), dtype=bool)
            filled[rows[counted]] = True
            result["chips"][0] = np.count_nonzero(used) - np.count_nonzero(filled)
        if task in OBJECTS:
            result["objects"] = np.bincount(indexes[counted], minlength=size)
        if task in (*PIXELS, "panoptic"):
            known = indexes != IGNORED
            result["pixels"] = np.zeros(size, dtype=np.int64)
            np.add.at(result["pixels"], indexes[known], store.counts.flat[here][known])
        return result

    def labels(self, positions: Sequence[int], index_of: Mapping[int, int], classes: int) -> np.ndarray:
        """Return which of the classes 1..K each chip has, bool [N, K]; none where it cannot be read."""
        values, indexes = self.store.values, _indexes(self.store.values.flat, index_of)
        held, known = np.zeros((len(self.store), classes + 1), dtype=bool), indexes != IGNORED
        held[values.rows[known], indexes[known]] = True
        held[list(self.store.problems)] = False
        return held[list(positions), 1:]


def _indexes(values: np.ndarray, index_of: Mapping[int, int]) -> np.ndarray:
    # The class index of each value.
    found, places = np.unique(values, return_inverse=True)
    return np.array([index_of[value] for value in found.tolist()], dtype=np.int64)[places]


def open_source(
    rows: Rows,
    *,
    bands: Sequence[int | str] | None = None,
    resize_to: tuple[int, int] | None = None,
    limit: int | None = None,
    cache: str = "auto",
    verify: bool = False,
    role: str = "",
    after: Source | None = None,
    first: Source | None = None,
) -> Source:
    """Decode the chips of rows, or open their store.

    Args:
        rows: the folder, as its format lists it.
        bands: bands to read; None takes all but alpha.
        resize_to: (H, W) that each chip is resized to.
        limit: only the first so many chips.
        cache: see `cache.prepare_store`.
        verify: likewise.
        role: "train", "valid" or "test" where all chips belong to that split.
        after: the folder whose image_ids come before.
        first: the first folder of all, whose bands count here too.

    Raises:
        ValueError: too many chips cannot be read, or a band does not exist.
    """
    everything = rows.dataset
    if limit is not None:
        rows.dataset = rows.dataset.select(range(min(limit, len(rows.dataset))))
    names = chip_names(rows)
    chosen = first.bands if first else _first_bands(rows, bands)
    if rows.task == "edges":  # what is only measured follows what is trained on; a limit changes nothing
        rows.filled = first.rows.filled if first and role else _hold_areas(rows, everything, chosen)
    store, note = prepare_store(Decoder(rows, chosen, resize_to), cache, verify=verify)
    if first is not None:
        names = [relative(rows.root / name, first.rows.root) for name in names]
    number = after.first_id + len(after.names) if after else 0
    return Source(rows, store, chosen, names, role, first_id=number, note=note)


def _hold_areas(rows: Rows, dataset: "Dataset", bands: Bands) -> bool:
    positions = sorted({len(dataset) * i // _LOOKED_AT for i in range(_LOOKED_AT)})
    return hold_areas(dataset.select(positions), Place(rows.root, None, (0, 0), None, bands, colours=rows.colours))


def chip_names(rows: Rows) -> list[str]:
    """Return the name of each chip: its file, and for a window of a scene its column and row behind an @."""
    files, windows = rows.dataset["file"][:], rows.dataset["window"][:]
    return [chip_name(file, window) for file, window in zip(files, windows)]


def _first_bands(rows: Rows, bands: Sequence[int | str] | None) -> Bands:
    # The first chip that opens says which bands there are.
    from rasterio.errors import RasterioError

    errors = []
    for row in rows.dataset.select(range(min(_TRIED, len(rows.dataset)))):
        file = located(rows.root, row["file"])
        try:
            return describe_bands(file, bands, rows.bands)
        except RasterioError as error:
            errors.append(f"  {row['file']}: {read_error(file, error)}")
    raise ValueError(f"none of the first {len(errors)} chips of {rows.root} can be read:\n" + "\n".join(errors[:5]))
