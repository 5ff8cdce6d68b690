"""Measures without labels: each against a plain computation, another library, or data whose answer is known."""

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist

from fullrank.errors import UserError
from fullrank.evaluation.cluster_learnability import cluster_learnability
from fullrank.evaluation.graph_stability import graph_stability
from fullrank.evaluation.intrinsic_dimension import mst_dimension, tree_length, two_nn_dimension


def cube(d, n=1200, D=20, seed=0):
    """Return points of a cube of d dimensions, rotated into D dimensions and moved far from the origin."""
    generator = np.random.default_rng(seed)
    rotation = np.linalg.qr(generator.standard_normal((D, d)))[0]
    return generator.random((n, d)) @ rotation.T + 5


def test_the_tree_is_scipys():
    distances = cdist(*[np.random.default_rng(0).standard_normal((80, 4))] * 2)
    assert np.isclose(tree_length(distances), minimum_spanning_tree(distances).sum(), rtol=1e-12)


@pytest.mark.parametrize("dimension", [mst_dimension, two_nn_dimension])
def test_the_dimension_of_a_cube_is_found_at_any_scale(dimension):
    found = [dimension(cube(d)) for d in (1, 2, 4)]
    assert np.allclose(found, [1, 2, 4], rtol=0.15)
    assert np.isclose(dimension(1e-3 * cube(2)), dimension(cube(2)), rtol=1e-6)


def test_equal_embeddings_have_no_dimension():
    assert mst_dimension(np.ones((40, 3))) == two_nn_dimension(np.ones((40, 3))) == 0


def test_clusters_are_learned_when_they_are_apart_and_not_in_noise():
    generator = np.random.default_rng(0)
    apart = np.repeat(10 * generator.standard_normal((5, 8)), 40, axis=0) + 0.1 * generator.standard_normal((200, 8))
    learned = cluster_learnability(apart.astype(np.float32), clusters=5)
    assert learned >= 1 - 5 / 199  # at most one mistake for each cluster
    assert cluster_learnability(generator.standard_normal((200, 100)).astype(np.float32), clusters=5) < 0.7 < learned
    moved = (apart + 1000).astype(np.float32)
    assert cluster_learnability(moved, clusters=5) >= 1 - 5 / 199


def test_the_order_of_predictions_is_one_neighbour_before():
    X = np.random.default_rng(1).standard_normal((60, 3)).astype(np.float32)
    from sklearn.cluster import KMeans

    rows = X[np.random.default_rng(0).permutation(60)]
    labels = KMeans(6, n_init=1, random_state=0).fit_predict(rows - rows.mean(axis=0))
    distances = cdist(rows, rows)
    right = [labels[distances[i, :i].argmin()] == labels[i] for i in range(1, 60)]
    assert np.isclose(cluster_learnability(X, clusters=6), np.mean(right))


def test_graph_stability_counts_common_neighbours():
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(2, 50, 6, generator=generator)
    cosines = [torch.nn.functional.cosine_similarity(Z[:, None], Z[None], dim=2).fill_diagonal_(-9) for Z in (X, Y)]
    sets = [[set(row.topk(7).indices.tolist()) for row in S] for S in cosines]
    expected = np.mean([len(a & b) / 7 for a, b in zip(*sets, strict=True)])
    assert np.isclose(graph_stability(X, Y, k=7), expected)
    assert graph_stability(X, X + 1e-6 * Y, k=7) > 0.98


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: mst_dimension(np.ones((4, 3))), "at least 32"),
        (lambda: two_nn_dimension(np.full((40, 3), np.nan)), "NaN"),
        (lambda: cluster_learnability(np.ones((9, 3), np.float32), clusters=10), "10 clusters"),
        (lambda: graph_stability(torch.ones(5, 2), torch.ones(5, 2), k=5), "k is 5"),
    ],
)
def test_wrong_inputs(call, problem):
    with pytest.raises(UserError, match=problem):
        call()
