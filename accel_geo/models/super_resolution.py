"""SuperResolution: a sharper image of the same ground, by regression (EDSR, U-Net) or by diffusion (SR3)."""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from accel_geo.models.arguments import (
    NAME,
    NOT_NEGATIVE,
    PATH,
    check,
    check_used,
    list_of,
    number,
    one_of,
    or_none,
    whole,
)
from accel_geo.models.base import GeoModel
from accel_geo.nn.backbones import build_backbone, pad_to_multiple, pretrained_state
from accel_geo.nn.diffusion import SCHEDULES, ConditionalUnet, noise_schedule, sample, training_noise
from accel_geo.nn.super_resolution import (
    PerceptualLoss,
    PixelShuffleDecoder,
    ResidualTrunk,
    Upsampler,
    clear_padding,
    enlarge,
    l1_loss,
)
from accel_geo.nn.weights import load_weights
from accel_geo.parallel import keys
from accel_geo.parallel.reduction import Loss

ARCHITECTURES = ("edsr", "unet", "sr3")
SAMPLING = {"ddim": 0.0, "ddpm": 1.0}  # how much new noise each step draws
# by architecture and size: channels, residual blocks, and SR3's multiples of the channels
WIDTHS = {
    "edsr": {"full": (64, 16, ()), "small": (32, 8, ())},
    "unet": {"full": (64, 0, ()), "small": (32, 0, ())},
    "sr3": {"full": (64, 3, (1, 2, 4, 4, 8, 8)), "small": (32, 1, (1, 2, 2, 4))},
}
# arguments of "sr3" alone
DIFFUSION = ("channel_mults", "attn_res", "norm_groups", "dropout", "schedule", "n_timestep", "linear_start", "linear_end",
             "sampling_type", "n_timestep_inference", "sampling_seed")  # fmt: skip
CHANGEABLE = DIFFUSION[-3:]  # after training
PERCEPTUAL_FACTOR = 0.1
NOISE = number("a number above 0, below 1", lambda x: 0 < x < 1)
MAX_STRIDE = {"full": 16, "small": 8}  # of the U-Net's encoder, which sees the coarse image


