"""Nearest neighbours by cosine similarity, exact, on all cores and without the matrix of distances (scikit-learn)."""

import numpy as np
from jaxtyping import Float32, Int64
from sklearn.neighbors import NearestNeighbors


def unit_rows(X: Float32[np.ndarray, "n D"]) -> Float32[np.ndarray, "n D"]:
    """Return the rows divided by their norms; a row of zeros stays zero."""
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(norms > 0, norms, 1)


def nearest(
    X: Float32[np.ndarray, "n D"], k: int, queries: Float32[np.ndarray, "q D"] | None = None
) -> tuple[Int64[np.ndarray, "_ k"], Float32[np.ndarray, "_ k"]]:
    """Return the k nearest rows of each row of X, without the row itself, or of each query, and their cosine
    similarities.

    For unit rows cos = 1 − d²/2, so the Euclidean distances d give the order, for which scikit-learn's search is faster
    than for cosines. The cosine of a row of zeros, such as that of a dead network, with any row is 0.

    Args:
        X: features.
        k: number of neighbours, less than n, or at most n with queries.
        queries: other features.

    Returns:
        Indices and similarities, the most similar first.

    >>> X = np.array([[1, 0], [2, 0.1], [0, 1]], np.float32)
    >>> indices, similarities = nearest(X, 1)
    >>> indices.ravel().tolist(), [round(float(value), 2) for value in similarities.ravel()]
    ([1, 0, 1], [1.0, 1.0, 0.05])
    """
    index = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(_with_direction_for_zeros(X, (1, 0)))
    if queries is not None:
        distances, indices = index.kneighbors(_with_direction_for_zeros(queries, (0, 1)))
    else:
        distances, indices = index.kneighbors(_with_direction_for_zeros(X, (0, 1)), n_neighbors=k + 1)
        own = indices == np.arange(len(X))[:, None]  # not always the first: an equal image has the same distance
        own[~own.any(axis=1), -1] = True
        distances, indices = (values[~own].reshape(len(X), k) for values in (distances, indices))
    return indices.astype(np.int64), (1 - distances**2 / 2).astype(np.float32)


def _with_direction_for_zeros(
    X: Float32[np.ndarray, "n D"], direction: tuple[int, int]
) -> Float32[np.ndarray, "n D+2"]:
    """Return the unit rows with two more columns, which contain `direction` for a row of zeros, so that its cosine with
    other rows is 0.
    """
    unit = unit_rows(X)
    return np.hstack([unit, np.outer(~unit.any(axis=1), direction).astype(np.float32)])
