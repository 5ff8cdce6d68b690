"""One step of every projector with a few objectives, in one process (imported) or in each of several processes.

`python projectors_worker.py RANK WORLD FOLDER` writes FOLDER/RANK.pt.
"""

import sys
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from fullrank.distributed import convert_sync_batchnorm, rank_slice
from fullrank.methods import METHODS, Encoder, Grouped, ProjectorConfig, TrainingLength, build_projector
from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import hyperparameters
from fullrank.training import OptimizerConfig, build_optimizer, fit

D_B, N, SEED, STEP = 6, 16, 3, 5
PROJECTORS = {
    "none": ProjectorConfig(widths=()),
    "linear": ProjectorConfig(widths=(5,), bias=False),
    "mlp": ProjectorConfig(widths=(8, 5), output_batchnorm=True),
    **{
        kind: ProjectorConfig(kind=kind, d0=3, groups=2)
        for kind in ("diagonal", "orthogonal", "low-rank", "low-rank-diagonal")
    },
    **{kind: ProjectorConfig(kind=kind, d0=3, groups=2) for kind in ("sub-vector", "dropout", "groups")},
}
"""Each projector by a name, on representations of D_B dimensions."""

SELECTED_OBJECTIVES = ("frossl", "simclr", "barlow_twins", "byol", "tico")
SMALL_NUMBERS = {"prototypes": 12, "queue": 70, "predictor": 8, "freeze": 0.0, "momentum": (0.5, 0.8)}


def build_encoder(spec):
    backbone = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, D_B)
    )
    return Encoder(backbone, build_projector(spec, D_B, seed=SEED), spec.dimensions(D_B))


def method(projector, objective, *, seed=1, views=2, **numbers):
    """The method of an objective with a projector, with the same weights on every process."""
    spec, loss = PROJECTORS[projector], OBJECTIVES[objective]
    loss = Grouped(loss, groups=spec.groups, seed=SEED) if spec.kind == "groups" else loss
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        known = {name: value for name, value in SMALL_NUMBERS.items() if name in hyperparameters(METHODS[objective])}
        built = METHODS[objective](partial(build_encoder, spec), loss, views, **known | numbers)
    built.training_length = TrainingLength(steps_per_epoch=2, total=10)
    return built


def batches(steps=1):
    """This process's part of a batch; the two halves of a batch differ in mean and scale."""
    for step in range(steps):
        x = torch.randn(2, N, 1, 5, 5, generator=torch.Generator().manual_seed(step))
        yield (
            [torch.cat([x[:, : N // 2], 3 * x[:, N // 2 :] + 2], 1)[:, rank_slice(N)]],
            torch.full((N,), -1)[rank_slice(N)],
        )


def train(projector, objective, fabric, *, steps=1, start=STEP):
    """Losses of some steps of SGD, the first gradients, and the state dict after the steps."""
    original = convert_sync_batchnorm(method(projector, objective))
    module, optimizer = fabric.setup(original, build_optimizer(OptimizerConfig(name="sgd", lr=0.05), original))
    losses, gradients = [], []
    for step in fit(fabric, module, optimizer, batches(steps), lambda step: 0.05, start=start):
        losses.append(sum(step.terms.values()))
        gradients.append({name: p.grad.clone() for name, p in original.named_parameters() if p.grad is not None})
    return {
        "losses": losses,
        "gradients": gradients[0],
        "state": {key: t.clone() for key, t in original.state_dict().items()},
    }


def train_all(fabric):
    return {
        (projector, objective): train(projector, objective, fabric)
        for projector, objective in product(PROJECTORS, SELECTED_OBJECTIVES)
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from process_group import join

    fabric, found = join()
    torch.save(train_all(fabric), found)
    dist.destroy_process_group()
