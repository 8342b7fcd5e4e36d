"""Diffusion on images under a condition: noise schedules, keyed noise, a U-Net that tells noise, and sampling.

An image y becomes sqrt(g) y + sqrt(1 - g) noise, where g falls from 1 to nearly 0 over the steps of a schedule. The
network is given the condition, the noisy image and its noise level sqrt(g), and tells the noise (Ho et al. 2020; the
condition and the continuous level as in Saharia et al. 2021).
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.parallel import keys

SCHEDULES = ("linear", "cosine")


def noise_schedule(schedule: str, steps: int, start: float, end: float) -> Tensor:
    """Return the share g of the image's variance after each number of steps.

    Args:
        schedule: "linear" (Ho et al. 2020) or "cosine" (Nichol & Dhariwal 2021).
        steps: T.
        start: variance added by the first step, of the linear schedule.
        end: variance added by the last one.

    Returns:
        float64 [T + 1], from 1 downwards.

    Raises:
        ValueError: another schedule, no steps, or variances outside 0..1.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is not known; it is one of {', '.join(SCHEDULES)}")
    if steps < 1 or not 0 < start <= end < 1:
        raise ValueError(
            f"n_timestep={steps}, linear_start={start}, linear_end={end}: at least 1 step, 0 < linear_start <= "
            "linear_end < 1"
        )
    if schedule == "linear":
        added = torch.linspace(start, end, steps, dtype=torch.float64)
    else:
        time = torch.arange(steps + 1, dtype=torch.float64) / steps
        share = torch.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2
        added = (1 - share[1:] / share[:-1]).clamp(max=0.999)
    return torch.cat([torch.ones(1, dtype=torch.float64), (1 - added).cumprod(0)])


def training_noise(shares: Tensor, shape: Sequence[int], key: int) -> tuple[float, Tensor]:
    """Draw the noise level sqrt(g) of a sample, between two neighbouring steps, and its noise, by the sample's key.

    Args:
        shares: of `noise_schedule`.
        shape: of the noise.
        key: of the sample.

    Returns:
        The level, and float32 noise on the CPU.
    """
    generator = keys.generator(key, "diffusion")
    step = int(torch.randint(1, len(shares), (), generator=generator))
    levels = shares[step - 1 : step + 1].sqrt()
    level = torch.lerp(*levels, torch.rand((), generator=generator, dtype=torch.float64))
    return float(level), torch.randn(*shape, generator=generator)


@torch.no_grad()
def sample(
    noise_of: Callable[[Tensor, Tensor, Tensor], Tensor],
    condition: Tensor,
    shares: Tensor,
    *,
    steps: int,
    eta: float,
    limits: tuple[Tensor, Tensor],
    generators: Sequence[torch.Generator],
) -> Tensor:
    """Sample images under a condition by some of the schedule's steps (Song et al. 2021).

    Args:
        noise_of: the network: (condition, noisy images, levels [B]) to the noise.
        condition: [B, C, H, W], an estimate of the image: a schedule leaves a little of the image in its last step,
            where sampling begins, and the estimate stands for that.
        shares: of `noise_schedule`.
        steps: how many, evenly spread over the schedule's.
        eta: 0 draws the first noise only (DDIM), 1 new noise at each step (DDPM).
        limits: smallest and largest values of an image, broadcast to its shape.
        generators: CPU generator of each image.

    Returns:
        Images of the condition's shape.
    """

    def draw() -> Tensor:
        return torch.stack([torch.randn(condition.shape[1:], generator=g) for g in generators]).to(condition)

    last = len(shares) - 1
    times = torch.linspace(last, 0, min(steps, last) + 1, dtype=torch.float64).round().long()
    at = shares[times].tolist()
    y = math.sqrt(at[0]) * condition + math.sqrt(1 - at[0]) * draw()
    for now, following in pairwise(at):
        levels = condition.new_full((len(condition),), math.sqrt(now))
        noise = noise_of(condition, y, levels).to(y)
        image = (y - math.sqrt(1 - now) * noise) / math.sqrt(now)
        image = torch.minimum(torch.maximum(image, limits[0]), limits[1])
        noise = (y - math.sqrt(now) * image) / math.sqrt(1 - now)
        fresh = eta**2 * (1 - following) / (1 - now) * (1 - now / following)  # variance of new noise
        y = math.sqrt(following) * image + math.sqrt(max(1 - following - fresh, 0.0)) * noise
        if fresh > 0:
            y = y + math.sqrt(fresh) * draw()
    return y


