"""What only a machine with a GPU can show, in one run of at most 4 minutes; one JSON line for each finding.

    python benchmarks/gpu_check.py               # without a GPU: one line that says what is unproven
    python benchmarks/gpu_check.py --rehearse    # the same code on the CPU with tiny sizes: proves nothing about a GPU

Sections, each a process of its own with its own time limit, so that one that fails or hangs costs the others nothing:
`device` (the report), `bf16` and `fp16` (the three rows train, every loss finite), `resume` (begun on the CPU, gone on
with on the GPU, ended on the CPU, against a run that stayed on the CPU; float32), and `speed_<row>` (full size:
images/s and peak memory of `fit` over those of a bare loop on the same network, float32 and bf16). One GPU is enough;
nothing here needs several. The last line sums up; the exit code is 1 where a section failed.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from common import Clock, MemoryData, bare_loop, line, median_ratio, medians, memory_data, our_fit
from torch import nn

from accel_geo import FeatureClassifier, MaskRCNN, UnetClassifier
from accel_geo.parallel import launch

BUDGET = 230.0  # seconds for everything
# Row: class, task, backbone, and (pixels, batch) of the measurement of speed.
ROWS = {
    "unet": (UnetClassifier, "semantic", "resnet34", (512, 16)),
    "classifier": (FeatureClassifier, "classification", "resnet50", (256, 64)),
    "maskrcnn": (MaskRCNN, "instances", "resnet50", (512, 8)),
}


def network(row: str, data: MemoryData, size: str) -> nn.Module:
    kind, _, backbone, _ = ROWS[row]
    return kind(data, backbone=backbone if size == "full" else "resnet18", size=size)


def place(given: argparse.Namespace) -> dict:
    """Return the options of `fit` that say where it runs."""
    return {"cpu": True, "threads": torch.get_num_threads()} if given.rehearse else {}


def finite(history: list[dict]) -> bool:
    return all(math.isfinite(v) for r in history if "loss" in r for v in (r["loss"], *r["losses"].values()))


def device(given: argparse.Namespace) -> None:
    report = launch.device_report()
    line(section="device", torch=torch.__version__, cuda=torch.version.cuda, gpus=torch.cuda.device_count(), **report)
    command = [sys.executable, "-m", "accel_geo", "devices"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    line(section="device", command="python -m accel_geo devices", code=said.returncode, said=said.stdout.splitlines())
    if said.returncode or report["name"] not in said.stdout:
        raise ValueError(f"python -m accel_geo devices does not name the device: {said.stdout}{said.stderr}")


def precision(given: argparse.Namespace, name: str) -> None:
    """Train the three rows, small; what fails is told, and the next row goes on."""
    failed = []
    for row, (_, task, _, _) in ROWS.items():
        data = memory_data(task, 64 if given.rehearse else 128, 4 if given.rehearse else 8)
        try:
            steps = 3 if given.rehearse else 20
            model = network(row, data, "small")
            history = our_fit(model, data, steps, None, precision=name, **place(given))
            losses = [record["loss"] for record in history if "loss" in record]
            good = finite(history) and all(p.isfinite().all() for p in model.state_dict().values())
            where = str(next(model.parameters()).device)
            line(section=name, row=row, ok=good, device=where, first_loss=losses[0], last_loss=losses[-1])
        except Exception as error:
            good = False
            line(section=name, row=row, ok=False, error=f"{type(error).__name__}: {error}"[:500])
        failed += [] if good else [row]
    if failed:
        raise ValueError(f"{name} fails for {', '.join(failed)}")


def resume_part(given: argparse.Namespace, folder: str, cpu: str, steps: str) -> None:
    """One process of `resume`."""
    data = memory_data("semantic", 64, 8)
    options = {"save_every": 2, "eval_every": 1000, "epochs": 4, "resume": True, "threads": 2}
    model = network("unet", data, "small")
    torch.backends.cudnn.allow_tf32 = False  # else the GPU's convolutions round as float16 does
    our_fit(model, data, int(steps), Path(folder), cpu=cpu == "cpu" or given.rehearse, **options)
    line(section="resume", device=str(next(model.parameters()).device), steps=model.steps)


def resume(given: argparse.Namespace) -> None:
    """Begin on the CPU, go on on the GPU with --max-steps raised, end on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        moved, stayed = Path(folder, "moved"), Path(folder, "stayed")
        parts = [(moved, "cpu", 4), (moved, "gpu", 8), (moved, "cpu", 12), (stayed, "cpu", 12)]
        for output, where, steps in parts:
            part = [sys.executable, __file__, *(["--rehearse"] if given.rehearse else []), "--worker", "resume_part"]
            subprocess.run([*part, str(output), where, str(steps)], check=True)
        runs = [[json.loads(text) for text in (p / "history.jsonl").read_text().splitlines()] for p in (moved, stayed)]
        said = [text for text in (moved / "log.txt").read_text().splitlines() if "resumed at step" in text]
    steps, truth = ([record for record in run if "loss" in record] for run in runs)
    continuous = [record["step"] for record in steps] == list(range(1, 13)) and finite(steps)
    on_gpu = [record["step"] for record in steps if "memory_gib" in record["machine"]]
    apart = [abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(steps, truth)]
    found = {"continuous": continuous, "steps_on_gpu": on_gpu, "resumptions": len(said)}
    line(section="resume", **found, largest_difference=max(apart))
    if not (continuous and len(said) == 2 and max(apart) < 1e-2 and (given.rehearse or on_gpu == [5, 6, 7, 8])):
        raise ValueError("the run did not go on as it had begun; the line above tells what differs")


