"""Pictures from plain arrays: chips with labels, training curves.

matplotlib's objects are used directly, never pyplot: no global state, no display, safe in any process.
"""

from __future__ import annotations

import colorsys
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colour = tuple[float, float, float]

# Okabe and Ito's colours for all kinds of colour vision, the ones that stand out from vegetation and soil first, then
# Paul Tol's muted ones. Hues at the golden angle follow for longer class lists.
_PALETTE = (
    "e69f00 56b4e9 cc79a7 f0e442 d55e00 0072b2 009e73 882255 88ccee ddcc77 332288 cc6677 44aa99 aa4499 999933 117733"
)
RIGHT, WRONG, NEUTRAL = "#0072b2", "#d55e00", "#444444"
PANEL = 3.0  # inches of one picture
DPI = 110
TEXT = 9  # points


def colours(n: int) -> list[Colour]:
    """Return n colours in [0, 1] that stay the same whatever n is."""
    fixed = [tuple(int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)) for code in _PALETTE.split()]
    more = [colorsys.hls_to_rgb(0.618034 * i % 1, (0.45, 0.65, 0.3)[i % 3], 0.75) for i in range(n - len(fixed))]
    return [*fixed, *more][:n]


def stretch(
    image: np.ndarray, bands: Sequence[str] = (), low: float = 2, high: float = 98, like: np.ndarray | None = None
) -> np.ndarray:
    """Return an image [C, H, W] of any range as RGB [H, W, 3] in [0, 1] for the eye.

    Bands named red, green and blue are taken where they exist, else the first three; one or two bands show the first in
    grey. Each band is stretched between two percentiles of its finite pixels, or of those of another image `like` it.
    """
    names = [band.strip().lower() for band in bands]
    if len(names) == len(image) and {"red", "green", "blue"} <= set(names):
        chosen = [names.index(colour) for colour in ("red", "green", "blue")]
    else:
        chosen = [0, 1, 2] if len(image) >= 3 else [0, 0, 0]
    rgb = np.zeros((*image.shape[1:], 3))
    for i, band in enumerate(chosen):
        pixels = image[band].astype(np.float64)
        sample = pixels if like is None else like[band].astype(np.float64)
        finite = sample[np.isfinite(sample)]
        if finite.size:
            bottom, top = np.percentile(finite, [low, high])
            rgb[..., i] = np.clip(np.nan_to_num((pixels - bottom) / ((top - bottom) or 1.0)), 0, 1)
    return rgb


