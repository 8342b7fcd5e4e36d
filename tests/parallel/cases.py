"""What the processes of a world are told to do; see world.py. Every case returns JSON."""

import functools
import hashlib
import os
import signal
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch

SMALL = {"backbone": "test_resnet", "size": "small"}
REGIONS = {
    "rpn_batch_size_per_image": 16,
    "rpn_pre_nms_top_n_train": 60,
    "rpn_pre_nms_top_n_test": 60,
    "rpn_post_nms_top_n_train": 40,
    "rpn_post_nms_top_n_test": 20,
    "box_batch_size_per_image": 16,
    "box_detections_per_img": 10,
}
# What makes a row small besides.
ANCHORS = [[12, 12], [12, 18], [18, 12], [20, 20]]  # else fitted to the boxes of each data set
ROWS = {"MaskRCNN": REGIONS, "FasterRCNN": REGIONS, "SuperResolution": {"backbone": None}}
ROWS |= {"SingleShotDetector": {"anchors": ANCHORS}}


class Crash(BaseException):
    """Ends a fit at a step, on every process alike, as a fault in the machine would."""


def build(row: str, data: dict, start: str | None = None, model: dict | None = None):
    """Build the data and a small network of a row."""
    from accel_geo import prepare_data
    from accel_geo.models import model_class

    return model_class(row)(prepare_data(**data), **{**SMALL, **ROWS.get(row, {}), "weights": start, **(model or {})})


def fit(
    row: str,
    data: dict,
    stages: list[dict],
    start: str | None = None,
    model: dict | None = None,
    publish: bool = False,
    save: str | None = None,
    at: dict | None = None,
    breaking: list[str] | None = None,
    compiled: bool = False,
) -> dict:
    """Train in one or several fits.

    Args:
        row: the class.
        data: arguments of prepare_data.
        stages: options of each fit; "freeze" also freezes (True, "norms") or unfreezes (False) before it.
        start: weights to start from.
        model: further arguments of the model.
        publish: write the report, which takes seconds.
        save: write the trained model there.
        at: what happens in which optimizer step of this process, counted over all fits; see `acting`.
        breaking: files that are spoilt once the data set has been opened.
        compiled: wrap a submodule by torch.compile first.
    """
    network = build(row, data, start, model)
    if breaking:
        _meet()
    for file in breaking or []:
        Path(file).write_bytes(b"not an image")
    if compiled:
        network.head = torch.compile(network.head, backend="eager")
    result = {"weights": [], "statistics": [], "frozen": []}
    factory = acting(at or {})
    with _without_report(publish), _counting_samples() as sampled:
        for stage in stages:
            stage = dict(stage)
            freeze = stage.pop("freeze", None)
            if freeze == "norms":
                freeze_norms(network)
            elif freeze is not None:
                network.freeze() if freeze else network.unfreeze()
            before = _frozen_values(network)
            try:
                network.fit(optimizer=factory, **{"cpu": True, "threads": 1, "dtype": "float64", **stage})
            except Crash:
                result["crashed"] = True
                break
            except SystemExit as stop:
                result["exit"] = stop.code
                break
            result["frozen"].append(before == _frozen_values(network))
            result["weights"].append(digest(network.state_dict()))
    if save:
        network.save(save)
    return result | {"sampled": dict(sampled), "names": sorted(network.state_dict())}


def fit_and_leave(**arguments: object) -> None:
    """Run `fit` as a recipe's process does: what ends the fit ends the process."""
    from accel_geo import options

    class Parser:
        def parse(self, arguments: list[str] | None) -> object:
            return Given

    class Given:
        given = SimpleNamespace(devices=1, output="given by the stage")

    def main(_: object) -> None:
        raise SystemExit(fit(**arguments)["exit"])

    options.run(main, Parser())


def killed_in_save(step: int, **arguments: object) -> None:
    """Kill this process when the model of one checkpoint has been written, before anything else of it."""
    from accel_geo.engine import checkpoint

    save_file = checkpoint.save_file

    def saving(tensors: dict, path: Path) -> None:
        save_file(tensors, path)
        if f"step-{step}-" in path.parent.name:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.save_file = saving
    fit(**arguments)


