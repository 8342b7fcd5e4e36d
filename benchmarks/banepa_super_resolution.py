"""The super-resolution recipe on real imagery against a bare script of the same network: PSNR over seconds.

    python benchmarks/banepa_super_resolution.py --data banepa_oam_osm

48 drone chips of 512 px (`images/`) made 4 times coarser by the mean of pixels, those of column 386695 held out; the
small EDSR, random crops of 96 px, batch 8, one cycle up to 4e-3. The bare script is a plain loop over chips that it has
read once; the recipe runs as a user runs it. Both take as many epochs, evaluate whole chips now and then, and tell PSNR
above bicubic interpolation (`gain`; `curve`: over the seconds of the steps with loading, `train_seconds` at the end).
`seconds` are those from after the imports to the end, for the recipe with its checkpoints, report and published model.
Both run on one thread, in turn. Targets: at least 0.3 dB above bicubic, at most 0.05 dB below the bare script, 1.2 of
its seconds for the steps.
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
from pathlib import Path
from types import SimpleNamespace

import torch
from common import line, median_ratio
from torch import Tensor
from torch.nn import functional as F

SCALE, CROP, BATCH, LR = 4, 96, 8, 4e-3
EVALUATIONS = 6
HELD_OUT = "OAM-386695-*"
RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "superresolution.py"


def bare(data: Path, epochs: int, seed: int) -> dict:
    """The bare script."""
    import rasterio

    from accel_geo.data.spec import DataSpec
    from accel_geo.engine.optimizers import lr_factor
    from accel_geo.models.super_resolution import SuperResolution

    begin = time.perf_counter()
    files = sorted((data / "images").glob("*.tif"))

    def read(wanted: list[Path]) -> Tensor:
        chips = []
        for file in wanted:
            with rasterio.open(file) as source:
                chips.append(torch.from_numpy(source.read()).float() / 255)
        return torch.stack(chips)

    train = read([file for file in files if not file.match(HELD_OUT)])
    valid = read([file for file in files if file.match(HELD_OUT)])
    spec = DataSpec(
        task="super_resolution",
        classes=(),
        class_values=(),
        bands=("red", "green", "blue"),
        dtype="uint8",
        low=(0.0,) * 3,
        high=(255.0,) * 3,
        mean=tuple(train.mean((0, 2, 3)).tolist()),
        std=tuple(train.std((0, 2, 3)).tolist()),
        chip_size=(CROP // SCALE,) * 2,
        scale=SCALE,
    )
    random.seed(seed)
    model = SuperResolution(SimpleNamespace(spec=spec, seed=seed), architecture="edsr", size="small")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    bicubic = psnr(model, valid)  # what the network gives before training
    per_epoch = math.ceil(len(train) / BATCH)
    total, curve, stepping = epochs * per_epoch, [], 0.0
    for epoch in range(epochs):
        order = random.sample(range(len(train)), len(train))
        model.train()
        started = time.perf_counter()
        for number in range(per_epoch):
            step = epoch * per_epoch + number
            optimizer.param_groups[0]["lr"] = LR * lr_factor("one_cycle", step, total)
            sharp = torch.stack([crop(train[i]) for i in order[number::per_epoch]])
            made = fine(model, F.avg_pool2d(sharp, SCALE))
            loss = ((made - sharp) / model.pixel_std).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            loss.item()
        stepping += time.perf_counter() - started
        if (epoch + 1) % interval(epochs) == 0 or epoch + 1 == epochs:
            gain = psnr(model, valid) - bicubic
            curve.append([round(stepping, 2), round(gain, 4)])
    seconds = time.perf_counter() - begin
    return {
        "bicubic": bicubic,
        "gain": gain,
        "train_seconds": stepping,
        "steps": total,
        "seconds": seconds,
        "curve": curve,
    }


def interval(epochs: int) -> int:
    """Return the epochs between two evaluations."""
    return max(1, epochs // EVALUATIONS)


def crop(chip: Tensor) -> Tensor:
    """Cut a random square out of a chip, turned and mirrored at random; on the grid of the coarse image."""
    top, left = (SCALE * random.randrange((side - CROP) // SCALE + 1) for side in chip.shape[-2:])
    chip = chip[:, top : top + CROP, left : left + CROP]
    chip = chip.mT if random.random() < 0.5 else chip
    return chip.flip([dim for dim in (-1, -2) if random.random() < 0.5])


def fine(model: torch.nn.Module, coarse: Tensor) -> Tensor:
    """Return what the network's parts make of coarse images, without its losses."""
    enlarged = F.interpolate(coarse, scale_factor=SCALE, mode="bicubic", antialias=True)
    return enlarged + model.head(model.backbone(model.normalize(coarse))) * model.pixel_std


