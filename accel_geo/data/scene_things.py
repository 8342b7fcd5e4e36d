"""The things that stand or lie in the built-in scenes: buildings, roads, cars, trees, beds and slabs.

Buildings differ by what they are, never by colour: the colours of roofs, soils and pavements come from one list, so
that a colour alone tells neither a roof from a yard nor a house from a hall. All measures are metres.
"""

import numpy as np
from numpy.typing import NDArray

from .scene_canvas import LAND_COVER, Canvas, Window

SURFACES = np.array(  # reflectances shared by roofs, pavements, bare soil, cars
    [
        (0.58, 0.38, 0.29), (0.50, 0.32, 0.25), (0.46, 0.38, 0.30), (0.58, 0.50, 0.38), (0.64, 0.58, 0.48),
        (0.36, 0.36, 0.37), (0.44, 0.44, 0.45), (0.54, 0.54, 0.53), (0.66, 0.66, 0.64), (0.42, 0.45, 0.40),
    ]
)  # fmt: skip
GREENS = np.array([(0.33, 0.40, 0.22), (0.40, 0.44, 0.25), (0.28, 0.36, 0.21), (0.50, 0.48, 0.30), (0.38, 0.40, 0.28)])
BUILDINGS = ("house", "hall", "glasshouse")


def surface(rng: np.random.Generator) -> NDArray:
    """Draw a colour that a roof, a yard or bare soil may have."""
    return _vary(rng, SURFACES[rng.integers(len(SURFACES))])


def green(rng: np.random.Generator) -> NDArray:
    """Draw a colour of grass or leaves."""
    return _vary(rng, GREENS[rng.integers(len(GREENS))])


def _vary(rng: np.random.Generator, colour: NDArray) -> NDArray:
    return np.clip(colour * rng.uniform(0.85, 1.15) + rng.normal(0, 0.012, 3), 0.05, 0.85)


def _box(u: NDArray, v: NDArray, length: float, width: float) -> NDArray:
    return (np.abs(u) < length / 2) & (np.abs(v) < width / 2)


def ground(canvas: Canvas, first: NDArray, second: NDArray, share: float) -> None:
    """Cover everything with two mixed grounds, `share` of the second, in patches with ragged rims."""
    wild = canvas.drift + 0.5 * canvas.mottle
    amount = np.clip((wild + np.quantile(-wild, share)) * 1.2 + 0.5, 0, 1)[..., None]
    canvas.paint(
        canvas.whole, np.ones_like(canvas.taken), first * (1 - amount) + second * amount, rough=0.08, patchy=0.06
    )


def slab(
    canvas: Canvas, x: float, y: float, angle: float, length: float, width: float, colour: NDArray, lines: bool = False
) -> None:
    """Lay a flat paved rectangle: a yard, a terrace, a court with `lines`."""
    window, u, v = canvas.local(x, y, angle, np.hypot(length, width) / 2)
    inside = _box(u, v, length, width)
    canvas.paint(window, inside, colour, "paved", rough=0.05, patchy=0.07)
    if lines:
        edge = np.maximum(np.abs(u) - length / 2 + 1.4, np.abs(v) - width / 2 + 1.0)
        marks = (
            (np.abs(edge) < 0.16)
            | ((np.abs(u) < 0.14) & (edge < 0))
            | ((np.abs(v) < 0.12) & (edge < 0) & (np.abs(u) < length / 4))
        )
        canvas.paint(window, inside & marks, (0.78, 0.78, 0.75), blend=0.75)