def refused(**arguments: object) -> dict:
    """Run `fit` where it must fail, and return the error's class and message."""
    _meet()
    try:
        fit(**arguments)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None, "message": "it was not refused"}


def evaluation(row: str, data: dict, model: str, predictions: str) -> dict:
    """Evaluate a published model over all processes and write its predictions; also say who did which chips."""
    from accel_geo import prepare_data
    from accel_geo.engine import evaluation as engine
    from accel_geo.engine import publish
    from accel_geo.models import from_model
    from accel_geo.parallel import launch
    from accel_geo.parallel.reduction import is_main

    launch.start(cpu=True, threads=1)
    data = prepare_data(**data)
    network = from_model(model, data).double()
    mine, record = [], data.task.record
    data.task.record = lambda spec, prediction, target, file: (
        mine.append(target["image_id"]) or record(spec, prediction, target, file)
    )
    try:
        found = engine.evaluate(network, data.valid, data.task, device=torch.device("cpu"), distributed=True)
    finally:
        del data.task.record
    if is_main():
        Path(predictions).mkdir(parents=True)
        publish.write_predictions(Path(predictions), data.task.predictions(found.records))
    return {"metrics": found.metrics, "mine": mine, "ids": data.valid.ids}


def main_alone(row: str, data: dict, output: str, chip: str) -> dict:
    """Fit on all processes, then evaluate and predict on the main one alone."""
    from accel_geo.parallel.reduction import is_main

    network = build(row, data)
    with _without_report(False):
        network.fit(epochs=1, lr=1e-3, max_steps=2, output=output, cpu=True, threads=1)
    if not is_main():
        return {}
    return {"metrics": network.evaluate(), "keys": sorted(network.predict(chip))}


def lr_find(row: str, data: dict, **options: object) -> dict:
    """Look for a learning rate; the weights before and after."""
    network = build(row, data)
    from accel_geo.engine import loop

    before = digest({k: v.double() for k, v in network.state_dict().items()})
    lr, curve = loop.lr_find(network, network.data, cpu=True, threads=1, dtype="float64", **options)
    return {"lr": lr, "curve": curve, "untouched": before == digest(network.state_dict())}


