"""Build optimizers; biases and norms get no weight decay and no LARS adaptation, unless the configuration says so."""

from typing import Any

import torch
from timm.models import group_parameters
from timm.optim import Lars
from torch import nn

from fullrank.errors import UserError
from fullrank.training.config import OptimizerConfig


def build_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of all trainable parameters of `module`, in groups: with and without weight decay, and for
    each learning rate.

    For a weight w with gradient g, weight decay β, momentum μ, second momentum ν and learning rate γ, step t is

        SGD      m ← μ m + g + β w                            w ← w − γ m
        LARS     τ = min(trust ‖w‖ / (‖g‖ + β‖w‖) / γ, 1)     m ← μ m + τ (g + β w)     w ← w − γ m
        Adam     h = g + β w     m ← μ m + (1 − μ) h     v ← ν v + (1 − ν) h²     w ← w − γ m̂ / (√v̂ + 10⁻⁸)
        AdamW    as Adam with h = g, after w ← w − γ β w

    with m̂ = m/(1 − μᵗ) and v̂ = v/(1 − νᵗ). For biases and norms β = 0, and in LARS τ = 1, unless `decay_all`. The
    clip of LARC limits the adapted learning rate τγ to γ; without it, as in the paper of LARS, τ = trust ‖w‖ / (‖g‖ +
    β‖w‖).

    The learning rate γ of a parameter is that of the schedule (`set_learning_rate`), with two exceptions:

    - `layer_decay` d: layer l of the L layers of a timm model has γ dᴸ⁻ˡ; layers are those of timm's `group_matcher`,
      such as the blocks of a ResNet or a ViT. All other parameters have γ.
    - `constant_predictor`: a predictor has the peak of the schedule in each step.

    With `last_weight_decay`, β of the weights follows a schedule too (`set_weight_decay`).

    Source: LARS: You et al. 2017, Large Batch Training of Convolutional Networks, eq. 6; the clip is from NVIDIA's
    LARC. Adam: Kingma and Ba 2015, Algorithm 1. AdamW: Loshchilov and Hutter 2019, Algorithm 2. Layer-wise rates: Clark
    et al. 2020, ELECTRA, and Bao et al. 2022, BEiT. Constant predictor: Chen and He 2021, Exploring Simple Siamese
    Representation Learning, Table 1.

    The steps of Adam and AdamW are fused: one pass over each parameter, in half of the time. On a GPU, SGD and LARS
    work on lists of parameters.

    Raises:
        UserError: no module of the method has layers or is a predictor, as `layer_decay` or `constant_predictor`
            requires.

    >>> network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    >>> optimizer = build_optimizer(OptimizerConfig(weight_decay=1e-6), network)
    >>> [(len(group["params"]), group["weight_decay"], group["always_adapt"]) for group in optimizer.param_groups]
    [(1, 1e-06, True), (3, 0.0, False)]
    """
    groups = parameter_groups(config, module)
    match config.name:
        case "sgd":
            return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
        case "adam":
            return torch.optim.Adam(groups, lr=config.lr, betas=(config.momentum, config.beta2), fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, lr=config.lr, betas=(config.momentum, config.beta2), fused=True)
        case "lars":
            return Lars(
                groups,
                lr=config.lr,
                momentum=config.momentum,  # pyright: ignore[reportArgumentType]  timm's annotation is int
                trust_coeff=config.trust_coefficient,
                trust_clip=config.trust_clip,
            )


def parameter_groups(config: OptimizerConfig, module: nn.Module) -> list[dict[str, Any]]:
    """Return the groups of parameters for a torch optimizer: weights, then biases and norms, each divided by learning
    rate.

    A group may have a key of `set_learning_rate`: "lr_scale" or "constant_lr". With `last_weight_decay`, the key
    "scheduled_decay" marks the groups of `set_weight_decay`.

    >>> from fullrank.methods import Predictor
    >>> network = nn.ModuleDict({"hidden": nn.Linear(3, 4), "head": Predictor(nn.Linear(4, 4))})
    >>> groups = parameter_groups(OptimizerConfig(name="sgd", lr=0.5, constant_predictor=True), network)
    >>> [(len(group["params"]), group["weight_decay"], group.get("constant_lr")) for group in groups]
    [(1, 0.0001, None), (1, 0.0001, 0.5), (1, 0.0, None), (1, 0.0, 0.5)]
    """
    rates = (_layer_rates(module, config.layer_decay) if config.layer_decay != 1 else {}) | (
        _predictor_rates(module, config.lr) if config.constant_predictor else {}
    )
    groups = []
    for parameters, decayed in zip(split_parameters(module), (True, config.decay_all), strict=True):
        common: dict[str, Any] = {"weight_decay": config.weight_decay if decayed else 0.0}
        if decayed and config.last_weight_decay is not None:
            common["scheduled_decay"] = True
        if config.name == "lars":
            common["always_adapt"] = decayed  # timm applies LARS to a group that has weight decay or `always_adapt`
        by_rate: dict[tuple[str, float] | None, list[nn.Parameter]] = {None: []}
        for parameter in parameters:
            by_rate.setdefault(rates.get(id(parameter)), []).append(parameter)
        groups += [{"params": same, **common, **({rate[0]: rate[1]} if rate else {})} for rate, same in by_rate.items()]
    return groups


def set_learning_rate(optimizer: Any, lr: float) -> None:
    """Set the learning rate of each group: its "constant_lr" if it has one, else `lr` times its "lr_scale", which is 1
    by default.

    >>> w = nn.Parameter(torch.zeros(()))
    >>> optimizer = torch.optim.SGD([{"params": [w], "lr_scale": 0.5}])
    >>> set_learning_rate(optimizer, 0.3)
    >>> optimizer.param_groups[0]["lr"]
    0.15
    """
    for group in optimizer.param_groups:
        group["lr"] = group["constant_lr"] if "constant_lr" in group else lr * group.get("lr_scale", 1.0)


def set_weight_decay(optimizer: Any, weight_decay: float) -> None:
    """Set the weight decay of the groups with the key "scheduled_decay".

    >>> w, b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
    >>> optimizer = torch.optim.SGD([{"params": [w], "scheduled_decay": True}, {"params": [b]}], lr=0.1)
    >>> set_weight_decay(optimizer, 0.04)
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.04, 0]
    """
    for group in optimizer.param_groups:
        if group.get("scheduled_decay"):
            group["weight_decay"] = weight_decay


def _layer_rates(module: nn.Module, decay: float) -> dict[int, tuple[str, float]]:
    """Return the rates of the parameters of timm models below their last layer, by the id of the parameter."""
    rates = {}
    models: list[Any] = [submodule for submodule in module.modules() if hasattr(submodule, "group_matcher")]
    for model in models:
        layers: Any = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
        last = max(layers.values())
        rates |= {
            id(p): ("lr_scale", decay ** (last - layers[name]))
            for name, p in model.named_parameters()
            if layers[name] < last
        }
    if not models:
        received = f"optimizer.layer_decay is {decay}, but no network of the method says which layers it has"
        raise UserError(f"{received}; set optimizer.layer_decay 1, or use a timm model")
    return rates


def _predictor_rates(module: nn.Module, lr: float) -> dict[int, tuple[str, float]]:
    predictors = [submodule for submodule in module.modules() if getattr(submodule, "predicts", False)]
    if not predictors:
        remedy = "give --optimizer.no-constant-predictor, or an objective with a predictor, such as simsiam"
        raise UserError(f"optimizer.constant_predictor is set, but the method has no predictor; {remedy}")
    return {id(p): ("constant_lr", lr) for predictor in predictors for p in predictor.parameters()}


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable parameters of a module as (weights, others).

    Others are vectors and scalars (biases, norms), and the parameters in a timm model's `no_weight_decay()` (position
    embeddings …).

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
