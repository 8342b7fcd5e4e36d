"""COCO's average precision at scale: `evaluate` on two processes beside pycocotools on one, in the same run.

    python benchmarks/evaluation.py                 # about 6 minutes on two cores

1,000 chips of 256 px, 30 objects of five classes each, 100 detections a chip: objects shaken, split, missed or of a wrong
class, false ones, and scores of two digits, so that many are equal. A stand-in for a network draws them anew for each
chip, so that nothing but what an evaluation keeps fills memory; its seconds are left out on both sides. All else counts
for us: batches, records (run lengths), gathering, metrics, sending them out. For masks both also compare the boxes.

Ratios, each with a target of a quarter. `of_all`: from the tensors of predictions and truth to all figures, run lengths
of masks and pycocotools' COCO objects included on both sides. `of_evaluate`: our waiting, gathering and computing over
pycocotools' evaluate() and accumulate() alone, both from run lengths; `of_evaluate_segm` and `of_evaluate_bbox` compare
the computing of one kind. For boxes `of_everything` says what all of ours is of evaluate() and accumulate() alone.
Every figure (by threshold, size and class)
must be equal to 1e-9. Last comes how far memory grows in an evaluation of 1,000 and of 4,000 chips, in each process.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from common import line, median_ratio, medians
from torch import Tensor, nn

from accel_geo.data.spec import DataSpec
from accel_geo.engine import evaluation
from accel_geo.parallel.launch import keep_freed_memory
from accel_geo.parallel.order import Request
from accel_geo.parallel.supervise import run_workers
from accel_geo.tasks import TASKS

SIZE, OBJECTS, DETECTIONS, CLASSES, PROCESSES = 256, 30, 100, 5, 2
WARM_UP = 16  # chips of an evaluation before the one that counts: modules are loaded, memory has its ground level
TARGET, EQUAL = 0.25, 1e-9
KINDS = {"detection": ("bbox",), "instances": ("segm", "bbox")}  # what a task's metrics compare


class Objects:
    """Outlines that wave around an ellipse, as arrays of their parameters: centre, radii, wave and phase.

    Args:
        values: [N, 6], the first four in pixels.
        labels: [N], 1..K.
    """

    def __init__(self, values: np.ndarray, labels: np.ndarray) -> None:
        self.values, self.labels = values, labels

    @staticmethod
    def random(rng: np.random.Generator, count: int) -> "Objects":
        """Draw objects of 8 to 140 px, small ones most."""
        radii = np.exp(rng.uniform(np.log(4), np.log(70), (count, 1))) * rng.uniform(0.7, 1, (count, 2))
        shape = np.stack([rng.uniform(0, 0.2, count), rng.uniform(0, 2 * np.pi, count)], 1)
        return Objects(np.concatenate([rng.uniform(8, SIZE - 8, (count, 2)), radii, shape], 1), _labels(rng, count))

    def detected(self, rng: np.random.Generator) -> "Objects":
        """Return DETECTIONS objects: these shaken, some missed, found twice or of a wrong class, and false ones."""
        found = np.concatenate([np.flatnonzero(rng.random(OBJECTS) < share) for share in (0.9, 0.3)])[:DETECTIONS]
        values, labels = self.values[found].copy(), self.labels[found]
        values[:, :2] += rng.normal(0, 0.15, (len(found), 2)) * values[:, 2:4]
        values[:, 2:] *= rng.normal(1, 0.1, (len(found), 4)).clip(0.7, 1.3)
        labels = np.where(rng.random(len(found)) < 0.1, _labels(rng, len(found)), labels)
        false = Objects.random(rng, DETECTIONS - len(found))
        mixed = rng.permutation(DETECTIONS)
        return Objects(np.concatenate([values, false.values])[mixed], np.concatenate([labels, false.labels])[mixed])

    def drawn(self, masks: bool) -> dict[str, Tensor]:
        """Return boxes, labels and, if asked for, masks."""
        low = np.clip(self.values[:, :2] - self.values[:, 2:4], 0, SIZE - 2)
        high = np.clip(self.values[:, :2] + self.values[:, 2:4], low + 1, SIZE)
        labels = {"boxes": torch.from_numpy(np.concatenate([low, high], 1)).float()}
        labels["labels"] = torch.from_numpy(self.labels)
        if masks:
            drawn = np.zeros((len(self.values), SIZE, SIZE), dtype=bool)
            for mask, (cx, cy, rx, ry, wave, phase), (x1, y1), (x2, y2) in zip(
                drawn, self.values, low.astype(int), np.ceil(high).astype(int)
            ):
                x, y = (np.arange(x1, x2) + 0.5 - cx) / rx, (np.arange(y1, y2)[:, None] + 0.5 - cy) / ry
                outline = 1 - wave * (1 + np.cos(5 * np.arctan2(y, x) + phase)) / 2
                mask[y1:y2, x1:x2] = np.hypot(x, y) <= outline
            labels["masks"] = torch.from_numpy(drawn)
        return labels


def _labels(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(rng.geometric(0.4, count), CLASSES)  # classes differ in frequency


class Watch:
    """Adds up seconds by name: of the wall, or of this process on the processor."""

    def __init__(self, clock: str) -> None:
        self.now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = self.now()
        try:
            yield
        finally:
            self.seconds[name] += self.now() - begin

    def timed(self, name: str, function: Callable) -> Callable:
        """Return the function with its seconds added up."""

        def call(*arguments: object) -> object:
            with self(name):
                return function(*arguments)

        return call


class Split:
    """What `evaluate` needs of a split: chips whose one pixel says which they are, and their truth."""

    def __init__(self, task: str, count: int, watch: Watch) -> None:
        names = tuple("abcde"[:CLASSES])
        self.spec = DataSpec(
            task=task,
            classes=names,
            class_values=tuple(range(1, CLASSES + 1)),
            bands=("grey",),
            dtype="uint8",
            low=(0.0,),
            high=(255.0,),
            mean=(0.5,),
            std=(0.3,),
            chip_size=(SIZE, SIZE),
        )
        self.ids, self.sizes, self.watch = list(range(count)), [(SIZE, SIZE)] * count, watch
        self.files = [f"{i}.tif" for i in self.ids]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, request: Request) -> dict:
        with self.watch("stand_in"):
            image_id = self.ids[request.index]
            truth, _ = chip(image_id)
            about = {"image_id": image_id, "key": 0, "size": (SIZE, SIZE), "ignore": False}
            image = torch.full((1, 1, 1), float(image_id)).expand(1, SIZE, SIZE)
            return {"image": image, **truth.drawn(self.spec.task == "instances"), **about}


class StandIn(nn.Module):
    """A network that knows its predictions by the chip."""

    def __init__(self, masks: bool, watch: Watch) -> None:
        super().__init__()
        self.masks, self.watch = masks, watch
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> list[dict]:
        with self.watch("stand_in"):
            return [predicted(int(image[0, 0, 0]), self.masks) for image in images]


def chip(image_id: int) -> tuple[Objects, np.random.Generator]:
    """Return the truth of a chip, and the generator of its detections."""
    rng = np.random.default_rng(image_id)
    return Objects.random(rng, OBJECTS), rng


def predicted(image_id: int, masks: bool) -> dict[str, Tensor]:
    """Return the prediction of a chip."""
    truth, rng = chip(image_id)
    scores = torch.from_numpy(rng.random(DETECTIONS).round(2)).float()
    return {**truth.detected(rng).drawn(masks), "scores": scores}


def ours(task: str, chips: int, clock: str, folder: Path) -> None:
    """One process of a world: evaluate, and write what it took; rank 0 also what was found."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as fit does
    dist.init_process_group("gloo")
    assert dist.get_world_size() == PROCESSES
    watch, measured = Watch(clock), type("Measured", (type(TASKS[task]),), {})()
    measured.record, measured.metrics = watch.timed("record", measured.record), watch.timed("metric", measured.metrics)
    precisions = measured.precisions

    def comparing(spec: DataSpec, records: list[dict], kind: str, *ranges: object) -> np.ndarray:
        with watch(f"metric_{kind}"):
            return precisions(spec, records, kind, *ranges)

    measured.precisions = comparing
    gather, network = evaluation._gather_on_main, StandIn(task == "instances", watch)

    def gathering(records: list[dict]) -> list[dict]:
        with watch("wait"):
            dist.barrier()
        with watch("gather"):
            return gather(records)

    evaluation._gather_on_main = gathering
    found, ground = None, 0
    for count in (WARM_UP, chips):
        found, ground = None, peak()
        watch.seconds.clear()
        dist.barrier()
        with watch("all"):
            found = evaluation.evaluate(
                network, Split(task, count, watch), measured, device=torch.device("cpu"), distributed=True
            )
    grown = peak() - ground
    watch.seconds["all"] -= watch.seconds["stand_in"]
    result = {**watch.seconds, "grown": grown, "metrics": found.metrics}
    if dist.get_rank() == 0:
        assert [record["image_id"] for record in found.records] == list(range(chips))
        result["records"] = len(json.dumps(found.records))
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def peak() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def theirs(task: str, chips: int, clock: str, folder: Path) -> None:
    """pycocotools in one process, on the same tensors."""
    from pycocotools import mask as rle
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    watch, masks = Watch(clock), task == "instances"
    truths, found = [], []
    for image_id in range(chips):
        for things, labels in ((truths, chip(image_id)[0].drawn(masks)), (found, predicted(image_id, masks))):
            with watch("encode"):
                boxes = labels["boxes"].double()
                boxes[:, 2:] -= boxes[:, :2]
                scores = labels.get("scores", torch.ones(len(boxes))).tolist()
                for i, (box, label, score) in enumerate(zip(boxes.tolist(), labels["labels"].tolist(), scores)):
                    things.append({"image_id": image_id, "category_id": label, "bbox": box, "score": score})
                    if masks:
                        mask = np.asfortranarray(labels["masks"][i].numpy(), dtype=np.uint8)
                        things[-1]["segmentation"] = rle.encode(mask)
    figures = {}
    for kind in KINDS[task]:
        other = "segmentation" if kind == "bbox" else "bbox"  # loadRes tells by the keys what to compare
        with watch(f"build_{kind}"), contextlib.redirect_stdout(sys.stderr):
            data = COCO()
            annotations = [thing | {"id": i, "iscrowd": 0} for i, thing in enumerate(truths, 1)]
            for annotation in annotations:
                box = annotation["bbox"]
                annotation["area"] = float(rle.area(annotation["segmentation"])) if kind == "segm" else box[2] * box[3]
            images = [{"id": i, "height": SIZE, "width": SIZE} for i in range(chips)]
            categories = [{"id": k} for k in range(1, CLASSES + 1)]
            data.dataset = {"images": images, "annotations": annotations, "categories": categories}
            data.createIndex()
            results = data.loadRes([{k: v for k, v in thing.items() if k != other} for thing in found])
        with watch(f"evaluate_{kind}"), contextlib.redirect_stdout(sys.stderr):
            evaluator = COCOeval(data, results, kind)
            evaluator.evaluate()
            evaluator.accumulate()
        with contextlib.redirect_stdout(sys.stderr):
            evaluator.summarize()
        figures |= named(evaluator, "" if kind == KINDS[task][0] else "box_")
    (folder / "0.json").write_text(json.dumps({**watch.seconds, "metrics": figures}))


