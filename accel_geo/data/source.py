"""Source: one folder of chips, its rows and their store; a data set is one, or two where validation has its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel_geo.data.cache import prepare_store
from accel_geo.data.classes import PIXELS, check_values
from accel_geo.data.formats.rows import Rows, locate, relative, some
from accel_geo.data.pixels import Bands, describe_bands, read_error
from accel_geo.data.spec import IGNORED
from accel_geo.data.statistics import Moments, merge
from accel_geo.data.store import Decoder, Store

OBJECTS = ("detection", "instances", "panoptic")  # tasks that count objects
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
        if not self.bands.alpha and not self.bands.chosen:
            problems.append("a band is tagged as alpha but holds many values: it is read like any other band")
        if len(store.dtypes) > 1:
            problems.append(f"chips of different pixel types ({', '.join(sorted(store.dtypes))}) are scaled alike")
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

    def check(self, index_of: Mapping[int, int], listed: str) -> None:
        """Refuse labels with values of no class, and several labels where a chip has one.

        Args:
            index_of: the known values.
            listed: the classes, for the message.
        """
        if self.rows.task == "super_resolution":
            return
        labels = self.rows.dataset["label_files"]
        named = [
            str(self.rows.root / (label[0] if label and label[0] else self.names[i])) for i, label in enumerate(labels)
        ]
        check_values(self.store.values, named, index_of, listed)
        if self.rows.task == "classification" and not self.rows.multilabel:
            several = [i for i in range(len(self.store)) if len(self.store.values[i]) > 1]
            if several:
                found = list(self.store.values[several[0]])
                raise ValueError(
                    f"{named[several[0]]} has the labels {found}, but a chip has one label in the format "
                    f"{self.rows.format} ({len(several)} such chips); keep one, or use a format for several labels"
                )

    def kept(self, index_of: Mapping[int, int]) -> list[int]:
        """Return the chips to use; unreadable ones keep their place.

        With one label a chip, those without a label, or with that of a class left out, go.
        """
        everything = range(len(self.store))
        if self.rows.task != "classification" or self.rows.multilabel:
            return list(everything)
        values, problems = self.store.values, self.store.problems
        return [i for i in everything if i in problems or (len(values[i]) and index_of[int(values[i][0])])]

    def moments(self, positions: Sequence[int]) -> Moments:
        """Return the band statistics over some chips."""
        return merge(Moments(*(values[list(positions)] for values in self.store.moments)))

    def counts(self, positions: Sequence[int], index_of: Mapping[int, int], classes: int) -> dict[str, np.ndarray]:
        """Count chips, and objects and pixels where the task has any, of each class index 0..K among some chips.

        Index 0 counts the pixels of background; among chips those without any class, or without objects.
        """
        task, store = self.rows.task, self.store
        names = ["chips"] + ["objects"] * (task in OBJECTS) + ["pixels"] * (task in (*PIXELS, "panoptic"))
        result = {name: np.zeros(classes + 1, dtype=np.int64) for name in names}
        things = {index_of[value] for value in self.rows.things if value in index_of}
        for position in positions:
            if position in store.problems:
                continue
            indexes = [index_of[int(value)] for value in store.values[position]]
            held = {index for index in indexes if index not in (0, IGNORED)}
            crowd = set(store.crowds[position])
            objects = [i for n, i in enumerate(indexes) if i in held and n not in crowd]
            if task == "panoptic":
                objects = [i for i in objects if i in things]
            result["chips"][list(held)] += 1
            result["chips"][0] += not (objects if task in OBJECTS else held) and task != "super_resolution"
            if "objects" in result:
                np.add.at(result["objects"], objects, 1)
            if "pixels" in result:
                counted = [(i, n) for i, n in zip(indexes, store.counts[position]) if i != IGNORED]
                for index, number in counted:
                    result["pixels"][index] += number
        return result


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
    if limit is not None:
        rows.dataset = rows.dataset.select(range(min(limit, len(rows.dataset))))
    names = chip_names(rows)
    chosen = first.bands if first else _first_bands(rows, bands)
    store, note = prepare_store(Decoder(rows, chosen, resize_to), cache, verify=verify)
    if first is not None:
        names = [relative(rows.root / name, first.rows.root) for name in names]
    number = after.first_id + len(after.names) if after else 0
    return Source(rows, store, chosen, names, role, first_id=number, note=note)


def chip_names(rows: Rows) -> list[str]:
    """Return the name of each chip: its file, and for a window of a scene its column and row behind an @."""
    files, windows = rows.dataset["file"], rows.dataset["window"]
    return [f"{file}@{window[0]},{window[1]}" if window else file for file, window in zip(files, windows)]


def _first_bands(rows: Rows, bands: Sequence[int | str] | None) -> Bands:
    # The first chip that opens says which bands there are.
    from rasterio.errors import RasterioError

    errors = []
    for row in rows.dataset.select(range(min(_TRIED, len(rows.dataset)))):
        file = locate(rows.root, row["file"])
        try:
            return describe_bands(file, bands, rows.bands)
        except RasterioError as error:
            errors.append(f"  {row['file']}: {read_error(file, error)}")
    raise ValueError(f"none of the first {len(errors)} chips of {rows.root} can be read:\n" + "\n".join(errors[:5]))
