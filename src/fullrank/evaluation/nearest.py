"""The exact nearest neighbours by cosine similarity: of the kNN probe, of the graph stability, and of `neighbours`."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

# Cosine similarities that differ by less are equal up to rounding.
TIE = 1e-9


def nearest(
    X: Float[Tensor, "n D"],
    k: int,
    queries: Float[Tensor, "q D"] | None = None,
    *,
    ties: torch.Generator | None = None,
    cells: int = 2**24,
) -> tuple[Float[Tensor, "_ k"], Int64[Tensor, "_ k"]]:
    """Return the cosine similarities of the k nearest rows of X to each query, the largest first, and their indices.

    The cosine of a row of zeros, such as that of a dead network, with any row is 0.

    Args:
        X: the rows that are searched.
        k: number of neighbours.
        queries: the rows whose neighbours are sought; None: each row of X among the others.
        ties: a generator of the CPU that orders equal similarities of float64 rows at random.
        cells: maximum number of similarities in memory at the same time (2²⁴ similarities take 64 MB in float32).

    >>> similarities, indices = nearest(torch.tensor([[1.0, 0], [2, 0.1], [0, 1]]), 1)
    >>> indices.flatten().tolist(), [round(value, 2) for value in similarities.flatten().tolist()]
    ([1, 0, 1], [1.0, 1.0, 0.05])
    """
    K, found = normalize(X), []
    Q = K if queries is None else normalize(queries)
    for rows in torch.arange(len(Q), device=X.device).split(max(cells // len(K), 1)):
        S = Q[rows] @ K.mT
        if ties is not None:
            S += TIE * torch.rand(S.shape, generator=ties, dtype=S.dtype).to(S.device)
        if queries is None:
            S[torch.arange(len(rows), device=X.device), rows] = -torch.inf
        found.append(S.topk(k, dim=1))
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])
