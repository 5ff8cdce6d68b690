"""How the balance of an objective's two forces depends on batch, dimension and views: the ratio of their gradients.

`fullrank.recipes.balanced_weights` keeps this ratio; docs/derivations/balance.md derives it.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.methods import ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import Recipe, balanced_weights
from fullrank.views import ViewConfig

FORCES = {
    "frossl": ("variance", "invariance"),
    "barlow_twins": ("redundancy", "invariance"),
    "vicreg": ("covariance", "invariance"),
    "simclr": ("uniformity", "alignment"),
    "ivne": ("entropy", "alignment"),
}
"""Objective → the term that spreads the embeddings, and the term that aligns the views."""


def gaussian_views(V: int, N: int, D: int, *, rank: int, correlation: float) -> Float[Tensor, "{V} {N} {D}"]:
    """Return V views of N Gaussian embeddings: √ρ s + √(1 − ρ) n_v, with s and n_v mixtures of `rank` sources.

    With the rank far below N, as in training, the correlations of the D features belong to the distribution. With rank
    D, they are the noise of N samples.
    """
    g = torch.Generator().manual_seed(0)
    mix = torch.eye(D) if rank == D else torch.randn(rank, D, generator=g) / math.sqrt(rank)
    s, *n = (torch.randn(N, rank, generator=g).double() @ mix.double() for _ in range(V + 1))
    return torch.stack([math.sqrt(correlation) * s + math.sqrt(1 - correlation) * each for each in n])


def gradient_ratio(objective: str, Z: Float[Tensor, "V N D"], **hyper: Any) -> float:
    """Return ‖∇ spreading term‖ / ‖∇ aligning term‖ with respect to the embeddings."""
    Z = Z.clone().requires_grad_()
    terms = OBJECTIVES[objective](Z, **hyper)
    spread, align = (torch.autograd.grad(terms[name], Z, retain_graph=True)[0].norm() for name in FORCES[objective])
    return (spread / align).item()


def balanced(objective: str, V: int, N: int, D: int) -> dict[str, float]:
    """Return the balanced weights of an objective for V views of N embeddings in D dimensions.

    >>> balanced("frossl", 2, 256, 1024)
    {'invariance': 1.0, 'variance': 1.0}
    """
    recipe = Recipe(objective=objective, views=(ViewConfig(count=V),), projector=ProjectorConfig(widths=(D,)))
    return balanced_weights(replace(recipe, batch_size=N))
