"""Three steps of `fit` on data that differ between processes: imported by one process, or run by each of several.

`python fit_worker.py RANK WORLD FOLDER` writes FOLDER/RANK.pt.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import nn

from fullrank.distributed import share, synchronise
from fullrank.methods import JointEmbedding
from fullrank.objectives import frossl
from fullrank.training import Optimizer, build_optimizer, fit

N, STEPS = 12, 3


def method(*, batchnorm):
    """A small convolutional network, the same everywhere."""
    norms = (nn.BatchNorm2d(4), nn.BatchNorm1d(8)) if batchnorm else (nn.GroupNorm(2, 4), nn.LayerNorm(8))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten())
    projector = nn.Sequential(nn.Linear(24, 8, bias=False), norms[1], nn.ReLU(), nn.Linear(8, 5))
    whole = JointEmbedding(net, projector, frossl)
    rng = torch.Generator().manual_seed(1)
    for parameter in whole.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=rng)
    return whole


def batches(order):
    """This process's share of each batch, in some order; the second half of the images has another mean and scale."""
    rng = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        x = torch.randn(2, N, 1, 6, 6, generator=rng)
        x = torch.cat([x[:, : N // 2], 3 * x[:, N // 2 :] + 2], 1)
        yield [x[:, order][:, share(N)]], torch.arange(N)[order][share(N)] + step


def train(fabric, *, batchnorm=True, micro_batch=0, order=range(N)):
    """Everything that three steps leave behind."""
    bare = method(batchnorm=batchnorm)
    synchronise(bare)
    module, optimizer = fabric.setup(bare, build_optimizer(Optimizer(name="lars", lr=0.5, weight_decay=1e-2), bare))
    steps = [
        {"terms": step.terms, "R": step.R, "Z": step.embeddings["Z"], "labels": step.labels, "lr": step.lr}
        for step in fit(fabric, module, optimizer, batches(list(order)), lambda step: 0.5 / (step + 1), micro_batch=micro_batch)
    ]
    return {"steps": steps, "weights": {name: tensor.clone() for name, tensor in bare.state_dict().items()}}


if __name__ == "__main__":
    number, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    # What an elastic launcher would say; the group that is there already spares the port that it would need.
    ranks = {"RANK": number, "LOCAL_RANK": number, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"TORCHELASTIC_RUN_ID": "test"}
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=world)
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp", precision="64-true")
    fabric.launch()
    assert fabric.world_size == world
    runs = {
        "undivided": train(fabric),
        "divided": train(fabric, micro_batch=4),  # two pieces of 3
        "divided without BatchNorm": train(fabric, batchnorm=False, micro_batch=4),
    }
    torch.save(runs, folder / f"{number}.pt")
    dist.destroy_process_group()
