"""The options that all recipes share, parsed in one place; without torch, so that --help answers at once."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_geo import option_values as of
from accel_geo.data_options import add_data_options, data_arguments

ROOT_ERRORS = (ValueError, OSError, RuntimeError)  # what a user's input or machine can cause: a message, no traceback


class Parser(argparse.ArgumentParser):
    """The parser of a recipe: the shared options with the recipe's own defaults; `add_argument` adds the recipe's own.

    Args:
        description: the recipe's docstring: its first line is shown, its launch commands stand below the options.
        task: the kind of label that the recipe learns.
        epochs, batch_size, lr: the recipe's.
        schedule, clip, ema, backbone: likewise.
        builtin: defaults that hold where no --data is given, such as dict(epochs=20, backbone="resnet18").
    """

    def __init__(
        self,
        description: str,
        *,
        task: str,
        epochs: int,
        batch_size: int,
        lr: float,
        backbone: str | None,
        schedule: str = "one_cycle",
        clip: float | None = None,
        ema: float | None = None,
        builtin: dict | None = None,
    ) -> None:
        first, _, rest = description.strip().partition("\n")
        super().__init__(
            description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        self.task, self.builtin = task, builtin or {}
        self.recipe = {
            "epochs": epochs, "batch_size": batch_size, "lr": lr, "backbone": backbone,
            "schedule": schedule, "clip": clip, "ema": ema,
        }  # fmt: skip
        add_data_options(self)
        self._add_run()
        self._add_training()
        self._add_launch()

    def _default(self, name: str) -> str:
        value = self.recipe[name]
        value = "none" if value is None else value
        return f"{value}; {self.builtin[name]} for the built-in scenes" if name in self.builtin else f"{value}"

    def _add_run(self) -> None:
        add = self.add_argument_group("run").add_argument
        add("--output", metavar="DIR", help="folder of the run (default: runs/<recipe>-<time>)")
        add("--resume", action="store_true", help="go on from the newest whole checkpoint in --output (default: off)")
        add(
            "--epochs",
            type=of.positive,
            metavar="N",
            help=f"passes over the training chips (default: {self._default('epochs')})",
        )
        add("--max-steps", type=of.positive, metavar="N", help="ends training sooner (default: none)")
        add(
            "--eval-every",
            type=of.positive,
            metavar="N",
            help="optimizer steps between evaluations (default: an epoch)",
        )
        add(
            "--save-every",
            type=of.positive,
            metavar="N",
            help="optimizer steps between checkpoints (default: an epoch)",
        )
        add("--keep", type=of.positive, default=2, metavar="N", help="checkpoints kept beside the best (default: 2)")
        add("--monitor", metavar="METRIC", help="metric that tells the best (default: the task's)")
        add("--early-stopping", type=of.positive, metavar="N", help="evaluations without improvement (default: off)")
        add("--min-delta", type=float, default=1e-6, metavar="X", help="what counts as an improvement (default: 1e-6)")
        add(
            "--smoke",
            action="store_true",
            help="the whole path in under a minute: 8 small chips, a few steps (default: off)",
        )

    def _add_training(self) -> None:
        add = self.add_argument_group("training").add_argument
        add(
            "--batch-size",
            type=of.positive,
            metavar="N",
            help=f"samples in a global batch, whatever the process count (default: {self._default('batch_size')})",
        )
        add(
            "--per-device-batch-size",
            type=of.positive,
            metavar="N",
            help="the same, multiplied out by the processes (default: none)",
        )
        add(
            "--accumulate",
            type=of.positive,
            default=1,
            metavar="K",
            help="parts that a batch is worked in (default: 1)",
        )
        add(
            "--lr",
            type=of.rate,
            metavar="X|auto",
            help=f"largest learning rate, or auto: a range test (default: {self._default('lr')})",
        )
        add(
            "--scale-lr",
            choices=["none", "linear", "sqrt"],
            default="none",
            help="how the recipe's lr follows another global batch (default: none)",
        )
        add(
            "--schedule",
            choices=["one_cycle", "cosine", "constant", "plateau"],
            help=f"of the learning rate (default: {self._default('schedule')})",
        )
        add(
            "--clip",
            type=of.between(0),
            metavar="X",
            help=f"largest norm of the gradients (default: {self._default('clip')})",
        )
        add(
            "--ema",
            type=of.between(0, 1),
            metavar="DECAY",
            help=f"moving average of the weights (default: {self._default('ema')})",
        )
        add("--freeze", action="store_true", help="do not train the backbone (default: off)")
        add("--backbone", metavar="NAME", help=f"torchvision or timm network (default: {self._default('backbone')})")
        add("--weights", metavar="none|default|PATH", default="none", help="weights to start from (default: none)")
        add(
            "--size", choices=["small", "full"], help="of the heads (default: small for the built-in scenes, else full)"
        )
        add("--seed", type=int, default=42, metavar="N", help="root of all randomness (default: 42)")
        add(
            "--dtype",
            choices=["float32", "float64"],
            default="float32",
            help="float64 is for comparisons (default: float32)",
        )
        add("--precision", choices=["no", "bf16", "fp16"], help="mixed precision (default: accelerate's setting)")

    def _add_launch(self) -> None:
        add = self.add_argument_group("launch").add_argument
        add(
            "--devices",
            type=of.positive,
            default=1,
            metavar="N",
            help="processes to start on this machine (default: 1)",
        )
        add("--cpu", action="store_true", help="use the CPU even where there is a GPU (default: off)")
        add(
            "--threads",
            type=of.positive,
            metavar="N",
            help="CPU threads of a process (default: OMP_NUM_THREADS of a lone one, else all cores, shared)",
        )
        add(
            "--timeout",
            type=of.between(0),
            default=600,
            metavar="S",
            help="seconds until a lost process is an error (default: 600)",
        )
        add("--tracker", metavar="NAME", help="a tracker that accelerate knows, such as tensorboard (default: none)")
        # torch.distributed.launch appends this one.
        self.add_argument("--local-rank", "--local_rank", dest="local_rank", help=argparse.SUPPRESS)

    def parse(self, arguments: list[str] | None = None) -> "Options":
        """Parse the command line, complete it with the recipe's defaults and refuse contradictions."""
        given = self.parse_args(arguments)
        self._refuse(given)
        defaults = {**self.recipe, **(self.builtin if given.data is None else {})}
        if given.smoke:
            defaults |= {"epochs": 2, "batch_size": 4}
        for name, value in defaults.items():
            if getattr(given, name, None) is None:
                setattr(given, name, value)
        return Options(given, self, defaults)

    def _refuse(self, given: argparse.Namespace) -> None:
        if given.vectors or given.class_column:
            if given.data is None:
                self.error("--vectors needs --data, the scene to be chipped")
        if given.valid and given.valid_match:
            self.error("--valid and --valid-match both choose the validation split; give one")
        if given.per_device_batch_size and given.batch_size:
            self.error("--batch-size and --per-device-batch-size say the same thing; give one")
        if given.resume and not given.output:
            self.error("--resume needs --output, the folder of the run to go on with")
        if given.smoke and given.resume:
            self.error("--smoke starts afresh; leave out --resume")
        if given.num_workers is not None and given.num_workers < 0:
            self.error("--num-workers must be at least 0")
        if not given.min_delta >= 0:
            self.error("--min-delta must be at least 0")
        if given.weights not in ("none", "default") and not Path(given.weights).exists():
            self.error(
                f"--weights {given.weights}: no such file; give none, default or the path of a .safetensors or .pth file"
            )
        for path in given.data or ():
            if not Path(path).exists() and not of.may_be_elsewhere(path):
                self.error(f"--data {path}: no such folder")


