"""What a second process gives: accel_geo's `fit` beside a bare DDP script, one thread in each process.

    python benchmarks/scaling.py                 # about 9 minutes on two quiet cores

`scaling`: one and two processes at the same global batch, on a U-Net of 14 million parameters without batch
normalisation. The figure is accel_geo's speed-up over bare DDP's (target: 0.97). `global_batch_norm`: ResNet-18 in two
processes, where `fit` takes the statistics of the whole batch (one exchange for each layer and pass) and bare DDP those
of its own half, which is another network; `bare_global` is the bare script with the layers of `fit`.
Every run is a world of its own, started afresh; timed from forward pass to forward pass on rank 0.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from common import Clock, Samples, bare_loop, line, median_ratio, medians, memory_data, our_fit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset

from accel_geo import FeatureClassifier
from accel_geo.models.base import GeoModel
from accel_geo.nn.losses import pixel_count, pixel_cross_entropy
from accel_geo.parallel import launch
from accel_geo.parallel.batch_norm import convert
from accel_geo.parallel.reduction import Loss
from accel_geo.parallel.supervise import run_workers

BATCH = 8
WIDTHS = (32, 64, 136, 272, 544)  # after each halving


class PlainUnet(GeoModel):
    """Convolutions and rectifiers only, 14 million parameters: nothing but gradients is communicated."""

    task = "semantic"

    def __init__(self, data: object) -> None:
        super().__init__(data)
        inputs, down, up = 3, [], []
        for width in WIDTHS:
            down.append(_block(inputs, width, stride=2))
            inputs = width
        self.backbone = nn.ModuleList(down)
        self.middle = _block(inputs, inputs, stride=1)
        for width in (*WIDTHS[-2::-1], 32):
            up.append(_block(inputs + (width if len(up) < len(WIDTHS) - 1 else 0), width, stride=1))
            inputs = width
        self.decoder = nn.ModuleList(up)
        self.head = nn.Conv2d(inputs, 1 + len(self.spec.classes), 1)

    def loss_counts(self, targets: list[dict]) -> dict[str, float]:
        return {"cross_entropy": sum(float(pixel_count(target["mask"])) for target in targets)}

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        x, skips = self.normalize(images), []
        for block in self.backbone:
            x = block(x)
            skips.append(x)
        x = self.middle(skips.pop())
        for block in self.decoder:
            x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1) if skips else x)
        logits = self.head(x)
        if not self.training:
            return [{"mask": mask} for mask in logits.max(1).indices]
        return {"cross_entropy": Loss(*pixel_cross_entropy(logits, torch.stack([t["mask"] for t in targets])))}


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    first = nn.Conv2d(inputs, outputs, 3, stride, 1)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1), nn.ReLU())


def work(kind: str, network: str, steps: int, folder: Path) -> None:
    """One process of a world: train, and let rank 0 write what a step took."""
    torch.set_num_threads(1)
    launch.keep_freed_memory()  # as fit does: else the bare loops would also pay for page faults
    if network == "unet":
        data = memory_data("semantic", 128, BATCH)
        model = PlainUnet(data)
    else:
        data = memory_data("classification", 64, BATCH)
        model = FeatureClassifier(data, backbone="resnet18")
    clock = Clock(model, warm_up=max(2, steps // 10))
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if kind == "accel_geo":
        our_fit(model, data, steps, folder / "run", cpu=True, threads=1)
    else:
        samples: Samples | Subset = data.train
        if kind == "bare_global":
            convert(model)
        if processes > 1:
            dist.init_process_group("gloo")
            samples = Subset(data.train, range(rank, len(data.train), processes))
        wrap = _ddp if processes > 1 else None
        bare_loop(model, data, steps, samples=samples, batch_size=BATCH // processes, wrap=wrap)
    assert len(clock.stamps) == steps
    assert (dist.get_world_size() if dist.is_initialized() else 1) == processes
    if rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        result = {"seconds": clock.seconds_per_step(), "parameters": parameters}
        (folder / "result.json").write_text(json.dumps(result))
    if dist.is_initialized():
        dist.destroy_process_group()


def _ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, broadcast_buffers=False)


def measure(kind: str, network: str, processes: int, steps: int) -> dict:
    """Run one world; return seconds a step and the number of parameters."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", kind, network, str(steps), folder]
        code = subprocess.run(command).returncode if processes == 1 else run_workers(command, processes)
        if code:
            sys.exit(f"{kind} on {processes} process(es) ended with exit code {code}; its message stands above")
        return json.loads(Path(folder, "result.json").read_text())


def rounds(network: str, contestants: list[tuple[str, int]], runs: int, steps: int) -> tuple[dict, int]:
    """Run all contestants, interleaved; return their lists of seconds a step by name, and the number of parameters."""
    seconds: dict[str, list[float]] = {f"{kind}_{processes}": [] for kind, processes in contestants}
    parameters = 0
    for number in range(runs):
        turn = number % len(contestants)
        for kind, processes in contestants[turn:] + contestants[:turn]:
            result = measure(kind, network, processes, steps)
            seconds[f"{kind}_{processes}"].append(result["seconds"])
            parameters = result["parameters"]
    return seconds, parameters


def scaling(runs: int, steps: int) -> None:
    contestants = [("bare", 1), ("accel_geo", 1), ("bare", 2), ("accel_geo", 2)]
    seconds, parameters = rounds("unet", contestants, runs, steps)
    gains = {k: [a / b for a, b in zip(seconds[f"{k}_1"], seconds[f"{k}_2"])] for k in ("bare", "accel_geo")}
    of_bare = median_ratio(gains["accel_geo"], gains["bare"])
    line(
        benchmark="scaling",
        parameters=parameters,
        batch_size=BATCH,
        runs=runs,
        steps=steps,
        seconds_per_step=medians(seconds),
        speed_up=medians(gains, 4),
        speed_up_of_bare=of_bare,
        target=0.97,
        reached=of_bare >= 0.97,
    )


def global_batch_norm(runs: int, steps: int) -> None:
    seconds, parameters = rounds("resnet18", [("bare", 2), ("bare_global", 2), ("accel_geo", 2)], runs, steps)
    line(
        benchmark="global_batch_norm",
        parameters=parameters,
        batch_size=BATCH,
        runs=runs,
        steps=steps,
        seconds_per_step=medians(seconds),
        of_bare_local=median_ratio(seconds["bare_2"], seconds["accel_geo_2"]),
        bare_global_of_bare_local=median_ratio(seconds["bare_2"], seconds["bare_global_2"]),
        of_bare_global=median_ratio(seconds["bare_global_2"], seconds["accel_geo_2"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each world, interleaved (default: 5)")
    parser.add_argument("--steps", type=int, default=25, help="of a run (default: 25)")
    parser.add_argument("--only", choices=("scaling", "global_batch_norm"), help="one of the two measurements")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, network, steps, folder = given.worker
        work(kind, network, int(steps), Path(folder))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.only in (None, "scaling"):
        scaling(given.runs, given.steps)
    if given.only in (None, "global_batch_norm"):
        global_batch_norm(given.runs, given.steps)


if __name__ == "__main__":
    main()
