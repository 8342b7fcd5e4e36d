"""What the built-in scenes show: one function per land use, drawn from the things of scene_things.py.

`draw("residential", seed, index, size)` is a pure function of its arguments.
"""

from collections.abc import Callable

import numpy as np

from ..parallel import keys
from .scene_canvas import Canvas, Scene
from .scene_things import BUILDINGS, building, car, green, ground, road, rows, slab, surface, tree


def draw(use: str, seed: int, index: int, size: int) -> Scene:
    """Draw one scene.

    Args:
        use: the land use, one of USES.
        seed: the seed of the whole set.
        index: the scene's number in the set.
        size: the side in pixels of 0.4 m.
    """
    canvas = Canvas(np.random.default_rng(keys.fold("scene", seed, index)), size)
    USES[use](canvas)
    return canvas.finish(use)


def _somewhere(canvas: Canvas, margin: float = 2.0) -> tuple[float, float]:
    return tuple(canvas.rng.uniform(margin, canvas.extent - margin, 2))


def _heading(canvas: Canvas, spread: float = 0.06) -> float:
    """A wall's angle: along or across the scene's frame, roughly."""
    return canvas.angle + canvas.rng.integers(2) * np.pi / 2 + canvas.rng.normal(0, spread)


def _build(canvas: Canvas, kind: str, count: int, tries: int = 24, spread: float = 0.06) -> int:
    """Put up to `count` buildings wherever there is room; returns how many stand."""
    built = 0
    fill = min(1.0, 0.022 * canvas.extent + 0.25)
    for _ in range(tries * count):
        if built == count:
            break
        built += building(canvas, kind, *_somewhere(canvas, 5), _heading(canvas, spread), fill)
    return built


def _plant(canvas: Canvas, count: int, radius: tuple[float, float], colour: np.ndarray | None = None) -> None:
    rng = canvas.rng
    for _ in range(round(count * (canvas.extent / 51.2) ** 2)):
        leaves = (green(rng) * 0.85 if colour is None else colour) * rng.uniform(0.8, 1.15)
        tree(canvas, *_somewhere(canvas, -1), rng.uniform(*radius), leaves)


def _litter(canvas: Canvas, count: int) -> None:
    """Flat rectangles in the colours and sizes of roofs, so that neither gives a building away."""
    rng = canvas.rng
    for _ in range(rng.integers(count + 1)):
        x, y = _somewhere(canvas, 4)
        length, width = rng.uniform(8, 18), rng.uniform(6, 11)
        window, u, v = canvas.local(x, y, 0.0, length / 2)
        if canvas.free(window, np.ones_like(u, bool)):
            slab(canvas, x, y, _heading(canvas), length, width, surface(rng), lines=rng.random() < 0.4)


def _parking(canvas: Canvas) -> None:
    rng = canvas.rng
    x, y = _somewhere(canvas, 8)
    angle, bays = _heading(canvas, 0), int(rng.integers(3, 8))
    window, u, v = canvas.local(x, y, angle, bays * 1.5)
    lot = (np.abs(u) < bays * 1.35) & (np.abs(v) < 2.7)
    if not canvas.free(window, lot):
        return
    slab(canvas, x, y, angle, bays * 2.7, 5.4, surface(rng))
    canvas.paint(window, lot & (np.mod(u + bays * 1.35, 2.7) < 0.18), (0.78, 0.78, 0.75), blend=0.7)
    for bay in range(bays):
        if rng.random() < 0.65:
            at = (bay + 0.5) * 2.7 - bays * 1.35
            car(canvas, x + at * np.cos(angle), y + at * np.sin(angle), angle + np.pi / 2 + np.pi * rng.integers(2))
    canvas.taken[window] |= lot


def _traffic(canvas: Canvas, offset: float, count: int) -> None:
    rng = canvas.rng
    for _ in range(rng.integers(count + 1)):
        lane = rng.choice([-1.5, 1.5])
        car(
            canvas,
            *canvas.place(rng.uniform(-0.6, 0.6) * canvas.extent, offset + lane),
            canvas.angle + np.pi * (lane > 0),
        )


