"""Parts of networks that make images finer: interpolation, trunks, PixelShuffle upsamplers, losses over valid pixels."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_geo.nn.backbones import extend_stem, pretrained_state
from accel_geo.nn.weights import made_for_caffe, read_weights
from accel_geo.parallel.reduction import Loss

Size = tuple[int, int]

WIDE = 256  # channels from which residual blocks are damped (Lim et al. 2017, section 3.3)


def enlarge(images: Tensor, scale: int, sizes: Sequence[Size] | None = None) -> Tensor:
    """Enlarge images [B, C, H, W] by bicubic interpolation (Keys 1981, a = -0.5), pixel areas aligned.

    Args:
        images: padded on the right and below, or not.
        scale: how many times.
        sizes: valid (H, W) of each image, whose edge then is the image's; around it the result is 0. None: all is valid.
    """
    if scale == 1:
        return images
    if sizes is None or _is_whole(images, sizes):
        # without antialias torch takes a = -0.75; otherwise the two are the same where an image grows
        return F.interpolate(images, scale_factor=scale, mode="bicubic", antialias=True)
    height, width = images.shape[-2:]
    enlarged = images.new_zeros(*images.shape[:2], scale * height, scale * width)
    for image, (h, w), into in zip(images, sizes, enlarged):
        into[:, : scale * h, : scale * w] = enlarge(image[None, :, :h, :w], scale)[0]
    return enlarged


def clear_padding(images: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Return images [B, C, H, W] that are 0 outside the valid (H, W) of each, as convolutions see what lies around."""
    if _is_whole(images, sizes):
        return images
    valid = torch.zeros_like(images, dtype=torch.bool)
    for mask, (h, w) in zip(valid, sizes):
        mask[:, :h, :w] = True
    return images.masked_fill(~valid, 0)


def _is_whole(images: Tensor, sizes: Sequence[Size]) -> bool:
    return all(tuple(size) == tuple(images.shape[-2:]) for size in sizes)