def road(
    canvas: Canvas, offset: float, width: float, bend: float = 0.0, across: bool = False, dirt: bool = False
) -> None:
    """Lead a road through the whole scene, along its frame or across it."""
    rng = canvas.rng
    along, over = (canvas.v, canvas.u) if across else (canvas.u, canvas.v)
    d = np.abs(over - offset - bend * np.sin(along / rng.uniform(9, 16) + rng.uniform(0, 6)))
    half = width / 2
    if dirt:
        track = d < half + 0.25 * canvas.mottle
        canvas.paint(canvas.whole, track, surface(rng), "paved", rough=0.08, patchy=0.12, blend=0.85)
        canvas.paint(canvas.whole, track & (d < half / 3), green(rng), blend=0.6)
    else:
        walk = rng.uniform(0.9, 1.8)
        canvas.paint(canvas.whole, d < half + walk, surface(rng), "paved")
        canvas.paint(canvas.whole, np.abs(d - half) < 0.18, (0.6, 0.6, 0.58))
        canvas.paint(
            canvas.whole,
            d < half,
            SURFACES[5 + rng.integers(3)] * rng.uniform(0.9, 1.1),
            "paved",
            rough=0.04,
            patchy=0.06,
        )
        dashes = (d < 0.13) & (np.mod(along, 5) < 2.5)
        canvas.paint(canvas.whole, dashes | (np.abs(d - half + 0.45) < 0.1), (0.8, 0.8, 0.76), blend=0.8)
        half += walk
    canvas.taken |= d < half + 0.3


def car(canvas: Canvas, x: float, y: float, angle: float, long: float = 4.4) -> None:
    """Park a car, or a lorry or container when `long`."""
    rng = canvas.rng
    wide, tall = (1.8, 1.4) if long < 5.5 else (2.4, 2.5)
    window, u, v = canvas.local(x, y, angle, long / 2 + 1)
    body = _box(u, v, long, wide)
    if canvas.owner[window][body].any():
        return
    paint = surface(rng) if rng.random() < 0.6 else rng.uniform(0.12, 0.75, 3) * 0.5 + rng.choice([0.08, 0.36])
    canvas.paint(window, body, paint)
    if long < 5.5:
        canvas.paint(window, _box(u - 0.9, v, 0.7, wide - 0.3) | _box(u + 1.3, v, 0.5, wide - 0.3), (0.16, 0.18, 0.21))
    canvas.height[window][body] = tall
    canvas.taken[window] |= body


def tree(canvas: Canvas, x: float, y: float, radius: float, colour: NDArray, tall: float | None = None) -> bool:
    """Plant a tree unless its trunk would stand on something; its crown may lean over a roof's edge."""
    rng = canvas.rng
    window, u, v = canvas.local(x, y, 0.0, radius * 1.3)
    distance = np.hypot(u, v)
    if not distance.size or not canvas.free(window, distance < 0.6 * radius):
        return False
    turn = np.arctan2(v, u)
    ragged = 1 + 0.08 * np.sin(3 * turn + rng.uniform(0, 6)) + 0.06 * np.sin(7 * turn + rng.uniform(0, 6))
    part = distance / (radius * ragged)
    crown = part < 1
    dome = np.sqrt(np.maximum(1 - part**2, 0)) * radius * 0.8 + 0.22 * radius * canvas.mottle[window] * (1 - part)
    height = (radius * 0.9 if tall is None else tall) + dome
    crown &= height > canvas.height[window]
    canvas.paint(window, crown, colour, "tree", rough=0.16, patchy=0.08)
    canvas.height[window][crown] = height[crown]
    canvas.taken[window] |= distance < 0.5 * radius
    return True


def rows(
    canvas: Canvas, where: NDArray, angle: float, period: float, first: NDArray, second: NDArray, deep: float
) -> None:
    """Plant or plough the cells `where` in rows `period` metres apart and `deep` metres high."""
    rng = canvas.rng
    across = canvas.x * -np.sin(angle) + canvas.y * np.cos(angle) + 0.12 * canvas.mottle
    wave = 0.5 + 0.5 * np.sin(across * (2 * np.pi / period))
    dense = np.clip(0.75 + 0.25 * canvas.drift + 0.15 * canvas.mottle, 0, 1)
    amount = (wave * dense * rng.uniform(0.6, 1))[..., None]
    canvas.paint(canvas.whole, where, first * (1 - amount) + second * amount, "field", rough=0.07, patchy=0.06)
    canvas.height[where] = (wave * deep)[where]


