"""A recipe that classifies pixels, on real imagery, against a bare script of the same network: building IoU, seconds.

    python benchmarks/banepa_semantic.py --model deeplab --data banepa_oam_osm \\
        --weights mobilenet_v2_imagenet_features.safetensors

48 drone chips of 512 px resized to 256 (`images/`, `semantic/`), those of column 386695 held out; MobileNetV2
pretrained on ImageNet, building against background, AdamW, batch 4, 10 epochs at 1e-3 (DeepLab, whose recipe differs:
`--epochs 20 --lr 3e-3`; or --steps, or as many steps as a bare script takes in --seconds). The bare script is a Dataset
of rasterio reads, with turns, mirrorings and changes of brightness and contrast as the recipe has them, and a plain
loop, with a constant learning rate and with the recipe's schedule; the recipe runs as a user runs it, with its
defaults. Both evaluate after each epoch. `seconds` are those from after the imports to the end (for the recipe with its
decoding, checkpoints, report and published model), `train_seconds` those of the steps with loading. About 9 minutes for
three seeds of the U-Net on one quiet core.
Targets: at most 0.02 below the bare script, 1.2 of its seconds.
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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from common import line, median_ratio
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIZE, BATCH = 256, 4
HELD_OUT = "OAM-386695-*"
RECIPES = Path(__file__).resolve().parents[1] / "recipes"
MODELS = {"unetclassifier": "UnetClassifier", "deeplab": "DeepLab", "pspnetclassifier": "PSPNetClassifier"}
TRIAL = 8  # steps that tell how many fit into --seconds


class Buildings(Dataset):
    """Chips and masks (1 building, 0 background) as a script reads them; changed at random in training."""

    def __init__(self, files: list[Path], training: bool) -> None:
        from torchvision.transforms import v2

        self.files, self.training = files, training
        self.colour = v2.ColorJitter(brightness=0.2, contrast=0.25)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        import rasterio
        from rasterio.enums import Resampling

        file = self.files[index]
        with rasterio.open(file) as source:
            pixels = source.read(out_shape=(source.count, SIZE, SIZE), resampling=Resampling.average)
        with rasterio.open(file.parents[1] / "semantic" / f"{file.stem}.png") as source:
            values = source.read(1, out_shape=(SIZE, SIZE), resampling=Resampling.nearest)
        image, mask = torch.from_numpy(pixels).float() / 255, torch.from_numpy(values > 0).long()
        if self.training:
            flipped = [d for d in (-1, -2) if random.random() < 0.5]
            turns = random.randrange(4)
            image, mask = (torch.rot90(pixels.flip(flipped), turns, (-2, -1)) for pixels in (image, mask))
            image = self.colour(image)
        return image, mask


def bare(given: argparse.Namespace, seed: int, one_cycle: bool) -> dict:
    """The bare script."""
    import rasterio  # noqa: F401  imports do not count
    import torchvision.transforms.v2  # noqa: F401

    import accel_geo
    from accel_geo.data.spec import DataSpec
    from accel_geo.engine.optimizers import lr_factor

    data = given.data
    begin = time.perf_counter()
    files = sorted((data / "images").glob("*.tif"))
    held_out = [file for file in files if file.match(HELD_OUT)]
    train = Buildings([file for file in files if file not in held_out], training=False)
    pixels = torch.stack([image for image, _ in train]).transpose(0, 1).flatten(1)
    train.training = True
    spec = DataSpec(
        task="semantic",
        classes=("building",),
        class_values=(1,),
        bands=("red", "green", "blue"),
        dtype="uint8",
        low=(0.0,) * 3,
        high=(255.0,) * 3,
        mean=tuple(pixels.mean(1).tolist()),
        std=tuple(pixels.std(1).tolist()),
        chip_size=(SIZE, SIZE),
    )
    torch.manual_seed(seed)
    random.seed(seed)
    network = getattr(accel_geo, MODELS[given.model])
    model = network(SimpleNamespace(spec=spec, seed=seed), backbone="mobilenet_v2", weights=str(given.weights))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr, weight_decay=0.01, fused=True)
    loader = DataLoader(train, BATCH, shuffle=True)
    total, step, stepping = given.steps or given.epochs * len(loader), 0, 0.0
    while step < total:
        model.train()
        epoch = time.perf_counter()
        for images, masks in loader:
            if one_cycle:
                optimizer.param_groups[0]["lr"] = given.lr * lr_factor("one_cycle", step, total)
            optimizer.zero_grad()
            main, *auxiliary = logits(model, images)
            loss = F.cross_entropy(main, masks) + sum(0.4 * F.cross_entropy(scores, masks) for scores in auxiliary)
            loss.backward()
            optimizer.step()
            loss.item()
            step += 1
            if step == total:
                break
        stepping += time.perf_counter() - epoch
        iou = building_iou(model, Buildings(held_out, training=False))
    return {"iou": iou, "seconds": time.perf_counter() - begin, "train_seconds": stepping, "steps": step}


def logits(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the scores [B, 2, H, W] of the network and its auxiliary heads, without its losses."""
    scores = model.class_scores(model.normalize(images), [(SIZE, SIZE)] * len(images))
    return [F.interpolate(s, (SIZE, SIZE), mode="bilinear", align_corners=False) for s in scores]


