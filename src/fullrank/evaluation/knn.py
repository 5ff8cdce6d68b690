"""The weighted k-nearest-neighbour classifier with cosine similarity."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import normalize

from fullrank.evaluation.protocol import KnnProtocol
from fullrank.evaluation.result import ProbeResult, count_classes, drop_unlabelled, topk_accuracy


def knn(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    k: int = KnnProtocol.k,
    temperature: float = KnnProtocol.temperature,
    cells: int = 2**24,
) -> ProbeResult:
    """Classify each test image by its k nearest training images, which vote for their classes with weights exp(cos /
    temperature).

    Features are L2-normalised, but not standardised. Unlabelled training images have no vote.

    Args:
        X: training features.
        y: labels of X, -1 for none.
        X_test: test features.
        y_test: labels of X_test, -1 for none.
        k: number of neighbours, at most the number of training images.
        temperature: temperature of the weights; a smaller value gives more weight to the nearest neighbours.
        cells: maximum number of similarities in memory at the same time (2²⁴ similarities take 64 MB).

    Source: Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination, Section 3.4.

    >>> X, y = torch.tensor([[1.0, 0], [2, 0], [0, 1]]), torch.tensor([0, 0, 1])
    >>> knn(X, y, torch.tensor([[5.0, 1], [0, 7]]), torch.tensor([0, 0])).accuracy
    0.5
    """
    X, y = drop_unlabelled(X, y)
    classes = count_classes(y, y_test)
    K = normalize(X).mT  # (D, n)
    votes = [
        neighbor_votes(normalize(Q) @ K, y, classes=classes, k=min(k, len(y)), temperature=temperature)
        for Q in X_test.split(max(cells // len(y), 1))
    ]
    counts = torch.cat(votes)
    return replace(topk_accuracy(counts, y_test), probabilities=counts / counts.sum(1, keepdim=True))


def neighbor_votes(
    S: Float[Tensor, "m n"], y: Int64[Tensor, " n"], *, classes: int, k: int, temperature: float
) -> Float[Tensor, "m classes"]:
    """Return the sum of exp(s / temperature) over the k largest similarities s of each row, for each class."""
    nearest = S.topk(k, dim=1)
    weights = (nearest.values / temperature).exp()
    return weights.new_zeros(len(S), classes).scatter_add(1, y[nearest.indices], weights)