def building(canvas: Canvas, kind: str, x: float, y: float, angle: float, fill: float = 1.0, gap: float = 1.6) -> bool:
    """Build a house, a hall or a glasshouse unless something is in its way.

    Args:
        canvas: what to build on.
        kind: one of BUILDINGS.
        x: the middle, metres from the left.
        y: the middle, metres from the top.
        angle: of the longer side, radians.
        fill: scales the size, for small scenes.
        gap: metres that stay free around it.
    """
    rng = canvas.rng
    (short_length, long_length), (short_width, long_width) = {
        "house": ((11.5, 15.5), (9, 11.5)), "hall": ((17, 23), (12.5, 16.5)), "glasshouse": ((14, 22), (9.5, 15)),
    }[kind]  # fmt: skip
    length, width = rng.uniform(short_length, long_length) * fill, rng.uniform(short_width, long_width) * fill
    window, u, v = canvas.local(x, y, angle, np.hypot(length, width) / 2 + gap + 4)
    if not canvas.free(window, _box(u, v, length + 2 * gap, width + 2 * gap)):
        return False
    inside = sum(_box(u, v, length, width).flat) * 0.04 / (length * width)
    if inside < (
        0.55 if rng.random() < 0.08 else 0.97
    ):  # mostly whole, as an export with a minimum overlap writes them
        return False
    under = canvas.colour[window][_box(u, v, length + 4, width + 4)].mean(0)
    roof = surface(rng)
    if rng.random() < 0.4:  # the colour of what is around it, a little greyer or stronger
        roof = under + rng.uniform(-0.25, 0.25) * (under.mean() - under)
    draw = {"house": _house, "hall": _hall, "glasshouse": _glasshouse}[kind]
    body = draw(canvas, window, u, v, length, width, roof)
    canvas.buildings.append(kind)
    canvas.owner[window][body] = len(canvas.buildings)
    canvas.cover[window][body] = LAND_COVER["building"]
    canvas.taken[window] |= _box(u, v, length + gap, width + gap) | body
    return True


def _house(
    canvas: Canvas, window: Window, u: NDArray, v: NDArray, length: float, width: float, roof: NDArray
) -> NDArray:
    """A pitched roof: gabled or hipped, a third of them with a wing; a chimney, sometimes panels."""
    rng = canvas.rng
    eave, pitch = rng.uniform(2.8, 5), rng.uniform(0.55, 0.9)
    body, rise = _box(u, v, length, width), width / 2 - np.abs(v)
    if rng.random() < 0.4:
        rise = np.minimum(rise, length / 2 - np.abs(u))
    rise = np.where(body, rise, -1)
    if rng.random() < 0.35:
        wing, side = width * rng.uniform(0.7, 0.9), rng.choice([-1, 1])
        at = side * (length - wing) / 2
        annex = (np.abs(u - at) < wing / 2) & (v > 0) & (v < width / 2 + rng.uniform(2, 3.5))
        rise = np.maximum(rise, np.where(annex, wing / 2 - np.abs(u - at), -1))
        body = body | annex
    canvas.paint(window, body, roof, rough=0.09, patchy=0.05)
    top = rise.max()
    canvas.paint(window, body & (rise > top - 0.3), roof * rng.uniform(0.75, 1.25))
    if rng.random() < 0.2:
        at = u - rng.uniform(-1, 1)
        panels = _box(at, v - width / 4, length * 0.45, width * 0.26)
        canvas.paint(window, panels, (0.16, 0.18, 0.25), patchy=0)
        canvas.paint(window, panels & (np.mod(at, 1.2) < 0.2), (0.4, 0.42, 0.46))
    height = np.where(body, eave + pitch * rise, 0)
    stack = _box(u - rng.uniform(-0.3, 0.3) * length, v - 0.6, 0.9, 0.9)
    canvas.paint(window, stack & body, surface(rng))
    height[stack & body] += 0.9
    canvas.height[window][body] = height[body]
    return body


