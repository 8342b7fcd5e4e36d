"""`fit(devices=N)`: training on several processes from a script or notebook that no launcher started."""

import json
import tempfile
from pathlib import Path

from accel_geo.engine import checkpoint
from accel_geo.engine.signals import Stopped
from accel_geo.parallel.supervise import call_in_workers


def fit_in_processes(model: object, devices: int, options: dict) -> list[dict]:
    """Train a model in new processes and bring weights and history back into it.

    Raises:
        RuntimeError: a process failed; its own message stands above. Or the script lacks the guard of its start.
        Stopped: the processes were stopped by a signal, after saving.
    """
    with tempfile.TemporaryDirectory(prefix="accel_geo-") as folder:
        call_in_workers(_fit, (model, options, folder), devices)
        if not (Path(folder) / "facts.json").exists():
            raise Stopped
        trained = checkpoint.read_folder(Path(folder) / "trained")
        facts = json.loads((Path(folder) / "facts.json").read_text())
    from accel_geo.parallel.batch_norm import convert

    convert(model)
    model.to(next(tensor.dtype for tensor in trained.model.values() if tensor.is_floating_point()))
    checkpoint.load_module_state(model, trained.model, "the trained model")
    for name, value in facts.items():
        setattr(model, name, value)
    return model.history


def _fit(model: object, options: dict, folder: str) -> None:
    from accel_geo.parallel.reduction import is_main

    model.fit(**options)
    model.save(Path(folder) / "trained")
    if is_main():
        facts = {name: getattr(model, name) for name in ("fits", "steps", "run_folder", "history")}
        (Path(folder) / "facts.json").write_text(json.dumps(facts))
