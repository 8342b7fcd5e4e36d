"""Checkpoints without rank or pickle: safetensors and JSON, whole or absent.

A checkpoint `step-<N>/` holds model.safetensors and config.json (the published model: these two alone) and, for
resuming, optimizer.safetensors, training.json and, if used, ema.safetensors. It is written into a temporary folder,
flushed to the disk and renamed: a save cut short leaves the one before it whole.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from accel_geo.engine.optimizers import clean_name
from accel_geo.parallel.reduction import broadcast_json, broadcast_tensors, is_main
from accel_geo.parallel.sharding import copy_whole, full


@dataclass
class Checkpoint:
    """What a checkpoint holds, as whole tensors and JSON-able values."""

    model: dict[str, Tensor]
    config: dict
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    training: dict = field(default_factory=dict)
    ema: dict[str, Tensor] | None = None

    def files(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors by the name of their file."""
        files = {"model": self.model, "optimizer": self.optimizer if self.training else None, "ema": self.ema}
        return {f"{name}.safetensors": tensors for name, tensors in files.items() if tensors is not None}


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's state as whole tensors under names without wrappers; collective where it is sharded."""
    return {clean_name(name): full(tensor) for name, tensor in module.state_dict().items()}


def load_module_state(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load whole tensors into a module, sharded or not.

    Raises:
        ValueError: names or shapes differ.
    """
    mine = {clean_name(name): tensor for name, tensor in module.state_dict().items()}
    missing, foreign = sorted(set(mine) - set(state)), sorted(set(state) - set(mine))
    if missing or foreign:
        examples = f"missing: {missing[:3]}, unknown: {foreign[:3]}"
        raise ValueError(
            f"{source} is of another network: {len(missing)} names missing, {len(foreign)} unknown ({examples})"
        )
    for name, tensor in mine.items():
        if tuple(tensor.shape) != tuple(state[name].shape):
            raise ValueError(f"{source}: {name} is {tuple(state[name].shape)}, this network has {tuple(tensor.shape)}")
        copy_whole(tensor, state[name])


def write_folder(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint's files into a folder, atomically; an older folder of that name is replaced.

    Raises:
        OSError: the disk is full or cannot be written; what was there before is whole.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, tensors in checkpoint.files().items():
            # Clones, so that tied weights are stored under each of their names.
            whole = {k: t.detach().to("cpu").clone(memory_format=torch.contiguous_format) for k, t in tensors.items()}
            try:
                save_file(whole, temporary / name)
            except SafetensorError as error:
                raise OSError(28 if "No space" in str(error) else 5, f"{folder / name}: {error}") from None
            _flush(temporary / name)
        documents = {"config.json": checkpoint.config, "training.json": checkpoint.training}
        for name, document in documents.items():
            if document:
                (temporary / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
                _flush(temporary / name)
        _flush(temporary)
        if folder.exists():
            old = folder.with_name(f".tmp-old-{folder.name}-{os.getpid()}")
            os.replace(folder, old)
            os.replace(temporary, folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, folder)
        _flush(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_folder(folder: str | os.PathLike, resuming: bool = False) -> Checkpoint:
    """Read a published model, or with `resuming` a whole checkpoint.

    Raises:
        FileNotFoundError: no such folder, or no model in it.
        ValueError: a file is truncated, foreign or not what it should be.
    """
    folder = Path(folder)
    config = _read_json(folder / "config.json")
    if not isinstance(config, dict) or not {"class", "arguments", "spec"} <= set(config):
        raise ValueError(f"{folder / 'config.json'} is no model description: it must have class, arguments and spec")
    checkpoint = Checkpoint(model=_read_tensors(folder / "model.safetensors"), config=config)
    if resuming:
        checkpoint.optimizer = _read_tensors(folder / "optimizer.safetensors")
        checkpoint.training = _read_json(folder / "training.json")
        if (folder / "ema.safetensors").exists():
            checkpoint.ema = _read_tensors(folder / "ema.safetensors")
    return checkpoint


def _read_json(path: Path) -> object:
    if not path.is_file():
        found = sorted(p.name for p in path.parent.iterdir())[:8] if path.parent.is_dir() else "no such folder"
        raise FileNotFoundError(
            f"{path} not found (in its place: {found}); give a folder with config.json and model.safetensors, such as "
            "model/ or checkpoints/step-N/ of a run"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not whole: {error}; take another checkpoint of the run") from None


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} not found; a model folder holds config.json and model.safetensors")
    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is truncated or no safetensors file ({error}); take another checkpoint of the run"
        ) from None


def steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, ascending."""
    names = (p.name.removeprefix("step-") for p in checkpoints.glob("step-*") if p.is_dir())
    return sorted(int(name) for name in names if name.isdigit())


def newest(checkpoints: Path, say: object = print) -> Checkpoint | None:
    """Read the newest whole checkpoint on the main process and hand it to all; None where there is none.

    Nodes need no shared disk: only the main process reads.

    Raises:
        ValueError: there are checkpoints, but none is whole.
    """
    found, problems = None, []
    if is_main():
        for step in reversed(steps(checkpoints)):
            try:
                found = read_folder(checkpoints / f"step-{step}", resuming=True)
                break
            except (ValueError, FileNotFoundError) as error:
                problems.append(str(error))
    problems = broadcast_json(problems)
    for problem in problems:
        say(f"skipped a checkpoint: {problem}")
    head = broadcast_json(None if found is None else [found.config, found.training, found.ema is not None])
    if head is None:
        if problems:
            raise ValueError(f"no checkpoint in {checkpoints} is whole; the newest: {problems[0]}")
        return None
    return Checkpoint(
        model=broadcast_tensors(found.model if found else None),
        config=head[0],
        optimizer=broadcast_tensors(found.optimizer if found else None),
        training=head[1],
        ema=broadcast_tensors(found.ema if found else None) if head[2] else None,
    )


def point_best(checkpoints: Path, step: int) -> None:
    """Let `best` name a checkpoint: a relative link, or a file where links cannot be made."""
    temporary = checkpoints / f".tmp-best-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(f"step-{step}", target_is_directory=True)
    except OSError:
        temporary.write_text(f"step-{step}")
    os.replace(temporary, checkpoints / "best")


def best_step(checkpoints: Path) -> int | None:
    """Return the step that `best` names, or None."""
    best = checkpoints / "best"
    if best.is_symlink():
        name = os.readlink(best)
    elif best.is_file():
        name = best.read_text().strip()
    else:
        return None
    return int(name.removeprefix("step-"))


def prune(checkpoints: Path, keep: int) -> None:
    """Delete all but the last `keep` checkpoints and the best."""
    kept = {*steps(checkpoints)[-keep:], best_step(checkpoints)}
    for step in steps(checkpoints):
        if step not in kept:
            # Renamed first: a deletion cut short must not leave something that looks like a checkpoint.
            doomed = checkpoints / f".tmp-old-step-{step}"
            os.replace(checkpoints / f"step-{step}", doomed)
            shutil.rmtree(doomed, ignore_errors=True)
