"""Where a run takes place: the recipe's devices, by Lightning Fabric, and the processes that a launcher started."""

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
    """Return how many processes a launcher started for this run, this one among them; 0 where nobody launched anything.

    Raises:
        UserError: several, by a launcher that does not say what torch's says.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_available() and dist.is_torchelastic_launched():
        return world
    if world > 1:
        raise UserError(f"WORLD_SIZE is {world}, but torchrun did not start this process; start it by torchrun, or give --devices {world}")
    return 0


def resolve_devices(recipe: Recipe, devices: int | None = None) -> Recipe:
    """Return the recipe on `devices`, or on as many as a launcher has started processes for.

    Raises:
        UserError: the launcher started another number of processes than was asked for.

    >>> resolve_devices(Recipe(), 2).machine.devices
    2
    """
    asked, world = recipe.machine.devices if devices is None else devices, launched_world_size()
    if world and asked not in (1, world):
        raise UserError(f"{world} processes were started for a run on {asked}; give --devices {world}, or start one process alone")
    return with_devices(recipe, world or asked)


def launch_fabric(recipe: Recipe) -> Fabric:
    """Start Lightning Fabric on the recipe's machine; where there are several processes, join them.

    Raises:
        UserError: an accelerator that is not there, or too few devices.
    """
    machine, processes = recipe.machine, launched_world_size() or 1
    local = int(os.environ["LOCAL_WORLD_SIZE"]) if processes > 1 else 1
    if _on_cuda(recipe) and local > torch.cuda.device_count():
        raise UserError(
            f"{local} devices asked for, but this machine has {torch.cuda.device_count()}; give --devices or a --machine.accelerator"
        )
    together: dict[str, Any] = {} if processes == 1 else {"strategy": _several(recipe), "num_nodes": processes // local}
    try:
        fabric = Fabric(accelerator=machine.accelerator, devices=local, precision=resolve_precision(recipe), **together)  # pyright: ignore[reportArgumentType]
    except (ValueError, RuntimeError) as error:  # Fabric answers a missing accelerator with either
        raise UserError(
            f"--machine.accelerator {machine.accelerator} is not to be had on this machine; choose auto, cpu, cuda or mps"
        ) from error
    for name in ("lightning.fabric", "lightning.pytorch"):  # which would announce the processes as they meet
        logging.getLogger(name).setLevel(logging.WARNING)
    alone = not dist.is_initialized()
    fabric.launch()
    if alone and dist.is_initialized():
        atexit.register(dist.destroy_process_group)  # and not at the end of a run: a program under torchrun may start another
    assert fabric.world_size == world_size() == machine.devices, "every process trains a run of its own"
    torch.backends.cudnn.benchmark = True  # every batch has one size
    return fabric


def _several(recipe: Recipe) -> DDPStrategy:
    """Return the strategy of several processes.

    Buffers are not broadcast at each step: they are equal by construction, being functions of the whole batch. CPU tensors travel by
    gloo also where the network lies on GPUs, so that what the host has to know does not wait for the device.
    """
    backend = "cpu:gloo,cuda:nccl" if _on_cuda(recipe) else "gloo"
    names = signature(DistributedDataParallel).parameters
    options: dict[str, Any] = {
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
    }  # new name, and old
    return DDPStrategy(process_group_backend=backend, **options)


def resolve_precision(recipe: Recipe) -> str:
    """Return the precision that 'auto' stands for on this machine.

    >>> from dataclasses import replace
    >>> resolve_precision(Recipe(machine=replace(Recipe().machine, accelerator="cpu")))
    '32-true'
    """
    if recipe.machine.precision != "auto":
        return recipe.machine.precision
    return "bf16-mixed" if _on_cuda(recipe) and torch.cuda.is_bf16_supported() else "32-true"


def _on_cuda(recipe: Recipe) -> bool:
    return recipe.machine.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
