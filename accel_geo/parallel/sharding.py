"""A replica that spans devices: torch's fully_shard (FSDP2), on any backend, with full tensors at the borders.

Everything outside this file sees whole tensors: a checkpoint does not tell how the model was spread.
"""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(module: nn.Module, device_type: str) -> nn.Module:
    """Shard a module's parameters over all processes of the run, in place.

    The children that hold most of the parameters are sharded one by one, so that they are gathered one at a time.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for child in module.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def extent(module: nn.Module) -> tuple[int, int]:
    """Return how many parameters this process holds, and how many there are."""
    parameters = list(module.parameters())
    here = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in parameters)
    return here, sum(p.numel() for p in parameters)


def full(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor; collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_whole(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into a parameter, buffer or optimizer state, sharded or not."""
    whole = whole.to(device=target.device, dtype=target.dtype)
    if isinstance(target, DTensor):
        whole = distribute_tensor(whole, target.device_mesh, target.placements)
    target.copy_(whole)
