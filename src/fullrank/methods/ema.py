"""A target network: the moving average of the network that learns."""

import math
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class EMA(nn.Module):
    """A copy of some modules in a row that follows them: θ' ← τ θ' + (1 − τ) θ, for parameters and for BatchNorm's buffers.

    While it trains, the copy normalises by the statistics of its own batch, as the online network does; its running statistics are the
    average of the online network's, and its own forward passes leave them alone.

    >>> online = nn.Linear(2, 2)
    >>> target = EMA(online)
    >>> _ = nn.init.zeros_(online.bias), nn.init.ones_(online.weight)
    >>> target.update(online, momentum=0.0)
    >>> target(torch.ones(1, 2))
    tensor([[2., 2.]])
    """

    def __init__(self, *online: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(*deepcopy(online)).requires_grad_(False)
        for module in self.network.modules():
            if isinstance(module, _BatchNorm):
                module.momentum = 0.0

    @torch.no_grad()
    def forward(self, x: Any) -> Any:
        """Pass through the copy, without gradient."""
        return self.network(x)

    @torch.no_grad()
    def update(self, *online: nn.Module, momentum: float) -> None:
        """Move towards the modules that were copied."""
        theirs = chain.from_iterable((*module.parameters(), *module.buffers()) for module in online)
        ours = chain.from_iterable((*module.parameters(), *module.buffers()) for module in self.network)
        for mine, other in zip(ours, theirs, strict=True):
            if mine.is_floating_point():
                mine.lerp_(other.to(mine.dtype), 1 - momentum)
            else:
                mine.copy_(other)  # how many batches BatchNorm has seen


def cosine(step: int, total: int, start: float, end: float) -> float:
    """The momentum of step `step` of `total`: from `start` to `end` by half a cosine; `start` where `total` is 0.

    τ = end − (end − start) (cos(π step / total) + 1) / 2

    Source: Grill et al. 2020, Bootstrap Your Own Latent, with end = 1.

    >>> cosine(0, 10, 0.9, 1.0), round(cosine(5, 10, 0.9, 1.0), 4), cosine(10, 10, 0.9, 1.0)
    (0.9, 0.95, 1.0)
    """
    return end - (end - start) * (math.cos(math.pi * min(step / total, 1.0) if total else 0.0) + 1) / 2
