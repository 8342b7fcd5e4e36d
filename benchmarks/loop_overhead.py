"""What `fit` costs over a bare PyTorch loop that does the same work; other trainers beside it where they are installed.

    python benchmarks/loop_overhead.py                 # about 5 minutes on one quiet core
    python benchmarks/loop_overhead.py --profile       # where the difference goes, a minute

All loops train the same network on the same samples in memory with the same optimizer, keep every step's loss, and are
timed from forward pass to forward pass by a clock in the network: start, evaluation and end are left out. `fit` writes
its history to a folder. Targets: 0.85 of the bare loop's steps/s on a step of 2 ms, 0.95 on ResNet-18.
"""

import argparse
import contextlib
import cProfile
import importlib.util
import pstats
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from common import LR, WEIGHT_DECAY, Clock, MemoryData, bare_loop, line, median_ratio, medians, memory_data, our_fit
from common import total_loss as total
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from accel_geo import FeatureClassifier
from accel_geo.data.chips import collate
from accel_geo.models.base import GeoModel
from accel_geo.nn.losses import label_cross_entropy
from accel_geo.parallel.reduction import Loss


class TinyNetwork(GeoModel):
    """A few small convolutions: a step of about 2 ms on one core, so that what the loop adds shows."""

    task = "classification"

    def __init__(self, data: object) -> None:
        super().__init__(data)
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(64, len(self.spec.classes))

    def forward(self, images: Tensor, targets: list[dict] | None = None) -> dict[str, Loss] | list[dict]:
        logits = self.head(F.adaptive_avg_pool2d(self.backbone(self.normalize(images)), 1).flatten(1))
        if not self.training:
            return [{"scores": row} for row in logits.softmax(1)]
        labels = torch.tensor([target["label"] for target in targets], device=images.device)
        return {"cross_entropy": label_cross_entropy(logits, labels, 0.0)}


def hf_trainer(model: nn.Module, data: MemoryData, steps: int, folder: Path) -> list:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor, targets: list[dict]) -> dict[str, Tensor]:
            return {"loss": total(self.model(images, targets))}

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=data.batch_size,
        learning_rate=LR,
        weight_decay=WEIGHT_DECAY,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        max_grad_norm=0.0,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        Network(),
        arguments,
        train_dataset=data.train,
        data_collator=lambda samples: dict(zip(("images", "targets"), collate(samples))),
    )
    trainer.remove_callback(PrinterCallback)  # would print every step
    trainer.train()
    return [record["loss"] for record in trainer.state.log_history if "loss" in record]


def lightning(model: nn.Module, data: MemoryData, steps: int, folder: Path) -> list:
    import lightning as L

    losses: list[float] = []

    class Network(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: tuple, number: int) -> Tensor:
            loss = total(self.model(*batch))
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    trainer.fit(Network(), DataLoader(data.train, data.batch_size, shuffle=True, collate_fn=collate))
    return losses


def contestants(threads: int) -> dict[str, Callable[[nn.Module, MemoryData, int, Path], list]]:
    """Return the loops by name: (network, data, steps, an empty folder) -> the losses or records of all steps."""

    def ours(model: nn.Module, data: MemoryData, steps: int, folder: Path) -> list:
        return [r for r in our_fit(model, data, steps, folder / "run", cpu=True, threads=threads) if "loss" in r]

    loops = {"bare": lambda model, data, steps, folder: bare_loop(model, data, steps), "accel_geo": ours}
    if importlib.util.find_spec("transformers"):
        loops["hf_trainer"] = hf_trainer
    if importlib.util.find_spec("lightning"):
        loops["lightning"] = lightning
    return loops


class Work:
    """Networks and data of one measurement, with the steps of a run and those of its warm-up."""

    def __init__(self, name: str, network: Callable, size: int, steps: int, target: float) -> None:
        self.name, self.network, self.steps, self.target = name, network, steps, target
        self.warm_up = max(2, steps // 20)
        self.data = memory_data("classification", size, batch_size=8)

    def run(self, loop: Callable, **clock: Callable) -> float:
        """Return the seconds a step of one run takes."""
        model = self.network(self.data)
        watch = Clock(model, self.warm_up, self.steps, **clock)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            kept = loop(model, self.data, self.steps, Path(folder))
        assert len(kept) == len(watch.stamps) == self.steps, f"{len(kept)} of {self.steps} steps were kept"
        return watch.seconds_per_step()


def compare(work: Work, loops: dict[str, Callable], runs: int) -> None:
    names = list(loops)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(runs):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:  # no one always runs behind the same other
            seconds[name].append(work.run(loops[name]))
    ratios = {name: median_ratio(seconds["bare"], seconds[name]) for name in names if name != "bare"}
    ms = {name: round(1e3 * value, 4) for name, value in medians(seconds).items()}
    line(
        benchmark="loop_overhead",
        work=work.name,
        runs=runs,
        steps=work.steps,
        ms_per_step=ms,
        of_bare=ratios,
        target=work.target,
        reached=ratios["accel_geo"] >= work.target,
    )


def profile(work: Work, loops: dict[str, Callable], rows: int) -> None:
    """Print the functions in which `fit` spends more own time a step than the bare loop."""
    own: dict[str, dict[tuple, tuple[float, float]]] = {}
    counted = work.steps - 1 - work.warm_up
    for name in ("bare", "accel_geo"):
        profiler = cProfile.Profile()
        work.run(loops[name], starting=profiler.enable, ending=profiler.disable)
        stats = pstats.Stats(profiler).stats
        own[name] = {key: (1e6 * s[2] / counted, s[1] / counted) for key, s in stats.items()}
    none = (0.0, 0.0)
    extra = {k: t - own["bare"].get(k, none)[0] for k, (t, _) in own["accel_geo"].items()}
    total_extra = sum(t for t, _ in own["accel_geo"].values()) - sum(t for t, _ in own["bare"].values())
    line(benchmark="loop_overhead", work=work.name, profile="own time, fit minus bare", extra_us=round(total_extra, 1))
    for key in sorted(extra, key=extra.get, reverse=True)[:rows]:
        file, number, function = key
        place = f"{'/'.join(Path(file).parts[-2:])}:{number} {function}" if number else function
        line(extra_us_per_step=round(extra[key], 1), calls_per_step=round(own["accel_geo"][key][1], 2), function=place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each loop, interleaved (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    parser.add_argument("--only", choices=("tiny", "resnet18"), help="one of the two networks")
    parser.add_argument("--tiny-size", type=int, default=56, help="pixels that make the step take 2 ms (default: 56)")
    parser.add_argument("--without", nargs="*", default=[], help="loops to leave out: hf_trainer lightning")
    parser.add_argument("--profile", action="store_true", help="print where the difference goes, on the tiny network")
    parser.add_argument("--rows", type=int, default=40, help="of the profile (default: 40)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loops = {name: loop for name, loop in contestants(given.threads).items() if name not in given.without}
    works = {
        "tiny": lambda: Work("tiny", TinyNetwork, given.tiny_size, 600, 0.85),
        "resnet18": lambda: Work("resnet18", lambda data: FeatureClassifier(data, backbone="resnet18"), 64, 50, 0.95),
    }
    if given.profile:
        profile(works[given.only or "tiny"](), loops, given.rows)
        return
    for name, work in works.items():
        if given.only in (None, name):
            compare(work(), loops, given.runs)


if __name__ == "__main__":
    main()
