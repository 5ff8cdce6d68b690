"""Three steps of every method and projector on a small network, on one process or on each of several."""

import math
import sys
from functools import partial
from typing import get_args
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import profile

from fullrank import distributed
from fullrank.distributed import convert_sync_batchnorm, on_shards, rank_slice
from fullrank.methods import METHODS, Encoder, Grouped, ProjectorConfig, TrainingLength, build_projector
from fullrank.methods.builders import method_builder
from fullrank.methods.config import ProjectorKind
from fullrank.objectives import OF_SUMS, find_objective, total
from fullrank.objectives.signature import hyperparameters, required_views, tensor_names
from fullrank.training import OptimizerConfig, build_optimizer, fit

N, D, STEPS = 16, 5, 3
SMALL_NUMBERS = {"prototypes": 12, "queue": 70, "predictor": 8, "freeze": 0.5, "momentum": (0.5, 0.8), "d0": 4}
"""Small values for the hyperparameters of objectives and builders."""
OF_METHOD = {
    "swav": {"queue": 20, "queue_start": 0.5},  # full after two steps
    "dino": {"temperature_warmup": 1.0, "first_temperature": 0.2},  # two steps
}


PROJECTORS = {
    "none": ProjectorConfig(widths=()),
    "linear": ProjectorConfig(widths=(5,), bias=False),
    "mlp": ProjectorConfig(widths=(8, 5), output_batchnorm=True),
    "iternorm": ProjectorConfig(widths=(8, 6), output_iternorm=2),
    **{kind: ProjectorConfig(kind=kind, d0=3, groups=2) for kind in get_args(ProjectorKind)[1:]},
}
SUMS = ["frossl(end=1) + 0.5 byol(start=0.5)", "frossl + moco", "swav + vicreg", "tico + frossl + lejepa(slices=8)"]
CASES = {name: (name, None) for name in (*METHODS, *SUMS)} | {
    f"{name} {kind}": (name, kind)
    for name, kinds in {"frossl": PROJECTORS, "byol": ["dropout", "iternorm"], "tico": ["groups"]}.items()
    for kind in kinds
}
"""Name → method and projector."""


def small_numbers(function):
    return {name: value for name, value in SMALL_NUMBERS.items() if name in hyperparameters(function)}


def build_encoder(projector=None):
    """A convolutional backbone with BatchNorm, for images of any size, and a projector, with BatchNorm by default."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    config = PROJECTORS.get(projector, ProjectorConfig(widths=(8, D)))
    return Encoder(net, build_projector(config, 6, seed=3), config.dimensions(6))


def encoder_without_projector():
    """The same backbone without a projector, for objectives of the representation."""
    return Encoder(build_encoder().backbone, nn.Sequential(), 6)


def view_groups(case):
    """(views, size) of each group of views: two sizes if the objective takes more than two views."""
    return [(2, 7)] if required_views(find_objective(CASES[case][0])) == 2 else [(2, 7), (1, 5)]


def method(case, *, seed=1, make_encoder=None, **numbers):
    """The method of an objective, with the same weights on every process."""
    name, projector = CASES[case]
    function = find_objective(name)
    objective, build = partial(function, **small_numbers(function)), method_builder(name, function)
    if projector == "groups":
        objective = Grouped(objective, groups=2, seed=3)
    if tensor_names(objective) == ("R",):
        make_encoder = make_encoder or encoder_without_projector
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        built = build(
            make_encoder or partial(build_encoder, projector),
            objective,
            sum(V for V, _ in view_groups(case)),
            **small_numbers(build) | OF_METHOD.get(name, {}) | numbers,
        )
    built.training_length = TrainingLength(steps_per_epoch=2, total=STEPS)
    return built


def batches(name, *, start=0, n=N):
    """This process's part of each batch of n; the two halves of a batch differ in mean and scale."""
    for step in range(start, STEPS):
        rng = torch.Generator().manual_seed(step)
        views = []
        for V, size in view_groups(name):
            x = torch.randn(V, n, 1, size, size, generator=rng)
            views.append(torch.cat([x[:, : n // 2], 3 * x[:, n // 2 :] + 2], 1)[:, rank_slice(n)])
        yield views, torch.full((n,), -1)[rank_slice(n)]


def train(name, fabric):
    """Losses of three steps, the first gradients, and the state dict after the steps."""
    original = method(name)
    convert_sync_batchnorm(original)
    module, optimizer = fabric.setup(original, build_optimizer(OptimizerConfig(name="sgd", lr=0.05), original))
    losses, gradients = [], []
    for step in fit(fabric, module, optimizer, batches(name), lambda step: 0.05):
        losses.append(sum(step.terms.values()))
        gradients.append([p.grad.clone() for p in original.parameters() if p.grad is not None])
    return {
        "losses": losses,
        "gradients": gradients[0],
        "state": {key: t.clone() for key, t in original.state_dict().items()},
    }


def largest_exchange(name):
    """The numbers of the largest tensor that forward and backward pass of a shared objective exchange, of 1,000 samples
    a process."""
    tensors = {key: torch.randn(2, 1000, D, requires_grad=True) for key in tensor_names(find_objective(name))}
    with profile(record_shapes=True) as record:
        total(on_shards(lambda tensors: find_objective(name)(**tensors), tensors)).backward()
    events = [event for event in record.events() if event.name.startswith("_c10d_functional::")]
    scattered = [event for event in events if "all_reduce" not in event.name and "wait" not in event.name]
    assert not scattered, scattered[0].name
    return max((math.prod(event.input_shapes[0]) for event in events if "all_reduce" in event.name), default=0)


def main(fabric):
    """The results of all cases, and of the objectives of sums if processes share the work in small batches too."""
    results = {name: train(name, fabric) for name in CASES}
    module = sys.modules["fullrank.training.fit"]
    with patch.object(distributed, "SHARE_FROM", 0), patch.object(module, "on_shards", wraps=on_shards) as used:
        results |= {f"{f.__name__} shared": train(f.__name__, fabric) for f in OF_SUMS}
    exchanges = {f.__name__: largest_exchange(f.__name__) for f in OF_SUMS if tensor_names(f) == ("Z",)}
    return results | {"shared": used.call_count, "exchanges": exchanges}
