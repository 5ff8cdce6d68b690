"""Cluster learnability: how fast a nearest-neighbour classifier learns the clusters of embeddings."""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fullrank.errors import UserError


def cluster_learnability(X: Float[np.ndarray, "n D"], *, clusters: int | None = None, seed: int = 0) -> float:
    """Return the share of embeddings whose cluster is that of the nearest embedding before them, in a random order, in
    [0, 1].

    The clusters are those of k-means. Each embedding is predicted before its cluster is revealed (prequential
    evaluation), so the value is the area under the learning curve of a nearest-neighbour classifier. It is 1 for
    embeddings that are all equal.

    Args:
        X: embeddings of n ≥ 4 images. All distances are in memory: about 8·n² bytes.
        clusters: number of clusters; by default √n.
        seed: seed of k-means and of the order.

    Raises:
        UserError: there are fewer than four embeddings, or fewer than clusters, or one is not finite.

    Source: Lu et al. 2022, Using Representation Expressiveness and Learnability to Evaluate Self-Supervised Learning
    Methods (CLID). The number of clusters and one neighbour are our choice. CLID is the sum of this value and an
    intrinsic dimension (`two_nn_dimension`), each standardised over the compared models.

    >>> groups = np.repeat(np.eye(4, dtype=np.float32), 25, axis=0)
    >>> cluster_learnability(groups, clusters=4) >= 0.9  # after one example of a group, no mistake
    True
    """
    n = len(X)
    count = max(round(n**0.5), 2) if clusters is None else clusters
    if X.ndim != 2 or n < max(count, 4):
        raise UserError(
            f"X has shape {X.shape}, expected (n, D) with at least {max(count, 4)} images for {count} clusters"
        )
    if not np.isfinite(X).all():
        raise UserError(
            "the embeddings have NaN or infinite values, expected finite values; if training diverged, lower the learning rate"
        )
    X = X[np.random.default_rng(seed).permutation(n)].astype(np.float32)
    X = X - X.mean(axis=0)
    start: Any = 1  # scikit-learn's annotation has only 'auto'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct embeddings than clusters
        labels = KMeans(count, n_init=start, random_state=seed).fit_predict(X)
    closeness = X @ X.T - (X * X).sum(axis=1) / 2  # of row i to column j: −‖x_i − x_j‖²/2 up to a constant of the row
    closeness[np.triu(np.ones((n, n), bool))] = -np.inf
    return float((labels[closeness[1:].argmax(axis=1)] == labels[1:]).mean())
