"""The detectors' recipes on real imagery against torchvision's own networks and reference settings, at equal seconds.

    python benchmarks/detectors.py --data banepa_oam_osm --model fasterrcnn --seconds 600 --seeds 1 2 3

48 drone chips of 512 px resized to 256, all roofs one class, those of column 386693 held out. The bare script is
torchvision's `references/detection`: its network and hyperparameters (SGD, momentum 0.9, steps down after 16 and 22 of
26 parts of the run, learning rate for the batch at hand; its presets "hflip" and "ssd"), without resizing R-CNN's images.
The recipe runs as a user runs it, for as many steps as fit into the seconds (measured by a few steps before), and the
bare script after it for the seconds that these steps really took: those of the steps with loading; evaluations, the same
for both (AP50 over the held-out chips), do not count.
Each evaluation is a JSON line; the last line has the medians at the end. One thread, one process at a time: about
2.3 x seconds x seeds, after --model (or --model all) on a quiet core.
"""

import argparse
import json
import math
import os
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from common import line
from torch import Tensor, nn

SIZE = 256
HELD_OUT = "OAM-386693-*"
RECIPES = Path(__file__).resolve().parents[1] / "recipes"
# rows: the recipe; the file of labels; torchvision's learning rate, batch size and weight decay
ROWS = {
    "fasterrcnn": ("fasterrcnn", "detection_labels.json", 0.02, 16, 1e-4),
    "maskrcnn": ("maskrcnn", "instances_coco.json", 0.02, 16, 1e-4),
    "ssd": ("singleshotdetector", "detection_labels.json", 0.002, 32, 5e-4),
}
SPEC = {
    "classes": ("building",),
    "class_values": (1,),
    "bands": ("red", "green", "blue"),
    "dtype": "uint8",
    "low": (0.0,) * 3,
    "high": (255.0,) * 3,
    "mean": (0.5,) * 3,
    "std": (0.25,) * 3,
    "chip_size": (SIZE, SIZE),
}


def read_chips(data: Path, row: str) -> list[tuple[str, Tensor, dict]]:
    """Return the name, image and target of each chip, in a script's plain way."""
    import rasterio
    from rasterio.enums import Resampling
    from rasterio.features import rasterize

    content = json.loads((data / ROWS[row][1]).read_text())
    chips = []
    for entry in content["images"]:
        name = Path(entry["file_name"]).name
        with rasterio.open(data / "images" / name) as source:
            pixels = source.read(out_shape=(3, SIZE, SIZE), resampling=Resampling.average)
        scale = SIZE / entry["width"]
        boxes, masks = [], []
        for thing in (thing for thing in content["annotations"] if thing["image_id"] == entry["id"]):
            x, y, w, h = (scale * side for side in thing["bbox"])
            x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, SIZE), min(y + h, SIZE)
            if x2 - x1 < 1e-3 or y2 - y1 < 1e-3:
                continue
            boxes.append([x1, y1, x2, y2])
            if row == "maskrcnn":
                rings = [[[scale * p for p in xy] for xy in zip(s[::2], s[1::2])] for s in thing["segmentation"]]
                rings = [[*ring, ring[0]] for ring in rings]
                shapes = [{"type": "Polygon", "coordinates": [ring]} for ring in rings]
                masks.append(torch.from_numpy(rasterize(shapes, (SIZE, SIZE), all_touched=False)).bool())
        target = {"boxes": torch.tensor(boxes).view(-1, 4), "labels": torch.ones(len(boxes), dtype=torch.int64)}
        if row == "maskrcnn":
            target["masks"] = torch.stack(masks) if masks else torch.zeros(0, SIZE, SIZE, dtype=torch.bool)
        chips.append((name, torch.from_numpy(pixels).float() / 255, target))
    return chips


