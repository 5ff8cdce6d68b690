"""The intrinsic dimension of embeddings, from minimum spanning trees and from the two nearest neighbours."""

import numpy as np
from jaxtyping import Float

from fullrank.errors import UserError

MIN_POINTS = 32
"""Minimum number of embeddings for an estimate."""


def mst_dimension(X: Float[np.ndarray, "n D"], *, sizes: int = 6, repeats: int = 4, seed: int = 0) -> float:
    """Return the dimension d = 1 / (1 − m), where m is the slope of log L(s) on log s, of the minimum spanning trees of
    s embeddings.

    L(s), the sum of the Euclidean edge lengths, grows as s^((d − 1)/d) (Steele 1988). The sizes s are spaced
    geometrically from n/8 to n, and log L(s) is the mean over random subsets. This is the estimator of IdEst; its
    representations with the higher linear accuracy have the lower dimension. Scale, rotation and shift of the
    embeddings do not change the value.

    Args:
        X: embeddings of n ≥ 32 images. All distances are in memory: about 40·n² bytes at the peak.
        sizes: number of sizes, at least 2.
        repeats: subsets of each size.
        seed: seed of the subsets.

    Returns:
        The dimension; 0 if all embeddings are equal, infinity if L grows at least as s.

    Raises:
        UserError: there are fewer than 32 embeddings, or one is not finite.

    Source: Mordacq, Kalogeiton and Oudot 2026, IdEst (arXiv 2606.03338); the sizes and the number of subsets are ours.

    >>> square = np.random.default_rng(0).random((600, 2)) @ np.ones((2, 5)) + np.random.default_rng(1).random((600, 1))
    >>> 1 < mst_dimension(square) < 3
    True
    """
    distances = _distances(X)
    n, generator = len(X), np.random.default_rng(seed)
    counts = np.unique(np.geomspace(n / 8, n, sizes).round().astype(int))
    means = []
    for count in counts:
        subsets = [np.arange(n)] if count == n else [generator.permutation(n)[:count] for _ in range(repeats)]
        lengths = [tree_length(distances[np.ix_(rows, rows)]) for rows in subsets]
        if min(lengths) <= 0:
            return 0.0
        means.append(np.mean(np.log(lengths)))
    slope = np.polyfit(np.log(counts), np.array(means), 1)[0]
    return float(1 / (1 - slope)) if slope < 1 else float("inf")


def tree_length(distances: Float[np.ndarray, "n n"]) -> float:
    """Return the length of the minimum spanning tree of n points, from their distances (Prim 1957).

    scipy's minimum_spanning_tree reads a distance of zero as a missing edge, and sorts all edges.

    >>> tree_length(np.abs(np.subtract.outer([0.0, 1.0, 3.0, 3.0], [0.0, 1.0, 3.0, 3.0])))
    3.0
    """
    to_tree = distances[0].copy()
    outside = np.ones(len(distances), bool)
    outside[0], length = False, 0.0
    for _ in range(len(distances) - 1):
        nearest = int(np.where(outside, to_tree, np.inf).argmin())
        length += float(to_tree[nearest])
        outside[nearest] = False
        np.minimum(to_tree, distances[nearest], out=to_tree)
    return length


def two_nn_dimension(X: Float[np.ndarray, "n D"], *, discarded: float = 0.1) -> float:
    """Return the dimension d for which the ratios μ = r₂/r₁ of the distances to the two nearest neighbours follow F(μ)
    = 1 − μ^(−d).

    d is the slope of −log(1 − F) on log μ through the origin, without the largest ratios, with F the empirical
    distribution.

    Args:
        X: embeddings of n ≥ 32 images. All distances are in memory: about 40·n² bytes at the peak.
        discarded: share of the largest ratios that are left out.

    Returns:
        The dimension; 0 if fewer than 32 embeddings differ from their nearest neighbour, infinity if all ratios are 1.

    Raises:
        UserError: there are fewer than 32 embeddings, or one is not finite.

    Source: Facco et al. 2017, Estimating the intrinsic dimension of datasets by a minimal neighborhood information.
    """
    distances = _distances(X)
    np.fill_diagonal(distances, np.inf)
    first, second = np.partition(distances, 1, axis=1)[:, :2].T
    ratios = np.sort(second[first > 0] / first[first > 0])
    if len(ratios) < MIN_POINTS:
        return 0.0
    kept = int(len(ratios) * (1 - discarded))
    x, y = np.log(ratios[:kept]), -np.log1p(-np.arange(1, kept + 1) / len(ratios))
    return float(x @ y / (x @ x)) if x @ x > 0 else float("inf")


def _distances(X: Float[np.ndarray, "n D"]) -> np.ndarray:
    """Return the Euclidean distances (n, n) in float64; those of equal rows are exactly zero."""
    if X.ndim != 2 or len(X) < MIN_POINTS:
        raise UserError(f"X has shape {X.shape}, expected embeddings (n, D) of at least {MIN_POINTS} images")
    X = X.astype(np.float64)
    if not np.isfinite(X).all():
        raise UserError(
            "the embeddings have NaN or infinite values, expected finite values; if training diverged, lower the learning rate"
        )
    X = X - X.mean(axis=0)
    squares = (X * X).sum(axis=1)
    sums = squares[:, None] + squares
    distances = sums - 2 * X @ X.T
    rounding = 8 * np.finfo(float).eps * X.shape[1] ** 0.5 * sums
    return np.sqrt(np.where(distances > rounding, distances, 0))
