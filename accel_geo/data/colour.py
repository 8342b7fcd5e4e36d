"""Changes of colour: brightness and contrast of 8-bit RGB, gain, offset and noise of any other bands."""

import torch

from accel_geo.data.spec import DataSpec

NOISE = 0.04  # the most that noise adds to a pixel, in standard deviations of its band


def brightness_contrast(sample: dict, brightness: float, contrast: float) -> dict:
    """Multiply an 8-bit RGB image by a brightness, then spread it around its mean by a contrast; it stays in [0, 1]."""
    image = sample["image"]
    middle = image.mean() * brightness
    # (image * brightness - middle) * contrast + middle, in one pass
    image = torch.add(middle * (1 - contrast), image, alpha=brightness * contrast).clamp_(0, 1)
    return {**sample, "image": blank(image, sample)}


def band_gain(sample: dict, spec: DataSpec, generator: torch.Generator) -> dict:
    """Multiply each band by its own gain (0.9 to 1.1) and shift it by up to 0.1 of its standard deviation."""
    gain, shift = torch.rand((2, len(spec.bands), 1, 1), generator=generator)
    shift = (shift - 0.5) * 0.2 * deviations(spec)
    image = torch.empty(sample["image"].shape)  # rows lie in order again after a turn, which a batch needs anyway
    torch.mul(sample["image"], 0.9 + 0.2 * gain, out=image).add_(shift)
    return {**sample, "image": blank(image, sample)}


def band_noise(sample: dict, spec: DataSpec, generator: torch.Generator) -> dict:
    """Add noise to each pixel, uniform within +-`NOISE` standard deviations of its band, as sensors have it."""
    image = sample["image"]
    n = image.numel()
    # 8 bits a pixel are enough, and eight pixels to a drawn number six times as fast as drawing floats.
    bits = torch.randint(-(2**63), 2**63 - 1, ((n + 7) // 8,), generator=generator).view(torch.int8)[:n]
    noise = bits.view(image.shape) * (deviations(spec) * (NOISE / 128))
    return {**sample, "image": blank(noise.add_(image), sample)}


def deviations(spec: DataSpec) -> torch.Tensor:
    """Return the standard deviation of each band, float32 [C, 1, 1]."""
    return torch.tensor(spec.std, dtype=torch.float32)[:, None, None]


def blank(image: torch.Tensor, sample: dict) -> torch.Tensor:
    """Set an image to 0, in place, where the sample has no data."""
    return image.masked_fill_(sample["missing"], 0) if "missing" in sample else image