@torch.no_grad()
def building_iou(model: nn.Module, chips: Dataset) -> float:
    """Return the IoU of building over all pixels of the chips."""
    model.eval()
    both = either = 0
    for images, masks in DataLoader(chips, BATCH):
        predicted, truth = logits(model, images)[0].max(1).indices == 1, masks == 1
        both, either = both + int((predicted & truth).sum()), either + int((predicted | truth).sum())
    return both / either


def recipe(given: argparse.Namespace, seed: int) -> dict:
    """The recipe, as a user runs it."""
    import accelerate  # noqa: F401  imports do not count
    import datasets  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import rasterio  # noqa: F401
    import timm  # noqa: F401
    import torchvision  # noqa: F401

    import accel_geo.engine.loop
    import accel_geo.prepare  # noqa: F401
    from accel_geo.models import model_class

    model_class(MODELS[given.model])
    script = str(RECIPES / f"{given.model}.py")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCEL_GEO_CACHE"] = folder  # a first run, which decodes
        output = Path(folder, "run")
        options = {
            "data": given.data,
            "resize-to": SIZE,
            "valid-match": HELD_OUT,
            "class-mapping": "1=building,2=building,3=building,4=building",
            "backbone": "mobilenet_v2",
            "weights": given.weights,
            "epochs": given.epochs,
            "batch-size": BATCH,
            "lr": given.lr,
            "threads": 1,
            "seed": seed,
            "output": output,
        }
        if given.steps:
            options |= {"epochs": given.steps, "max-steps": given.steps}  # the horizon is the smaller of both
        sys.argv = [script, "--cpu", *(f"--{name}={value}" for name, value in options.items())]
        begin = time.perf_counter()
        runpy.run_path(script, run_name="__main__")
        seconds = time.perf_counter() - begin
        history = [json.loads(text) for text in (output / "history.jsonl").read_text().splitlines()]
    steps = [record for record in history if "loss" in record]
    return {
        "iou": [record for record in history if "valid" in record][-1]["valid"]["miou_no_background"],
        "seconds": seconds,
        "train_seconds": sum(record["machine"]["seconds"] for record in steps),
        "steps": len(steps),
    }


KINDS = {
    "bare_constant": partial(bare, one_cycle=False),
    "bare_one_cycle": partial(bare, one_cycle=True),
    "recipe": recipe,
}


def measure(given: argparse.Namespace, kind: str, seed: int, steps: int | None) -> dict:
    """Run one training in a process of its own, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, "--model", given.model, "--data", given.data, "--weights", given.weights]
        command += ["--lr", str(given.lr)]
        command += ["--steps", str(steps)] if steps else ["--epochs", str(given.epochs)]
        command += ["--worker", kind, str(seed), str(result)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr, check=True)
        return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="unetclassifier", help="(default: unetclassifier)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the Banepa chips")
    parser.add_argument("--weights", type=Path, required=True, help="MobileNetV2, as safetensors")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of all (default: 1e-3)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=10, help="(default: 10)")
    length.add_argument("--steps", type=int, help="optimizer steps instead")
    length.add_argument("--seconds", type=float, help="as many steps as the bare script takes in so long")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, seed, result = given.worker
        torch.set_num_threads(1)
        Path(result).write_text(json.dumps(KINDS[kind](given, int(seed))))
        return
    steps = given.steps
    if given.seconds:
        trial = measure(given, "bare_constant", 0, TRIAL)
        steps = max(1, math.floor(given.seconds * TRIAL / trial["train_seconds"]))
    results: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for number, seed in enumerate(given.seeds):
        turn = number % len(KINDS)
        for kind in [*KINDS][turn:] + [*KINDS][:turn]:  # interleaved
            results[kind].append(measure(given, kind, seed, steps))
            shown = {name: round(value, 4) for name, value in results[kind][-1].items()}
            line(benchmark="banepa_semantic", model=given.model, kind=kind, seed=seed, **shown)

    def column(kind: str, name: str) -> list[float]:
        return [result[name] for result in results[kind]]

    iou = {kind: round(statistics.median(column(kind, "iou")), 4) for kind in KINDS}
    below = {kind: round(iou[kind] - iou["recipe"], 4) for kind in KINDS if kind != "recipe"}
    ratios = {
        name: {kind: median_ratio(column("recipe", name), column(kind, name)) for kind in KINDS if kind != "recipe"}
        for name in ("seconds", "train_seconds")
    }
    line(
        benchmark="banepa_semantic",
        model=given.model,
        seeds=given.seeds,
        building_iou=iou,
        recipe_below=below,
        recipe_seconds_of=ratios["seconds"],
        recipe_train_seconds_of=ratios["train_seconds"],
        target={"recipe_below": 0.02, "recipe_seconds_of": 1.2},
        reached=max(below.values()) <= 0.02 and max(ratios["seconds"].values()) <= 1.2,
    )


if __name__ == "__main__":
    main()
