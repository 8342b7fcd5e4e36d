"""Sums over all processes: the only way in which figures of one process meet those of another."""

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


class Loss(NamedTuple):
    """A loss term as this process's total and count; the loop divides the summed totals by the summed counts.

    Attributes:
        total: scalar, differentiable: the sum over this process's elements.
        count: number (or weight) of these elements, without gradient. Where all counts are zero the term is zero.

    A term that is a differentiable function of globally summed statistics (see `global_sum`) is the same on every
    process and is returned as Loss(value, 1.0).
    """

    total: Tensor
    count: Tensor | float


def world_size() -> int:
    """Return the number of processes of this run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """Say whether this process writes files and talks."""
    return rank() == 0


class _GlobalSum(torch.autograd.Function):
    # The backward pass sums as well: each process holds a copy of the loss, whose gradients DDP then averages.
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return sum_over_processes(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return sum_over_processes(gradient)


def sum_over_processes(x: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradient."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    if world_size() > 1:
        dist.all_reduce(x)
    return x


def begin_sum(x: Tensor) -> Callable[[], Tensor]:
    """Begin to sum a tensor over all processes, in place and without gradient; the result waits for the sum."""
    if world_size() == 1:
        return lambda: x
    work = dist.all_reduce(x, async_op=True)

    def wait() -> Tensor:
        work.wait()
        return x

    return wait


def global_sum(x: Tensor) -> Tensor:
    """Return the differentiable sum of a tensor over all processes, the same on each.

    A loss computed from it on every process and averaged by DDP has the gradient of one process that saw everything.
    """
    return _GlobalSum.apply(x) if world_size() > 1 else x


def gather_bytes(payload: bytes) -> list[bytes]:
    """Return every process's bytes, in the order of the processes, on all processes."""
    if world_size() == 1:
        return [payload]
    device = communication_device()
    length = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    lengths = [torch.zeros_like(length) for _ in range(world_size())]
    dist.all_gather(lengths, length)
    longest = max(int(n) for n in lengths)
    mine = torch.zeros(longest, dtype=torch.uint8, device=device)
    mine[: len(payload)] = torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy()).to(device)
    received = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(received, mine)
    return [bytes(data[: int(n)].cpu().numpy()) for data, n in zip(received, lengths)]


def gather_json(value: object) -> list:
    """Return every process's value, in the order of the processes, on all processes.

    Values travel as JSON: exact for float64, and nothing that comes from another machine is unpickled.
    """
    return [json.loads(data) for data in gather_bytes(json.dumps(value).encode())] if world_size() > 1 else [value]


def broadcast_json(value: object) -> object:
    """Return the main process's value on all processes; the others' arguments are ignored."""
    return gather_json(value if is_main() else None)[0] if world_size() > 1 else value


def broadcast_tensors(tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the main process's named tensors on all processes, on the CPU; the others' arguments are ignored."""
    if world_size() == 1:
        return tensors
    table = broadcast_json({k: [list(t.shape), str(t.dtype)] for k, t in tensors.items()} if is_main() else None)
    device, result = communication_device(), {}
    for name, (shape, dtype) in table.items():
        if is_main():
            sent = tensors[name].to(device).contiguous()
        else:
            sent = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
        dist.broadcast(sent, src=0)
        result[name] = sent.cpu()
    return result


def communication_device() -> torch.device:
    """Return the device whose tensors the process group can send."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
