"""Distributed training: gather and sum over processes with gradient, and compute BatchNorm over the whole batch.

Gather the embeddings, then call the objective on the whole batch. Under DistributedDataParallel, which averages
gradients, loss and gradient then equal those of one process, for any objective and any number of processes. Without a
process group, all functions are no-ops.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fullrank.errors import UserError

T = TypeVar("T")
# N · D² from which processes share the work of an objective of sums. Its small operations take some 20 ms more then,
# the time in which a current GPU computes the objective of so many numbers by itself.
SHARE_FROM = 2**36


def rank() -> int:
    """Return the index of this process; 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def local_world_size() -> int:
    """Return the number of processes on this machine, from the launcher's LOCAL_WORLD_SIZE; 1 without a process
    group.
    """
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


def rank_slice(n: int) -> slice:
    """Return the slice of a batch of n rows that this process computes: equal, consecutive parts in the order of
    `gather`.

    Raises:
        UserError: n is not a multiple of the number of processes.

    >>> rank_slice(256)
    slice(0, 256, None)
    """
    count, remainder = divmod(n, world_size())
    if remainder:
        multiple = f"{world_size()} processes; choose a multiple of {world_size()}"
        raise UserError(f"a batch of {n} is not divisible by {multiple}")
    return slice(rank() * count, (rank() + 1) * count)


def sample_axis(Z: Tensor) -> int:
    """Return the axis of the samples: 0 of (n,) and (n, D), 1 of (V, n, D) and (V, n, …)."""
    return 1 if Z.ndim > 2 else 0


def gather(Z: Tensor, *, checked: bool = False) -> Tensor:
    """Concatenate the tensors of all processes along `sample_axis` in the order of their ranks, with gradient; the
    tensors have equal shapes.

    Args:
        Z: the tensor of this process.
        checked: whether `require_equal_shapes` has compared the shapes already; it takes less than a millisecond for
            any number of tensors.

    Raises:
        UserError: the tensors have different shapes; every process raises this error, before any waits for the others.

    Each process computes the loss L of the whole batch. Backward sums the gradients of all W losses, which gives W
    ∂L/∂Z for the rows of this process; DistributedDataParallel's average over W processes then gives ∂L/∂θ.

    >>> gather(torch.ones(2, 4, 3)).shape
    torch.Size([2, 4, 3])
    """
    if world_size() == 1:
        return Z
    if not checked:
        require_equal_shapes(Z)
    return _Gather.apply(Z, sample_axis(Z))


def pays_to_share(Z: Tensor) -> bool:
    """Return whether adding up sums over the parts Z (V, n, D) of a batch (`on_shards`) is faster than gathering them:
    N ≥ 2D and N · D² ≥ `SHARE_FROM`, for the N samples of W > 1 processes.

    >>> pays_to_share(torch.ones(2, 8, 4))
    False
    """
    N, D = Z.shape[1] * world_size(), Z.shape[2]
    return world_size() > 1 and N >= 2 * D and N * D**2 >= SHARE_FROM