class SuperResolution(GeoModel):
    """Makes an image `spec.scale` times finer. All architectures start from its bicubic interpolation.

    "edsr" (Lim et al. 2017: residual blocks without batch normalisation) and "unet" (an encoder of any kind, a decoder
    with PixelShuffle) work on the coarse image, and PixelShuffle upsamplers (Shi et al. 2016) make the difference
    between the fine image and the interpolated one, zero before training; L1 loss, and a perceptual one where VGG
    weights are given (Johnson et al. 2016). "sr3" (Saharia et al. 2021) takes noise off an image, conditioned on the
    interpolated one: sharper to the eye, lower in PSNR, and as many times slower as it takes steps. How it takes them may
    be changed after training, see `set_sampling`.

    Without arguments it is EDSR, where arcgis.learn has a U-Net on resnet34: that is `backbone="resnet34"` here.

    Args:
        data: the data, or their DataSpec, whose `scale` (prepare_data's `scale`, or `downsample_factor`) is learned.
        architecture: one of ARCHITECTURES; None: "unet" where a backbone is given, "sr3" for `backbone="SR3"`, else "edsr".
        backbone: encoder of the U-Net, a torchvision or timm name (see nn/backbones.py); None: resnet34.
        weights: None (random), "default" (the U-Net's pretrained encoder) or a path, see nn/weights.py.
        size: "full", or "small": fewer channels and blocks.
        perceptual_weights: VGG for the perceptual loss: "default" (torchvision's vgg16) or a file of torchvision's vgg16 or
            vgg19; None: L1 alone. This and its weight belong to the training: they are not stored with the model.
        perceptual_factor: weight of the perceptual loss beside L1.
        inner_channel: channels at the finest resolution; None: by size.
        res_blocks: residual blocks (edsr), or those at each resolution (sr3); None: by size.
        channel_mults: multiples of `inner_channel` at each resolution (sr3); None: by size.
        attn_res: self-attention where the feature map of a training chip is about so many pixels wide (sr3).
        norm_groups: groups of group normalisation (sr3).
        dropout: in residual blocks (sr3).
        schedule: of the noise, "linear" or "cosine" (sr3).
        n_timestep: steps of the schedule (sr3).
        linear_start: variance that the first step adds (sr3).
        linear_end: variance that the last step adds (sr3).
        sampling_type: "ddim", or "ddpm" with new noise at each step (sr3).
        n_timestep_inference: steps of a prediction, at most n_timestep (sr3).
        sampling_seed: of the noise of predictions, with the chip's pixels: the same chip gives the same image (sr3).

    Raises:
        ValueError: an unknown or impossible choice, one that has no effect, or weights that do not belong to the network.
        FileNotFoundError: no such weights, or no download of them from here.
    """

    task = "super_resolution"
    rules = {
        **GeoModel.rules,
        "architecture": one_of(*ARCHITECTURES),
        "backbone": or_none(NAME),
        "inner_channel": or_none(whole(1)),
        "res_blocks": or_none(whole(0)),
        "channel_mults": or_none(list_of(whole(1), "a list of whole numbers of at least 1")),
        "attn_res": list_of(whole(1), "one or a list of whole numbers of at least 1"),
        "norm_groups": whole(1),
        "dropout": number("a number of at least 0, below 1", lambda x: 0 <= x < 1),
        "schedule": one_of(*SCHEDULES),
        "n_timestep": whole(1),
        "linear_start": NOISE,
        "linear_end": NOISE,
        "sampling_type": one_of(*SAMPLING),
        "n_timestep_inference": whole(1),
        "sampling_seed": whole(0),
    }
    perceptual_rules = {"perceptual_weights": or_none(PATH), "perceptual_factor": NOT_NEGATIVE}
    weights_need = ("schedule", "n_timestep", "linear_start", "linear_end")

    def __init__(
        self,
        data: object,
        *,
        architecture: str | None = None,
        backbone: str | None = None,
        weights: str | None = None,
        size: str = "full",
        perceptual_weights: str | None = None,
        perceptual_factor: float = PERCEPTUAL_FACTOR,
        inner_channel: int | None = None,
        res_blocks: int | None = None,
        channel_mults: Sequence[int] | None = None,
        attn_res: int | Sequence[int] = (16,),
        norm_groups: int = 32,
        dropout: float = 0.0,
        schedule: str = "linear",
        n_timestep: int = 1000,
        linear_start: float = 1e-6,
        linear_end: float = 1e-2,
        sampling_type: str = "ddim",
        n_timestep_inference: int = 50,
        sampling_seed: int = 0,
    ) -> None:
        if backbone == "SR3":  # as arcgis.learn has it
            architecture, backbone = "sr3" if architecture is None else architecture, None
        if architecture is None:
            architecture = "edsr" if backbone is None else "unet"
        if backbone is None and architecture == "unet":
            backbone = "resnet34"
        super().__init__(
            data,
            architecture=architecture,
            backbone=backbone,
            size=size,
            inner_channel=inner_channel,
            res_blocks=res_blocks,
            channel_mults=channel_mults,
            attn_res=[attn_res] if isinstance(attn_res, int) else attn_res,
            norm_groups=norm_groups,
            dropout=dropout,
            schedule=schedule,
            n_timestep=n_timestep,
            linear_start=linear_start,
            linear_end=linear_end,
            sampling_type=sampling_type,
            n_timestep_inference=n_timestep_inference,
            sampling_seed=sampling_seed,
        )
        perceptual = {"perceptual_weights": perceptual_weights, "perceptual_factor": perceptual_factor}
        check(perceptual, self.perceptual_rules)
        if backbone is not None and architecture != "unet":
            raise ValueError(f"backbone={backbone!r} is for architecture='unet'; {architecture!r} has none to choose")
        if perceptual_weights is not None and architecture == "sr3":
            raise ValueError("perceptual_weights is for 'edsr' and 'unet'; 'sr3' learns noise, not an image")
        needs = dict.fromkeys(DIFFUSION, (architecture == "sr3", "architecture='sr3'"))
        if architecture == "sr3":
            needs |= dict.fromkeys(("linear_start", "linear_end"), (schedule == "linear", "schedule='linear'"))
        needs["res_blocks"] = (architecture != "unet", "architecture='edsr' or 'sr3'")
        check_used(self, needs)
        if perceptual_weights is None and perceptual_factor != PERCEPTUAL_FACTOR:
            raise ValueError(
                f"perceptual_factor={perceptual_factor} has no effect without perceptual_weights; give both"
            )
        chosen = (self.arguments[name] for name in ("inner_channel", "res_blocks", "channel_mults"))
        usual = WIDTHS[architecture][size]
        width, blocks, multiples = (mine if given is None else given for given, mine in zip(chosen, usual))
        if blocks < 1 and architecture != "unet":
            raise ValueError(f"res_blocks={blocks}: a whole number of at least 1 for architecture={architecture!r}")
        self.architecture, self.scale = architecture, self.spec.scale
        self.shares = noise_schedule(schedule, n_timestep, linear_start, linear_end)
        bands = len(self.spec.bands)
        self.perceptual_factor, self.perceptual = perceptual_factor, None
        if perceptual_weights is not None:
            self.perceptual = PerceptualLoss(perceptual_weights, self.spec.bands)
            self.training_only = perceptual | {"perceptual_weights": f"VGG {self.perceptual.digest}"}
        if architecture == "sr3":
            fine = max(self.spec.chip_size) * self.scale
            attention = {round(math.log2(max(fine / side, 1))) for side in self.arguments["attn_res"]}
            self.denoiser = ConditionalUnet(bands, width, multiples, attention, blocks, norm_groups, dropout)
        else:
            if architecture == "edsr":
                self.backbone = ResidualTrunk(bands, width, blocks)
            else:
                self.backbone = build_backbone(backbone, bands, max_stride=MAX_STRIDE[size])
                self.decoder = PixelShuffleDecoder(bands, self.backbone.channels, self.backbone.strides, width)
            self.head = Upsampler(width, bands, self.scale)
        if weights is not None:
            load_weights(
                self,
                weights,
                backbone=self.denoiser if architecture == "sr3" else self.backbone,
                heads=("head.",),
                bands=self.spec.bands,
                classes=self.spec.classes,
                default=lambda: _published(architecture, backbone),
            )

    def set_sampling(self, **changed: str | int) -> None:
        """Change how predictions are sampled (sr3): `sampling_type`, `n_timestep_inference`, `sampling_seed`.

        What is changed is stored by `save` like any argument.

        Raises:
            ValueError: there is no such choice, or the network is no diffusion model.
        """
        if self.architecture != "sr3" or not set(changed) <= set(CHANGEABLE):
            raise ValueError(
                f"set_sampling({', '.join(changed)}): it takes {', '.join(CHANGEABLE)}, for architecture='sr3'"
            )
        check(changed, self.rules)
        self.arguments |= changed

    def backbone_modules(self) -> list[nn.Module]:
        """Return what `freeze` freezes: the U-Net's encoder, or EDSR's trunk, to train its upsampler for another scale.

        Raises:
            ValueError: SR3 has no such part.
        """
        if self.architecture == "sr3":
            raise ValueError("architecture='sr3' has no backbone to freeze: it is one network; train without freezing")
        return [self.backbone]

    def loss_counts(self, targets: list[dict]) -> dict[str, float]:
        """Return the count of each loss term."""
        pixels = float(sum(int((~target["ignored_hr"]).sum()) for target in targets))
        if self.architecture == "sr3":
            return {"noise": pixels * len(self.spec.bands)}
        counts = {"l1": pixels * len(self.spec.bands)}
        return counts | ({"perceptual": pixels} if self.perceptual else {})

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        """Make images [B, C, H, W] finer.

        Args:
            images: scaled as the DataSpec says, padded on the right and below.
            targets: needed in training: `image_hr` float [C, s H, s W], `ignored_hr` bool [s H, s W], `size`, `key`.

        Returns:
            In training the loss terms, of values in standard deviations; in evaluation per image
            {"image_hr": [C, s H, s W]}.
        """
        if not self.training:
            coarse = self.normalize(images)
            enlarged = enlarge(coarse, self.scale)
            made = self._sampled(images, enlarged) if self.architecture == "sr3" else self._made(coarse, enlarged)
            return [{"image_hr": image} for image in made * self.pixel_std + self.pixel_mean]
        sizes = [target["size"] for target in targets]
        coarse = clear_padding(self.normalize(images), sizes)
        enlarged = enlarge(coarse, self.scale, sizes)
        ignored = torch.stack([target["ignored_hr"] for target in targets]).to(images.device)
        truth = self.normalize(torch.stack([target["image_hr"] for target in targets]).to(images))
        if self.architecture == "sr3":
            return {
                "noise": self._noise_loss(enlarged, torch.where(ignored[:, None], enlarged, truth), ignored, targets)
            }
        made = self._made(coarse, enlarged)
        losses = {"l1": l1_loss(made, truth, ignored)}
        if self.perceptual is not None:
            total, count = self.perceptual(made, truth, ignored)
            losses["perceptual"] = Loss(total * self.perceptual_factor, count)
        return losses

    def _made(self, coarse: Tensor, enlarged: Tensor) -> Tensor:
        if self.architecture == "edsr":
            features = self.backbone(coarse)
        else:
            features = self.decoder(coarse, self.backbone(pad_to_multiple(coarse, self.backbone.strides[-1])))
        return enlarged + self.head(features)

    def _noise_loss(self, enlarged: Tensor, truth: Tensor, ignored: Tensor, targets: list[dict]) -> Loss:
        noise, levels = torch.zeros_like(truth), []
        for into, target in zip(noise, targets):
            h, w = (self.scale * side for side in target["size"])  # the valid part: padding draws nothing
            level, drawn = training_noise(self.shares, (len(into), h, w), target["key"])
            into[:, :h, :w] = drawn.to(into)
            levels.append(level)
        levels = truth.new_tensor(levels)
        level = levels.view(-1, 1, 1, 1)
        noisy = level * truth + (1 - level.square()).sqrt() * noise
        generators = [keys.generator(target["key"], "dropout") for target in targets]
        return l1_loss(self.denoiser(enlarged, noisy, levels, generators), noise, ignored)

    def _sampled(self, images: Tensor, enlarged: Tensor) -> Tensor:
        kind, steps, seed = (self.arguments[name] for name in CHANGEABLE)
        generators = [keys.generator(seed, _content(image), "sampling") for image in images]
        limits = tuple(self.normalize(torch.full_like(self.pixel_mean, value)) for value in (0.0, 1.0))
        return sample(
            self.denoiser,
            enlarged,
            self.shares,
            steps=steps,
            eta=SAMPLING[kind],
            limits=limits,
            generators=generators,
        )


def _content(image: Tensor) -> str:
    return hashlib.blake2b(image.detach().float().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def _published(architecture: str, backbone: str | None) -> dict[str, Tensor]:
    if architecture != "unet":
        raise FileNotFoundError(
            f"there are no published weights for architecture={architecture!r}: give the folder of a model that was "
            "trained before (weights=PATH), or none; architecture='unet' has pretrained encoders"
        )
    return pretrained_state(backbone)
