"""A script of the tests as one of several processes."""

import os
import runpy
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning.fabric import Fabric


@contextmanager
def in_float64():
    """Make float64 the default type inside the context, with a fixed seed."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def run_script(script, rank, world, folder):
    """Join a group, and save what `main(fabric)` of the script returns, in double precision, as FOLDER/RANK.pt."""
    # The environment of an elastic launcher. The process group exists already, so that no port is needed.
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"TORCHELASTIC_RUN_ID": "test"}
    torch.set_num_threads(1)
    meeting = {"init_method": f"file://{folder}/meeting", "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", rank=rank, world_size=world, **meeting)
    try:
        fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp", precision="64-true")
        fabric.launch()
        assert fabric.world_size == world
        with in_float64():
            torch.save(runpy.run_path(str(script))["main"](fabric), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
