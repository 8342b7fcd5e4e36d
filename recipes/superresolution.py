"""SuperResolution: an image several times finer than the one at hand, from a folder of sharp chips to a published model.

    python recipes/superresolution.py  # the built-in scenes, on whatever is here
    python recipes/superresolution.py --data my_export  # sharp chips, made coarser 4 times; ArcGIS Pro "Export_Tiles"
    python recipes/superresolution.py --data pairs  # the same ground coarse and sharp: low/ and high/
    python recipes/superresolution.py --data my_export --devices 2  # the same run on two processes of this machine
    accelerate launch recipes/superresolution.py --data my_export  # as `accelerate config` says
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/superresolution.py --data my_export
    torchrun --standalone --nproc-per-node 2 recipes/superresolution.py --data my_export
    python recipes/superresolution.py --data my_export --output runs/sharper --resume  # go on after a stop or a crash

The result does not depend on how many processes carry it out: --batch-size is that of all together.

What to look at first, once it runs on your data: the report's pictures, and PSNR beside that of bicubic interpolation;
then --chip-size 192 (random crops of the sharp image), --epochs, and --scale. --architecture unet takes any --backbone;
--architecture sr3 is a diffusion model: sharper to the eye, lower in PSNR, and slow (--ema 0.999, and 100 times the steps);
how it samples can be changed after training, by the model's set_sampling.
"""

from functools import partial

from accel_geo.options import Options, Parser, run

parser = Parser(
    __doc__,
    task="super_resolution",
    epochs=100,
    batch_size=8,
    lr=1e-3,
    # Up over the first quarter of the steps, then down to almost nothing.
    schedule="one_cycle",
    # Only --architecture unet has one; the model takes resnet34.
    backbone=None,
    # A chip of noise-like texture must not throw a network without normalisation far off.
    clip=5.0,
    # The built-in scenes are small: a light network learns them on a laptop within minutes.
    builtin={"epochs": 20, "lr": 2e-3},
)
add = parser.add_argument
add("--architecture", choices=["edsr", "unet", "sr3"], help="of the network (default: edsr; unet with a --backbone)")
add("--scale", type=int, metavar="N", help="how many times finer (default: as the sizes of pairs tell, else 4)")
add("--perceptual-weights", metavar="default|PATH", help="torchvision's vgg16, for a perceptual loss (default: none)")
add("--perceptual-factor", type=float, default=0.1, metavar="X", help="weight of the perceptual loss (default: 0.1)")
add("--noise-schedule", choices=["linear", "cosine"], help="of sr3's noise (default: linear)")
add("--n-timestep", type=int, metavar="N", help="steps of sr3's noise schedule (default: 1000)")
add("--sampling-type", choices=["ddim", "ddpm"], help="of sr3's predictions (default: ddim)")
add("--n-timestep-inference", type=int, metavar="N", help="steps of a prediction of sr3 (default: 50; 5 with --smoke)")


def main(options: Options) -> None:
    """Train, evaluate and publish."""
    import torch

    from accel_geo import SuperResolution, prepare_data

    # Data: recognised and read by its own format, decoded once, split by --val-split or --valid-match;
    # crops, flips and quarter turns in training. Sharp chips alone are made coarser by the mean of pixels.
    data = prepare_data(**options.for_data(), scale=options.scale)

    # Of sr3 alone; what is not given is the model's.
    diffusion = {
        "schedule": options.noise_schedule,
        "n_timestep": options.n_timestep,
        "sampling_type": options.sampling_type,
        "n_timestep_inference": options.n_timestep_inference
        or (5 if options.smoke and options.architecture == "sr3" else None),
    }
    diffusion = {name: value for name, value in diffusion.items() if value is not None}

    # Model: bicubic interpolation, and a network that adds what it lacks; or diffusion conditioned on it.
    model = SuperResolution(
        data,
        architecture=options.architecture,
        perceptual_weights=options.perceptual_weights,
        perceptual_factor=options.perceptual_factor,
        **diffusion,
        **options.for_model(),
    )
    if options.freeze:
        model.freeze()

    # Optimizer: AdamW, fused; its learning rate follows --schedule. Without weight decay, which takes off contrast.
    optimizer = partial(torch.optim.AdamW, weight_decay=0.0, fused=True)

    model.fit(optimizer=optimizer, **options.for_fit())


if __name__ == "__main__":
    run(main, parser)
