"""DeepLab: a class for each pixel (Chen et al. 2017, 2018), from a folder of chips to a published model.

    python recipes/deeplab.py  # the built-in scenes, on whatever is here
    python recipes/deeplab.py --data my_export  # ArcGIS Pro "Classified Tiles", or images/ + masks/
    python recipes/deeplab.py --data my_export --devices 2  # the same run on two processes of this machine
    accelerate launch recipes/deeplab.py --data my_export  # as `accelerate config` says
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/deeplab.py --data my_export
    torchrun --standalone --nproc-per-node 2 recipes/deeplab.py --data my_export
    python recipes/deeplab.py --data my_export --output runs/roofs --resume  # go on after a stop or a crash

The result does not depend on how many processes carry it out: --batch-size is that of all together.

What to look at first, once it runs on your data: the report's pictures; then --epochs, --backbone and --weights default
(pretrained on ImageNet), --chip-size (random crops of large chips), and --lr auto (a range test). Fine outlines: --plus
(DeepLabV3+), and --output-stride 8, which is slower.
"""

from functools import partial

from accel_geo.options import Options, Parser, run

parser = Parser(
    __doc__,
    task="semantic",
    epochs=20,
    batch_size=8,
    # Beside random heads 1e-3 left real roofs at 0.62 IoU after 20 epochs, 2e-3 at 0.66, this at 0.67.
    lr=3e-3,
    # Up over the first quarter of the steps, then down to almost nothing.
    schedule="one_cycle",
    backbone="resnet101",
    # The built-in scenes are small: light networks learn them on a laptop within minutes.
    builtin={"backbone": "resnet18"},
)
add = parser.add_argument
add("--plus", action="store_true", help="DeepLabV3+: refine beside the map of stride 4 (default: off)")
add("--no-aux-loss", action="store_true", help="without the auxiliary head (default: with it)")
add("--output-stride", type=int, choices=[8, 16], default=16, help="of the dilated backbone (default: 16)")
add("--class-balancing", action="store_true", help="weigh classes by their pixels (default: off)")
add("--focal-loss", action="store_true", help="focal loss of each pixel instead of the cross entropy (default: off)")
add("--gamma", type=float, default=2.0, metavar="X", help="of the focal loss (default: 2)")
add("--dice-loss-fraction", type=float, default=0.0, metavar="F", help="share of the Dice loss (default: 0)")
add("--dice-loss-average", choices=["micro", "macro"], default="micro", help="Dice of all, or a mean (default: micro)")


def main(options: Options) -> None:
    """Train, evaluate and publish."""
    import torch

    from accel_geo import DeepLab, prepare_data

    # Data: recognised and read by its own format, decoded once, split by --val-split or --valid-match;
    # crops, flips, quarter turns and colour changes in training.
    data = prepare_data(**options.for_data())

    # Model: a dilated backbone from torchvision or timm, atrous spatial pyramid pooling.
    model = DeepLab(
        data,
        plus=options.plus,
        aux_loss=not options.no_aux_loss,
        output_stride=options.output_stride,
        class_balancing=options.class_balancing,
        focal_loss=options.focal_loss,
        gamma=options.gamma,
        dice_loss_fraction=options.dice_loss_fraction,
        dice_loss_average=options.dice_loss_average,
        **options.for_model(),
    )
    if options.freeze:
        model.freeze()

    # Optimizer: AdamW, fused; its learning rate follows --schedule.
    optimizer = partial(torch.optim.AdamW, weight_decay=0.01, fused=True)

    model.fit(optimizer=optimizer, **options.for_fit())


if __name__ == "__main__":
    run(main, parser)
