"""Batch normalisation over the whole part of a batch, on any number of processes and any backend, CPU and gloo included.

Source: Ioffe & Szegedy 2015; the statistics of the processes are merged as in Chan, Golub & LeVeque 1979.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from accel_geo.parallel.reduction import sum_over_processes, world_size


class _Normalize(torch.autograd.Function):
    """Normalisation by the statistics of all processes, with the exact gradient."""

    @staticmethod
    def forward(
        ctx: object, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Tensor, eps: float
    ) -> Tensor:
        count, mean, m2 = _merge(statistics)
        inverse_std = torch.rsqrt(m2 / count + eps)
        shape = [1, -1] + [1] * (x.dim() - 2)
        normalized = (x - mean.to(x.dtype).view(shape)) * inverse_std.to(x.dtype).view(shape)
        ctx.save_for_backward(normalized, weight, inverse_std)
        ctx.count, ctx.shape = count, shape
        result = normalized if weight is None else normalized * weight.view(shape)
        return result if bias is None else result + bias.view(shape)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple:
        normalized, weight, inverse_std = ctx.saved_tensors
        shape = ctx.shape
        others = [d for d in range(gradient.dim()) if d != 1]
        sum_dy = gradient.sum(others)
        sum_dy_x = (gradient * normalized).sum(others)
        # The parameters' own gradients stay local: DDP averages them as it does all others.
        both = sum_over_processes(torch.stack([sum_dy, sum_dy_x])) / ctx.count
        dx = gradient - both[0].to(gradient.dtype).view(shape) - normalized * both[1].to(gradient.dtype).view(shape)
        scale = inverse_std.to(gradient.dtype) if weight is None else inverse_std.to(gradient.dtype) * weight
        has_bias = ctx.needs_input_grad[2]
        return dx * scale.view(shape), None if weight is None else sum_dy_x, sum_dy if has_bias else None, None, None


def _statistics(x: Tensor) -> Tensor:
    """Return this process's [3, C]: count, mean and sum of squared deviations of each channel, at least float32."""
    x = x.detach().transpose(0, 1).flatten(1)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    count = x.new_full((x.shape[0],), x.shape[1])
    variance, mean = torch.var_mean(x, dim=1, correction=0)
    return torch.stack([count, mean, variance * x.shape[1]])


def _gather(local: Tensor) -> Tensor:
    """Return [processes, 3, C]."""
    received = [torch.empty_like(local) for _ in range(world_size())]
    dist.all_gather(received, local.contiguous())
    return torch.stack(received)


def _merge(statistics: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Merge [processes, 3, C] into count [C], mean [C], sum of squared deviations [C] of all."""
    counts, means, m2s = statistics.unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return count, mean, (m2s + counts * (means - mean) ** 2).sum(0)


class GlobalBatchNorm(nn.Module):
    """Batch normalisation whose statistics are those of the whole part over all processes.

    Parameters, buffers and their names are those of `torch.nn.BatchNorm2d`, which it replaces (see `convert`). A part
    with a single value per channel has no variance: it is normalised by the running statistics and leaves them alone.

    Args:
        source: the layer to replace; its parameters and buffers are taken over, not copied.
    """

    def __init__(self, source: _BatchNorm) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = source.num_features, source.eps, source.momentum
        self.weight, self.bias = source.weight, source.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(source, name))
        # timm's fused layers apply dropout and an activation after the normalisation, under these names.
        self.drop, self.act = getattr(source, "drop", None), getattr(source, "act", None)
        self.train(source.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [N, C, ...]; in training, update the running statistics, equally on all processes."""
        x = self._normalize(x)
        for after in (self.drop, self.act):
            x = x if after is None else after(x)
        return x

    def _normalize(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        if world_size() == 1:
            if x.numel() == x.shape[1]:
                return self._by_running_statistics(x)
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, True, self._count_batch(), self.eps
            )
        # Every process has a sample, so that two processes have at least two values: no need to look (and to wait for a GPU).
        statistics = _gather(_statistics(x))
        momentum = self._count_batch()
        if self.running_mean is not None:
            count, mean, m2 = _merge(statistics)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_((m2 / (count - 1)).to(self.running_var.dtype), momentum)
        return _Normalize.apply(x, self.weight, self.bias, statistics, self.eps)

    def _by_running_statistics(self, x: Tensor) -> Tensor:
        if self.running_mean is None:
            raise ValueError(
                "batch normalisation without running statistics got a single value per channel; use larger batches or chips"
            )
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def _count_batch(self) -> float:
        """Count the batch and return the weight of its statistics."""
        if self.num_batches_tracked is None:
            return self.momentum or 0.0
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


def convert(module: nn.Module) -> nn.Module:
    """Replace every batch normalisation within a module, timm's fused ones too, by the global one, in place.

    Frozen normalisation (torchvision's and transformers' FrozenBatchNorm2d) is no batch normalisation and stays.

    Returns:
        The module, or its replacement where it is itself a batch normalisation.
    """
    if isinstance(module, _BatchNorm):
        return GlobalBatchNorm(module)
    for name, child in module.named_children():
        replacement = convert(child)
        if replacement is not child:
            setattr(module, name, replacement)
    return module