def grid(
    n: int, columns: int, legend: Sequence[tuple[str, Colour]] = (), panel: float = PANEL
) -> tuple[Figure, list[Axes]]:
    """Return a figure of n square pictures without axis marks, and a legend below where one is given."""
    from matplotlib.patches import Patch

    columns = max(1, min(columns, n))
    rows = max(1, -(-n // columns))
    width = columns * panel
    per_row = max(1, int(width / (0.45 + 0.075 * max((len(name) for name, _ in legend), default=1))))
    below = 0.1 + 0.22 * -(-len(legend) // per_row) if legend else 0.05
    figure = new_figure(width, rows * (panel + 0.3) + below)
    height = figure.get_figheight()
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.05 / width,
        right=1 - 0.05 / width,
        bottom=below / height,
        top=1 - 0.3 / height,
        wspace=0.03,
        hspace=0.3 / panel,
    )
    for place in axes.flat:
        place.set_axis_off()
    if legend:
        patches = [
            Patch(facecolor=colour, edgecolor="#333333", linewidth=0.5, label=plain(name)) for name, colour in legend
        ]
        figure.legend(
            handles=patches,
            loc="lower center",
            ncols=min(per_row, len(legend)),
            frameon=False,
            fontsize=TEXT,
            handlelength=1.2,
            handleheight=1.0,
            columnspacing=1.2,
            borderpad=0.1,
            labelspacing=0.25,
        )
    return figure, list(axes.flat)[:n]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches that draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def plain(text: str) -> str:
    """Return a name such that matplotlib neither reads formulas in it nor hides it from a legend."""
    text = text.replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def show_image(axes: Axes, rgb: np.ndarray) -> None:
    """Show RGB [H, W, 3] in [0, 1] on a pixel grid whose corner is (0, 0)."""
    h, w = rgb.shape[:2]
    axes.imshow(rgb, extent=(0, w, h, 0), interpolation="nearest" if max(h, w) < 128 else "antialiased")
    axes.set_xlim(0, w)
    axes.set_ylim(h, 0)
    axes.set_axis_off()


def caption(axes: Axes, name: str, text: str) -> None:
    """Write a file name and a text above a picture, shortened to its width."""
    name = name if len(name) <= 26 else "…" + name[-25:]
    line = "  ".join(part for part in (name, text) if part)
    axes.set_title(plain(line if len(line) <= 46 else line[:45] + "…"), fontsize=TEXT - 1, pad=3, color="#222222")


def show_mask(
    axes: Axes, rgb: np.ndarray, mask: np.ndarray, palette: Sequence[Colour], ignored: int = 255, alpha: float = 0.5
) -> None:
    """Show an image under a mask [H, W] of labels 1..K; 0 stays clear, ignored pixels are hatched in grey."""
    mask = np.asarray(mask).astype(np.int64)
    table = np.zeros((256 if len(palette) < 255 else len(palette) + 2, 4))
    table[1 : len(palette) + 1] = [(*colour, alpha) for colour in palette]
    show_image(axes, rgb)
    _overlay(axes, table[np.where(mask == ignored, 0, mask)], mask == ignored)
    for label in np.unique(mask[(mask > 0) & (mask != ignored)]):
        _outline(axes, [mask == label], [palette[label - 1]], width=0.9)


def _overlay(axes: Axes, overlay: np.ndarray, ignored: np.ndarray) -> None:
    """Lay colours [H, W, 4] over a picture, ignored pixels [H, W] hatched in grey."""
    h, w = ignored.shape
    rows, columns = np.indices((h, w))
    overlay[ignored] = (0.5, 0.5, 0.5, 0.55)
    overlay[ignored & ((rows + columns) // max(1, h // 64) % 4 == 0)] = (0.15, 0.15, 0.15, 0.8)
    axes.imshow(overlay, extent=(0, w, h, 0), interpolation="nearest")


def show_edges(axes: Axes, rgb: np.ndarray, strength: np.ndarray, ignored: np.ndarray, colour: Colour) -> None:
    """Show a dimmed image under lines [H, W] of a strength in [0, 1]; ignored pixels [H, W] are hatched in grey."""
    # A line of one pixel would vanish where a picture has fewer pixels than the image.
    from scipy.ndimage import grey_dilation

    strength = grey_dilation(strength, (1 + max(strength.shape) // 256,) * 2)
    overlay = np.empty((*strength.shape, 4))
    overlay[..., :3], overlay[..., 3] = colour, strength
    show_image(axes, 0.5 * rgb)
    _overlay(axes, overlay, ignored)


def show_segments(
    axes: Axes, rgb: np.ndarray, ids: np.ndarray, segments: Sequence[Mapping], palette: Sequence[Colour]
) -> None:
    """Show an image under filled segments with borders; objects of one class have different shades.

    Args:
        axes: to draw into.
        rgb: [H, W, 3] in [0, 1].
        ids: [H, W]; pixels of an id that is not listed stay clear.
        segments: `id`, `label` 1..K, `isthing`, and `iscrowd` for those that are hatched.
        palette: of the K classes.
    """
    overlay = np.zeros((*ids.shape, 4))
    rows, columns = np.indices(ids.shape)
    hatch = (rows - columns) // max(1, len(ids) // 64) % 4 == 0
    ordered = sorted(segments, key=lambda segment: bool(segment["isthing"]))  # borders of objects on top
    for number, segment in enumerate(ordered):
        colour = np.asarray(palette[int(segment["label"]) - 1])
        shade = (0.0, 0.3, -0.3)[number % 3] if segment["isthing"] else 0.0
        mask = ids == int(segment["id"])
        overlay[mask] = (*(colour + shade * (1 - colour if shade > 0 else colour)), 0.6)
        if segment.get("iscrowd"):
            overlay[mask & hatch] = (0, 0, 0, 0.6)
    show_image(axes, rgb)
    _overlay(axes, overlay, np.zeros(ids.shape, dtype=bool))
    for kind in (False, True):
        chosen = [segment for segment in ordered if bool(segment["isthing"]) == kind]
        masks = (ids == int(segment["id"]) for segment in chosen)
        _outline(axes, masks, [palette[int(s["label"]) - 1] for s in chosen], width=1.2 if kind else 0.4)


def show_instances(
    axes: Axes,
    rgb: np.ndarray,
    boxes: np.ndarray,
    labels: np.ndarray,
    masks: np.ndarray | None,
    scores: np.ndarray | None,
    names: Sequence[str],
) -> None:
    """Show an image with the outlines, boxes, class names and scores of its objects.

    Args:
        axes: to draw into.
        rgb: [H, W, 3] in [0, 1].
        boxes: [N, 4] x1 y1 x2 y2.
        labels: [N] 1..K.
        masks: bool [N, H, W], or None for boxes alone.
        scores: [N], or None for the truth.
        names: of the K classes.
    """
    from matplotlib.patches import Rectangle

    palette = colours(len(names))
    chosen = [palette[int(label) - 1] for label in labels]
    filled = rgb.copy()
    for mask, colour in zip(masks if masks is not None else (), chosen):
        filled[mask] = 0.7 * filled[mask] + 0.3 * np.asarray(colour)
    show_image(axes, filled)
    if masks is not None:
        _outline(axes, masks, chosen, width=1.4)
    # Tags of many small objects would hide them: the more there are, the less is written.
    tags = "full" if len(boxes) <= 6 else "score" if len(boxes) <= 30 else "none"
    taken: list[tuple[float, float, float]] = []
    # Where outlines of masks tell more, boxes stay thin; alone they have the same dark halo.
    styles = [((0, 0, 0, 0.6), 2.4), (None, 1.4)] if masks is None else [(None, 0.8)]
    for i, (x1, y1, x2, y2) in enumerate(boxes):
        for colour, width in styles:
            edge = {"edgecolor": colour or chosen[i], "linewidth": width}
            axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **edge))
        text = names[int(labels[i]) - 1] if tags == "full" else ""
        if scores is not None and tags != "none":
            text = f"{text} {scores[i]:.2f}".strip()
        if text:
            _tag(axes, x1, y1, text, chosen[i], TEXT - 2.5 if tags == "full" else TEXT - 4, taken)


def _tag(axes: Axes, x: float, y: float, text: str, colour: Colour, size: float, taken: list) -> None:
    """Write a tag above a point, inside the picture, moved down where another tag already stands."""
    side, end = axes.get_ylim()[0], axes.get_xlim()[1]
    unit = size / 72 / PANEL * side  # of a line of text, in pixels of the image
    width, height = 0.62 * unit * len(text), 1.4 * unit
    x, y = min(max(x, 0.0), max(end - width, 0.0)), max(y, height)
    while any(abs(y - other_y) < height and x < right and left < x + width for left, right, other_y in taken):
        y += height
    taken.append((x, x + width, y))
    box = {"facecolor": colour, "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
    dark = np.dot(colour, (0.299, 0.587, 0.114)) > 0.5
    axes.text(x, y, plain(text), fontsize=size, color="black" if dark else "white", bbox=box, clip_on=True, va="bottom")


def _outline(axes: Axes, masks: Iterable[np.ndarray], chosen: Iterable[Colour], width: float) -> None:
    """Draw the outlines of masks with a thin dark halo that keeps them apart from the ground and from each other."""
    from contourpy import contour_generator
    from matplotlib.collections import LineCollection

    lines, line_colours = [], []
    for mask, colour in zip(masks, chosen):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if not len(rows):
            continue
        top, left = rows[0], columns[0]
        part = np.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1], 1).astype(np.float32)
        found = contour_generator(z=part).lines(0.5)
        lines += [line + (left - 0.5, top - 0.5) for line in found]  # padded by one, pixel centres at half
        line_colours += [colour] * len(found)
    axes.add_collection(LineCollection(lines, colors=(0, 0, 0, 0.6), linewidths=width + 1.0), autolim=False)
    axes.add_collection(LineCollection(lines, colors=line_colours, linewidths=width), autolim=False)


def show_class(
    axes: Axes, rgb: np.ndarray, truth: str | None, prediction: str | None, score: float | None = None
) -> None:
    """Show a chip with its class; with a prediction, its frame tells right (blue) from wrong (red, the truth added)."""
    show_image(axes, rgb)
    if prediction is None:
        text, colour = truth or "", NEUTRAL
    else:
        mark = "" if truth is None else "✓ " if truth == prediction else "✗ "
        colour = NEUTRAL if truth is None else RIGHT if truth == prediction else WRONG
        text = f"{mark}{prediction}" + ("" if score is None else f"  {score:.2f}")
        if truth is not None and truth != prediction:
            text += f"\ntruth: {truth}"
    h, w = rgb.shape[:2]
    box = {"facecolor": colour, "edgecolor": "none", "alpha": 0.88, "pad": 3}
    axes.text(
        0.025 * w, 0.975 * h, plain(text), color="white", fontsize=TEXT - 0.5, va="bottom", bbox=box, clip_on=True
    )
    if prediction is not None and truth is not None:
        axes.plot([0, w, w, 0, 0], [0, 0, h, h, 0], color=colour, linewidth=6, solid_joinstyle="miter")


def curves(history: Sequence[dict], monitor: str | None = None) -> Figure:
    """Return a figure of loss terms, learning rate and metrics over the steps.

    Args:
        history: lines of history.jsonl: steps with `loss`, `losses`, `lr`, evaluations with `valid`.
        monitor: metric to draw thick.
    """
    steps = [line for line in history if "loss" in line]
    evaluations = [line for line in history if "valid" in line]
    keys = list(dict.fromkeys(k for line in evaluations for k, v in line["valid"].items() if not isinstance(v, list)))
    large = [key for key in keys if max(abs(line["valid"].get(key) or 0) for line in evaluations) > 1.5]
    # Decibels would press fractions flat: they get axes of their own.
    scales = [scale for scale in ([key for key in keys if key not in large], large) if scale] or [[]]
    figure = new_figure(8.6 + 4.4 * len(scales), 3.2)
    figure.set_layout_engine("constrained", w_pad=0.08)  # makes room for each legend beside its axes
    loss, rate, *metrics = figure.subplots(1, 2 + len(scales))
    x = [line["step"] for line in steps]
    _lines(loss, x, [("loss", [line["loss"] for line in steps])], smooth=True, bold="loss")
    terms = sorted({term for line in steps for term in line.get("losses", {})})
    if len(terms) > 1:
        offset = [(term, [line.get("losses", {}).get(term) for line in steps]) for term in terms]
        _lines(loss, x, offset, smooth=True, first=1)
    groups = [np.atleast_1d(line.get("lr", np.nan)).astype(float).tolist() for line in steps]
    many = max((len(group) for group in groups), default=1)
    named = [(f"group {i}" if many > 1 else "lr", [g[i] if i < len(g) else None for g in groups]) for i in range(many)]
    _lines(rate, x, named)
    x = [line["step"] for line in evaluations]
    for metric, scale in zip(metrics, scales):
        values = [(key, [line["valid"].get(key) for line in evaluations]) for key in scale]
        _lines(metric, x, values, marker="o", bold=monitor)
    starts = [line["step"] for before, line in zip(steps, steps[1:]) if line.get("fit", 0) != before.get("fit", 0)]
    titles = ["training loss", "learning rate", *["validation metrics"] * len(metrics)]
    for axes, title in zip((loss, rate, *metrics), titles):
        for start in starts:
            axes.axvline(start - 0.5, color="#888888", linestyle="--", linewidth=0.8)
        axes.set_title(title, fontsize=TEXT + 1, loc="left")
        axes.set_xlabel("step", fontsize=TEXT)
        axes.tick_params(labelsize=TEXT - 1)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend(fontsize=TEXT - 2, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.2)
    return figure


def _lines(
    axes: Axes,
    x: Sequence[float],
    named: Sequence[tuple[str, Sequence[float | None]]],
    *,
    smooth: bool = False,
    first: int = 0,
    marker: str | None = None,
    bold: str | None = None,
) -> None:
    palette = ("#222222", *colours(16)) if smooth else colours(max(len(named), 1))
    for i, (name, values) in enumerate(named, start=first):
        y = np.array([np.nan if value is None else value for value in values], dtype=float)
        width = 2.2 if name == bold else 1.1
        style = {"color": palette[i % len(palette)], "linewidth": width, "label": plain(name)}
        if smooth and len(y) > 40:
            axes.plot(x, y, color=style["color"], linewidth=0.6, alpha=0.25)
            y = _running_mean(y, max(3, len(y) // 40))
        axes.plot(x, y, marker=marker if marker else "." if len(y) == 1 else None, markersize=3.5, **style)


def _running_mean(y: np.ndarray, width: int) -> np.ndarray:
    """Return the mean of the finite values in a centred window, shorter at the ends."""
    finite = np.isfinite(y)
    kernel = np.ones(2 * width + 1)
    total = np.convolve(np.where(finite, y, 0), kernel)[width:-width]
    count = np.convolve(finite.astype(float), kernel)[width:-width]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
