"""Charts of what an evaluation found, from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from accel_geo.report.pictures import TEXT, caption, colours, grid, new_figure, plain, show_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 16  # lines in a legend
MOST_ACROSS = 5  # matrices side by side


def precision_recall(
    lines: Sequence[tuple[str, np.ndarray, np.ndarray]], mark: tuple[float, float, str] | None = None
) -> Figure:
    """Return a figure of precision over recall, on lines of equal F1.

    Args:
        lines: (name, recalls, precisions).
        mark: (recall, precision, text) of a point to mark.
    """
    figure = new_figure(5.6, 4.2)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for f1 in np.arange(1, 10) / 10:
        x = np.geomspace(f1 / (2 - f1), 1, 100)
        axes.plot(x, f1 * x / (2 * x - f1), color="#dddddd", linewidth=0.6)
        text = f"F1 {f1:.1f}" if f1 == 0.9 else f"{f1:.1f}"
        place = {"va": "center", "annotation_clip": False}
        axes.annotate(text, (1.01, f1 / (2 - f1)), color="#999999", fontsize=TEXT - 3, **place)
    for (name, x, y), colour in zip(lines, colours(len(lines))):
        marker = "." if len(x) == 1 else None
        axes.plot(x, y, color=colour, linewidth=1.6, marker=marker, label=plain(name), clip_on=False)
    if mark:
        x, y, text = mark
        axes.plot(x, y, "o", color="#222222", markersize=5, label=plain(text), clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel("recall", fontsize=TEXT)
    axes.set_ylabel("precision", fontsize=TEXT)
    axes.tick_params(labelsize=TEXT - 1)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) <= MOST_NAMED:
        axes.legend(fontsize=TEXT - 1, frameon=False, loc="upper left", bbox_to_anchor=(1.1, 1.0), handlelength=1.2)
    return figure


def confusion_matrix(counts: np.ndarray | Sequence, names: Sequence[str]) -> Figure:
    """Return a figure of counts [K, K], rows truth and columns prediction, shaded by the share of the row."""
    k = len(names)
    cell = 0.62 if k <= 8 else 0.42 if k <= 20 else 0.22
    margin = 0.4 + 0.07 * max((len(name) for name in names), default=1)
    figure = new_figure(k * cell + margin + 0.4, k * cell + margin + 0.5)
    width, height = figure.get_size_inches()
    axes = figure.add_axes((margin / width, margin / height, k * cell / width, k * cell / height))
    _draw_confusion(axes, counts, [plain(name) for name in names])
    axes.set_title("share of the truth, in per cent", fontsize=TEXT)
    return figure


def binary_confusions(counts: np.ndarray, names: Sequence[str]) -> Figure:
    """Return a figure of counts [K, 2, 2], a matrix for each class: rows truth, columns prediction, without and with it."""
    columns = min(max(len(names), 1), MOST_ACROSS)
    figure = new_figure(1.9 * columns, 1.9 * -(-len(names) // columns))
    figure.set_layout_engine("constrained")
    for number, (matrix, name) in enumerate(zip(counts, names), 1):
        axes = figure.add_subplot(-(-len(names) // columns), columns, number)
        _draw_confusion(axes, matrix, ["without", "with"])
        axes.set_title(plain(name), fontsize=TEXT)
    return figure


def _draw_confusion(axes: Axes, counts: np.ndarray | Sequence, names: Sequence[str]) -> None:
    counts, k = np.asarray(counts, dtype=np.float64), len(names)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(k), names, rotation=90 if k > 3 else 0, fontsize=TEXT - 1)
    axes.set_yticks(range(k), names, fontsize=TEXT - 1)
    axes.set_xlabel("prediction", fontsize=TEXT)
    axes.set_ylabel("truth", fontsize=TEXT)
    axes.tick_params(length=0)
    if k <= 20:
        for row, column in np.argwhere(counts > 0):
            share = shares[row, column]
            text = "<1" if 0 < share < 0.01 else f"{100 * share:.0f}"
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=TEXT - 1 if k <= 8 else TEXT - 3,
                color="white" if share > 0.55 else "#222222",
            )


def heat_maps(rows: Sequence[Sequence[tuple[np.ndarray, np.ndarray | None, str, str]]]) -> Figure:
    """Return a figure of images under heat maps, cold blue to hot red, the hotter the less transparent.

    Args:
        rows: pictures of one row each, as many in every row: RGB [H, W, 3] in [0, 1], heat [H, W] in [0, 1] or None for
            the image alone, and a name and a text to write above.
    """
    from matplotlib import colormaps

    pictures = [picture for row in rows for picture in row]
    figure, axes = grid(len(pictures), len(rows[0]))
    for place, (rgb, heat, name, text) in zip(axes, pictures):
        if heat is not None:
            alpha = 0.15 + 0.5 * heat[..., None]
            rgb = np.clip((1 - alpha) * rgb + alpha * colormaps["jet"](heat)[..., :3], 0, 1)
        show_image(place, rgb)
        caption(place, name, text)
    return figure
