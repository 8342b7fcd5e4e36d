"""A fit while it runs: where it stands, what it holds, how it is opened, resumed, saved and closed."""

import copy
import functools
import json
import os
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn

from accel_geo.data.spec import DataSpec
from accel_geo.engine import checkpoint as ckpt
from accel_geo.engine import publish
from accel_geo.engine.batches import Loader
from accel_geo.engine.evaluation import Evaluation
from accel_geo.engine.lr_finder import find_lr
from accel_geo.engine.optimizers import (
    MovingAverage,
    OptimizerFactory,
    build_optimizer,
    load_optimizer_state,
    optimizer_state,
)
from accel_geo.engine.run_folder import RunFolder, collectively
from accel_geo.parallel import keys, launch, order
from accel_geo.parallel.batch_norm import convert
from accel_geo.parallel.reduction import gather_json, world_size
from accel_geo.parallel.sharding import extent, shard

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# May differ on a resumption without a word; batch_size and the horizon (epochs, max_steps) have rules of their own.
FREE_OPTIONS = {"keep", "save_every", "batch_size", "epochs", "max_steps"}


@dataclass
class Progress:
    """Where a fit stands: all that resuming needs beside the weights and the optimizer's state.

    Attributes:
        fit: number of the fit in this run, from 0.
        total: optimizer steps of the fit.
        first_step: `step` at the fit's start.
        epoch: the present epoch, from 0.
        batch: batches of this epoch that are done.
        step: optimizer steps that are done, over all fits.
        evaluated: the present step has had the evaluation that was due.
        done: the fit has ended.
        best: best value of the monitored metric; best_step: where it was reached.
        plateau_factor: factor that the plateau schedule has reached; plateau_wait: evaluations without improvement.
        early_stopping_wait: evaluations without improvement.
    """

    fit: int
    total: int
    first_step: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0
    evaluated: bool = True
    done: bool = False
    best: float | None = None
    best_step: int | None = None
    plateau_factor: float = 1.0
    plateau_wait: int = 0
    early_stopping_wait: int = 0

    def due(self, every: int) -> bool:
        """Say whether something that happens every so many steps, and at the last, is due."""
        return self.last or (self.step - self.first_step) % every == 0

    @property
    def last(self) -> bool:
        """The fit has no step left."""
        return self.step - self.first_step >= self.total


@dataclass
class Run:
    """What a fit holds while it runs.

    Attributes:
        model: the user's GeoModel.
        module: the network that is trained: the model, or its sharded copy.
        wrapped: the module as DDP or fully_shard wraps it.
        ema: the moving average, where one is kept.
        skipped: a later fit of this run has been reached before; this one has nothing to do.
        unreadable: problems by image_id.
    """

    model: nn.Module
    data: object
    accelerator: object
    folder: RunFolder
    progress: Progress
    options: dict
    module: nn.Module
    wrapped: nn.Module
    optimizer: torch.optim.Optimizer
    order: order.EpochOrder
    loader: Loader
    ema: MovingAverage | None = None
    skipped: bool = False
    unreadable: dict[int, str] = field(default_factory=dict)
    evaluation: Evaluation | None = None

    @functools.cached_property
    def chips(self) -> dict[str, object]:
        """Which chips the run is made of; see `describe_data`."""
        return describe_data(self.data)

    @property
    def sharded(self) -> bool:
        """The parameters are spread over the processes."""
        return self.module is not self.model

    @cached_property
    def trained_ids(self) -> set[int]:
        """The image_ids of the training chips."""
        return set(self.data.train.ids)

    @property
    def evaluated_module(self) -> nn.Module:
        """The network that is evaluated and published: the moving average where one is kept."""
        return self.ema.module if self.ema else self.module

    def every(self, name: str) -> int:
        """Return the steps between evaluations (eval_every) or saves (save_every): an epoch where not given."""
        return self.options[name] or order.batch_count(len(self.order.ids), self.options["batch_size"])


