"""What a run leaves for people: predictions.json, the published model and the report; written by the main process."""

import json
import platform
from pathlib import Path

import torch

from accel_geo.data.spec import IGNORED
from accel_geo.engine import checkpoint as ckpt
from accel_geo.parallel.order import Request
from accel_geo.report.page import write_atomically

PICTURES = 6  # chips of the validation split that the report shows


def write_predictions(folder: Path, predictions: list[dict]) -> None:
    """Write predictions.json, one line for each chip."""
    lines = ",\n".join(json.dumps(entry) for entry in predictions)
    write_atomically(folder / "predictions.json", f"[\n{lines}\n]\n" if lines else "[]\n")


def published(folder: Path, present: ckpt.Checkpoint) -> ckpt.Checkpoint:
    """Return the model to publish: the best checkpoint's (its moving average where one was kept), else the present one."""
    step = ckpt.best_step(folder / "checkpoints")
    if step is None:
        return present
    best = ckpt.read_folder(folder / "checkpoints" / f"step-{step}", resuming=True)
    return ckpt.Checkpoint(model=best.ema or best.model, config=best.config)


def publish_run(run: object) -> None:
    """Write `model/` and `report.html` of a run whose model holds the last weights; on the main process."""
    from accel_geo.report.page import report_run

    model, data, folder = run.model, run.data, run.folder.path
    present = ckpt.Checkpoint(model=ckpt.module_state(model), config=model.config())
    ckpt.write_folder(folder / "model", published(folder, present))
    last = next((r for r in reversed(run.folder.history) if "valid" in r), None)
    pictures = []
    if run.evaluation is not None:
        pictures += data.task.charts(data.spec, run.evaluation.records)
        places = {image_id: index for index, image_id in enumerate(data.valid.ids)}
        hardest = [places[image_id] for image_id in data.task.hardest(data.spec, run.evaluation.records, PICTURES)]
        pictures += [(f"predicted worst: {name}", png) for name, png in result_pictures(model, data, hardest)]
    pictures = result_pictures(model, data, interesting(data.valid, PICTURES)) + pictures
    steps = [r for r in run.folder.history if "loss" in r]
    seconds = sum(r["machine"]["seconds"] for r in run.folder.history)
    monitor, p = run.options["monitor"], run.progress
    facts = {
        "model": type(model).__name__,
        "data": f"{data.path} ({data.format}), {len(data.train)} training and {len(data.valid)} validation chips",
        "classes": ", ".join(data.spec.classes),
        "bands": ", ".join(data.spec.bands),
        "steps": f"{p.step} (fit {p.fit}, {p.epoch + 1} epochs)",
        f"best {monitor}": "undefined"
        if p.best is None
        else f"{p.best:.4f} at step {p.best_step}, published in model/",
        "time": f"{seconds:.0f} s on {steps[-1]['machine']['processes'] if steps else 1} process(es)",
        "software": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    report_run(
        folder,
        title=f"{type(model).__name__} on {Path(str(data.path)).name}",
        facts=facts,
        monitor=monitor,
        table=data.task.table(data.spec, last["valid"]) if last else None,
        pictures=pictures,
        options={**run.options, **model.arguments},
        problems=[*data.problems, *run.unreadable.values()],
    )


def outcome(run: object) -> str:
    """Return the table of the last evaluation and where the results lie, as text."""
    folder = run.folder.path
    last = next((r for r in reversed(run.folder.history) if "valid" in r), None)
    table = [table_text(run.data, last["valid"])] if last else []
    return "\n".join([*table, f"report: {folder / 'report.html'}", f"model: {folder / 'model'}"])


def table_text(data: object, metrics: dict) -> str:
    """Return metrics as a table in plain text."""
    header, rows = data.task.table(data.spec, metrics)
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [header, *rows]
    )


def result_pictures(model: torch.nn.Module, data: object, indexes: list[int]) -> list[tuple[str, bytes]]:
    """Return pictures of validation chips by their position, truth beside prediction, as (caption, PNG)."""
    pictures = []
    for index in indexes:
        sample = data.valid[Request(index)]
        image = sample.pop("image")
        name = data.file(sample["image_id"])
        pictures.append((name, data.task.picture(data.spec, image, sample, model.predict(image), name)))
    return pictures


def interesting(chips: object, count: int) -> list[int]:
    """Return the indexes of a few chips spread over a split, readable ones that have objects first."""
    n = len(chips)
    spread = [i * n // (4 * count) for i in range(4 * count)] if n > 4 * count else list(range(n))
    samples = {i: chips[Request(i)] for i in dict.fromkeys(spread)}

    def empty(i: int) -> int:
        sample = samples[i]
        if sample["ignore"]:
            return 2
        pixels = next((sample[key] for key in ("mask", "edges", "segment_ids") if key in sample), None)
        if pixels is not None:
            return int(not (pixels % IGNORED).any())
        return int("labels" in sample and sample["labels"].numel() == 0)

    return sorted(sorted(samples, key=lambda i: (empty(i), spread.index(i) % 4, i))[:count])


def versions() -> dict[str, str]:
    """Return the versions of what a run depends on."""
    from importlib.metadata import version

    names = ("accel-geo", "torch", "torchvision", "accelerate", "timm")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
