"""All that knows about processes: gathering and summing over them with gradient, and BatchNorm over the whole batch.

Gather the embeddings, then call the objective on the whole batch: loss and gradient are those of one process, with any objective and
any number of processes, under DistributedDataParallel, which averages gradients. Without a process group, nothing here does anything.
"""

import os
import sys
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.errors import UserError

T = TypeVar("T")


def rank() -> int:
    """Index of this process; 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def local_world_size() -> int:
    """Number of processes on this machine, as their launcher says; 1 without a process group."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


def rank_slice(n: int) -> slice:
    """The rows of a batch of n that are this process's: consecutive, equal in number, in the order in which `gather` joins them.

    Raises:
        UserError: n is no multiple of the number of processes.

    >>> rank_slice(256)
    slice(0, 256, None)
    """
    each, left = divmod(n, world_size())
    if left:
        raise UserError(f"a batch of {n} cannot be shared equally by {world_size()} processes; choose a multiple of {world_size()}")
    return slice(rank() * each, (rank() + 1) * each)


def gather(Z: Tensor, dim: int = 1) -> Tensor:
    """Join the tensors of all processes along `dim` in the order of their ranks, with gradient; every process brings the same shape.

    Each process takes the whole loss L of the whole batch. Backward sums the gradients of all W losses, W ∂L/∂Z for this process's
    part, and DistributedDataParallel's average over W processes then makes ∂L/∂θ of it.

    >>> gather(torch.ones(2, 4, 3)).shape
    torch.Size([2, 4, 3])
    """
    return Z if world_size() == 1 else _Gather.apply(Z, dim)


def all_reduce_sum(x: Tensor) -> Tensor:
    """Sum of the tensors of all processes, on each of them, with gradient.

    >>> all_reduce_sum(torch.ones(2))
    tensor([1., 1.])
    """
    return x if world_size() == 1 else _Sum.apply(x)


def all_gather_object(thing: T) -> list[T]:
    """Return the things of all processes, in the order of their ranks; anything that can be pickled.

    >>> all_gather_object("mine")
    ['mine']
    """
    things: list[Any] = [thing] * world_size()
    if world_size() > 1:
        dist.all_gather_object(things, thing)
    return things


def all_reduce_max(number: int) -> int:
    """Return the greatest of all processes' numbers, of which each then knows: cheap enough for every step, and waits for no device.

    >>> all_reduce_max(15)
    15
    """
    if world_size() == 1:
        return number
    greatest = torch.tensor(number)  # on the CPU: a process group of several devices carries it by gloo
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return int(greatest)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, Z: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.length = dim, Z.shape[dim]
        parts = [torch.empty_like(Z, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(parts, Z.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduce(grads[0]).narrow(ctx.dim, rank() * ctx.length, ctx.length), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _reduce(grads[0])


def _reduce(x: Tensor) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class SyncBatchNorm(_BatchNorm):
    """BatchNorm whose statistics are those of the whole batch over all processes, which may hold different numbers of samples.

    It runs on every device; torch's module of this name refuses the CPU. With one process it is `nn.BatchNorm1d`, 2d and 3d.

    >>> SyncBatchNorm(3)(torch.randn(8, 3)).shape
    torch.Size([8, 3])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Take any number of dimensions, (N, C, …)."""

    def forward(self, input: Tensor) -> Tensor:
        if world_size() == 1 or not self.training:
            return super().forward(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))  # statistics of bfloat16 activations need more digits
        here = x.numel() // x.shape[1]
        local_var, local_mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
        total, n = all_reduce_sum(torch.cat([here * local_mean, x.new_full((1,), here)])).split([x.shape[1], 1])
        mean = total / n
        var = all_reduce_sum(here * (local_var + (local_mean - mean).square())) / n
        self._track(mean.detach(), var.detach() * n / (n - 1))
        scale = (var + self.eps).rsqrt() if self.weight is None else (var + self.eps).rsqrt() * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        channels = (1, -1) + (1,) * (x.ndim - 2)
        return (x * scale.view(channels) + shift.view(channels)).to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics by `momentum`, or to the average over all batches where it is None."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean += momentum * (mean - self.running_mean)
        self.running_var += momentum * (var - self.running_var)


class SyncBatchNormAct(SyncBatchNorm):
    """`SyncBatchNorm` followed by the `drop` and `act` of timm's `BatchNormAct2d`."""

    def __init__(self, *args: Any, drop: nn.Module, act: nn.Module):
        super().__init__(*args)
        self.drop, self.act = drop, act

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


def convert_sync_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm of a module by a `SyncBatchNorm` with the same parameters, buffers and names; return the module.

    Call it before or after the process group starts, on one process or many; optimizers and state dicts stay valid.

    Raises:
        UserError: a layer derives from BatchNorm with a forward of its own, which would silently stay local.

    >>> [type(layer).__name__ for layer in convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).children()]
    ['Linear', 'SyncBatchNorm']
    """
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child))
    return _synchronised(module) if isinstance(module, _BatchNorm) else module


def _synchronised(old: _BatchNorm) -> nn.Module:
    if isinstance(old, SyncBatchNorm | nn.SyncBatchNorm):
        return old
    timm = sys.modules.get("timm.layers.norm_act")  # a layer of timm exists only where timm is imported already
    numbers = old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats
    if timm is not None and isinstance(old, timm.BatchNormAct2d):
        new = SyncBatchNormAct(*numbers, drop=old.get_submodule("drop"), act=old.get_submodule("act"))
    elif type(old).forward is _BatchNorm.forward:
        new = SyncBatchNorm(*numbers)
    else:
        raise UserError(f"cannot synchronise {type(old).__name__} over processes; expected nn.BatchNorm1d, 2d, 3d or timm's BatchNormAct2d")
    new.weight, new.bias = old.weight, old.bias
    new.running_mean, new.running_var, new.num_batches_tracked = old.running_mean, old.running_var, old.num_batches_tracked
    return new.train(old.training)
