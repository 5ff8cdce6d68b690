"""Build optimizers; biases and norms get no weight decay and no LARS adaptation."""

from typing import Any

import torch
from timm.optim import Lars
from torch import nn

from fullrank.config import OptimizerConfig


def build_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of all trainable parameters of `module`, in two groups: with and without weight decay.

    For a weight w with gradient g, weight decay β, momentum μ and learning rate γ, a step of LARS with LARC's clip is

        τ = min(trust ‖w‖ / (‖g‖ + β‖w‖) / γ, 1)    m ← μ m + τ (g + β w)    w ← w − γ m

    and for biases and norms β = 0, τ = 1, which is SGD. The clip limits the adapted learning rate τγ to γ; without it, as in the paper
    of LARS, τ = trust ‖w‖ / (‖g‖ + β‖w‖).

    Source: You et al. 2017, Large Batch Training of Convolutional Networks, eq. 6; the clip is from NVIDIA's LARC.

    The step of AdamW is fused: one pass over each parameter, in half of the time. On a GPU, SGD and LARS work on lists of parameters.

    >>> optimizer = build_optimizer(OptimizerConfig(weight_decay=1e-6), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    >>> [(len(group["params"]), group["weight_decay"], group["always_adapt"]) for group in optimizer.param_groups]
    [(1, 1e-06, True), (3, 0.0, False)]
    """
    weights, others = split_parameters(module)
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=(config.momentum, 0.999), fused=True)
    # timm applies LARS to a group that has weight decay or `always_adapt`: to the weights, but not to biases and norms.
    groups[0]["always_adapt"] = True
    return Lars(
        groups,
        lr=config.lr,
        momentum=config.momentum,  # pyright: ignore[reportArgumentType]  timm's annotation is int
        trust_coeff=config.trust_coefficient,
        trust_clip=config.trust_clip,
    )


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters of a module as (weights, others).

    Others are vectors and scalars (biases, norms), and the parameters in a timm model's `no_weight_decay()` (position embeddings …).

    >>> [len(parameters) for parameters in split_parameters(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))]
    [1, 3]
    """
    without_decay = {
        id(parameter)
        for submodule in module.modules()
        for name, parameter in submodule.named_parameters()
        if name in getattr(submodule, "no_weight_decay", set)()
    }
    weights, others = [], []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (others if parameter.ndim <= 1 or id(parameter) in without_decay else weights).append(parameter)
    return weights, others
