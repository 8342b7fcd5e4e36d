"""BDCNEdgeDetector: which pixels lie on an edge (He et al. 2019), from a folder of chips to a published model.

    python recipes/bdcnedgedetector.py  # the built-in scenes, on whatever is here
    python recipes/bdcnedgedetector.py --data my_export  # ArcGIS Pro "Classified Tiles", images/ + edges/, or polygons
    python recipes/bdcnedgedetector.py --data my_export --devices 2  # the same run on two processes of this machine
    accelerate launch recipes/bdcnedgedetector.py --data my_export  # as `accelerate config` says
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/bdcnedgedetector.py --data my_export
    torchrun --standalone --nproc-per-node 2 recipes/bdcnedgedetector.py --data my_export
    python recipes/bdcnedgedetector.py --data my_export --output runs/roofs --resume  # go on after a stop or a crash

The result does not depend on how many processes carry it out: --batch-size is that of all together.

What to look at first, once it runs on your data: the report's pictures; then --weights, default (a backbone pretrained
on ImageNet) or the file of a published HED, whose VGG16 fits; --epochs, --chip-size (random crops of large chips), and
--lr auto (a range test). --balance-over batch where many chips hold no edge at all; --edge-tolerance says within how
many pixels (3) an edge counts as found; --thin predicts lines one pixel wide.
"""

from functools import partial

from accel_geo.options import Options, Parser, run

parser = Parser(
    __doc__,
    task="edges",
    epochs=20,
    batch_size=8,
    lr=1e-4,
    # Up over the first quarter of the steps, then down to almost nothing.
    schedule="one_cycle",
    backbone="vgg16",
    # The built-in scenes are small: a light network learns them on a laptop within minutes.
    builtin={"epochs": 24, "lr": 3e-3, "backbone": "resnet18"},
)
parser.add_argument(
    "--balance-over",
    choices=("image", "batch"),
    default="image",
    help="edges and the rest are balanced in each image, or in the batch (default: image)",
)
parser.add_argument("--thin", action="store_true", help="predict lines one pixel wide (default: off)")


def main(options: Options) -> None:
    """Train, evaluate and publish."""
    import torch

    from accel_geo import BDCNEdgeDetector, prepare_data

    # Data: recognised and read by its own format, decoded once, split by --val-split or --valid-match;
    # crops, flips, quarter turns and colour changes in training.
    data = prepare_data(**options.for_data())

    # Model: two edge maps from each level of a torchvision or timm backbone, trained on what finer and on what coarser
    # levels leave, and the fusion of all.
    model = BDCNEdgeDetector(data, balance_over=options.balance_over, thin=options.thin, **options.for_model())
    if options.freeze:
        model.freeze()

    # Optimizer: AdamW, fused; its learning rate follows --schedule.
    optimizer = partial(torch.optim.AdamW, weight_decay=0.01, fused=True)

    model.fit(optimizer=optimizer, **options.for_fit())


if __name__ == "__main__":
    run(main, parser)
