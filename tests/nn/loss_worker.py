"""Two steps of each loss with its state, on one process or on each of several, with different data."""

from unittest.mock import patch

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fullrank import distributed
from fullrank.distributed import on_shards, rank, rank_slice, world_size
from fullrank.nn import Loss
from fullrank.objectives import OF_SUMS

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
BALANCED = {"frossl": {"invariance": "balanced"}, "vicreg": {"covariance": "balanced"}}
SHARED = {f.__name__: SETTINGS.get(f.__name__, {}) for f in OF_SUMS} | BALANCED


def data():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(2, 2, N, D, generator=rng, dtype=torch.float64) * torch.linspace(1, 3, N)[:, None]


def main(fabric=None):
    """The results of all losses, and of those of sums if processes share the work."""
    found = two_steps(SETTINGS)
    with patch.object(distributed, "SHARE_FROM", 0), patch("fullrank.nn.loss.on_shards", wraps=on_shards) as used:
        found |= {f"{name} shared": values for name, values in two_steps(SHARED).items()}
    assert used.call_count == (0 if world_size() == 1 else 2 * len(SHARED))
    return found


def two_steps(named):
    found = {}
    for name, settings in named.items():
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
