"""The processes that a launcher started, read from the environment variables of torchrun, or of SLURM's srun."""

import os
import re

import torch.distributed as dist
from lightning.fabric.plugins.environments import SLURMEnvironment

from fullrank.errors import UserError


def launched_world_size() -> int:
    """Return how many processes a launcher started for this run, including this one; 0 without a launcher.

    Tasks of srun get the environment variables of torchrun here, so that all other code knows only these.

    Raises:
        UserError: a variable is missing or no number, the variables contradict each other, or an unknown launcher
            started several processes.
    """
    _translate_srun()
    if dist.is_available() and dist.is_torchelastic_launched():
        sizes = {name: _integer(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        world, local = sizes["WORLD_SIZE"], sizes["LOCAL_WORLD_SIZE"]
        if not (0 < local <= world and world % local == 0 and sizes["RANK"] < world and sizes["LOCAL_RANK"] < local):
            received = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise UserError(
                f"{received} contradict each other, expected the same number of processes on each machine; start them with torchrun"
            )
        return world
    if (world := _integer("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"WORLD_SIZE is {world}, but neither torchrun nor srun started this process; start it with torchrun, or give --devices {world}"
        )
    return 0


def _translate_srun() -> None:
    """Set torchrun's variables if srun started several tasks and torchrun did not start this process.

    SLURM_NTASKS is not read: it is also set in a batch script and in an interactive shell, where one process runs.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return
    tasks, rank = _integer("SLURM_STEP_NUM_TASKS", "1"), _integer("SLURM_PROCID", "0")
    if tasks == 1 and rank == 0:
        return
    if rank >= tasks:
        raise UserError(
            f"SLURM_PROCID is {rank}, but SLURM_STEP_NUM_TASKS is {tasks}; start the tasks with srun, or with torchrun"
        )
    layout = os.environ.get("SLURM_STEP_TASKS_PER_NODE", str(tasks))  # "4" on one node, "4(x2)" on two
    if not (match := re.fullmatch(r"(\d+)(?:\(x\d+\))?", layout)):
        raise UserError(
            f"srun started {layout} tasks on the nodes, expected the same number on each; give srun --ntasks-per-node"
        )
    job, step = os.environ.get("SLURM_JOB_ID", "0"), os.environ.get("SLURM_STEP_ID", "0")
    nodes = os.environ.get("SLURM_STEP_NODELIST", "127.0.0.1")
    variables = {
        "RANK": rank,
        "LOCAL_RANK": _integer("SLURM_LOCALID"),
        "WORLD_SIZE": tasks,
        "LOCAL_WORLD_SIZE": match[1],
        "GROUP_RANK": _integer("SLURM_NODEID", "0"),
        "TORCHELASTIC_RUN_ID": f"{job}.{step}",
    }
    os.environ.setdefault("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(nodes))
    os.environ.setdefault(
        "MASTER_PORT", str(20000 + hash_number(f"{job}.{step}") % 10000)
    )  # steps of one job have different ports
    os.environ |= {name: str(value) for name, value in variables.items()}


def hash_number(text: str) -> int:
    """Return a number that depends only on the text, unlike Python's `hash`.

    >>> hash_number("12.0") == hash_number("12.0") != hash_number("12.1")
    True
    """
    return int.from_bytes(text.encode(), "big") % 1_000_003


def _integer(name: str, default: str | None = None) -> int:
    text = os.environ.get(name, default)
    if text is None or not text.isdecimal():
        received = "missing" if text is None else f"'{text}'"
        raise UserError(
            f"the environment variable {name} is {received}, expected a number; start the processes with torchrun, or unset it"
        )
    return int(text)
