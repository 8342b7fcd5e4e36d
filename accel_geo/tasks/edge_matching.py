"""Matching edge pixels one to one, as the benchmark of BSDS500 does (Martin, Fowlkes & Malik 2004)."""

from collections.abc import Sequence

import numpy as np


def match(levels: np.ndarray, truth: np.ndarray, tolerance: float) -> np.ndarray:
    """Match predicted pixels with those of the truth so that as many as possible are matched at every threshold.

    Each pixel has one partner at most, at a distance of at most `tolerance`. Sets of predicted pixels that can be
    matched together form a matroid (a transversal one). So it is enough to go through them once from the strongest
    down, keeping each that can be matched together with all kept before: whatever the threshold, those kept above it
    are as many as a maximum matching has.

    Args:
        levels: [H, W] integers, how strong each predicted pixel is; 0 where there is none.
        truth: bool [H, W].
        tolerance: largest distance of partners, in pixels between centres.

    Returns:
        bool [H, W], the predicted pixels that are matched.
    """
    reach = int(tolerance)
    number = np.full(np.add(truth.shape, 2 * reach), -1)
    number[reach : reach + truth.shape[0], reach : reach + truth.shape[1]][truth] = np.arange(np.count_nonzero(truth))
    y, x = np.nonzero(levels)
    order = np.argsort(-levels[y, x].astype(np.int64), kind="stable")
    y, x = y[order], x[order]
    steps = [(dy, dx) for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1)]
    steps = sorted((dy * dy + dx * dx, dy, dx) for dy, dx in steps if dy * dy + dx * dx <= tolerance * tolerance)
    near = np.stack([number[y + reach + dy, x + reach + dx] for _, dy, dx in steps], axis=1)  # the nearest first
    some = (near >= 0).any(1)
    y, x, near = y[some], x[some], near[some]
    kept = _matchable([[i for i in row if i >= 0] for row in near.tolist()], np.count_nonzero(truth))
    matched = np.zeros(truth.shape, dtype=bool)
    matched[y[kept], x[kept]] = True
    return matched


def _matchable(near: Sequence[Sequence[int]], size: int) -> list[int]:
    """Go through the rows in order and return those that can be matched together with all returned before.

    Args:
        near: for each row the columns that it may be matched with.
        size: number of columns.
    """
    row_of, column_of = [-1] * size, [-1] * len(near)
    closed = [False] * size
    kept: list[int] = []
    for start in range(len(near)):
        if len(kept) == size:
            break
        # Breadth first along augmenting paths: over a column to the row that has it, and on to that row's other columns.
        reached_from: dict[int, int] = {}
        rows, free = [start], -1
        for row in rows:
            for column in near[row]:
                if column in reached_from or closed[column]:
                    continue
                reached_from[column] = row
                if row_of[column] < 0:
                    free = column
                    break
                rows.append(row_of[column])
            if free >= 0:
                break
        if free < 0:
            for column in reached_from:  # from here no free column can be reached, nor will it ever be
                closed[column] = True
            continue
        kept.append(start)
        while free >= 0:  # every row on the path moves on to the next column
            row = reached_from[free]
            row_of[free], column_of[row], free = row, free, column_of[row]
    return kept
