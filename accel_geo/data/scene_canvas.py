"""The paper that the built-in scenes are drawn on, and the light that turns it into an aerial picture.

A scene is drawn as three maps, all at twice the final resolution so that edges come out smooth: the colour of each
surface, its height in metres, and what it is. Light comes last and knows only colour and height: slopes are shaded by
their angle to the sun, and whatever stands in front of the sun casts a shadow, so a roof's two sides, a tree's crown
and their shadows always agree.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float] | NDArray
Window = tuple[slice, slice]

GSD = 0.4  # metres on the ground per pixel of the finished chip
OVERSAMPLING = 2
CELL = GSD / OVERSAMPLING  # metres per cell of the canvas

LAND_COVER = {"open": 0, "building": 1, "paved": 2, "tree": 4, "field": 7}  # values on disk, with gaps on purpose


class Scene(NamedTuple):
    """One finished chip and everything that is known about it: any label layout can be written from this.

    Attributes:
        use: what the land is used for, as "residential" or "forest".
        image: uint8 [H, W, 3], red, green, blue.
        cover: uint8 [H, W], a value of LAND_COVER per pixel.
        owner: int32 [H, W], 0 where no building stands, else the building's number, counted from 1.
        buildings: the class name of building 1, 2, ...
    """

    use: str
    image: NDArray
    cover: NDArray
    owner: NDArray
    buildings: list[str]


def smooth_noise(rng: np.random.Generator, size: int, cell: float) -> NDArray:
    """Return [size, size] float32 noise of mean 0 and deviation 1 whose blobs are about `cell` cells wide."""
    count = int(np.ceil(size / cell)) + 4
    nodes = (np.arange(count) - 1.5) * cell + rng.uniform(-0.5, 0.5) * cell
    weights = np.exp(-0.5 * ((np.arange(size)[:, None] - nodes) / (0.6 * cell)) ** 2)
    weights /= np.sqrt((weights**2).sum(1, keepdims=True))  # independent nodes of deviation 1 stay at deviation 1
    return (weights @ rng.standard_normal((count, count)) @ weights.T).astype(np.float32)


class Canvas:
    """Colour, height and meaning of a square piece of ground, in a frame that is turned against north.

    Args:
        rng: where all draws of this scene come from.
        size: the finished chip's side in pixels.
    """

    def __init__(self, rng: np.random.Generator, size: int):
        """Start with bare, flat ground."""
        self.rng = rng
        self.size = size
        self.cells = size * OVERSAMPLING
        self.extent = size * GSD
        self.angle = rng.uniform(0, np.pi)  # of streets, fields and most walls
        shape = (self.cells, self.cells)
        self.colour = np.zeros((*shape, 3), np.float32)
        self.height = np.zeros(shape, np.float32)
        self.cover = np.full(shape, LAND_COVER["open"], np.uint8)
        self.owner = np.zeros(shape, np.int32)
        self.taken = np.zeros(shape, bool)  # where no building and no tree may be put any more
        self.buildings: list[str] = []
        self.grain = smooth_noise(rng, self.cells, 1.2)
        self.mottle = smooth_noise(rng, self.cells, 9) * 0.6 + smooth_noise(rng, self.cells, 4) * 0.4
        self.drift = smooth_noise(rng, self.cells, 50)
        axis = (np.arange(self.cells, dtype=np.float32) + 0.5) * CELL
        self.x, self.y = np.meshgrid(axis, axis)
        self.u, self.v = self._turn(self.x, self.y, self.extent / 2, self.extent / 2, self.angle)

    @property
    def whole(self) -> Window:
        """The window of the whole canvas."""
        return slice(None), slice(None)

    def place(self, u: float, v: float) -> tuple[float, float]:
        """Return the x, y of a point given along and across the scene's frame, (0, 0) being the middle."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        return self.extent / 2 + u * cos - v * sin, self.extent / 2 + u * sin + v * cos

    def local(self, x: float, y: float, angle: float, reach: float) -> tuple[Window, NDArray, NDArray]:
        """Return the window within `reach` metres of x, y, and its coordinates along and across `angle`."""
        first_x, last_x, first_y, last_y = (
            int(np.clip(np.floor(at / CELL), 0, self.cells)) for at in (x - reach, x + reach, y - reach, y + reach)
        )
        window = slice(first_y, last_y), slice(first_x, last_x)
        return window, *self._turn(self.x[window], self.y[window], x, y, angle)

    @staticmethod
    def _turn(x: NDArray, y: NDArray, x0: float, y0: float, angle: float) -> tuple[NDArray, NDArray]:
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        return (x - x0) * cos + (y - y0) * sin, (y - y0) * cos - (x - x0) * sin

    def paint(
        self,
        window: Window,
        where: NDArray,
        colour: Colour,
        cover: str | None = None,
        rough: float = 0.05,
        patchy: float = 0.05,
        blend: float = 1.0,
    ) -> None:
        """Colour the cells `where` of a window.

        Args:
            window: the part of the canvas that `where` covers.
            where: bool, the cells to colour.
            colour: three reflectances, or one colour per cell of the window.
            cover: the land cover this becomes; none leaves it.
            rough: strength of the grain, cell by cell.
            patchy: strength of the stains a few cells wide.
            blend: how much of the new colour; the rest of what was there shines through.
        """
        tone = 1 + rough * self.grain[window] + patchy * self.mottle[window]
        new = np.asarray(colour, np.float32) * tone[..., None]
        old = self.colour[window]
        old[where] = blend * new[where] + (1 - blend) * old[where]
        if cover:
            self.cover[window][where] = LAND_COVER[cover]

    def free(self, window: Window, where: NDArray) -> bool:
        """Tell whether nothing has been put on the cells `where` of a window."""
        return not self.taken[window][where].any()

    def finish(self, use: str) -> Scene:
        """Light the scene, let it pass through air and camera, and return it at its final resolution."""
        pick = slice(OVERSAMPLING // 2, None, OVERSAMPLING)
        image = _photograph(self.rng, self.colour * _daylight(self.rng, self.height), self.size, self.drift)
        return Scene(use, image, self.cover[pick, pick].copy(), self.owner[pick, pick].copy(), list(self.buildings))


def _shift(field: NDArray, rows: int, columns: int) -> NDArray:
    """Return field[i + rows, j + columns], 0 beyond the rim."""
    result = np.zeros_like(field)
    height, width = field.shape
    to_row, from_row = slice(max(0, -rows), height - max(0, rows)), slice(max(0, rows), height - max(0, -rows))
    to_col, from_col = (
        slice(max(0, -columns), width - max(0, columns)),
        slice(max(0, columns), width - max(0, -columns)),
    )
    if abs(rows) < height and abs(columns) < width:
        result[to_row, to_col] = field[from_row, from_col]
    return result


def _daylight(rng: np.random.Generator, height: NDArray) -> NDArray:
    """Return [H, W, 3], how brightly each surface is lit; flat ground in the sun is 1."""
    azimuth = np.pi / 2 + rng.uniform(-1.2, 1.2)  # the sun stands in the south: towards larger y
    elevation = np.deg2rad(rng.uniform(38, 58))
    to_sun = np.cos(azimuth), np.sin(azimuth)  # x, y
    slope_y, slope_x = np.gradient(height, CELL)
    slope_x, slope_y = np.clip(slope_x, -1.1, 1.1), np.clip(slope_y, -1.1, 1.1)  # walls would be infinitely steep
    facing = np.sin(elevation) - np.cos(elevation) * (slope_x * to_sun[0] + slope_y * to_sun[1])
    facing = np.maximum(facing, 0) / np.sqrt(1 + slope_x**2 + slope_y**2) / np.sin(elevation)

    # The height below which a point lies in shadow, found by doubling the distance looked at: 1, 2, 4, ... cells.
    drop = CELL * np.tan(elevation)
    shade = _shift(height, round(to_sun[1]), round(to_sun[0])) - drop
    for power in range(6):
        step = 2**power
        ahead = _shift(shade, round(to_sun[1] * step), round(to_sun[0] * step)) - step * drop
        shade = np.maximum(shade, ahead)
    lit = np.clip(1 - (shade - height) / 0.25, 0, 1)

    sky = np.array([0.34, 0.38, 0.44], np.float32) * rng.uniform(0.85, 1.2)
    return sky + (1 - sky) * (facing * lit)[..., None]


def _photograph(rng: np.random.Generator, light: NDArray, size: int, drift: NDArray) -> NDArray:
    """Return uint8 [size, size, 3] as a camera far above sees it: soft, hazy, with a colour cast and a little noise."""
    from scipy.ndimage import gaussian_filter

    light = gaussian_filter(light, (rng.uniform(0.6, 1.1),) * 2 + (0,))
    image = light.reshape(size, OVERSAMPLING, size, OVERSAMPLING, 3).mean((1, 3))
    veil = rng.uniform(0, 0.28) * (1 + 0.25 * drift.reshape(size, OVERSAMPLING, size, OVERSAMPLING).mean((1, 3)))
    veil = np.clip(veil, 0, 0.5)[..., None]
    image = image * (1 - veil) + veil * np.array([0.66, 0.69, 0.73])
    image = image * rng.uniform(0.78, 1.2) * rng.normal(1, 0.03, 3)
    image = np.clip(image, 0, 1) ** rng.uniform(0.85, 1.15)
    image += rng.normal(0, rng.uniform(0.004, 0.014), image.shape)
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)
