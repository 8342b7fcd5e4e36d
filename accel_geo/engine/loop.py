"""The training loop: plain PyTorch wrapped in Accelerate, the same run on any number of processes.

Read `train` first: it is the loop. `fit` checks the options, opens or resumes the run and hands it to `train`.
"""

import math
import os
import time
from collections.abc import Iterator
from numbers import Real

import torch
from torch import nn

from accel_geo.engine import publish
from accel_geo.engine.batches import Batch, in_parts
from accel_geo.engine.evaluation import evaluate
from accel_geo.engine.lr_finder import find_lr
from accel_geo.engine.optimizers import (
    PLATEAU_FACTOR,
    PLATEAU_PATIENCE,
    SCHEDULES,
    OptimizerFactory,
    adamw,
    describe_factory,
    lr_factor,
    set_lr,
)
from accel_geo.engine.progress_bar import ProgressBar
from accel_geo.engine.run import DTYPES, Run, close_run, open_run, save
from accel_geo.engine.run_folder import RunFolder, collectively
from accel_geo.engine.signals import Stopped, StopSignals
from accel_geo.engine.step import NonFiniteLoss, StepResult, training_step
from accel_geo.parallel import launch, order
from accel_geo.parallel.batch_norm import convert
from accel_geo.parallel.reduction import world_size
from accel_geo.parallel.watch import watching

UNREADABLE_SHARE = 0.05  # of the training chips; more than this stops the run


def train(run: Run) -> None:
    """The training loop."""
    p = run.progress
    with StopSignals() as signals, ProgressBar(p.total, p.step - p.first_step) as bar:
        run.module.train()
        if not p.evaluated:
            after_step(run, stop=False)  # what a stop cut off
        while not p.done:
            for batch, parts in batches(run):
                lr = set_lr(
                    run.optimizer, lr_factor(run.options["schedule"], p.step - p.first_step, p.total) * p.plateau_factor
                )
                result = step(run, batch, parts, signals.requested or run.folder.failure is not None)
                if run.ema:
                    run.ema.update(run.module)
                p.step, p.batch = p.step + 1, batch + 1
                p.evaluated = not p.due(run.every("eval_every"))
                log_step(run, bar, result, batch, lr)
                after_step(run, result.stop)
                bar.skip()
                if p.done:
                    return
            p.epoch, p.batch = p.epoch + 1, 0


def batches(run: Run) -> Iterator[tuple[int, list[Batch]]]:
    """Yield the number and this process's accumulation parts of each batch left in the present epoch."""
    run.order.start(run.progress.epoch, run.progress.batch)
    yield from enumerate(in_parts(iter(run.loader), run.options["accumulate"]), start=run.progress.batch)


def after_step(run: Run, stop: bool) -> None:
    """Evaluate and save where it is due, and stop where it was asked for.

    Raises:
        Stopped: after saving.
        OSError: on all processes; the history or the checkpoint could not be written.
    """
    p, better = run.progress, False
    if not p.evaluated and not stop:
        better = evaluate_and_decide(run)
        p.done = p.last or p.early_stopping_wait >= (run.options["early_stopping"] or math.inf)
    if better or p.done or stop or p.due(run.every("save_every")):
        save(run)
    if stop:
        run.folder.say(f"stopped by a signal, saved at step {p.step}; go on with --resume")
        raise Stopped


