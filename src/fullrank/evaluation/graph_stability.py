"""The stability of the nearest-neighbour graph of images when each image is replaced by another view of it."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum.hypersphere import normalize_rows

TIE = 1e-9
"""Cosine similarities of float32 features that differ by less are equal up to rounding."""


def graph_stability(X: Float[Tensor, "n D"], Y: Float[Tensor, "n D"], *, k: int = 10) -> float:
    """Return the mean share of the k nearest neighbours of an image that its two views have in common, in [0, 1].

    X and Y are embeddings of two views of the same images. Neighbours are sought by cosine similarity among the
    embeddings of the same
    view: N_X(i) among X, N_Y(i) among Y, and the value is mean_i |N_X(i) ∩ N_Y(i)| / k. Independent graphs share k/(n −
    1), so compare
    values of the same n and k. A network that knows only the colour of an image can be stable: the value does not say
    what is similar. Ties are broken at random for each image and each view, so a network whose embeddings are all equal
    has the value of independent graphs.

    Args:
        X: embeddings of one view of n images.
        Y: embeddings of another view.
        k: number of neighbours, less than n.

    Raises:
        UserError: the shapes differ, k is not between 1 and n − 1, or an embedding is not finite.

    Source: the overlap of neighbourhoods of Huh et al. 2024, The Platonic Representation Hypothesis (mutual k-nearest
    neighbours), there of two networks on one image, here of one network on two views.

    >>> X = torch.randn(20, 3)
    >>> graph_stability(X, 2 * X, k=5)
    1.0
    """
    if X.shape != Y.shape:
        raise UserError(
            f"X has shape {tuple(X.shape)} and Y has shape {tuple(Y.shape)}, expected two views (n, D) of the same images"
        )
    if not 1 <= k < len(X):
        raise UserError(f"k is {k}, expected a number of neighbours from 1 to n − 1 = {len(X) - 1}")
    generator = torch.Generator().manual_seed(0)
    first, second = _neighbours(X, k, generator), _neighbours(Y, k, generator)
    return (first[:, :, None] == second[:, None, :]).any(2).double().mean().item()


def _neighbours(X: Float[Tensor, "n D"], k: int, generator: torch.Generator) -> Tensor:
    """Return the indices (n, k) of the nearest other rows; similarities that differ by less than `TIE` are in a random
    order.
    """
    X = normalize_rows(X)
    parts = []
    for rows in torch.arange(len(X), device=X.device).split(2048):
        S = X[rows] @ X.mT
        S += TIE * torch.rand(S.shape, generator=generator, dtype=S.dtype).to(S.device)
        S[torch.arange(len(rows), device=X.device), rows] = -torch.inf
        parts.append(S.topk(k, dim=1).indices)
    return torch.cat(parts)
