"""The devices of a run, and its process group, which Lightning Fabric joins."""

import atexit
import logging
import os
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import world_size
from fullrank.errors import UserError
from fullrank.recipes import Recipe, with_devices


def launched_world_size() -> int:
    """Return how many processes a launcher started for this run, including this one; 0 without a launcher.

    Raises:
        UserError: another launcher than torchrun or `fullrank.launch.launcher` started several processes.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_available() and dist.is_torchelastic_launched():
        return world
    if world > 1:
        raise UserError(
            f"WORLD_SIZE is {world}, but torchrun did not start this process; start it with torchrun, or give --devices {world}"
        )
    return 0


def resolve_devices(recipe: Recipe, devices: int | None = None) -> Recipe:
    """Return the recipe with its number of devices: `devices`, or the number of processes that a launcher started.

    Raises:
        UserError: the launcher started another number of processes than `devices`.

    >>> resolve_devices(Recipe(), 2).machine.devices
    2
    """
    asked, world = recipe.machine.devices if devices is None else devices, launched_world_size()
    if world and asked not in (1, world):
        raise UserError(
            f"torchrun started {world} processes, but the run asks for {asked} devices; "
            f"give --devices {world}, or start one process without torchrun"
        )
    return with_devices(recipe, world or asked)


def launch_fabric(recipe: Recipe) -> Fabric:
    """Launch Lightning Fabric on the recipe's devices; each of several processes joins the process group.

    Raises:
        UserError: the accelerator is not available, or there are too few devices.
    """
    machine, processes = recipe.machine, launched_world_size() or 1
    local = int(os.environ["LOCAL_WORLD_SIZE"]) if processes > 1 else 1
    if _on_cuda(recipe) and local > torch.cuda.device_count():
        raise UserError(
            f"the run asks for {local} devices, but this machine has {torch.cuda.device_count()}; change --devices or --machine.accelerator"
        )
    several: dict[str, Any] = {} if processes == 1 else {"strategy": _ddp_strategy(recipe), "num_nodes": processes // local}
    try:
        fabric = Fabric(accelerator=machine.accelerator, devices=local, precision=resolve_precision(recipe), **several)  # pyright: ignore[reportArgumentType]
    except (ValueError, RuntimeError) as error:  # Fabric raises either for a missing accelerator
        raise UserError(
            f"--machine.accelerator {machine.accelerator} is not available on this machine; choose auto, cpu, cuda or mps"
        ) from error
    for name in ("lightning.fabric", "lightning.pytorch"):  # Lightning logs each process that joins
        logging.getLogger(name).setLevel(logging.WARNING)
    was_initialized = dist.is_initialized()
    fabric.launch()
    if dist.is_initialized() and not was_initialized:
        atexit.register(dist.destroy_process_group)  # at the end of the program, which may start another run
    assert fabric.world_size == world_size() == machine.devices, "the processes have not joined one group"
    torch.backends.cudnn.benchmark = True  # all batches have equal sizes
    return fabric


def _ddp_strategy(recipe: Recipe) -> DDPStrategy:
    """Return the strategy of several processes.

    Buffers are functions of the whole batch, so they are equal in all processes and need no broadcast. CPU tensors use gloo even if the
    network is on GPUs, so that the host does not wait for the device.
    """
    backend = "cpu:gloo,cuda:nccl" if _on_cuda(recipe) else "gloo"
    names = signature(DistributedDataParallel).parameters
    broadcast = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # the name depends on torch's version
    options: dict[str, Any] = {broadcast: False}
    return DDPStrategy(process_group_backend=backend, **options)


def resolve_precision(recipe: Recipe) -> str:
    """Return the precision of a recipe; 'auto' becomes bf16-mixed on a GPU that supports it, else 32-true.

    >>> from dataclasses import replace
    >>> resolve_precision(Recipe(machine=replace(Recipe().machine, accelerator="cpu")))
    '32-true'
    """
    if recipe.machine.precision != "auto":
        return recipe.machine.precision
    return "bf16-mixed" if _on_cuda(recipe) and torch.cuda.is_bf16_supported() else "32-true"


def _on_cuda(recipe: Recipe) -> bool:
    return recipe.machine.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