def step(run: Run, batch: int, parts: list[Batch], stop: bool) -> StepResult:
    """Train on one global batch, with errors that say what to do; see `training_step`."""
    shares = [sum(share) for share in run.order.shares(batch)]
    number = run.progress.step + 1
    try:
        return training_step(
            run.wrapped, run.module, parts, shares, run.optimizer, run.accelerator, clip=run.options["clip"], stop=stop
        )
    except NonFiniteLoss as error:
        names = [run.data.file(i) for i in dict.fromkeys(error.chips)]
        raise ValueError(
            f"step {number}: loss {', '.join(f'{k} is {v}' for k, v in error.terms.items())}. Chips: {', '.join(names[:8])}"
            f"{' ...' if len(names) > 8 else ''}. Lower --lr, set --clip 1, or use --precision no or bf16; "
            "the last checkpoint is whole"
        ) from None
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        images = parts[0][0]
        raise RuntimeError(
            f"out of memory at step {number} on {images.device}: {len(images)} samples of {tuple(images.shape[1:])} in one "
            "pass. Lower --batch-size, or keep it and raise --accumulate; else --chip-size or --resize-to, --size small, a "
            f"smaller --backbone, or --precision bf16 ({str(error).splitlines()[0]})"
        ) from None


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text


def log_step(run: Run, bar: ProgressBar, result: StepResult, batch: int, lr: float | list[float]) -> None:
    """Append the step to the history and show it; what depends on how it ran stands under `machine`."""
    p = run.progress
    shares = run.order.shares(batch)
    samples, loss = sum(map(sum, shares)), sum(result.losses.values())
    seconds, waited = bar.take_seconds(), run.loader.take_wait()
    machine = {
        "processes": world_size(),
        "samples_per_process": [sum(part[r] for part in shares) for r in range(world_size())],
        "seconds": round(seconds, 6),
        "samples_per_s": round(samples / seconds, 3),
        "data_wait": round(waited / seconds, 4),
        **launch.device_load(run.accelerator.device),
    }
    record = {"fit": p.fit, "epoch": p.epoch, "step": p.step, "loss": loss, "losses": result.losses, "lr": lr}
    run.folder.append({**record, "samples": samples, "machine": machine})
    if run.accelerator.trackers:
        terms = {f"losses/{name}": value for name, value in result.losses.items()}
        run.accelerator.log({"loss": loss, "lr": lr if isinstance(lr, float) else lr[0], **terms}, step=p.step)
    bar.show(loss, lr, samples, waited)
    count_unreadable(run, result.unreadable)


def count_unreadable(run: Run, unreadable: list[tuple[int, str]]) -> None:
    """Name each chip that could not be read once, and stop where there are too many; the same on all processes."""
    for image_id, problem in unreadable:
        if image_id not in run.unreadable:
            run.unreadable[image_id] = problem
            run.folder.say(f"unreadable chip, counts zero: {problem}")
    training = [problem for image_id, problem in run.unreadable.items() if image_id in run.trained_ids]
    if len(training) > UNREADABLE_SHARE * len(run.data.train):
        raise ValueError(
            f"{len(training)} of {len(run.data.train)} training chips cannot be read, more than {UNREADABLE_SHARE:.0%}; "
            f"mend or remove them, such as {training[0]}"
        )


def evaluate_and_decide(run: Run) -> bool:
    """Evaluate, log, and decide on best, plateau and early stopping, alike on all processes.

    Returns:
        Whether this is the best so far.
    """
    p, begin = run.progress, time.perf_counter()
    run.evaluation = evaluate(
        run.evaluated_module,
        run.data.valid,
        run.data.task,
        device=run.accelerator.device,
        distributed=True,
        sharded=run.sharded,
        autocast=run.accelerator.autocast,
        workers=run.data.num_workers,
    )
    metrics, seconds = run.evaluation.metrics, time.perf_counter() - begin
    for image_id, problem in run.evaluation.unreadable.items():
        if image_id not in run.unreadable:
            run.unreadable[image_id] = problem
            run.folder.say(f"unreadable chip, counts in no metric: {problem}")
    machine = {"processes": world_size(), "seconds": round(seconds, 4)}
    machine |= launch.device_load(run.accelerator.device, utilisation=True)
    run.folder.append({"fit": p.fit, "epoch": p.epoch, "step": p.step, "valid": metrics, "machine": machine})
    if run.accelerator.trackers:
        single = {f"valid/{name}": value for name, value in metrics.items() if isinstance(value, int | float)}
        run.accelerator.log(single, step=p.step)
    if run.folder.path is not None:
        records = run.data.task.predictions(run.evaluation.records)
        collectively(lambda: publish.write_predictions(run.folder.path, records))
    value = metrics[run.options["monitor"]]
    better = value is not None and (p.best is None or value > p.best + run.options["min_delta"])
    if better:
        p.best, p.best_step = value, p.step
    p.early_stopping_wait = 0 if better else p.early_stopping_wait + 1
    if run.options["schedule"] == "plateau":
        p.plateau_wait = 0 if better else p.plateau_wait + 1
        if p.plateau_wait > PLATEAU_PATIENCE:
            p.plateau_factor, p.plateau_wait = p.plateau_factor * PLATEAU_FACTOR, 0
    p.evaluated = True
    shown = "undefined" if value is None else f"{value:.4f}"
    best = ", the best so far" if better else ""
    run.folder.say(f"epoch {p.epoch} step {p.step}: {run.options['monitor']} {shown}{best} ({seconds:.1f} s)")
    return better


