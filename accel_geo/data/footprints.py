"""Footprints: which chips lie beside or on each other on the ground, so that validation sees ground that training did not.

Footprints are compared within one coordinate reference system only; chips of two systems never count as neighbours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from accel_geo.data.formats.rows import some

_SLACK = 1 / 500  # of a chip's side, half a pixel of 250: a smaller gap is touching, a smaller overlap no overlap
_BLOCKS = 30  # to cut a stretch of chips into
_BLOCK_CHIPS = 16  # in a block at least, where the share to validate on has as many
_CHUNK = 20_000  # footprints compared at a time, so that memory stays small


@dataclass
class Groups:
    """Groups of neighbouring chips.

    Attributes:
        names: group of each chip, for `splits.group_split`.
        cut: a continuous stretch of chips was cut into blocks. Chips of two blocks may touch; where chips overlap, those
            at the seams share ground, and `sharing` tells which training chips to leave out.
        notes: what to tell of it.
    """

    names: list[str]
    cut: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass
class Leaks:
    """Ground that training and validation share.

    Attributes:
        pairs: pairs of a training and a validation chip that overlap.
        train, valid: chips that are in such a pair.
        examples: a few pairs: position of the training chip, of the validation chip, and the part of the smaller one
            that is shared, the largest first.
    """

    pairs: int = 0
    train: int = 0
    valid: int = 0
    examples: list[tuple[int, int, float]] = field(default_factory=list)

    def text(self, files: Sequence[str]) -> str:
        """Return what to tell, with the names of the chips, or "" where nothing is shared."""
        if not self.pairs:
            return ""
        listed = "; ".join(f"{files[a]} and {files[b]} ({part:.0%})" for a, b, part in self.examples)
        return (
            f"{self.train} training chip(s) overlap {self.valid} validation chip(s) on the ground, so that validation "
            f'flatters the model: {listed}. Split by "group" to keep them apart'
        )


def groups_of_footprints(
    bounds: np.ndarray, crs: Sequence[str], files: Sequence[str], fraction: float, folders: bool = True
) -> Groups:
    """Group chips so that neighbours stay together: those whose footprints overlap or touch, however many in a row.

    A group that holds more than half of all chips, or (from 32 chips) more than twice the share to validate on, such as
    a continuous grid, is cut into about 30 blocks, of at least 16 chips each unless the share is smaller than that.
    Chips of different blocks may touch, and at the seams overlap; see `sharing`. Chips that are not georeferenced are
    grouped by the folder that they lie in.

    Args:
        bounds: float64 [N, 4], left, bottom, right, top of each chip; NaN where it is not georeferenced.
        crs: coordinate reference system of each, as text.
        files: name of each chip; with the footprints, all that the groups depend on.
        fraction: part of the chips to validate on.
        folders: the folders of the chips may serve as groups; False where they are the classes.

    Raises:
        ValueError: no chip is georeferenced and all lie in one folder.
    """
    bounds, code = _prepared(bounds, crs)
    names = np.full(len(files), "", dtype=object)
    notes = []
    lost = np.flatnonzero(code < 0)
    if len(lost):
        parents = [files[i].rpartition("/")[0] if folders else "" for i in lost]
        if len(lost) == len(files) and len(set(parents)) < 2:
            raise ValueError(
                f"no chip is georeferenced (such as {some(files, 3)}), and they do not lie in several folders, so there "
                'are no groups to split by: split by "random" or by a column ("column:NAME"), or name what to validate '
                'on (valid_match="PATTERN" of file names, or valid_path=FOLDER)'
            )
        names[lost] = [f"folder {parent}" for parent in parents]
        notes.append(f"{len(lost)} of {len(files)} chips are not georeferenced: grouped by folder")
    placed = np.flatnonzero(code >= 0)
    if not len(placed):
        return Groups(names.tolist(), notes=notes)
    first = np.array(sorted(range(len(files)), key=files.__getitem__))  # so that a group is named by its first file
    rank = np.empty(len(files), dtype=np.int64)
    rank[first] = np.arange(len(files))
    component = _components(bounds[placed], code[placed])
    leader = np.full(component.max() + 1, len(files), dtype=np.int64)
    np.minimum.at(leader, component, rank[placed])
    sizes = np.bincount(component)
    names[placed] = [files[first[leader[c]]] for c in component]
    cut = 0
    large = (sizes > 2 * fraction * len(files)) & (sizes >= 2 * _BLOCK_CHIPS)
    for number in np.flatnonzero(large | (2 * sizes > len(files))):
        members = placed[component == number]
        blocks = _blocks(bounds[members], fraction * len(files))
        if len(set(blocks)) > 1:
            names[members] = [f"{names[members[0]]} block {block}" for block in blocks]
            cut += 1
            notes.append(
                f"{len(members)} chips that touch or overlap in one stretch were cut into {len(set(blocks))} blocks; "
                "chips at the seam of two blocks are neighbours"
            )
    return Groups(names.tolist(), cut > 0, notes)


def sharing(bounds: np.ndarray, crs: Sequence[str], train: Sequence[int], valid: Sequence[int]) -> list[int]:
    """Return the training chips, ascending, that share ground with a validation chip; those that only touch do not.

    After `groups_of_footprints` has cut a stretch of overlapping chips, these are to be left out of training.

    Args:
        bounds: float64 [N, 4], left, bottom, right, top of each chip; NaN where it is not georeferenced.
        crs: coordinate reference system of each, as text.
        train: positions of the training chips.
        valid: positions of the validation chips.
    """
    bounds, code = _prepared(bounds, crs)
    found = np.zeros(len(bounds), dtype=bool)
    for a, _, part in _overlaps(bounds, code, np.asarray(train, np.int64), np.asarray(valid, np.int64)):
        found[a[part > _SLACK]] = True
    return np.flatnonzero(found).tolist()


def leaks(
    bounds: np.ndarray,
    crs: Sequence[str],
    train: Sequence[int],
    valid: Sequence[int],
    share: float = 0.01,
    examples: int = 3,
) -> Leaks:
    """Find the training and validation chips that overlap on the ground.

    Args:
        bounds: float64 [N, 4], left, bottom, right, top of each chip; NaN where it is not georeferenced.
        crs: coordinate reference system of each, as text.
        train: positions of the training chips.
        valid: positions of the validation chips.
        share: overlaps up to this part of the smaller footprint do not count.
        examples: how many pairs to name.
    """
    bounds, code = _prepared(bounds, crs)
    ground, same = np.unique(np.column_stack([bounds, code]), axis=0, return_inverse=True)
    # Chips of one and the same footprint (dates of a time series) are compared once, and counted.
    times = [np.bincount(same.ravel()[np.asarray(side, np.int64)], minlength=len(ground)) for side in (train, valid)]
    sides = [np.flatnonzero((n > 0) & (ground[:, 4] >= 0)) for n in times]
    hit = [np.zeros(len(ground), dtype=bool) for _ in sides]
    result, best = Leaks(), []
    for a, b, part in _overlaps(ground[:, :4], ground[:, 4].astype(np.int64), *sides):
        a, b, part = a[part > share], b[part > share], part[part > share]
        hit[0][a], hit[1][b] = True, True
        result.pairs += int((times[0][a] * times[1][b]).sum())
        best += [(-part[i], a[i], b[i]) for i in np.argsort(-part, kind="stable")[:examples]]
        best = sorted(best)[:examples]
    result.train, result.valid = (int(n[h].sum()) for n, h in zip(times, hit))
    for part, a, b in best:
        one, other = (next(i for i in side if same.ravel()[i] == g) for side, g in ((train, a), (valid, b)))
        result.examples.append((int(one), int(other), -float(part)))
    return result


def _prepared(bounds: np.ndarray, crs: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    # Bounds with left < right and bottom < top (0 where unknown), and a number for each system, -1 where unknown.
    bounds = np.asarray(bounds, dtype=np.float64).reshape(-1, 4)
    known = np.isfinite(bounds).all(1)
    number_of: dict[str, int] = {name: number for number, name in enumerate(sorted(set(crs)))}
    code = np.where(known, np.fromiter(map(number_of.__getitem__, crs), np.int64, len(bounds)), -1)
    low, high = np.minimum(bounds[:, :2], bounds[:, 2:]), np.maximum(bounds[:, :2], bounds[:, 2:])
    return np.where(known[:, None], np.hstack([low, high]), 0.0), code


def _near(
    bounds: np.ndarray, code: np.ndarray, a: np.ndarray, b: np.ndarray, slack: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    # Pairs (one of a, one of b) of one system whose footprints meet when those of a grow by `slack` of their sides.
    import shapely

    for system in np.unique(code[b]):
        mine, others = a[code[a] == system], b[code[b] == system]
        if system < 0 or not len(mine):
            continue
        tree = shapely.STRtree(shapely.box(*bounds[others].T))
        for start in range(0, len(mine), _CHUNK):
            part = mine[start : start + _CHUNK]
            low, high = bounds[part, :2], bounds[part, 2:]
            grown = (high - low) * slack
            i, j = tree.query(shapely.box(*(low - grown).T, *(high + grown).T))
            yield part[i], others[j]


def _overlaps(
    bounds: np.ndarray, code: np.ndarray, a: np.ndarray, b: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    # Pairs of near footprints, and the part of the smaller one that they share.
    area = (bounds[:, 2:] - bounds[:, :2]).prod(1)
    for i, j in _near(bounds, code, a, b, 0.0):
        sides = np.minimum(bounds[i, 2:], bounds[j, 2:]) - np.maximum(bounds[i, :2], bounds[j, :2])
        shared = sides.clip(0).prod(1)
        yield i, j, shared / np.maximum(np.minimum(area[i], area[j]), np.finfo(np.float64).tiny)


def _components(bounds: np.ndarray, code: np.ndarray) -> np.ndarray:
    # A number for each chip, equal where a chain of touching or overlapping chips connects two.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ground, same = np.unique(np.column_stack([bounds, code]), axis=0, return_inverse=True)
    everything = np.arange(len(ground))
    pairs = list(_near(ground[:, :4], ground[:, 4].astype(np.int64), everything, everything, _SLACK))
    i, j = (np.concatenate(side, dtype=np.int32) for side in zip(*pairs))
    graph = coo_matrix((np.ones(len(i), dtype=bool), (i, j)), shape=(len(ground), len(ground)))
    return connected_components(graph, directed=False)[1][same.ravel()]


def _blocks(bounds: np.ndarray, share: float) -> list[str]:
    # The block of each chip, by its centre: cells of equal size, nearly square, over all that the chips cover.
    centre = (bounds[:, :2] + bounds[:, 2:]) / 2
    low, extent = centre.min(0), np.ptp(centre, axis=0)
    extent = np.maximum(extent + np.median(bounds[:, 2:] - bounds[:, :2], axis=0), np.finfo(np.float64).tiny)
    low = low - (extent - np.ptp(centre, axis=0)) / 2
    each = max(len(bounds) / _BLOCKS, min(_BLOCK_CHIPS, share), 1)
    wanted = len(bounds) / each
    number, short = wanted, int(np.argmin(extent))
    cells = np.ones(2)
    for _ in range(12):  # more cells where the chips cover only a part of their extent
        cells[short] = max(round(math.sqrt(number * extent[short] / extent[1 - short])), 1)
        cells[1 - short] = max(round(number / cells[short]), 1)
        cell = np.floor((centre - low) / extent * cells + 1e-6).clip(0, cells - 1).astype(np.int64)
        blocks = [f"{row}-{column}" for column, row in cell.tolist()]
        if len(set(blocks)) >= 0.8 * wanted:
            break
        number *= 1.5
    return blocks
