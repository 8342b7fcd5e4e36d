"""Is it the same run, carried out differently? Fits on a number of processes, and the tests' own comparison of runs."""

import json
import math
from pathlib import Path

from safetensors.torch import load_file

TENSORS = ("model.safetensors", "optimizer.safetensors", "ema.safetensors")


def run(worlds: object, processes: int, folder: Path, row: str, data: dict, stages: list[dict], **more: object) -> list:
    """Fit on so many processes into folder/<processes>; returns what each process says."""
    output = folder / str(processes)
    stages = [{"output": str(output), **stage} for stage in stages]
    said = worlds[processes].run("fit", row=row, data=data, stages=stages, **more)
    for line in history(output):
        assert line["machine"]["processes"] == processes
    # The weights are the same to the bit in every process, after every fit.
    assert len(said) == processes and all(each["weights"] == said[0]["weights"] for each in said)
    return said


def differences(first: Path, second: Path, rtol: float = 1e-9, steps: int = 2) -> list[str]:
    """List what differs between two runs, but for what stands under `machine`.

    Args:
        first: a run folder.
        second: the folder that is compared with it.
        rtol: of the largest figure of its kind in the run, or of the largest element of a tensor (at least 1e-2).
        steps: the training steps that there must be at least.
    """
    found = _history_differences(first, second, rtol, steps)
    ours, theirs = last_checkpoint(first), last_checkpoint(second)
    if ours.name != theirs.name:
        return [*found, f"last checkpoints {ours.name} and {theirs.name}"]
    for name in TENSORS:
        if (ours / name).exists() != (theirs / name).exists():
            found.append(f"{name} in one run only")
        elif (ours / name).exists():
            found += tensor_differences(load_file(ours / name), load_file(theirs / name), rtol, name)
    a, b = (json.loads((run / "predictions.json").read_text()) for run in (first, second))
    return found + figure_differences({"predictions": a}, {"predictions": b}, rtol)


def history(run: Path) -> list[dict]:
    """Read a history; every line must be whole, and each step must stand there once."""
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for kind in ("loss", "valid"):
        numbers = [line["step"] for line in lines if kind in line]
        assert numbers == sorted(set(numbers)), f"{run}: steps {numbers} of {kind}"
    return lines


def steps_of(run: Path) -> list[int]:
    """The training steps of a history."""
    return [line["step"] for line in history(run) if "loss" in line]


def last_checkpoint(run: Path) -> Path:
    """The checkpoint of the highest step."""
    return max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def _history_differences(first: Path, second: Path, rtol: float, steps: int) -> list[str]:
    tables = []
    for run in (first, second):
        lines = history(run)
        if sum("loss" in line for line in lines) < steps or not any("valid" in line for line in lines):
            return [f"{run} has only {len(lines)} lines"]
        tables.append([{k: v for k, v in line.items() if k != "machine"} for line in lines])
    a, b = tables
    if [sorted(x) for x in a] != [sorted(x) for x in b]:
        return [f"other lines: {len(a)} and {len(b)}"]
    scale: dict[str, float] = {}
    for line in a:
        for name, value in flat(line).items():
            scale[name] = max(scale.get(name, 0.0), abs(value)) if isinstance(value, float) else 0.0
    return [text for x, y in zip(a, b) for text in figure_differences(x, y, rtol, scale)]


def figure_differences(a: object, b: object, rtol: float, scale: dict[str, float] | None = None) -> list[str]:
    """List the figures that differ between two JSON values, relative to `scale` or to themselves."""
    a, b = flat(a), flat(b)
    found = [f"{name} on one side only" for name in sorted(a.keys() ^ b.keys())]
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if isinstance(x, float) and isinstance(y, float):
            whole = max((scale or {}).get(name, 0.0) or max(abs(x), abs(y)), 1e-6)
            same = math.isfinite(x) and math.isfinite(y) and abs(x - y) <= rtol * whole
        else:
            same = x == y
        if not same:
            found.append(f"{name}: {x} and {y}")
    return found


def tensor_differences(a: dict, b: dict, rtol: float, where: str = "") -> list[str]:
    """List the named tensors that differ."""
    found = [f"{where} {name} on one side only" for name in sorted(a.keys() ^ b.keys())]
    for name in sorted(a.keys() & b.keys()):
        x, y = a[name], b[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            found.append(f"{where} {name}: {tuple(x.shape)} {x.dtype} and {tuple(y.shape)} {y.dtype}")
            continue
        x, y = x.double(), y.double()
        if x.numel() and not float((x - y).abs().max()) <= rtol * max(float(x.abs().max()), 1e-2):
            found.append(f"{where} {name}: {float((x - y).abs().max()):.1e} of {float(x.abs().max()):.1e}")
    return found


def flat(value: object, prefix: str = "") -> dict[str, object]:
    """Flatten JSON to figures (as float) and others by path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for name, item in items for k, v in flat(item, f"{prefix}/{name}").items()} or {prefix: "nothing"}
    return {prefix: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value}