def fit(
    model: nn.Module,
    data: object,
    *,
    epochs: int = 10,
    lr: float | None = 1e-3,
    batch_size: int | None = None,
    accumulate: int = 1,
    max_steps: int | None = None,
    optimizer: OptimizerFactory = adamw,
    schedule: str = "one_cycle",
    clip: float | None = None,
    ema: float | None = None,
    seed: int | None = None,
    dtype: str = "float32",
    precision: str | None = None,
    eval_every: int | None = None,
    save_every: int | None = None,
    keep: int = 2,
    monitor: str | None = None,
    early_stopping: int | None = None,
    min_delta: float = 1e-6,
    output: str | os.PathLike | None = None,
    resume: bool = False,
    cpu: bool = False,
    threads: int | None = None,
    timeout: float = 600.0,
    tracker: str | None = None,
) -> list[dict]:
    """Train a network; collective in a distributed run.

    Args:
        model: a GeoModel; it holds the trained weights afterwards, on the CPU or the device it was trained on.
        data: a GeoData: train and valid splits, task, batch size, seed.
        epochs: passes over the training split.
        lr: largest learning rate; None finds one by a range test.
        batch_size: samples in a global batch, whatever the process count; None: the data's.
        accumulate: parts that a batch is worked in.
        max_steps: ends the fit after so many optimizer steps, where that is sooner.
        optimizer: makes the optimizer from (parameters, lr=...).
        schedule: one_cycle, cosine, constant or plateau.
        clip: largest norm of all gradients together.
        ema: decay of a moving average of the weights, which then is evaluated and published.
        seed: root of all randomness; None: the data's.
        dtype: float32 or float64.
        precision: no, bf16 or fp16; None: accelerate's setting.
        eval_every, save_every: optimizer steps; None: an epoch.
        keep: checkpoints kept beside the best.
        monitor: metric that is best when largest; None: the task's.
        early_stopping: evaluations without improvement after which training ends.
        min_delta: what counts as an improvement.
        output: folder of the run; None writes nothing.
        resume: go on from the folder's newest whole checkpoint.
        cpu, threads, timeout, tracker: see `accel_geo.parallel.launch.start`.

    Returns:
        The run's history: the records of history.jsonl.

    Raises:
        ValueError: contradictory options, too few samples for the processes, a loss that is not finite, a folder in use.
        OSError: the folder cannot be written.
    """
    batch_size = data.batch_size if batch_size is None else batch_size
    options = {
        "epochs": epochs,
        "max_steps": max_steps,
        "batch_size": batch_size,
        "accumulate": accumulate,
        "lr": lr,
        "schedule": schedule,
        "optimizer": describe_factory(optimizer),
        "clip": clip,
        "ema": ema,
        "seed": data.seed if seed is None else seed,
        "dtype": dtype,
        "eval_every": eval_every,
        "save_every": save_every,
        "keep": keep,
        "monitor": monitor or data.task.monitor_for(data.spec),
        "early_stopping": early_stopping,
        "min_delta": min_delta,
    }
    _check_options(options, data)
    accelerator = launch.start(
        cpu=cpu,
        threads=threads,
        timeout=timeout,
        precision=precision,
        tracker=tracker,
        project_dir=output and str(output),
    )
    folder = RunFolder(output, model.history if output is None else None)
    with watching():
        try:
            run = open_run(model, data, accelerator, folder, options, optimizer, resume)
            if tracker:
                accelerator.init_trackers("tracker", config={k: v for k, v in options.items() if v is not None})
            if not run.progress.done:
                train(run)
            close_run(run)
            return folder.history
        finally:
            folder.release()
            for finished in accelerator.trackers:
                finished.finish()
            accelerator.free_memory()


