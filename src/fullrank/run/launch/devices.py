"""The devices of a run, and its process group, which Lightning Fabric joins."""

import atexit
import logging
import os
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import world_size
from fullrank.errors import UserError
from fullrank.recipes import Recipe, with_devices
from fullrank.run.launch.environment import launched_world_size
from fullrank.run.launch.precision import on_cuda, resolve_precision


def resolve_devices(recipe: Recipe, devices: int | None = None) -> Recipe:
    """Return the recipe with its number of devices: `devices`, or the number of processes that a launcher started.

    Raises:
        UserError: the launcher started another number of processes than `devices`, or this machine has fewer devices.

    >>> resolve_devices(Recipe(), 2).machine.devices
    2
    """
    asked, world = recipe.machine.devices if devices is None else devices, launched_world_size()
    if world and asked not in (1, world):
        raise UserError(
            f"torchrun started {world} processes, but the run asks for {asked} devices; "
            f"give --devices {world}, or start one process without torchrun"
        )
    available, what = available_devices(recipe)
    if not world and asked > max(available, 1):
        raise UserError(
            f"the run asks for {asked} devices, but this machine has {available} {what}; give --devices {max(available, 1)} or less"
        )
    return with_devices(recipe, world or asked)


def available_devices(recipe: Recipe) -> tuple[int, str]:
    """Return how many processes of the recipe this machine can run at the same time, and what limits them.

    >>> from dataclasses import replace
    >>> available_devices(replace(Recipe(), machine=replace(Recipe().machine, accelerator="cpu")))[1]
    'CPU cores'
    """
    if on_cuda(recipe):
        return torch.cuda.device_count(), "GPUs"
    return os.cpu_count() or 1, "CPU cores"


def launch_fabric(recipe: Recipe) -> Fabric:
    """Launch Lightning Fabric on the recipe's devices; each of several processes joins the process group.

    Raises:
        UserError: the accelerator is not available, or there are too few devices.
    """
    machine, processes = recipe.machine, launched_world_size() or 1
    local = int(os.environ["LOCAL_WORLD_SIZE"]) if processes > 1 else 1
    if on_cuda(recipe) and local > torch.cuda.device_count():
        raise UserError(
            f"the run asks for {local} devices, but this machine has {torch.cuda.device_count()}; change --devices or --machine.accelerator"
        )
    # The environment is given, because Fabric would take that of a SLURM job, also in a job's interactive shell.
    several: dict[str, Any] = {"plugins": LightningEnvironment()}
    if processes > 1:
        several = {
            "plugins": TorchElasticEnvironment(),
            "strategy": _ddp_strategy(recipe),
            "num_nodes": processes // local,
        }
    for name in ("lightning.fabric", "lightning.pytorch"):  # Lightning logs the precision, and each process that joins
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        fabric = Fabric(accelerator=machine.accelerator, devices=local, precision=resolve_precision(recipe), **several)  # pyright: ignore[reportArgumentType]
    except (ValueError, RuntimeError) as error:  # Fabric raises either for a missing accelerator
        reason = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"--machine.accelerator {machine.accelerator} is not available on this machine ({reason}); choose auto, cpu, cuda or mps"
        ) from error
    was_initialized = dist.is_initialized()
    fabric.launch()
    if dist.is_initialized() and not was_initialized:
        atexit.register(dist.destroy_process_group)  # at the end of the program, which may start another run
    assert fabric.world_size == world_size() == machine.devices, "the processes have not joined one group"
    torch.backends.cudnn.benchmark = True  # all batches have equal sizes
    return fabric


def _ddp_strategy(recipe: Recipe) -> DDPStrategy:
    """Return the strategy of several processes.

    Buffers are functions of the whole batch, so they are equal in all processes and need no broadcast. CPU tensors use
    gloo even if the network is on GPUs, so that the host does not wait for the device.
    """
    backend = "cpu:gloo,cuda:nccl" if on_cuda(recipe) else "gloo"
    names = signature(DistributedDataParallel).parameters
    broadcast = (
        "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    )  # the name depends on torch's version
    options: dict[str, Any] = {broadcast: False}
    return DDPStrategy(process_group_backend=backend, **options)
