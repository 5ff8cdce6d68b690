"""A map of the features in the plane: t-SNE (van der Maaten and Hinton 2008) of a sample."""

from typing import Any

import numpy as np
from jaxtyping import Float32
from sklearn.manifold import TSNE

from fullrank.evaluation.neighbourhood.search import unit_rows


def draw_map(X: Float32[np.ndarray, "n D"], at_most: int, seed: int) -> Float32[np.ndarray, "n 2"]:
    """Return positions in the plane; NaN for the images that are not in the sample. t-SNE needs at least four images.

    The distances are Euclidean distances of features of length one, in at most 50 principal components, as in the paper
    (section 4.2).

    Args:
        X: features.
        at_most: number of images on the map, chosen at random; 0 draws no map.
        seed: seed of the sample and of t-SNE.
    """
    positions = np.full((len(X), 2), np.nan, np.float32)
    rows = np.sort(np.random.default_rng(seed).permutation(len(X))[:at_most])
    if len(rows) < 4:
        return positions
    sample = unit_rows(X[rows])
    centred = sample - sample.mean(axis=0)
    _, _, components = np.linalg.svd(centred, full_matrices=False)
    reduced = centred @ components[:50].T
    init = reduced[:, :2] if reduced.shape[1] > 1 else np.pad(reduced, ((0, 0), (0, 1)))
    init = init * 1e-4 / max(float(init[:, 0].std()), 1e-12)  # the scale of scikit-learn's own initialisation by PCA
    options: Any = {"init": init.astype(np.float32)}  # scikit-learn's annotation has only names
    positions[rows] = TSNE(perplexity=min(30, (len(rows) - 1) / 3), random_state=seed, **options).fit_transform(reduced)
    return positions
