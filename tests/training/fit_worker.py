"""Three steps of `fit` on data that differ between processes, on one process or on each of several."""

import torch
from torch import nn

from fullrank.distributed import convert_sync_batchnorm, rank_slice
from fullrank.methods import JointEmbedding
from fullrank.objectives import frossl
from fullrank.training import OptimizerConfig, build_optimizer, fit

N, STEPS = 12, 3
CLIP = 0.05
"""Less than the norm of the gradient in each step."""


def method(*, batchnorm, objective=frossl):
    """Return a small convolutional network, the same in every process."""
    norms = (nn.BatchNorm2d(4), nn.BatchNorm1d(8)) if batchnorm else (nn.GroupNorm(2, 4), nn.LayerNorm(8))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten())
    projector = nn.Sequential(nn.Linear(24, 8, bias=False), norms[1], nn.ReLU(), nn.Linear(8, 5))
    whole = JointEmbedding(net, projector, objective)
    rng = torch.Generator().manual_seed(1)
    for parameter in whole.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=rng)
    return whole


def sliced(Z, *, slices=3, generator):
    """An objective on random directions: a term for the distance of the views, and one for the variance along each
    direction."""
    A = torch.randn(Z.shape[-1], slices, generator=generator).to(Z)
    return {"distance": (Z[0] - Z[1]).square().mean(), "variance": ((Z @ A).var(1) - 1).square().mean()}


def supervised(Z, labels, *, temperature=0.5):
    """A supervised contrastive loss: the views of images with the same label are positives too."""
    n = labels.shape[0]
    X = torch.nn.functional.normalize(Z, dim=-1).flatten(0, 1)
    own, labels = torch.arange(n).repeat(len(Z)), labels.repeat(len(Z))
    positive = (own[:, None] == own) | ((labels[:, None] == labels) & (labels >= 0))
    other = ~torch.eye(len(X), dtype=torch.bool)
    log_p = (X @ X.mT / temperature).masked_fill(~other, -torch.inf).log_softmax(-1)
    return {"contrast": -log_p[positive & other].mean()}


def batches():
    """Yield this process's share of each batch; the second half of the images has another mean and scale."""
    rng = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        x = torch.randn(2, N, 1, 6, 6, generator=rng)
        x = torch.cat([x[:, : N // 2], 3 * x[:, N // 2 :] + 2], 1)
        yield [x[:, rank_slice(N)]], torch.arange(N)[rank_slice(N)] % 5 + step - 1


def train(fabric, *, batchnorm=True, micro_batch=0, objective=frossl, clip_norm=0.0):
    """Return the results and the weights of three steps."""
    bare = method(batchnorm=batchnorm, objective=objective)
    convert_sync_batchnorm(bare)
    config = OptimizerConfig(name="lars", lr=0.5, weight_decay=1e-2)
    module, optimizer = fabric.setup(bare, build_optimizer(config, bare))
    numbers = {"micro_batch": micro_batch, "clip_norm": clip_norm}
    steps = [
        {"terms": step.terms, "R": step.R, "Z": step.embeddings["Z"], "labels": step.labels, "lr": step.lr}
        for step in fit(fabric, module, optimizer, batches(), lambda step: 0.5 / (step + 1), **numbers)
    ]
    return {"steps": steps, "weights": {name: tensor.clone() for name, tensor in bare.state_dict().items()}}


def main(fabric):
    return {
        "undivided": train(fabric),
        "divided without BatchNorm": train(fabric, batchnorm=False, micro_batch=4),  # two micro-batches of 3
        "random": train(fabric, objective=sliced),
        "labels": train(fabric, objective=supervised),
        "clipped": train(fabric, batchnorm=False, micro_batch=4, clip_norm=CLIP),
    }