class Options:
    """A recipe's options: attributes by their names, and the keyword arguments that each part takes.

    Args:
        given: the parsed command line.
        parser: that parsed it.
        defaults: of the recipe, for the data at hand.
    """

    def __init__(self, given: argparse.Namespace, parser: Parser, defaults: dict) -> None:
        self.given, self.parser, self.defaults = given, parser, defaults

    def __getattr__(self, name: str) -> object:
        return getattr(self.given, name)

    @property
    def global_batch(self) -> int:
        """Samples in a global batch."""
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        return (self.given.per_device_batch_size or 0) * processes or self.given.batch_size

    @property
    def model_size(self) -> str:
        """The size of the heads: small for the built-in scenes and --smoke."""
        return self.given.size or ("small" if self.given.data is None or self.given.smoke else "full")

    def for_data(self) -> dict[str, object]:
        """Return the arguments of `prepare_data`."""
        o = self.given
        arguments = data_arguments(o) | {"task": self.parser.task, "batch_size": self.global_batch, "seed": o.seed}
        if not o.smoke:
            return arguments
        path = arguments["path"]
        if path is None:
            from accel_geo.data.scenes import builtin

            path = str(builtin(self.parser.task, smoke=True))
        small = {"limit": min(o.limit or 8, 8), "resize_to": o.resize_to or 64, "val_split": max(o.val_split, 0.25)}
        return arguments | small | {"path": path}

    def for_model(self) -> dict[str, object]:
        """Return the arguments of a model: backbone, weights, size."""
        weights = None if self.given.weights == "none" else self.given.weights
        return {"backbone": self.given.backbone, "weights": weights, "size": self.model_size}

    def for_fit(self) -> dict[str, object]:
        """Return the arguments of `fit`."""
        o = self.given
        names = ("epochs", "max_steps", "accumulate", "schedule", "clip", "ema", "seed", "dtype", "precision", "eval_every",
                 "save_every", "keep", "monitor", "early_stopping", "min_delta", "output", "resume", "cpu", "threads",
                 "timeout", "tracker")  # fmt: skip
        return {"lr": self.scaled_lr(), "batch_size": self.global_batch, **{name: getattr(o, name) for name in names}}

    def scaled_lr(self) -> float | None:
        """Return the learning rate for the global batch at hand, None where it is to be found."""
        lr = self.given.lr
        if lr == "auto":
            return None
        ratio = self.global_batch / self.defaults["batch_size"]
        return lr * {"none": 1.0, "linear": ratio, "sqrt": ratio**0.5}[self.given.scale_lr]


