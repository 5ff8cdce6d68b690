"""Two steps of each loss with its state, on one process or on each of several, with different data."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fullrank.distributed import rank, rank_slice, world_size
from fullrank.nn import Loss

N, D = 24, 6
SETTINGS = {
    "vicreg": {"covariance": "balanced"},
    "moco": {"D": D, "size": 32},
    "tico": {"D": D},
    "corinfomax": {"D": D},
    "spectral_contrastive": {},
    "dino": {"K": D},
    "nnclr": {"D": D, "size": 32},
    "lejepa": {"slices": 16},
    "visreg": {"slices": 16},
    "rdmreg": {"slices": 16},
}


def data():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(2, 2, N, D, generator=rng, dtype=torch.float64) * torch.linspace(1, 3, N)[:, None]


def main(fabric=None):
    found = {}
    for name, settings in SETTINGS.items():
        torch.manual_seed(0)
        network = nn.Linear(D, D)
        torch.manual_seed(rank())
        criterion = Loss(name, **settings)
        network = DistributedDataParallel(network) if world_size() > 1 else network
        losses = []
        for views in data():
            Z = network(views[:, rank_slice(N)].flatten(0, 1)).unflatten(0, (2, -1))
            loss = criterion(*Z) if len(criterion.inputs) == 1 else criterion(Z, Z.detach())
            loss.backward()
            losses.append(loss.detach())
        gradients = torch.cat([p.grad.flatten() for p in network.parameters()])
        found[name] = {"losses": torch.stack(losses), "gradients": gradients} | criterion.state_dict()
    return found
