"""Optimizers, with biases and norms kept out of weight decay and of LARS's adaptation."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.optim import Lars
from torch import nn


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, at which peak learning rate."""

    name: Literal["lars", "sgd", "adamw"] = "lars"
    """'lars' adapts the step of each weight (You et al. 2017), with the clip of LARC, as the public recipes do."""
    lr: float = 0.3
    """Peak learning rate, used as it stands: a recipe's value belongs to its batch size."""
    weight_decay: float = 1e-4
    """Decay of the weights; biases and norms have none."""
    momentum: float = 0.9
    """Momentum of LARS and SGD; the first beta of AdamW."""
    trust_coefficient: float = 0.02
    """LARS: the adapted step of a weight, as a share of its norm; 0.02 with the clip in most public recipes, 0.001 without it."""
    trust_clip: bool = True
    """LARS: keep the adapted learning rate at `lr` or below, as LARC does; without it, `lr` multiplies the adapted step."""


def build_optimizer(spec: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of all trainable parameters of `module`, in two groups: decayed and not.

    For a weight w with gradient g, weight decay β, momentum μ and learning rate γ, LARS with LARC's clip takes

        τ = min(trust ‖w‖ / (‖g‖ + β‖w‖) / γ, 1)    m ← μ m + τ (g + β w)    w ← w − γ m

    and for biases and norms β = 0, τ = 1: there it is SGD. The clip keeps the adapted learning rate τγ at γ or below; without it,
    LARS is that of its paper, τ = trust ‖w‖ / (‖g‖ + β‖w‖).

    Source: You et al. 2017, Large Batch Training of Convolutional Networks, eq. 6; the clip is that of NVIDIA's LARC.

    >>> optimizer = build_optimizer(OptimizerConfig(weight_decay=1e-6), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    >>> [(len(group["params"]), group["weight_decay"], group["always_adapt"]) for group in optimizer.param_groups]
    [(1, 1e-06, True), (3, 0.0, False)]
    """
    decayed, plain = split_parameters(module)
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if spec.name == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
    if spec.name == "adamw":
        return torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.momentum, 0.999))
    # timm adapts a group when it has weight decay or is told to always: the weights always, biases and norms never.
    groups[0]["always_adapt"] = True
    return Lars(
        groups,
        lr=spec.lr,
        momentum=spec.momentum,  # pyright: ignore[reportArgumentType]  timm's hint says int
        trust_coeff=spec.trust_coefficient,
        trust_clip=spec.trust_clip,
    )


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return (weights, the rest), of the trainable parameters only.

    The rest are vectors and scalars (biases, norms), and what a timm model inside `module` lists itself (position embeddings …).

    >>> [len(parameters) for parameters in split_parameters(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))]
    [1, 3]
    """
    listed = {id(p) for p in _listed_by_timm(module)}
    weights, rest = [], []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (rest if parameter.ndim <= 1 or id(parameter) in listed else weights).append(parameter)
    return weights, rest


def _listed_by_timm(module: nn.Module) -> list[nn.Parameter]:
    return [
        parameter
        for submodule in module.modules()
        for name, parameter in submodule.named_parameters()
        if name in getattr(submodule, "no_weight_decay", set)()
    ]