class ConditionalUnet(nn.Module):
    """Tells the noise in an image from the image, its noise level and a condition (Saharia et al. 2021).

    Residual blocks with group normalisation at each resolution, shifted by an embedding of the level; self-attention at
    the coarsest resolution and where `attention` says.

    Args:
        bands: of the image and of the condition.
        width: channels at full resolution.
        multiples: channels at each resolution, as multiples of `width`; each is half as fine as the one before.
        attention: numbers of the resolutions with self-attention, from 0.
        blocks: residual blocks at each resolution.
        groups: of group normalisation, or the most that divide the channels.
        dropout: chance that a value is left out of a block, in training.
    """

    input_convs = ("condition", "noisy")

    def __init__(
        self,
        bands: int,
        width: int,
        multiples: Sequence[int],
        attention: Sequence[int] = (),
        blocks: int = 2,
        groups: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        # one convolution over both, written as two: weights for other bands are told apart
        self.condition = nn.Conv2d(bands, width, 3, padding=1)
        self.noisy = nn.Conv2d(bands, width, 3, padding=1, bias=False)
        self.level = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.width, self.multiple = width, 2 ** (len(multiples) - 1)

        def block(inputs: int, outputs: int, attends: bool) -> _Block:
            return _Block(inputs, outputs, width, groups, attends, dropout)

        current, skips, down, up = width, [width], [], []
        for number, times in enumerate(multiples):
            for _ in range(blocks):
                down.append(block(current, width * times, number in attention))
                current = width * times
                skips.append(current)
            if number + 1 < len(multiples):
                down.append(nn.Conv2d(current, current, 3, stride=2, padding=1))
                skips.append(current)
        self.down = nn.ModuleList(down)
        self.middle = nn.ModuleList([block(current, current, True), block(current, current, False)])
        for number, times in reversed([*enumerate(multiples)]):
            for _ in range(blocks + 1):
                up.append(block(current + skips.pop(), width * times, number in attention))
                current = width * times
            if number:
                up.append(
                    nn.Sequential(
                        nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(current, current, 3, padding=1)
                    )
                )
        self.up = nn.ModuleList(up)
        self.last = nn.Sequential(_norm(groups, current), nn.SiLU(), nn.Conv2d(current, bands, 3, padding=1))
        nn.init.zeros_(self.last[-1].weight)
        nn.init.zeros_(self.last[-1].bias)

    def forward(
        self, condition: Tensor, noisy: Tensor, levels: Tensor, generators: Sequence[torch.Generator] | None = None
    ) -> Tensor:
        """Return the noise [B, bands, H, W].

        Args:
            condition: [B, bands, H, W].
            noisy: [B, bands, H, W].
            levels: noise levels [B], 0 noise alone, 1 no noise.
            generators: CPU generator of each image for dropout, in training.
        """
        height, width = noisy.shape[-2:]
        pad = (0, -width % self.multiple, 0, -height % self.multiple)
        condition, noisy = (F.pad(x, pad, mode="replicate") for x in (condition, noisy))
        level = self.level(_embedding(levels, self.width).to(levels.dtype))
        x = self.condition(condition) + self.noisy(noisy)
        skips = [x]
        for step in self.down:
            x = step(x, level, generators) if isinstance(step, _Block) else step(x)
            skips.append(x)
        for step in self.middle:
            x = step(x, level, generators)
        for step in self.up:
            x = step(torch.cat([x, skips.pop()], 1), level, generators) if isinstance(step, _Block) else step(x)
        return self.last(x)[..., :height, :width]


def _embedding(levels: Tensor, width: int) -> Tensor:
    # sines and cosines of the level at frequencies from 5000 down to about 0.5 (Chen et al. 2021)
    count = (width + 1) // 2
    powers = torch.arange(count, device=levels.device, dtype=levels.dtype) / count
    angles = levels[:, None] * 5000 * 1e-4**powers
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, embedding: int, groups: int, attends: bool, dropout: float) -> None:
        super().__init__()
        self.first = nn.Sequential(_norm(groups, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.shift = nn.Linear(embedding, outputs)
        self.norm = _norm(groups, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = _Attention(outputs, groups) if attends else nn.Identity()
        self.dropout = dropout

    def forward(self, x: Tensor, level: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        y = self.first(x)
        y = y + self.shift(level)[..., None, None]
        y = F.silu(self.norm(y))
        if self.training and self.dropout and generators:
            y = keyed_dropout(y, self.dropout, generators)
        return self.attention(self.skip(x) + self.second(y))


class _Attention(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = _norm(groups, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.project = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).mT.chunk(3, -1)
        found = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.project(found.mT.reshape(x.shape))


def keyed_dropout(x: Tensor, chance: float, generators: Sequence[torch.Generator]) -> Tensor:
    """Leave values of [B, ...] out at random, by the CPU generator of each sample, and scale up the others."""
    kept = torch.stack([torch.rand(x.shape[1:], generator=g) >= chance for g in generators])
    return x * kept.to(x.device) / (1 - chance)


def _norm(groups: int, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(groups, channels), channels)