def batch_norm(seed: int, shape: list[int], layers: int = 2) -> dict:
    """Train a batch-normalised network on this process's share of one batch; returns losses, gradients and buffers."""
    from torch import nn

    from accel_geo.engine.step import training_step
    from accel_geo.parallel import launch
    from accel_geo.parallel.batch_norm import GlobalBatchNorm, convert
    from accel_geo.parallel.order import cut
    from accel_geo.parallel.reduction import Loss, rank, world_size

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, momentum=0.3), nn.ReLU()) for _ in range(layers)]
            self.layers = nn.Sequential(*[layer for part in parts for layer in part])

        def forward(self, images, targets):
            out = self.layers(images)
            return {"loss": Loss((out * out.detach().roll(1, -1) - out).square().sum(), float(len(images)))}

    accelerator = launch.start(cpu=True, threads=1)
    torch.manual_seed(seed)
    net = convert(Net().double())
    assert sum(isinstance(m, GlobalBatchNorm) for m in net.modules()) == layers
    images = torch.randn(shape, dtype=torch.float64) * 3 + 1
    mine = images[cut(len(images), world_size())[rank()]]
    wrapped = accelerator.prepare_model(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    targets = [{"image_id": i} for i in range(len(mine))]
    losses = [
        training_step(wrapped, net, [(mine, targets)], [len(images)], optimizer, accelerator).losses for _ in range(3)
    ]
    return {"losses": losses, "state": {k: v.tolist() for k, v in net.state_dict().items()}}


def reduction(values: list[float]) -> dict:
    """Sum, gather and broadcast this process's share of some values."""
    from accel_geo.parallel import launch
    from accel_geo.parallel import reduction as r
    from accel_geo.parallel.order import cut

    launch.start(cpu=True, threads=1)
    mine = torch.tensor(values, dtype=torch.float64)[cut(len(values), r.world_size())[r.rank()]].requires_grad_()
    total = r.global_sum(mine.sum())
    # A function of the global sum, computed on every process: DDP's averaging of gradients is done by hand here.
    (total.square() / r.world_size()).backward()
    tensors = {"a": torch.arange(3), "b": torch.full((2, 2), 0.1, dtype=torch.float64), "none": torch.zeros(0)}
    received = r.broadcast_tensors(tensors if r.is_main() else None)
    return {
        "total": total.item(),
        "gradient": mine.grad.tolist(),
        "gathered": r.gather_json({"rank": r.rank(), "values": mine.tolist()}),
        "sent": r.broadcast_json([r.rank(), 1 / 3]),
        "tensors": {k: [str(v.dtype), list(v.shape), v.tolist()] for k, v in received.items()},
    }


def saves(folder: str, times: int) -> list[str]:
    """Save into nested folders that do not exist, again and again, by all processes together."""
    from accel_geo.engine.run_folder import RunFolder
    from accel_geo.parallel import launch

    launch.start(cpu=True, threads=1)
    made = []
    for number in range(times):
        run = RunFolder(Path(folder) / f"deep/er/{number}")
        run.acquire(allow_existing=False)
        run.release()
        made.append(str(run.path))
    return made


def acting(at: dict):
    """Return AdamW under its own name, whose step number N does `at[N]` first: kill, crash, terminate or slow."""
    from accel_geo.engine.optimizers import adamw
    from accel_geo.parallel.reduction import rank

    counted = Counter()

    def act(parameters: object) -> None:
        counted["steps"] += 1
        what, *only = str(at.get(str(counted["steps"]), "")).split("@")
        if only and rank() != int(only[0]):
            return
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "crash":
            raise Crash
        elif what == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == "infinite":
            with torch.no_grad():
                next(iter(parameters)).fill_(float("inf"))

    @functools.wraps(adamw)
    def factory(parameters, lr):
        parameters = list(parameters)
        optimizer = adamw(parameters, lr=lr)
        step = optimizer.step

        def stepping(*args, **kwargs):
            result = step(*args, **kwargs)
            act(parameters)
            return result

        optimizer.step = stepping
        return optimizer

    return factory


def freeze_norms(network: torch.nn.Module) -> None:
    """Freeze all batch normalisation of a network, and nothing else."""
    from accel_geo.parallel.batch_norm import GlobalBatchNorm, convert

    convert(network)
    network._frozen = [module for module in network.modules() if isinstance(module, GlobalBatchNorm)]
    assert network._frozen
    for module in network._frozen:
        module.requires_grad_(False)


def digest(state: dict) -> str:
    """Hash tensors by name, to the bit."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        hashed.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def _meet() -> None:
    """Form the world, and wait until all processes are here."""
    from accel_geo.parallel import launch
    from accel_geo.parallel.reduction import gather_json

    launch.start(cpu=True, threads=1)
    gather_json(None)


def _frozen_values(network: torch.nn.Module) -> str:
    # parameters and statistics of what is frozen, in double precision, which a fit may change them to
    modules = torch.nn.ModuleList(network._frozen)
    return digest({name: tensor.double() for name, tensor in modules.state_dict().items()})


@contextmanager
def _without_report(publish: bool):
    from accel_geo.engine import publish as engine

    before = engine.publish_run
    if not publish:
        engine.publish_run = lambda run: None
    try:
        yield
    finally:
        engine.publish_run = before


@contextmanager
def _counting_samples():
    """Count the candidates that the region samplers saw and took, by their site."""
    from accel_geo.nn.sampling import KeyedSampler

    before, counted = KeyedSampler.__call__, Counter()

    def sampling(self, matched):
        positives, negatives = before(self, matched)
        for labels, positive, negative in zip(matched, positives, negatives):
            counted[f"{self.site} candidates"] += int((labels >= 0).sum())
            counted[f"{self.site} taken"] += int(positive.sum() + negative.sum())
        return positives, negatives

    KeyedSampler.__call__ = sampling
    try:
        yield counted
    finally:
        KeyedSampler.__call__ = before