def open_run(
    model: nn.Module,
    data: object,
    accelerator: object,
    folder: RunFolder,
    options: dict,
    factory: OptimizerFactory,
    resume: bool,
) -> Run:
    """Lock the folder, find where to go on, and wrap network, optimizer and data; collective.

    Raises:
        ValueError: the folder holds another run or is in use; the checkpoint is of another run; too few samples.
        OSError: the folder cannot be written.
    """
    going_on_here = model.fits > 0 and folder.path is not None and model.run_folder == str(folder.path.resolve())
    existed = folder.acquire(allow_existing=resume or going_on_here)
    found = ckpt.newest(folder.checkpoints, folder.say) if resume and existed else None
    progress = Progress(model.fits, 0, first_step=model.steps, step=model.steps)
    skipped, continued = False, False
    if found is not None:
        stored = found.training
        skipped, continued = stored["fit"] > progress.fit, stored["fit"] == progress.fit
        if continued:
            _adopt(stored, options, folder)
            _check_same_run(found, model, data)
            progress = Progress(**{f.name: stored[f.name] for f in fields(Progress)})
        elif skipped:
            progress = Progress(progress.fit, 0, step=stored["first_step"], done=True)
        folder.cut_history(stored["step"])
    elif going_on_here:
        folder.cut_history(model.steps)
    elif resume:
        folder.say("nothing to resume: starting afresh")
        folder.cut_history(-1)
    order.check_cut(order.epoch_length(data.train), options["batch_size"], options["accumulate"], world_size())
    total = _horizon(data, options)
    if continued and total != progress.total:
        if total > progress.total:
            folder.say(f"the fit's horizon is raised from {progress.total} to {total} steps")
            progress.done = False
            progress.total = total
        else:
            folder.say(
                f"the run's horizon of {progress.total} steps is kept; it can only be raised ({total} asked for)"
            )
    progress.total = progress.total or total

    convert(model)
    device, dtype = accelerator.device, DTYPES[options["dtype"]]
    model.to(device=device, dtype=dtype)
    if continued:
        ckpt.load_module_state(model, found.model, f"the checkpoint of step {progress.step}")
    if options["lr"] is None:
        options["lr"] = _find_lr(model, data, accelerator, factory, options, skipped)
        folder.say(f"found lr {options['lr']:.2e}")
    module, wrapped = _wrap(model, accelerator, options)
    optimizer = build_optimizer(module, factory, options["lr"])
    ema = MovingAverage(module, options["ema"]) if options["ema"] else None
    if continued:
        load_optimizer_state(optimizer, module, found.optimizer)
        if ema:
            ckpt.load_module_state(ema.module, found.ema, "the checkpoint's moving average")
        if accelerator.scaler is not None and found.training["scaler"]:
            accelerator.scaler.load_state_dict(found.training["scaler"])
    epoch_order = order.EpochOrder(
        data.train.ids,
        data.train.sizes,
        batch_size=options["batch_size"],
        accumulate=options["accumulate"],
        seed=options["seed"],
        fit=progress.fit,
        rank=accelerator.process_index,
        processes=world_size(),
        times=data.train.times,
    )
    loader = Loader(data.train, epoch_order, device, dtype, data.num_workers)
    run = Run(
        model,
        data,
        accelerator,
        folder,
        progress,
        options,
        module,
        wrapped,
        optimizer,
        epoch_order,
        loader,
        ema,
        skipped,
    )
    _say_start(run)
    if continued:
        folder.say(f"resumed at step {progress.step}")
    return run


def _find_lr(
    model: nn.Module, data: object, accelerator: object, factory: OptimizerFactory, options: dict, skipped: bool
) -> float:
    names = ("batch_size", "accumulate", "seed")
    dtype = DTYPES[options["dtype"]]
    if skipped:
        return 1.0  # this fit has nothing left to do
    return find_lr(model, data, accelerator, factory, dtype=dtype, **{name: options[name] for name in names})[0]


def _horizon(data: object, options: dict) -> int:
    steps = order.batch_count(order.epoch_length(data.train), options["batch_size"]) * options["epochs"]
    return min(steps, options["max_steps"] or steps)


def _adopt(stored: dict, options: dict, folder: RunFolder) -> None:
    """Check that the options are those of the stored run; its global batch wins."""
    theirs = stored["options"]
    if options["lr"] is None:
        options["lr"] = theirs["lr"]  # found by the run itself
    if theirs["batch_size"] != options["batch_size"]:
        folder.say(
            f"the run's global batch of {theirs['batch_size']} and lr of {theirs['lr']} are kept "
            f"({options['batch_size']} and {options['lr']} asked for)"
        )
        options["batch_size"], options["lr"] = theirs["batch_size"], theirs["lr"]
    changed = {k: (theirs.get(k), v) for k, v in options.items() if k not in FREE_OPTIONS and theirs.get(k) != v}
    if changed:
        text = ", ".join(f"{name} was {old}, now {new}" for name, (old, new) in changed.items())
        raise ValueError(f"these options define the run and cannot change on --resume: {text}; use another --output")


