"""SingleShotDetector: a box and a class for each object in one pass (Liu et al. 2016), from chips to a published model.

    python recipes/singleshotdetector.py  # the built-in scenes, on whatever is here
    python recipes/singleshotdetector.py --data my_export  # ArcGIS Pro's rectangles (PASCAL VOC, KITTI, COCO, YOLO), or COCO
    python recipes/singleshotdetector.py --data my_export --devices 2  # the same run on two processes of this machine
    accelerate launch recipes/singleshotdetector.py --data my_export  # as `accelerate config` says
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/singleshotdetector.py --data my_export
    torchrun --standalone --nproc-per-node 2 recipes/singleshotdetector.py --data my_export
    python recipes/singleshotdetector.py --data my_export --output runs/roofs --resume  # go on after a stop or a crash

The result does not depend on how many processes carry it out: --batch-size is that of all together.

What to look at first, once it runs on your data: the report's pictures; then --epochs, --backbone (vgg16 is the paper's,
mobilenet_v2 the lightest) and --weights default (pretrained on ImageNet), --size small for objects below about 20 px,
--chip-size (random crops of large chips), and --lr auto (a range test).
"""

from functools import partial

from accel_geo.option_values import between, positive
from accel_geo.options import Options, Parser, run

parser = Parser(
    __doc__,
    task="detection",
    epochs=40,
    batch_size=8,
    lr=1e-3,
    # Up over the first quarter of the steps, then down to almost nothing.
    schedule="one_cycle",
    backbone="resnet34",
    # Early steps from random weights can throw the boxes far off.
    clip=5.0,
    # The built-in scenes are small: light networks learn them on a laptop within minutes.
    builtin={"epochs": 30, "lr": 2e-3, "backbone": "resnet18"},
)
parser.add_argument(
    "--grids",
    type=positive,
    nargs="+",
    metavar="N",
    help="cells of anchors along a chip (default: anchors fitted to the boxes)",
)
parser.add_argument(
    "--zooms", type=between(0), nargs="+", default=[1.0], metavar="X", help="of each anchor (default: 1)"
)
parser.add_argument(
    "--ratios",
    type=between(0),
    nargs="+",
    default=[1.0],
    metavar="R",
    help="width / height of the anchors (default: 1)",
)
parser.add_argument(
    "--focal-loss", action="store_true", help="focal loss instead of the hardest negatives (default: off)"
)


def main(options: Options) -> None:
    """Train, evaluate and publish."""
    import torch

    from accel_geo import SingleShotDetector, prepare_data

    # Data: recognised and read by its own format, decoded once, split by --val-split or --valid-match;
    # crops, flips, quarter turns and colour changes in training.
    data = prepare_data(**options.for_data())

    # Model: the maps of any torchvision or timm backbone, coarser ones behind it, and anchors of the boxes' shapes.
    model = SingleShotDetector(
        data,
        grids=options.grids,
        zooms=options.zooms,
        ratios=[[ratio**0.5, ratio**-0.5] for ratio in options.ratios],
        focal_loss=options.focal_loss,
        **options.for_model(),
    )
    if options.freeze:
        model.freeze()

    # Optimizer: AdamW, fused; its learning rate follows --schedule.
    optimizer = partial(torch.optim.AdamW, weight_decay=0.01, fused=True)

    model.fit(optimizer=optimizer, **options.for_fit())


if __name__ == "__main__":
    run(main, parser)