def named(evaluator: object, prefix: str) -> dict:
    """Return pycocotools' figures under the names of our metrics."""
    names = [f"{prefix}map{end}" for end in ("", "50", "75", "_small", "_medium", "_large")]
    precision = evaluator.eval["precision"][..., 0, -1]  # [thresholds, recalls, classes]
    assert (precision > -1).all(), "every class has truth"
    each = {f"{prefix}ap": precision.mean((0, 1)).tolist(), f"{prefix}ap50": precision[0].mean(0).tolist()}
    return dict(zip(names, evaluator.stats.tolist())) | each


def measure(who: str, task: str, chips: int, clock: str = "wall") -> list[dict]:
    """Run one contestant in processes of its own; return what each of them wrote."""
    processes = PROCESSES if who == "ours" else 1
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", who, task, str(chips), clock, folder]
        code = run_workers(command, processes) if processes > 1 else subprocess.run(command).returncode
        if code:
            sys.exit(f"{who} on {processes} process(es) ended with exit code {code}; its message stands above")
        return [json.loads(Path(folder, f"{i}.json").read_text()) for i in range(processes)]


def difference(mine: dict, reference: dict) -> float:
    """Return the largest difference of the figures that both know; all that have one name must be among them."""
    shared = mine.keys() & reference.keys()
    assert shared >= {"map", "map50", "map75", "map_small", "map_medium", "map_large", "ap", "ap50"}
    return max(float(np.abs(np.subtract(mine[name], reference[name])).max()) for name in shared)


