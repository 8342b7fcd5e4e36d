"""FeatureClassifier: one label, or several, for each chip; from a folder of chips to a published model.

    python recipes/featureclassifier.py  # the built-in scenes, on whatever is here
    python recipes/featureclassifier.py --data my_export  # ArcGIS Pro "ImageNet", or a folder per class
    python recipes/featureclassifier.py --data my_export --devices 2  # the same run on two processes of this machine
    accelerate launch recipes/featureclassifier.py --data my_export  # as `accelerate config` says
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/featureclassifier.py --data my_export
    torchrun --standalone --nproc-per-node 2 recipes/featureclassifier.py --data my_export
    python recipes/featureclassifier.py --data my_export --output runs/roofs --resume  # go on after a stop or a crash

The result does not depend on how many processes carry it out: --batch-size is that of all together.

What to look at first, once it runs on your data: the report's pictures; then --epochs, --backbone and --weights default
(pretrained on ImageNet), --chip-size (random crops of large chips), and --lr auto (a range test). Few chips, or classes
of very different size: --mixup 0.4, and one of --class-balancing and --oversample.
"""

from functools import partial

from accel_geo.options import Options, Parser, run

parser = Parser(
    __doc__,
    task="classification",
    epochs=20,
    batch_size=8,
    lr=1e-3,
    # Up over the first quarter of the steps, then down to almost nothing.
    schedule="one_cycle",
    backbone="resnet34",
    # The built-in scenes are small: light networks learn them on a laptop within minutes.
    builtin={"epochs": 10, "backbone": "resnet18"},
)
add = parser.add_argument
add("--label-smoothing", type=float, default=0.0, metavar="X", help="of the targets (default: 0)")
add("--class-balancing", action="store_true", help="weigh classes by their training chips (default: off)")
add("--mixup", type=float, default=0.0, metavar="X", help="blend chips by Beta(X, X), 0.4 is usual (default: 0, off)")
add("--oversample", action="store_true", help="repeat chips of rare classes in each epoch (default: off)")


def main(options: Options) -> None:
    """Train, evaluate and publish."""
    import torch

    from accel_geo import FeatureClassifier, prepare_data

    # Data: recognised and read by its own format, decoded once, split by --val-split or --valid-match;
    # crops, flips, quarter turns and colour changes in training, and what --mixup and --oversample ask for.
    data = prepare_data(**options.for_data(), mixup=options.mixup, oversample=options.oversample)

    # Model: a backbone from torchvision or timm, average pooling, a linear head.
    model = FeatureClassifier(
        data,
        label_smoothing=options.label_smoothing,
        class_balancing=options.class_balancing,
        **options.for_model(),
    )
    if options.freeze:
        model.freeze()

    # Optimizer: AdamW, fused; its learning rate follows --schedule.
    optimizer = partial(torch.optim.AdamW, weight_decay=0.01, fused=True)

    model.fit(optimizer=optimizer, **options.for_fit())


if __name__ == "__main__":
    run(main, parser)