def reference_network(row: str, backbone: str, weights: str | None) -> nn.Module:
    """Return torchvision's network as its builders make it, R-CNN's without resizing and on the given backbone."""
    from torchvision.models import detection
    from torchvision.models.detection.backbone_utils import mobilenet_backbone, resnet_fpn_backbone

    if row == "ssd":
        return detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=2, trainable_backbone_layers=5)
    norm, anchors = nn.BatchNorm2d, {}
    if backbone.startswith("mobilenet"):
        trunk = mobilenet_backbone(backbone_name=backbone, weights=None, fpn=True, trainable_layers=6, norm_layer=norm)
        sizes = ((32, 64, 128, 256, 512),) * 3  # as for torchvision's MobileNetV3
        anchors["rpn_anchor_generator"] = detection.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 3)
    else:
        trunk = resnet_fpn_backbone(backbone_name=backbone, weights=None, trainable_layers=5, norm_layer=norm)
    if weights:
        from accel_geo.nn.weights import read_weights

        state = {name.removeprefix("features."): tensor for name, tensor in read_weights(Path(weights)).items()}
        assert len(trunk.body.load_state_dict(state, strict=False).missing_keys) == 0, f"{weights}: not of {backbone}"
    network = {"fasterrcnn": detection.FasterRCNN, "maskrcnn": detection.MaskRCNN}[row]
    return network(trunk, 2, min_size=SIZE, max_size=SIZE, **anchors)


def augmented(row: str, image: Tensor, target: dict) -> tuple[Tensor, dict]:
    """Apply torchvision's preset."""
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    steps = [v2.RandomHorizontalFlip(0.5), v2.SanitizeBoundingBoxes()]
    if row == "ssd":
        steps = [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=0.5), v2.RandomIoUCrop(), *steps]
    boxes = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=image.shape[-2:])
    target = {**target, "boxes": boxes}
    if "masks" in target:
        target["masks"] = tv_tensors.Mask(target["masks"])
    image, target = v2.Compose(steps)(tv_tensors.Image(image), target)
    return image.as_subclass(Tensor), {name: value.as_subclass(Tensor) for name, value in target.items()}


def bare(given: argparse.Namespace, row: str, seed: int) -> Iterator[dict]:
    """Train torchvision's network for the seconds, and yield AP50 on the way."""
    _, _, lr, lr_batch, weight_decay = ROWS[row]
    torch.manual_seed(seed)
    random.seed(seed)
    chips = read_chips(given.data, row)
    train = [chip for chip in chips if not Path(chip[0]).match(HELD_OUT)]
    valid = [chip for chip in chips if Path(chip[0]).match(HELD_OUT)]
    model = reference_network(row, given.backbone, given.weights)
    lr = lr * given.batch_size / lr_batch
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    order: list[int] = []
    step, spent, evaluated = 0, 0.0, 0
    while spent < given.seconds:
        begin = time.perf_counter()
        if len(order) < given.batch_size:
            order = torch.randperm(len(train)).tolist()
        batch = [augmented(row, *train[order.pop()][1:]) for _ in range(given.batch_size)]
        part = 26 * spent / given.seconds
        # the warm-up is the first of 26 parts
        optimizer.param_groups[0]["lr"] = lr * min(max(part, 1e-3), 1) * 0.1 ** ((part >= 16) + (part >= 22))
        loss = sum(model.train()([image for image, _ in batch], [target for _, target in batch]).values())
        if not math.isfinite(loss.item()):
            yield {"seconds": given.seconds, "step": step, "ap50": 0.0, "note": "the loss is not finite"}
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, spent = step + 1, spent + time.perf_counter() - begin
        if spent >= (evaluated + 1) / given.evaluations * given.seconds:
            evaluated += 1
            yield {"seconds": spent, "step": step, "ap50": average_precision(model, valid, row)}


@torch.no_grad()
def average_precision(model: nn.Module, chips: list[tuple[str, Tensor, dict]], row: str) -> float:
    """Return AP50 over chips: of boxes, as for the recipe."""
    from accel_geo.data.spec import DataSpec
    from accel_geo.tasks import TASKS

    task, spec, records = TASKS["detection"], DataSpec(task="detection", **SPEC), []
    model.eval()
    for number, (name, image, target) in enumerate(chips):
        about = {"image_id": number, "size": (SIZE, SIZE), "ignore": False}
        records.append(task.record(spec, model([image])[0], target | about, name))
    return task.metrics(spec, records)["map50"]


