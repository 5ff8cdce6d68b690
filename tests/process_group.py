"""Join a process group, in a script that is one of several processes."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric import Fabric


def join():
    """Read RANK WORLD_SIZE FOLDER from the command line; return Fabric in double precision, and the file for the
    results."""
    number, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    # The environment of an elastic launcher. The process group exists already, so that no port is needed.
    ranks = {"RANK": number, "LOCAL_RANK": number, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"TORCHELASTIC_RUN_ID": "test"}
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=world)
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp", precision="64-true")
    fabric.launch()
    assert fabric.world_size == world
    return fabric, folder / f"{number}.pt"