def _check_same_run(found: ckpt.Checkpoint, model: nn.Module, data: object) -> None:
    """Refuse a checkpoint of another network or of other data: what follows would be no continuation."""
    theirs, ours = dict(found.config), json.loads(json.dumps(model.config()))
    theirs["spec"] = DataSpec.from_json(theirs["spec"]).to_json()  # with what was no part of it when the run began
    theirs["spec"] |= {name: ours["spec"][name] for name in ("all_bands", "file_dtypes")}  # for predict alone
    pairs = [("class", theirs["class"], ours["class"])]
    parts = [(theirs[part], ours[part]) for part in ("arguments", "spec")]
    parts.append((found.training.get("training_only", model.training_only), model.training_only))  # or an older run's
    for before, now in parts:
        pairs += [(name, before.get(name), now.get(name)) for name in sorted(before.keys() | now.keys())]
    changed = [f"{name} was {old}, now {new}" for name, old, new in pairs if old != new]
    stored = {"mixup": 0.0, "samples an epoch": None, **found.training["data"]}
    for part, now in describe_data(data).items():
        if now != (before := stored[part]) and isinstance(now, list):
            changed.append(f"the {part} split was {before[0]} chips, now {now[0]} that are not all the same")
        elif now != before:
            changed.append(f"{part} was {before}, now {now}")
    if changed:
        raise ValueError(
            f"the run has another network or other data, which cannot change on --resume: {', '.join(changed)}; "
            "use another --output"
        )


def describe_data(data: object) -> dict[str, object]:
    """Return the number of chips of each split and a hash of which they are, in which order and size.

    And how training chips are mixed, and how many samples they make where some occur several times.
    """
    splits = {"training": data.train, "validation": data.valid}
    described: dict[str, object] = {
        name: [len(chips), f"{keys.fold(json.dumps([chips.ids, chips.files, chips.sizes])):x}"]
        for name, chips in splits.items()
    }
    times = data.train.times
    return described | {"mixup": data.train.mixup, "samples an epoch": times and sum(times)}


def _wrap(model: nn.Module, accelerator: object, options: dict) -> tuple[nn.Module, nn.Module]:
    """Return the module to train and its wrapping: by DDP, or sharded where the launcher's configuration asks for it."""
    if not (launch.sharding_asked() and world_size() > 1):
        return model, accelerator.prepare_model(model)
    if options["ema"]:
        raise ValueError(
            "--ema keeps a whole copy of the weights, which a sharded model (FSDP) is to avoid: leave one out"
        )
    module = shard(copy.deepcopy(model), accelerator.device.type)
    return module, module


def _say_start(run: Run) -> None:
    reports = gather_json(launch.device_report(run.accelerator.device))
    run.folder.say(launch.device_table(reports))
    if run.sharded:
        here, whole = extent(run.module)
        run.folder.say(f"the model is sharded (FSDP): rank 0 holds {here} of {whole} parameters")
    smallest = min(min(part) for part in run.order.shares(-1))
    if world_size() > 1 and smallest < 2:
        run.folder.say(
            f"hint: a global batch of {run.options['batch_size']} gives {smallest} sample(s) to a process; "
            "--per-device-batch-size with --scale-lr uses the devices better"
        )


def save(run: Run) -> None:
    """Write a checkpoint of the present step; collective.

    Raises:
        OSError: on all processes; the checkpoint before it is whole.
    """
    p, folder = run.progress, run.folder
    if folder.path is None:
        return
    scaler = run.accelerator.scaler
    whole = ckpt.Checkpoint(
        model=ckpt.module_state(run.module),
        config=run.model.config(),
        optimizer=optimizer_state(run.optimizer, run.module),
        training={
            **asdict(p),
            "options": run.options,
            "data": run.chips,
            "training_only": run.model.training_only,
            "scaler": scaler.state_dict() if scaler else None,
        },
        ema=ckpt.module_state(run.ema.module) if run.ema else None,
    )

    def write() -> None:
        folder.check()  # a checkpoint must not be ahead of the history
        ckpt.write_folder(folder.checkpoints / f"step-{p.step}", whole)
        if p.best_step == p.step:
            ckpt.point_best(folder.checkpoints, p.step)
        ckpt.prune(folder.checkpoints, run.options["keep"])
        folder.touch()

    try:
        collectively(write)
    except OSError as error:
        raise OSError(
            error.errno,
            f"saving step {p.step} in {folder.checkpoints} failed: {error.strerror}. The checkpoint before it is whole; "
            "make room and go on with --resume",
        ) from None


def close_run(run: Run) -> None:
    """Bring whole, unwrapped weights back into the model, and publish the run; collective."""
    model, p = run.model, run.progress
    if run.sharded:
        ckpt.load_module_state(model, ckpt.module_state(run.module), "the sharded model")
    else:
        run.accelerator.unwrap_model(run.wrapped, keep_fp32_wrapper=False)
    if run.ema and not run.skipped:
        model.load_state_dict(run.ema.module.state_dict())
    model.fits, model.steps, model.history = p.fit + 1, p.step, run.folder.history
    model.run_folder = None if run.folder.path is None else os.fspath(run.folder.path.resolve())
    if run.folder.path is not None and not run.skipped:
        collectively(lambda: publish.publish_run(run))
        run.folder.say(publish.outcome(run))
    if world_size() > 1:
        dist.barrier()