def residential(canvas: Canvas) -> None:
    """A street with houses on both sides, gardens, drives and hedges."""
    rng = canvas.rng
    ground(canvas, green(rng), green(rng), rng.uniform(0.2, 0.6))
    offset, width = rng.uniform(-0.2, 0.2) * canvas.extent, rng.uniform(5.5, 7)
    _litter(canvas, 2)
    road(canvas, offset, width, rng.uniform(0, 0.5))
    if rng.random() < 0.3:
        road(canvas, rng.choice([-1, 1]) * 0.35 * canvas.extent, width, across=True)
    fill = min(1.0, 0.022 * canvas.extent + 0.25)
    for side in (-1, 1):
        at = -0.5 * canvas.extent + rng.uniform(4, 10) * fill
        back = width / 2 + rng.uniform(7.5, 10.5) * fill
        while at < 0.5 * canvas.extent:
            x, y = canvas.place(at, offset + side * back + rng.normal(0, 0.6))
            kind = rng.choice(BUILDINGS, p=[0.92, 0.05, 0.03])
            gable = np.pi / 2 * (rng.random() < 0.35)
            if rng.random() < 0.88 and building(canvas, kind, x, y, canvas.angle + gable + rng.normal(0, 0.04), fill):
                drive = canvas.place(at + rng.choice([-1, 1]) * 6.2 * fill, offset + side * (width / 2 + 3.6))
                slab(canvas, *drive, canvas.angle, 2.8, 7, surface(rng))
                if rng.random() < 0.6:
                    car(canvas, *drive, canvas.angle + np.pi / 2 * side)
            at += rng.uniform(13, 18) * fill
    _build(canvas, "house", int(rng.integers(0, 3)))
    _traffic(canvas, offset, 3)
    _plant(canvas, int(rng.integers(8, 26)), (1.0, 3.0))


def industrial(canvas: Canvas) -> None:
    """Halls on paved yards, with parked cars, lorries and containers."""
    rng = canvas.rng
    ground(canvas, surface(rng), surface(rng) if rng.random() < 0.6 else green(rng), rng.uniform(0.2, 0.7))
    offset = rng.choice([-1, 1]) * rng.uniform(0.25, 0.45) * canvas.extent
    _litter(canvas, 3)
    if rng.random() < 0.75:
        road(canvas, offset, rng.uniform(6, 8))
        _traffic(canvas, offset, 2)
    _build(canvas, "hall", int(rng.integers(2, 5)), spread=0.03)
    if rng.random() < 0.3:
        _build(canvas, "house", 1)
    for _ in range(3):
        _parking(canvas)
    for _ in range(rng.integers(1, 7)):
        x, y = _somewhere(canvas)
        window, u, v = canvas.local(x, y, 0.0, 4)
        if canvas.free(window, np.ones_like(u, bool)):
            car(canvas, x, y, _heading(canvas), long=rng.uniform(6, 9))
    _plant(canvas, int(rng.integers(2, 12)), (1.0, 2.8))


def horticulture(canvas: Canvas) -> None:
    """Glasshouses between open beds."""
    rng = canvas.rng
    ground(canvas, green(rng), surface(rng), rng.uniform(0.2, 0.8))
    if rng.random() < 0.7:
        road(
            canvas,
            rng.choice([-1, 1]) * rng.uniform(0.2, 0.45) * canvas.extent,
            rng.uniform(3.5, 5.5),
            dirt=rng.random() < 0.6,
        )
    _litter(canvas, 2)
    _build(canvas, "glasshouse", int(rng.integers(2, 5)), spread=0.03)
    if rng.random() < 0.3:
        _build(canvas, rng.choice(["house", "hall"]), 1)
    for _ in range(rng.integers(1, 5)):
        at_u, at_v = rng.uniform(-0.5, 0.5, 2) * canvas.extent
        bed = (
            (np.abs(canvas.u - at_u) < rng.uniform(4, 12))
            & (np.abs(canvas.v - at_v) < rng.uniform(3, 7))
            & ~canvas.taken
        )
        rows(
            canvas, bed, canvas.angle + np.pi / 2 * rng.integers(2), rng.uniform(1.2, 3), surface(rng), green(rng), 0.25
        )
    _plant(canvas, int(rng.integers(1, 10)), (0.9, 2.6))


