"""FasterRCNN: a box and a class for each object (Ren et al. 2015), from a folder of chips to a published model.

    python recipes/fasterrcnn.py  # the built-in scenes, on whatever is here
    python recipes/fasterrcnn.py --data my_export  # ArcGIS Pro's rectangles (PASCAL VOC, KITTI, COCO, YOLO), or COCO
    python recipes/fasterrcnn.py --data my_export --devices 2  # the same run on two processes of this machine
    accelerate launch recipes/fasterrcnn.py --data my_export  # as `accelerate config` says
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/fasterrcnn.py --data my_export
    torchrun --standalone --nproc-per-node 2 recipes/fasterrcnn.py --data my_export
    python recipes/fasterrcnn.py --data my_export --output runs/roofs --resume  # go on after a stop or a crash

The result does not depend on how many processes carry it out: --batch-size is that of all together.

What to look at first, once it runs on your data: the report's pictures; then --epochs, --backbone and --weights default
(pretrained on ImageNet), --anchor-sizes where objects are smaller than 32 px, at which --size full starts, --chip-size
(random crops of large chips), --soft-nms where objects stand close together, and --lr auto (a range test).
"""

from functools import partial

from accel_geo.option_values import positive
from accel_geo.options import Options, Parser, run

parser = Parser(
    __doc__,
    task="detection",
    epochs=26,
    batch_size=8,
    lr=5e-4,
    # Up over the first quarter of the steps, then down to almost nothing.
    schedule="one_cycle",
    backbone="resnet50",
    # Early steps from random weights can throw the box head far off.
    clip=5.0,
    # The built-in scenes are small: light networks learn them on a laptop within minutes.
    builtin={"epochs": 14, "lr": 2e-3, "backbone": "resnet18"},
)
parser.add_argument(
    "--anchor-sizes",
    type=positive,
    nargs="+",
    metavar="PX",
    help="side of the anchors at each of the five levels (default: 32 to 512; 8 to 128 for --size small)",
)
parser.add_argument(
    "--soft-nms", action="store_true", help="lower the scores of overlapping detections, drop none (default: off)"
)


def main(options: Options) -> None:
    """Train, evaluate and publish."""
    import torch

    from accel_geo import FasterRCNN, prepare_data

    # Data: recognised and read by its own format, decoded once, split by --val-split or --valid-match;
    # crops, flips, quarter turns and colour changes in training.
    data = prepare_data(**options.for_data())

    # Model: torchvision's, on a feature pyramid over any torchvision or timm backbone; --size small narrows its heads.
    # Its rpn_* and box_* parameters are arguments too, such as box_score_thresh=0.05 or box_detections_per_img=100.
    model = FasterRCNN(data, anchor_sizes=options.anchor_sizes, soft_nms=options.soft_nms, **options.for_model())
    if options.freeze:
        model.freeze()

    # Optimizer: AdamW, fused; its learning rate follows --schedule.
    optimizer = partial(torch.optim.AdamW, weight_decay=0.01, fused=True)

    model.fit(optimizer=optimizer, **options.for_fit())


if __name__ == "__main__":
    run(main, parser)