def run(main: Callable[[Options], None], parser: Parser, arguments: list[str] | None = None) -> None:
    """Run a recipe: check how it was launched, start --devices processes or run `main` in this one.

    What a user's input or machine can cause ends with a message and exit code 1, on whichever process it arises.
    """
    options = parser.parse(arguments)
    given = options.given
    from accel_geo.parallel import launch, supervise

    with end_with_message():
        launch.check_environment(given.devices)
        given.output = given.output or f"runs/{Path(sys.argv[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        if given.devices > 1:
            command = [
                sys.executable,
                sys.argv[0],
                *_without_devices(arguments or sys.argv[1:]),
                "--output",
                given.output,
            ]
            sys.exit(supervise.run_workers(command, given.devices))
        foreign = _in_world()
        main(options)
        if not foreign:
            _leave_world()


@contextmanager
def end_with_message() -> Iterator[None]:
    """End the process with a message instead of a traceback for what a user's input or machine can cause."""
    try:
        yield
    except ROOT_ERRORS as error:
        if os.environ.get("ACCEL_GEO_TRACEBACK"):
            raise
        rank = int(os.environ.get("RANK", "0"))
        print(f"accel_geo: rank {rank}: {_explain(error)}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(
            1
        )  # not sys.exit: other processes may be waiting in collective calls that this one's teardown would join


def _in_world() -> bool:
    """Say whether the caller has begun a process group, which then is the caller's to end."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _leave_world() -> None:
    if _in_world():
        distributed = sys.modules["torch.distributed"]
        distributed.barrier()  # rank 0 may hold the store in which the others just say that they are done
        distributed.destroy_process_group()


def _explain(error: Exception) -> str:
    text = str(error)
    lost = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "timed out")
    if isinstance(error, RuntimeError) and any(sign in text for sign in lost):
        reason = text.splitlines()[0]
        return f"another process of this run has ended or hangs; its own message tells why. Go on with --resume. ({reason})"
    if isinstance(error, RuntimeError) and "out of memory" not in text and "exit code" not in text:
        import traceback

        return "".join(traceback.format_exception(error))
    if tasks := getattr(error, "tasks", ()):  # the data are of other tasks than the model
        from accel_geo.models import models_for

        text += f"\nModels for such data: {', '.join(name for task in tasks for name in models_for(task))}"
    return text


def _without_devices(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == "--devices" or argument.startswith("--devices="):
            skip = argument == "--devices" and not skip
            continue
        if argument == "--output" or argument.startswith("--output="):
            skip = argument == "--output"
            continue
        kept.append(argument)
    return kept
