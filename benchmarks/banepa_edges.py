"""Edge detectors on real outlines: a published HED as it is, fine-tuned, from scratch, and BDCN from the same VGG16.

    python benchmarks/banepa_edges.py --data banepa_oam_osm --weights hed_bsds500_fp16.safetensors --seconds 600

48 drone chips of 512 px resized to 256 (`images/`, `edge/`), those of column 386693 held out. Each training lasts as
long as the others: its steps are `--seconds` over the time of one, measured first. AdamW, batch 4, one-cycle schedule,
the recipe's augmentation; only the learning rates differ. ODS, OIS and AP as accel_geo.tasks.edges has them, within 3
pixels. Targets: fine-tuned above both unadapted and from scratch; BDCN at least as good as HED. A GPU is used where
there is one; on one CPU core a step takes seconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import line

SIZE, BATCH = 256, 4
HELD_OUT = "OAM-386693-*"
# row, whether it starts from the weights, largest learning rate
KINDS = {
    "hed_unadapted": ("hed", True, None),
    "hed_from_scratch": ("hed", False, 3e-4),
    "hed_fine_tuned": ("hed", True, 1e-4),
    "bdcn_fine_tuned": ("bdcn", True, 3e-4),
}


def train(kind: str, data_folder: Path, weights: str, seconds: float, seed: int) -> dict:
    """Train one network for so many seconds and measure it on the chips that were held out."""
    from accel_geo import prepare_data
    from accel_geo.engine.evaluation import evaluate
    from accel_geo.models.bdcn import BDCNEdgeDetector
    from accel_geo.models.hed import HEDEdgeDetector

    row, published, lr = KINDS[kind]
    data = prepare_data(
        data_folder, task="edges", resize_to=SIZE, valid_match=HELD_OUT, batch_size=BATCH, seed=seed, cache="memory"
    )
    build = {"hed": HEDEdgeDetector, "bdcn": BDCNEdgeDetector}[row]
    model = build(data, weights=weights if published else None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps, spent = 0, 0.0
    if lr:
        steps = max(1, round(seconds / seconds_per_step(model.to(device), data, device)))
        epochs = -(-steps * BATCH // len(data.train)) + 1
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            options = {"max_steps": steps, "eval_every": steps, "save_every": steps, "clip": 1.0, "threads": 1}
            model.fit(epochs, lr, schedule="one_cycle", output=f"{folder}/run", cpu=device.type == "cpu", **options)
        spent = time.perf_counter() - begin
    metrics = evaluate(model.to(device), data.valid, data.task, device=device, distributed=False).metrics
    return {"steps": steps, "fit_seconds": spent, **{k: metrics[k] for k in ("ods", "ods_threshold", "ois", "ap")}}


def seconds_per_step(model: torch.nn.Module, data: object, device: torch.device) -> float:
    """Return the time of one training step, without any change to the weights."""
    samples = [data.train[index] for index in range(BATCH)]
    images = torch.stack([sample["image"] for sample in samples]).to(device)
    model.train()
    times = []
    for _ in range(3 if device.type == "cuda" else 2):
        begin = time.perf_counter()
        sum(loss.total / loss.count for loss in model(images, samples).values()).backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    model.zero_grad()
    return min(times)


def measure(given: argparse.Namespace, kind: str, seed: int) -> dict:
    """Run one training in a process of its own, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, "--data", given.data, "--weights", given.weights]
        command += ["--seconds", str(given.seconds), "--worker", kind, str(seed), str(result)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr, check=True)
        return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the Banepa chips")
    parser.add_argument("--weights", required=True, help="the published HED, as safetensors")
    parser.add_argument("--seconds", type=float, default=600, help="of each training (default: 600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="(default: all)")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, seed, result = given.worker
        torch.set_num_threads(1)
        Path(result).write_text(json.dumps(train(kind, given.data, given.weights, given.seconds, int(seed))))
        return
    ods: dict[str, list[float]] = {kind: [] for kind in given.kinds}
    for number, seed in enumerate(given.seeds):
        turn = number % len(given.kinds)
        for kind in given.kinds[turn:] + given.kinds[:turn]:  # interleaved
            if ods[kind] and KINDS[kind][2] is None:
                continue  # nothing in it depends on the seed
            result = measure(given, kind, seed)
            ods[kind].append(result["ods"])
            shown = {name: round(value, 4) for name, value in result.items()}
            line(benchmark="banepa_edges", kind=kind, seed=seed, **shown)
    median = {kind: round(statistics.median(values), 4) for kind, values in ods.items()}
    summary = {"benchmark": "banepa_edges", "seconds": given.seconds, "seeds": given.seeds, "ods": median}
    if set(given.kinds) == set(KINDS):
        better = median["hed_fine_tuned"] > max(median["hed_unadapted"], median["hed_from_scratch"])
        summary |= {
            "fine_tuned_best": better,
            "bdcn_at_least_hed": median["bdcn_fine_tuned"] >= median["hed_fine_tuned"],
        }
    line(**summary)


if __name__ == "__main__":
    main()