def farmland(canvas: Canvas) -> None:
    """Two to four fields in rows, a track, sometimes a farm."""
    rng = canvas.rng
    ground(canvas, green(rng), surface(rng), rng.uniform(0.1, 0.4))
    cuts = np.sort(rng.uniform(-0.45, 0.45, 3)) * canvas.extent
    strip = np.digitize(canvas.v + 0.1 * canvas.u * rng.normal(), cuts[: rng.integers(1, 4)])
    for number in range(strip.max() + 1):
        first, second = (surface(rng), green(rng)) if rng.random() < 0.7 else (surface(rng), surface(rng))
        heading = canvas.angle + (np.pi / 2 if rng.random() < 0.25 else 0) + rng.normal(0, 0.05)
        rows(canvas, strip == number, heading, rng.uniform(1, 3.2), first, second, rng.uniform(0, 0.3))
    _litter(canvas, 2)
    if rng.random() < 0.75:
        road(canvas, float(cuts[0]), rng.uniform(3, 4.5), rng.uniform(0, 0.8), dirt=rng.random() < 0.7)
    if rng.random() < 0.4:
        _build(canvas, "house", 1)
        _build(canvas, rng.choice(["hall", "glasshouse"]), 1)
    _plant(canvas, int(rng.integers(0, 8)), (1.0, 3.2))


def orchard(canvas: Canvas) -> None:
    """Fruit trees in a grid."""
    rng = canvas.rng
    ground(canvas, green(rng), surface(rng), rng.uniform(0.1, 0.6))
    if rng.random() < 0.5:
        road(canvas, rng.uniform(-0.4, 0.4) * canvas.extent, rng.uniform(3, 4), dirt=True)
    if rng.random() < 0.35:
        _build(canvas, rng.choice(BUILDINGS, p=[0.6, 0.2, 0.2]), 1)
    _litter(canvas, 1)
    step_u, step_v = rng.uniform(3.4, 5), rng.uniform(4, 6)
    leaves, radius = green(rng) * 0.85, rng.uniform(1.1, 1.8)
    reach = 0.75 * canvas.extent
    for at_u in np.arange(-reach, reach, step_u):
        for at_v in np.arange(-reach, reach, step_v):
            if rng.random() < 0.94:
                x, y = canvas.place(at_u + rng.normal(0, 0.15), at_v + rng.normal(0, 0.15))
                tree(canvas, x, y, radius * rng.uniform(0.8, 1.15), leaves * rng.uniform(0.88, 1.1), tall=0.6)


def forest(canvas: Canvas) -> None:
    """Trees of all sizes, a track, a clearing, seldom a house."""
    rng = canvas.rng
    ground(canvas, green(rng) * 0.8, surface(rng) * 0.8, rng.uniform(0.1, 0.5))
    if rng.random() < 0.5:
        road(
            canvas,
            rng.uniform(-0.4, 0.4) * canvas.extent,
            rng.uniform(3, 4.5),
            rng.uniform(0, 1.5),
            dirt=rng.random() < 0.6,
        )
    if rng.random() < 0.2:
        _build(canvas, "house", 1)
    _litter(canvas, 1)
    x, y = _somewhere(canvas)
    window, u, v = canvas.local(x, y, 0.0, rng.uniform(4, 9))
    clearing = np.hypot(u, v) < 5
    kept = canvas.taken[window] & clearing
    canvas.taken[window] |= clearing
    _plant(canvas, int(rng.integers(110, 190)), (1.3, 3.6))
    canvas.taken[window] &= ~clearing | kept
    _plant(canvas, 10, (0.6, 1.2))


USES: dict[str, Callable[[Canvas], None]] = {
    "residential": residential,
    "industrial": industrial,
    "horticulture": horticulture,
    "farmland": farmland,
    "orchard": orchard,
    "forest": forest,
}
