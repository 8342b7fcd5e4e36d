"""Source: one folder of chips, its rows and their store; a data set is one, or two where validation has its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accel_geo.data.cache import prepare_store
from accel_geo.data.classes import Classes, check_values
from accel_geo.data.formats.rows import Rows, relative, some
from accel_geo.data.pixels import Bands, describe_bands, read_error
from accel_geo.data.spec import IGNORED
from accel_geo.data.statistics import Moments, merge
from accel_geo.data.store import Decoder, Store

_TRIED = 20  # chips to open in search of the first readable one


@dataclass
class Source:
    """One folder of chips.

    Attributes:
        rows: as the format lists them.
        store: the decoded chips, in the same order.
        bands: the bands read.
        names: path of each chip relative to the data folder.
        first_id: image_id of the first chip.
        note: what to tell of the store, or "".
    """

    rows: Rows
    store: Store
    bands: Bands
    names: list[str]
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
        if dropped := sum(store.index["dropped"].to_pylist()):
            problems.append(f"{dropped} object(s) that cover no pixel were left out")
        hidden = np.array(store.index["hidden"].to_pylist())
        if hidden.any():
            text = f"{np.count_nonzero(hidden)} chip(s) have pixels without data, {hidden.mean():.2%} of all pixels"
            blank = [self.names[i] for i in np.flatnonzero(hidden == 1)]
            problems.append(text + (f"; {len(blank)} hold nothing else: {some(blank, 3)}" if blank else ""))
        return problems

    def check(self, chosen: Classes) -> None:
        """Refuse labels with values of no class."""
        files, labels = self.rows.dataset["file"][:], self.rows.dataset["label_files"][:]
        named = [str(self.rows.root / (label[0] if label else file)) for file, label in zip(files, labels)]
        listed = ", ".join(f"{name} ({value})" for value, name in self.rows.classes.items())
        check_values(self.store.values, named, chosen.index_of, listed or ", ".join(chosen.names))

    def kept(self, chosen: Classes) -> list[int]:
        """Return the chips to use: in classification those of classes left out go; unreadable ones keep their place."""
        if self.rows.task != "classification" or self.rows.multilabel:
            return list(range(len(self.store)))
        return [i for i, found in enumerate(self.store.values) if not found or chosen.index_of[found[0]]]

    def moments(self, positions: Sequence[int]) -> Moments:
        """Return the band statistics over some chips."""
        return merge(Moments(*(values[list(positions)] for values in self.store.moments)))

    def counts(self, positions: Sequence[int], chosen: Classes) -> dict[str, list[int]]:
        """Count chips, and pixels or objects, of each class index 0..K among some chips.

        Index 0 counts the pixels of background; among chips those without any class.
        """
        task, size = self.rows.task, len(chosen.names) + 1
        chips, amounts = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        for position in positions:
            if position in self.store.problems:
                continue
            indexes = [chosen.index_of[value] for value in self.store.values[position]]
            held = {index for index in indexes if index not in (0, IGNORED)}
            chips[list(held) or [0]] += 1
            for index, number in zip(indexes, self.store.counts[position]):
                if index != IGNORED:
                    amounts[index] += number if task == "semantic" else 1
        result = {"chips": chips.tolist()}
        if task == "semantic":
            result["pixels"] = amounts.tolist()
        if task == "instances":
            result["objects"] = [0, *amounts.tolist()[1:]]
        return result


def open_source(
    rows: Rows,
    *,
    bands: Sequence[int | str] | None = None,
    resize_to: tuple[int, int] | None = None,
    limit: int | None = None,
    cache: str = "auto",
    after: Source | None = None,
) -> Source:
    """Decode the chips of rows, or open their store.

    Args:
        rows: the folder, as its format lists it.
        bands: bands to read; None takes all but alpha.
        resize_to: (H, W) that each chip is resized to.
        limit: only the first so many chips.
        cache: see `cache.prepare_store`.
        after: the training folder, whose bands count here too and whose image_ids come first.

    Raises:
        ValueError: too many chips cannot be read, or a band does not exist.
    """
    if limit is not None:
        rows.dataset = rows.dataset.select(range(min(limit, len(rows.dataset))))
    names = rows.dataset["file"][:]
    chosen = after.bands if after else _first_bands(rows, names, bands)
    store, note = prepare_store(Decoder(rows, chosen, resize_to), cache)
    if after is None:
        return Source(rows, store, chosen, names, note=note)
    names = [relative(rows.root / name, after.rows.root) for name in names]
    return Source(rows, store, chosen, names, first_id=after.first_id + len(after.names), note=note)


def _first_bands(rows: Rows, files: list[str], bands: Sequence[int | str] | None) -> Bands:
    # The first chip that opens says which bands there are.
    from rasterio.errors import RasterioError

    errors = []
    for file in files[:_TRIED]:
        try:
            return describe_bands(rows.root / file, bands, rows.bands)
        except RasterioError as error:
            errors.append(f"  {file}: {read_error(rows.root / file, error)}")
    raise ValueError(f"none of the first {len(errors)} chips of {rows.root} can be read:\n" + "\n".join(errors[:5]))