def compare(task: str, chips: int, runs: int, clock: str) -> None:
    """Run both by turns and print how their seconds and figures compare."""
    kinds, worst = KINDS[task], 0.0
    seconds: dict[str, list[float]] = defaultdict(list)
    pairs: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))  # ours, theirs
    for number in range(runs):
        results = {}
        for who in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            results[who] = measure(who, task, chips, clock)
        (main, *others), (reference,) = results["ours"], results["theirs"]
        if clock == "cpu":  # the main process waits while another packs its records, which its processor time lacks
            packing = max(other["gather"] for other in others)
            main["gather"], main["all"] = main["gather"] + packing, main["all"] + packing
        worst = max(worst, difference(main.pop("metrics"), reference.pop("metrics")))
        for name in ("all", "record", "wait", "gather", *(f"metric_{kind}" for kind in kinds)):
            seconds[f"ours_{name}"].append(main[name])
        for name, value in reference.items():
            seconds[f"pycocotools_{name}"].append(value)
        ours_alone = sum(main[name] for name in ("wait", "gather", *(f"metric_{kind}" for kind in kinds)))
        compared = {"of_all": (main["all"], sum(reference.values()))}
        compared["of_evaluate"] = ours_alone, sum(reference[f"evaluate_{kind}"] for kind in kinds)
        for kind in kinds:
            compared[f"of_evaluate_{kind}"] = main[f"metric_{kind}"], reference[f"evaluate_{kind}"]
        if len(kinds) == 1:
            compared["of_everything"] = main["all"], reference[f"evaluate_{kinds[0]}"]
        for name, (mine, other) in compared.items():
            pairs[name][0].append(mine)
            pairs[name][1].append(other)
    ratios = {name: median_ratio(*pair) for name, pair in pairs.items()}
    line(
        benchmark="evaluation",
        task=task,
        chips=chips,
        runs=runs,
        clock=clock,
        seconds=medians(seconds, 2),
        ratios=ratios,
        target=TARGET,
        difference=worst,
        reached=max(ratios.values()) <= TARGET and worst <= EQUAL,
    )