def speed(given: argparse.Namespace, row: str, precision_name: str) -> None:
    """Compare a row at full size with a bare loop on the same network: images/s and peak memory."""
    size, batch = (64, 2) if given.rehearse else ROWS[row][3]
    data = memory_data(ROWS[row][1], size, batch, batches=8, valid=2)
    steps, runs = (4, 1) if given.rehearse else ({"maskrcnn": 8}.get(row, 15), 3)
    where = "cpu" if given.rehearse else "cuda"
    loops: dict[str, Callable] = {
        "bare": lambda model: bare_loop(model, data, steps, device=where, precision=precision_name),
        "accel_geo": lambda model: our_fit(model, data, steps, None, precision=precision_name, **place(given)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    memory: dict[str, float] = {}
    for number in range(runs + (not given.rehearse)):  # the first round chooses kernels and does not count
        for name in sorted(loops, reverse=bool(number % 2)):
            model = network(row, data, "small" if given.rehearse else "full")
            clock = Clock(model, warm_up=2)
            peak = _PeakOfTraining(model) if where == "cuda" else None
            loops[name](model)
            if number or given.rehearse:
                seconds[name].append(clock.seconds_per_step())
                memory[name] = round(peak.gib, 3) if peak else 0.0
            del model, clock
            if where == "cuda":
                torch.cuda.empty_cache()
    line(
        section=f"speed_{row}",
        precision=precision_name,
        pixels=size,
        batch_size=batch,
        runs=runs,
        seconds_per_step=medians(seconds),
        images_per_s={name: round(batch / value, 1) for name, value in medians(seconds).items()},
        of_bare=median_ratio(seconds["bare"], seconds["accel_geo"]),
        peak_gib=memory,
        memory_of_bare=round(memory["accel_geo"] / memory["bare"], 3) if memory["bare"] else None,
    )


class _PeakOfTraining:
    """The peak of allocated memory in training: what was allocated before, and evaluation, stay out."""

    def __init__(self, model: nn.Module) -> None:
        self.gib, self._begun = 0.0, False
        model.register_forward_pre_hook(self._look)

    def _look(self, model: nn.Module, inputs: tuple) -> None:
        if not self._begun:
            torch.cuda.reset_peak_memory_stats()
            self._begun = True
        if model.training:  # the peak of the steps before this one
            self.gib = torch.cuda.max_memory_allocated() / 2**30


# Name: what it does, its arguments, and its time limit in seconds.
SECTIONS: dict[str, tuple[Callable, tuple[str, ...], float]] = {
    "device": (device, (), 30),
    "bf16": (precision, ("bf16",), 40),
    "fp16": (precision, ("fp16",), 40),
    "resume": (resume, (), 75),
    **{
        f"speed_{row}_{name}": (speed, (row, name), 45)
        for name in ("bf16", "no")  # processes of their own: accelerate keeps one precision for a process
        for row in ROWS
    },
}


def run_section(name: str, given: argparse.Namespace, limit: float) -> bool:
    """Run a section in a process of its own; tell its failure in one line."""
    command = [sys.executable, __file__, *(["--rehearse"] if given.rehearse else []), "--worker", name]
    begin = time.monotonic()
    worker = subprocess.Popen(command, start_new_session=True)
    try:
        code = worker.wait(limit)
        why = f"exit code {code}" if code else None
    except subprocess.TimeoutExpired:
        why = f"not done within {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, 9)  # its own children as well
        worker.wait()
    line(section=name, ok=why is None, wall_s=round(time.monotonic() - begin, 1), **({"error": why} if why else {}))
    return why is None


def work(given: argparse.Namespace) -> None:
    """What a section's process does."""
    name, *arguments = given.worker
    function, fixed, _ = SECTIONS.get(name, (resume_part, (), 0.0))
    try:
        function(given, *fixed, *arguments)
    except Exception as error:
        traceback.print_exc()
        line(section=name, ok=False, error=f"{type(error).__name__}: {error}"[:500])
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="walk through the code on the CPU with tiny sizes")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    if not torch.cuda.is_available() and not given.rehearse:
        line(benchmark="gpu_check", gpu=None, unproven=list(SECTIONS))
        return
    sections = [name for name in given.only if not (given.rehearse and name == "fp16")]  # refused on the CPU
    end, done = time.monotonic() + (600 if given.rehearse else BUDGET), {}
    for name in sections:
        left = end - time.monotonic()
        done[name] = left > 10 and run_section(name, given, min(left, SECTIONS[name][2] * (5 if given.rehearse else 1)))
    gpu = None if given.rehearse else torch.cuda.get_device_name(0)
    passed = [name for name, ok in done.items() if ok]
    unproven = [name for name in done if name not in passed]
    line(benchmark="gpu_check", gpu=gpu, rehearsal=given.rehearse, passed=passed, unproven=unproven)
    sys.exit(bool(unproven))


if __name__ == "__main__":
    main()