@torch.no_grad()
def psnr(model: torch.nn.Module, chips: Tensor) -> float:
    """Return the mean PSNR over whole chips."""
    model.eval()
    errors = [(fine(model, F.avg_pool2d(chip[None], SCALE))[0] - chip).square().mean().item() for chip in chips]
    return statistics.mean(-10 * math.log10(error) for error in errors)


def recipe(data: Path, epochs: int, seed: int) -> dict:
    """The recipe, as a user runs it."""
    import accelerate  # noqa: F401  imports do not count
    import datasets  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import rasterio  # noqa: F401
    import timm  # noqa: F401
    import torchvision  # noqa: F401

    import accel_geo.engine.loop
    import accel_geo.models.super_resolution
    import accel_geo.prepare  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCEL_GEO_CACHE"] = folder  # a first run, which decodes
        output = Path(folder, "run")
        chips = [file for file in (data / "images").glob("*.tif") if not file.match(HELD_OUT)]
        given = {
            "data": data,
            "format": "sharp_images",
            "valid-match": HELD_OUT,
            "scale": SCALE,
            "chip-size": CROP,
            "size": "small",
            "epochs": epochs,
            "eval-every": interval(epochs) * math.ceil(len(chips) / BATCH),
            "batch-size": BATCH,
            "lr": LR,
            "threads": 1,
            "seed": seed,
            "output": output,
        }
        sys.argv = [str(RECIPE), "--cpu", *(f"--{name}={value}" for name, value in given.items())]
        begin = time.perf_counter()
        runpy.run_path(str(RECIPE), run_name="__main__")
        seconds = time.perf_counter() - begin
        history = [json.loads(text) for text in (output / "history.jsonl").read_text().splitlines()]
    stepping, curve = 0.0, []
    for record in history:
        if "loss" in record:
            stepping += record["machine"]["seconds"]
        else:
            curve.append([round(stepping, 2), round(record["valid"]["psnr_gain"], 4)])
    last = history[-1]["valid"]  # the last step is always evaluated
    return {
        "bicubic": last["psnr_bicubic"],
        "gain": last["psnr_gain"],
        "train_seconds": stepping,
        "steps": history[-1]["step"],
        "seconds": seconds,
        "curve": curve,
    }


KINDS = {"bare": bare, "recipe": recipe}


def measure(given: argparse.Namespace, kind: str, seed: int) -> dict:
    """Run one training in a process of its own, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, "--data", given.data, "--epochs", str(given.epochs)]
        command += ["--worker", kind, str(seed), str(result)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr, check=True)
        return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Banepa chips")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument("--epochs", type=int, default=120, help="(default: 120)")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, seed, result = given.worker
        torch.set_num_threads(1)
        Path(result).write_text(json.dumps(KINDS[kind](given.data, given.epochs, int(seed))))
        return
    results: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for number, seed in enumerate(given.seeds):
        for kind in [*KINDS][:: -1 if number % 2 else 1]:  # interleaved
            result = measure(given, kind, seed)
            results[kind].append(result)
            shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in result.items()}
            line(benchmark="banepa_super_resolution", kind=kind, seed=seed, **shown)

    def column(kind: str, name: str) -> list[float]:
        return [result[name] for result in results[kind]]

    gain = {kind: round(statistics.median(column(kind, "gain")), 4) for kind in KINDS}
    below = round(gain["bare"] - gain["recipe"], 4)
    ratio = median_ratio(column("recipe", "train_seconds"), column("bare", "train_seconds"))
    line(
        benchmark="banepa_super_resolution",
        seeds=given.seeds,
        psnr_gain=gain,
        recipe_below=below,
        recipe_train_seconds_of_bare=ratio,
        target={"psnr_gain": 0.3, "recipe_below": 0.05, "recipe_train_seconds_of_bare": 1.2},
        reached=gain["recipe"] >= 0.3 and below <= 0.05 and ratio <= 1.2,
    )


if __name__ == "__main__":
    main()