def _hall(
    canvas: Canvas, window: Window, u: NDArray, v: NDArray, length: float, width: float, roof: NDArray
) -> NDArray:
    """A flat roof with a parapet, seams, a grid of skylights and machines; some have a corner cut out."""
    rng = canvas.rng
    body = _box(u, v, length, width)
    if rng.random() < 0.3:
        body &= ~_box(u - length / 2, v - width / 2, length * rng.uniform(0.5, 0.8), width * rng.uniform(0.5, 0.8))
    canvas.paint(window, body, roof, rough=0.04, patchy=0.08)
    canvas.paint(window, body & (np.mod(u, rng.uniform(2.5, 4.5)) < 0.22), roof * 0.86, patchy=0)
    height = np.full_like(u, rng.uniform(5, 7.5))
    from scipy.ndimage import binary_erosion

    rim = body & ~binary_erosion(body, iterations=3, border_value=1)
    canvas.paint(window, rim, roof * rng.choice([0.72, 1.28]), patchy=0)
    height[rim] += 0.7
    pitch_u, pitch_v = rng.uniform(4, 5.5), rng.uniform(4, 5.5)
    lights = _box(np.mod(u, pitch_u) - pitch_u / 2, np.mod(v, pitch_v) - pitch_v / 2, 1.9, 1.1)
    lights &= _box(u, v, length - 2.4, width - 2.4) & body
    canvas.paint(window, lights, np.full(3, rng.choice([0.28, 0.74])), patchy=0)
    height[lights] += 0.4
    for _ in range(rng.integers(1, 4)):
        at_u, at_v = rng.uniform(-0.36, 0.36) * length, rng.uniform(-0.36, 0.36) * width
        machine = _box(u - at_u, v - at_v, rng.uniform(1.5, 3), rng.uniform(1.3, 2)) & body & ~rim
        canvas.paint(window, machine, surface(rng))
        height[machine] += 1.3
    canvas.height[window][body] = height[body]
    return body


def _glasshouse(
    canvas: Canvas, window: Window, u: NDArray, v: NDArray, length: float, width: float, roof: NDArray
) -> NDArray:
    """Spans side by side, each with a low ridge, bars of frame, and the beds showing through the glass."""
    rng = canvas.rng
    body = _box(u, v, length, width)
    span = width / round(width / rng.uniform(2.6, 3.4))
    phase = np.mod(v + width / 2, span) / span
    beds = np.where(np.abs(phase - 0.5) < 0.28, 1.0, 0.82) + 0.1 * canvas.drift[window]
    canvas.paint(
        window, body, (0.8 * roof + 0.2 * np.array([0.6, 0.66, 0.68])) * beds[..., None], rough=0.05, patchy=0.1
    )
    bar = rng.uniform(1.8, 2.6)
    frame = (
        (np.mod(u, bar) < 0.2) | (np.minimum(phase, 1 - phase) * span < 0.16) | ~_box(u, v, length - 0.6, width - 0.6)
    )
    canvas.paint(window, body & frame, (0.74, 0.76, 0.76), patchy=0, blend=0.6)
    open_ = (
        (np.mod(u + 7 * np.floor((v + width / 2) / span), rng.uniform(5, 9)) < bar * 0.5)
        & (phase > 0.55)
        & (phase < 0.85)
    )
    canvas.paint(window, body & open_, (0.3, 0.33, 0.32), patchy=0, blend=0.6)
    height = rng.uniform(2.8, 3.8) + (1 - np.abs(2 * phase - 1)) * span * 0.3
    canvas.height[window][body] = height[body]
    return body
