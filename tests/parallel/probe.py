"""Starts as a recipe does and prints what it sees as one line of JSON: the cheap stand-in for a recipe.

--hold S goes on for so many seconds, exchanging values under a watch as a training loop does.
"""

import json
import os
import time
from pathlib import Path

from accel_geo.options import Options, Parser, run

parser = Parser(__doc__, task="semantic", epochs=1, batch_size=4, lr=0.1, backbone="resnet18")
parser.add_argument("--hold", type=float, default=0.0)


def main(options: Options) -> None:
    import torch

    from accel_geo.parallel import launch, reduction, watch

    accelerator = launch.start(cpu=options.cpu, threads=options.threads, timeout=options.timeout)
    pids = reduction.gather_json(os.getpid())
    report = launch.device_report(accelerator.device)
    facts = {
        "processes": accelerator.num_processes,
        "world": reduction.world_size(),
        "pids": pids,
        "type": str(accelerator.distributed_type),
        "sharding": launch.sharding_asked(),
        "global_batch": options.global_batch,
        "precision": accelerator.mixed_precision,
    }
    if not options.hold:
        facts["working_threads"] = working_threads(torch)
    # One write, so that the lines of several processes do not mix.
    os.write(1, (json.dumps({**report, **facts}) + "\n").encode())
    if options.hold:
        guard = watch.Watch()
        guard.start()
        end = time.monotonic() + options.hold
        while max(reduction.gather_json(end - time.monotonic())) > 0:
            time.sleep(0.1)
        guard.stop()


def working_threads(torch: object) -> int:
    """Return how many of this process's threads really took part in a large sum."""
    x = torch.rand(2**22)
    before = _ticks()
    for _ in range(12):
        x.exp()
    return sum(ticks - before.get(thread, 0) >= 2 for thread, ticks in _ticks().items())


def _ticks() -> dict[str, int]:
    stats = {
        task.name: (task / "stat").read_text().rpartition(")")[2].split() for task in Path("/proc/self/task").iterdir()
    }
    return {name: int(fields[11]) + int(fields[12]) for name, fields in stats.items()}


if __name__ == "__main__":
    run(main, parser)