def recipe(given: argparse.Namespace, row: str, seed: int) -> Iterator[dict]:
    """Run the recipe for about the seconds, and yield AP50 on the way."""
    seconds = [record["machine"]["seconds"] for record in run_recipe(given, row, seed, 8, 8) if "loss" in record]
    steps = max(round(given.seconds / statistics.median(seconds[2:])), given.evaluations)
    spent = 0.0
    for record in run_recipe(given, row, seed, steps, max(steps // given.evaluations, 1)):
        if "loss" in record:
            spent += record["machine"]["seconds"]
        else:
            found = record["valid"]["box_map50" if row == "maskrcnn" else "map50"]
            yield {"seconds": spent, "step": record["step"], "ap50": found}


def run_recipe(given: argparse.Namespace, row: str, seed: int, steps: int, eval_every: int) -> list[dict]:
    """Run the recipe as a user does, and return its history."""
    name, labels, *_ = ROWS[row]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "run")
        options = {
            "data": given.data / labels,
            "resize-to": SIZE,
            "valid-match": HELD_OUT,
            "backbone": given.recipe_backbone or given.backbone,
            "weights": given.weights or "none",
            "size": given.size,
            "epochs": 100_000,
            "max-steps": steps,
            "eval-every": eval_every,
            "save-every": 100_000,
            "batch-size": given.batch_size,
            "threads": 1,
            "seed": seed,
            "output": output,
        }
        if row == "maskrcnn":
            classes = json.loads((given.data / labels).read_text())["categories"]
            options["class-mapping"] = ",".join(f"{c['name']}=building" for c in classes)
        arguments = [f"--{option}={value}" for option, value in options.items()] + given.options.split()
        sys.argv = [str(RECIPES / f"{name}.py"), "--cpu", *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return [json.loads(text) for text in (output / "history.jsonl").read_text().splitlines()]


KINDS = {"recipe": recipe, "bare": bare}


def measure(row: str, kind: str, seed: int, seconds: float) -> list[dict]:
    """Run one training in a process of its own, on one thread; print its evaluations as they come."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.jsonl")
        command = [sys.executable, __file__, *sys.argv[1:], f"--seconds={seconds}"]
        command += ["--worker", row, kind, str(seed), str(result)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr, check=True)
        points = [json.loads(text) for text in result.read_text().splitlines()]
    for point in points:
        shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in point.items()}
        line(benchmark="detectors", model=row, kind=kind, seed=seed, **shown)
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Banepa chips")
    parser.add_argument("--model", choices=[*ROWS, "all"], default="all", help="(default: all)")
    parser.add_argument("--seconds", type=float, default=600, help="of training, each (default: 600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument("--evaluations", type=int, default=8, help="of each training (default: 8)")
    parser.add_argument("--batch-size", type=int, default=4, help="of both (default: 4)")
    parser.add_argument(
        "--backbone", default="resnet18", help="of both R-CNNs, and of the SSD recipe (default: resnet18)"
    )
    parser.add_argument("--recipe-backbone", help="of the recipe, if it is to have another (default: none)")
    parser.add_argument("--weights", help="of the backbone, for the recipe and the bare R-CNNs (default: none)")
    parser.add_argument("--size", choices=["small", "full"], default="small", help="of the recipe (default: small)")
    parser.add_argument("--options", default="", help='further options of the recipe, such as "--lr=2e-3"')
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        row, kind, seed, result = given.worker
        torch.set_num_threads(1)
        with open(result, "w") as file:
            for point in KINDS[kind](given, row, int(seed)):
                print(json.dumps(point), file=file, flush=True)
        return
    for row in ROWS if given.model == "all" else [given.model]:
        last: dict[str, list[float]] = {kind: [] for kind in KINDS}
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for seed in given.seeds:
            limit = given.seconds
            for kind in KINDS:
                points = measure(row, kind, seed, limit)
                last[kind].append(points[-1]["ap50"])
                seconds[kind].append(points[-1]["seconds"])
                limit = points[-1]["seconds"]
        ap50 = {kind: round(statistics.median(values), 4) for kind, values in last.items()}
        line(
            benchmark="detectors",
            model=row,
            seeds=given.seeds,
            ap50=ap50,
            seconds={kind: round(statistics.median(values), 1) for kind, values in seconds.items()},
            recipe_above=round(ap50["recipe"] - ap50["bare"], 4),
            reached=ap50["recipe"] > ap50["bare"],
        )


if __name__ == "__main__":
    main()