class ResidualTrunk(nn.Module):
    """The trunk of EDSR (Lim et al. 2017): residual blocks without batch normalisation, and a connection over them all.

    Args:
        bands: of the image.
        channels: of all feature maps; blocks of 256 or more are damped by 0.1.
        blocks: residual blocks.
    """

    input_convs = ("head",)

    def __init__(self, bands: int, channels: int, blocks: int) -> None:
        super().__init__()
        damping = 0.1 if channels >= WIDE else 1.0
        self.head = _conv(bands, channels)
        self.body = nn.Sequential(*(ResidualBlock(channels, damping) for _ in range(blocks)), _conv(channels, channels))
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Return features [B, channels, H, W] of images [B, bands, H, W]."""
        x = self.head(x)
        return x + self.body(x)


class ResidualBlock(nn.Module):
    """Two convolutions with a ReLU between them, damped and added to what came in."""

    def __init__(self, channels: int, damping: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(channels, channels), nn.ReLU(inplace=True), _conv(channels, channels))
        self.damping = damping

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        return x + self.damping * self.body(x)


class Upsampler(nn.Sequential):
    """Features to an image that is `scale` times finer, by sub-pixel convolutions (Shi et al. 2016).

    One convolution and one PixelShuffle for each prime factor of the scale, then one convolution to the bands, which
    begins at zero: what is added to an interpolated image changes nothing at first.

    Args:
        channels: of the features.
        bands: of the image.
        scale: 1, 2, 3, 4, 8 or any other whole number.
    """

    def __init__(self, channels: int, bands: int, scale: int) -> None:
        layers = []
        for factor in _prime_factors(scale):
            layers += [_conv(channels, channels * factor**2), nn.PixelShuffle(factor)]
        last = _conv(channels, bands)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        super().__init__(*layers, last)


class PixelShuffleDecoder(nn.Module):
    """A U-Net decoder to the image's own resolution: PixelShuffle doubles it, the encoder's maps and the image join in.

    Without batch normalisation, which takes from an image the contrast that it is to keep.

    Args:
        bands: of the image.
        channels: of the encoder's feature maps, finest first.
        strides: of the encoder's feature maps.
        width: channels of the result; coarser maps have up to four times as many.
    """

    def __init__(self, bands: int, channels: Sequence[int], strides: Sequence[int], width: int) -> None:
        super().__init__()
        skips = {1: bands, **dict(zip(strides, channels))}
        current, stride = channels[-1], strides[-1]
        self.up, self.join = nn.ModuleList(), nn.ModuleList()
        while stride > 1:
            stride //= 2
            outputs = width * min(stride, 4)
            self.up.append(nn.Sequential(nn.Conv2d(current, 4 * outputs, 1), nn.PixelShuffle(2), nn.ReLU(inplace=True)))
            self.join.append(
                nn.Sequential(
                    _conv(outputs + skips.get(stride, 0), outputs), nn.ReLU(inplace=True), ResidualBlock(outputs)
                )
            )
            current = outputs
        self.strides, self.channels = tuple(strides), width

    def forward(self, image: Tensor, features: list[Tensor]) -> Tensor:
        """Return features [B, width, H, W].

        Args:
            image: [B, bands, H, W].
            features: the encoder's maps of the image, padded to a multiple of the coarsest stride, finest first.
        """
        skips, stride, x = {1: image, **dict(zip(self.strides, features))}, self.strides[-1], features[-1]
        for up, join in zip(self.up, self.join):
            stride, x = stride // 2, up(x)
            if stride in skips:
                skip = skips[stride]
                x = torch.cat([x[..., : skip.shape[-2], : skip.shape[-1]], skip], 1)
            x = join(x)
        return x


def l1_loss(made: Tensor, truth: Tensor, ignored: Tensor) -> Loss:
    """Absolute differences over the pixels that are not ignored.

    Args:
        made: [B, C, H, W].
        truth: [B, C, H, W].
        ignored: bool [B, H, W].

    Returns:
        The sum over pixels and bands, and their number.
    """
    difference = (made - truth).abs().masked_fill(ignored[:, None], 0)
    return Loss(difference.sum(), (~ignored).sum() * made.shape[1])


class PerceptualLoss(nn.Module):
    """Squared distance between VGG features of two images (Johnson et al. 2016), up to the third pooling.

    The weights are constants of a training: they are not trained, and not in a checkpoint.

    Args:
        weights: "default" (torchvision's vgg16, downloaded), or the path of VGG-16 or VGG-19 as torchvision publishes them
            (without batch normalisation), .safetensors, .pth or .pt.
        bands: names of the image's bands; see `extend_stem` for others than red, green and blue.

    Attributes:
        digest: hash of the weights, whatever file they came from.

    Raises:
        FileNotFoundError: no such file, or no download from here.
        ValueError: it holds no such network, or one of Caffe's pixels, whose features mean nothing for images as here.
    """

    BLOCKS = ((0, 2), (5, 7), (10, 12, 14))  # places of the convolutions among torchvision's layers

    def __init__(self, weights: str | Path, bands: tuple[str, ...]) -> None:
        super().__init__()
        tensors = _vgg(weights)
        prefix = next((name[: -len("features.0.weight")] for name in tensors if name.endswith("features.0.weight")), "")
        inputs, digest = 3, hashlib.blake2b(digest_size=8)
        for number, block in enumerate(self.BLOCKS):
            for place in block:
                name, outputs = f"{prefix}features.{place}", 64 * 2**number
                weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
                if weight is None or bias is None or list(weight.shape) != [outputs, inputs, 3, 3]:
                    found = "missing" if weight is None else f"{list(weight.shape)}"
                    raise ValueError(
                        f"{weights}: {name}.weight is {found}, VGG's is {[outputs, inputs, 3, 3]}; perceptual_weights is a "
                        "file of torchvision's vgg16 or vgg19, without batch normalisation"
                    )
                for tensor in (weight, bias):
                    digest.update(tensor.float().contiguous().numpy().tobytes())
                weight = extend_stem(weight, bands) if place == 0 else weight
                self.register_buffer(f"weight{place}", weight.to(torch.get_default_dtype()), persistent=False)
                self.register_buffer(f"bias{place}", bias.to(torch.get_default_dtype()), persistent=False)
                inputs = outputs
        self.digest = digest.hexdigest()

    def features(self, images: Tensor) -> list[Tensor]:
        """Return the maps before each pooling, of strides 1, 2 and 4, of normalised images [B, C, H, W]."""
        maps, x = [], images
        for number, block in enumerate(self.BLOCKS):
            x = F.max_pool2d(x, 2) if number else x
            for place in block:
                x = F.relu(F.conv2d(x, getattr(self, f"weight{place}"), getattr(self, f"bias{place}"), padding=1))
            maps.append(x)
        return maps

    def forward(self, made: Tensor, truth: Tensor, ignored: Tensor) -> Loss:
        """Compare normalised images.

        Args:
            made: [B, C, H, W].
            truth: [B, C, H, W].
            ignored: bool [B, H, W]; there both are taken to be 0.

        Returns:
            The squared differences, averaged over channels and the three maps and each spread over the pixels of its
            cell, summed; and the number of pixels that are not ignored.
        """
        made, truth = (images.masked_fill(ignored[:, None], 0) for images in (made, truth))
        maps = zip(self.features(made), self.features(truth))
        total = sum((a - b).square().sum() * 4.0**level / a.shape[1] for level, (a, b) in enumerate(maps))
        return Loss(total / len(self.BLOCKS), (~ignored).sum())


def _vgg(weights: str | Path) -> dict[str, Tensor]:
    if str(weights) == "default":
        return pretrained_state("vgg16", option="perceptual_weights")
    path = Path(weights)
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such file; perceptual_weights is "default" (torchvision\'s vgg16, downloaded) or a file of '
            "torchvision's vgg16 or vgg19"
        )
    tensors = read_weights(path)
    if made_for_caffe(tensors):
        raise ValueError(
            f"{path} holds a VGG16 inside an edge detector, made for Caffe's pixels (blue, green, red, 0 to 255): its "
            'features do not tell how like two images are. perceptual_weights is "default" (torchvision\'s vgg16, '
            "downloaded) or a file of torchvision's vgg16 or vgg19"
        )
    return tensors


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