def on_shards(
    function: Callable[[dict[str, Tensor]], dict[str, Tensor]], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return `function` of the tensors of all processes, of which each process keeps its part along axis 1.

    The function gets a `DTensor` for each tensor. It computes a sum over the samples as the sum over the processes of
    their parts, so that an objective of D × D sums exchanges these instead of N × D embeddings, and each of W processes
    computes a W-th (means by `sample_mean`). Other tensors in it are the same on every process. Values and gradient are
    those of `gather`.

    >>> on_shards(lambda tensors: {"sum": tensors["Z"].sum()}, {"Z": torch.ones(2, 4, 3)})
    {'sum': tensor(24.)}
    """
    if world_size() == 1:
        return function(dict(tensors))
    from torch.distributed.tensor import DeviceMesh, DTensor, Shard  # a second
    from torch.distributed.tensor.experimental import implicit_replication

    shards, device = {}, next(iter(tensors.values())).device
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)  # pyright: ignore[reportArgumentType]  there is one
    for name, Z in tensors.items():
        part = Z.view_as(Z)  # a tensor of its own, for the hook
        if Z.requires_grad:
            part.register_hook(lambda gradient: gradient * world_size())  # DistributedDataParallel divides by it
        shards[name] = DTensor.from_local(part, mesh, [Shard(1)], run_check=False)
    with implicit_replication():
        return {name: whole(x) for name, x in function(shards).items()}


def whole(x: Tensor) -> Tensor:
    """Return the plain tensor of a `DTensor`, summed over the processes, and any other tensor as it is.

    >>> whole(torch.ones(2))
    tensor([1., 1.])
    """
    return x.full_tensor() if hasattr(x, "full_tensor") else x  # pyright: ignore[reportAttributeAccessIssue]


def sample_mean(Z: Tensor) -> Tensor:
    """Return the mean over the samples, axis −2, which stays with length 1. Of a `DTensor`, forward and backward pass
    exchange sums of this shape; torch's own mean scatters the gradients of all samples.

    >>> sample_mean(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[2., 3.]])
    """
    local: Any = Z
    if not any(placement.is_shard(Z.ndim - 2) for placement in getattr(Z, "placements", ())):
        return Z.mean(-2, keepdim=True)
    from torch.distributed.tensor import DTensor, Partial, Replicate

    part = DTensor.from_local(local.to_local().sum(-2, keepdim=True), local.device_mesh, [Partial()], run_check=False)
    return part.redistribute(placements=[Replicate()]) / Z.shape[-2]


def require_equal_shapes(*tensors: Tensor) -> None:
    """Compare the shapes of tensors with those of all other processes, because a collective of unequal tensors crashes
    or waits forever.

    Raises:
        UserError: a shape differs; every process raises this error.

    >>> require_equal_shapes(torch.ones(2, 4, 3))
    """
    if world_size() == 1:
        return
    device = "cpu" if "cpu:" in dist.get_backend_config() else tensors[0].device
    sizes = torch.zeros(len(tensors), 8, dtype=torch.int64, device=device)  # a row: axes + 1, then their lengths
    for row, Z in zip(sizes, tensors, strict=True):
        row[: 1 + Z.ndim] = torch.tensor([1 + Z.ndim, *Z.shape])
    of_all = [torch.empty_like(sizes) for _ in range(world_size())]
    dist.all_gather(of_all, sizes)
    different = (torch.stack(of_all) != of_all[0]).any(2).any(0)
    if not different.any():
        return
    i = int(different.nonzero()[0, 0])
    shapes = [tuple(row[1 : int(row[0])]) for row in (each[i].tolist() for each in of_all)]
    received = ", ".join(f"{shape} on process {number}" for number, shape in enumerate(shapes))
    raise UserError(f"processes have tensors of different shapes: {received}; give each the same share of the batch")


def all_reduce_sum(x: Tensor) -> Tensor:
    """Return the sum of the tensors of all processes, with gradient.

    >>> all_reduce_sum(torch.ones(2))
    tensor([1., 1.])
    """
    return x if world_size() == 1 else _Sum.apply(x)


def all_gather_object(obj: T) -> list[T]:
    """Return the objects of all processes, in the order of their ranks. The objects must be picklable.

    >>> all_gather_object("a")
    ['a']
    """
    objects: list[Any] = [obj] * world_size()
    if world_size() > 1:
        dist.all_gather_object(objects, obj)
    return objects


def all_reduce_max(number: int) -> int:
    """Return the maximum of the numbers of all processes. The communication is on the CPU and does not wait for the
    GPU.

    >>> all_reduce_max(15)
    15
    """
    if world_size() == 1:
        return number
    maximum = torch.tensor(number)  # on the CPU, where the process group uses gloo
    dist.all_reduce(maximum, dist.ReduceOp.MAX)
    return int(maximum)


def barrier() -> None:
    """Wait until all processes have called this function."""
    all_reduce_max(0)


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
    """BatchNorm with the statistics of the whole batch over all processes; the processes may have different numbers of
    samples.

    Unlike torch's module of this name, this module also runs on the CPU. With one process it equals `nn.BatchNorm1d`,
    2d and 3d.

    >>> SyncBatchNorm(3)(torch.randn(8, 3)).shape
    torch.Size([8, 3])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions, (N, C, …)."""

    def forward(self, input: Tensor) -> Tensor:
        if world_size() == 1 or not self.training:
            return super().forward(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))  # bfloat16 is too coarse for statistics
        local_n = x.numel() // x.shape[1]
        over = [0, *range(2, x.ndim)]
        local_var, local_mean = torch.var_mean(x, over, correction=0) if local_n else (x.sum(over), x.sum(over))
        total, n = all_reduce_sum(torch.cat([local_n * local_mean, x.new_full((1,), local_n)])).split([x.shape[1], 1])
        mean = total / n
        var = all_reduce_sum(local_n * (local_var + (local_mean - mean).square())) / n
        self._update_running_stats(mean.detach(), var.detach() * n / (n - 1))
        scale = (var + self.eps).rsqrt() if self.weight is None else (var + self.eps).rsqrt() * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        channels = (1, -1) + (1,) * (x.ndim - 2)
        return (x * scale.view(channels) + shift.view(channels)).to(input.dtype)

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics with weight `momentum`; if `momentum` is None, average over all batches."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean += momentum * (mean - self.running_mean)
        self.running_var += momentum * (var - self.running_var)


class SyncBatchNormAct(SyncBatchNorm):
    """A `SyncBatchNorm` followed by the `drop` and `act` of timm's `BatchNormAct2d`."""

    def __init__(self, *args: Any, drop: nn.Module, act: nn.Module):
        super().__init__(*args)
        self.drop, self.act = drop, act

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


def convert_sync_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm of a module by a `SyncBatchNorm` with the same parameters, buffers and names; return the
    module.

    Call this function before or after the process group starts. Optimizers and state dicts stay valid.

    Raises:
        UserError: a subclass of BatchNorm overrides `forward`; its statistics would silently be those of one process.

    >>> network = convert_sync_batchnorm(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    >>> [type(layer).__name__ for layer in network.children()]
    ['Linear', 'SyncBatchNorm']
    """
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child))
    return _to_sync_batchnorm(module) if isinstance(module, _BatchNorm) else module


def _to_sync_batchnorm(old: _BatchNorm) -> nn.Module:
    if isinstance(old, SyncBatchNorm | nn.SyncBatchNorm):
        return old
    timm = sys.modules.get("timm.layers.norm_act")  # a module with timm's layers has already imported timm
    arguments = old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats
    if timm is not None and isinstance(old, timm.BatchNormAct2d):
        new = SyncBatchNormAct(*arguments, drop=old.get_submodule("drop"), act=old.get_submodule("act"))
    elif type(old).forward is _BatchNorm.forward:
        new = SyncBatchNorm(*arguments)
    else:
        expected = "expected nn.BatchNorm1d, 2d, 3d or timm's BatchNormAct2d"
        raise UserError(f"cannot convert {type(old).__name__} to SyncBatchNorm; {expected}")
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(new, name, getattr(old, name))
    return new.train(old.training)