def _check_options(options: dict, data: object) -> None:
    if options["schedule"] not in SCHEDULES:
        raise ValueError(f"schedule {options['schedule']!r} is unknown; choose {', '.join(SCHEDULES)}")
    if options["dtype"] not in DTYPES:
        raise ValueError(f"dtype {options['dtype']!r} is unknown; choose {', '.join(DTYPES)}")
    for name in ("epochs", "max_steps", "eval_every", "save_every", "keep", "early_stopping"):
        if options[name] is not None and options[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} {options[name]} must be at least 1")
    if not isinstance(options["lr"], Real | None):
        raise ValueError(
            f"lr={options['lr']!r} must be a number, the largest learning rate, or None: a range test finds it then, as the "
            "recipes' --lr auto does"
        )
    for name in ("lr", "clip"):
        if options[name] is not None and not options[name] > 0:
            raise ValueError(f"--{name} {options[name]} must be above 0")
    if options["ema"] is not None and not 0 < options["ema"] < 1:
        raise ValueError(f"--ema {options['ema']} must lie between 0 and 1; 0.999 is usual")
    if not options["min_delta"] >= 0:
        raise ValueError(f"--min-delta {options['min_delta']} must be at least 0")
    known = data.task.metrics(data.spec, [])
    if options["monitor"] not in known or isinstance(known[options["monitor"]], list):
        names = [name for name, value in known.items() if not isinstance(value, list)]
        raise ValueError(
            f"--monitor {options['monitor']!r} is no metric of {data.task.name}; choose {', '.join(names)}"
        )
    order.check_cut(
        order.epoch_length(data.train),
        options["batch_size"],
        options["accumulate"],
        int(os.environ.get("WORLD_SIZE", "1")),
    )


def lr_find(
    model: nn.Module,
    data: object,
    *,
    batch_size: int | None = None,
    accumulate: int = 1,
    optimizer: OptimizerFactory = adamw,
    seed: int | None = None,
    dtype: str = "float32",
    precision: str | None = None,
    cpu: bool = False,
    threads: int | None = None,
    timeout: float = 600.0,
) -> tuple[float, list[tuple[float, float]]]:
    """Return a learning rate and the curve of a range test; collective. Options as for `fit`."""
    batch_size = data.batch_size if batch_size is None else batch_size
    order.check_cut(order.epoch_length(data.train), batch_size, accumulate, int(os.environ.get("WORLD_SIZE", "1")))
    accelerator = launch.start(cpu=cpu, threads=threads, timeout=timeout, precision=precision)
    model.to(device=accelerator.device, dtype=DTYPES[dtype])
    convert(model)
    seed = data.seed if seed is None else seed
    try:
        with watching():
            return find_lr(
                model,
                data,
                accelerator,
                optimizer,
                batch_size=batch_size,
                accumulate=accumulate,
                seed=seed,
                dtype=DTYPES[dtype],
            )
    finally:
        accelerator.free_memory()