def memory(task: str, counts: list[int]) -> None:
    """Print how far memory grows in an evaluation of so many chips."""
    for chips in counts:
        results = measure("ours", task, chips)
        line(
            benchmark="evaluation",
            task=task,
            chips=chips,
            grown_mb=[round(result["grown"] / 2**20, 1) for result in results],
            records_mb=round(results[0]["records"] / 2**20, 1),
            grown_kb_per_chip=[round(result["grown"] / 2**10 / chips, 1) for result in results],
            dense_masks_kb_per_chip=round((OBJECTS + DETECTIONS) * SIZE**2 / 2**10) if task == "instances" else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--chips", type=int, default=1000, help="(default: 1000)")
    parser.add_argument("--only", choices=sorted(KINDS), help="one of the two tasks")
    parser.add_argument("--without", choices=("time", "memory"), help="one of the two measurements")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu suits a busy machine (wall)")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        who, task, chips, clock, folder = given.worker
        {"ours": ours, "theirs": theirs}[who](task, int(chips), clock, Path(folder))
        return
    for task in [given.only] if given.only else KINDS:
        if given.without != "time":
            compare(task, given.chips, given.runs, given.clock)
        if given.without != "memory":
            memory(task, [given.chips, 4 * given.chips])


if __name__ == "__main__":
    main()
