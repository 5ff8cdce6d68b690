import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from fullrank.evaluation import knn


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (20, 1.0), (50, 0.3)])
def test_equals_scikit_learn(clusters, k, temperature):
    X, y, X_test, y_test = clusters
    oracle = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / temperature)).fit(X, y)
    scored = knn(X, y, X_test, y_test, k=k, temperature=temperature)
    assert np.array_equal(scored.predictions, oracle.predict(X_test))
    assert scored.accuracy == oracle.score(X_test, y_test)
    assert 0.5 < scored.accuracy < 1


@given(
    n=st.integers(1, 12),
    m=st.integers(1, 4),
    k=st.integers(1, 15),
    classes=st.integers(1, 12),
    temperature=st.floats(0.05, 5),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=50, deadline=None)
def test_equals_the_votes_counted_one_by_one(n, m, k, classes, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    X, X_test = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for rows in (n, m))
    y, y_test = (torch.randint(classes, (rows,), generator=generator) for rows in (n, m))
    count = int(torch.cat([y, y_test]).max()) + 1
    found = knn(X, y, X_test, y_test, k=k, temperature=temperature)
    for query, prediction in zip(X_test, found.predictions.tolist(), strict=True):
        cosines = [float(query @ x / (query.norm() * x.norm())) for x in X]
        votes = [0.0] * count
        for i in sorted(range(n), key=lambda i: -cosines[i])[:k]:
            votes[y[i]] += math.exp(cosines[i] / temperature)
        assert votes[prediction] == pytest.approx(max(votes), rel=1e-9)
    assert found.accuracy == (found.predictions == y_test).double().mean()


def test_knn_does_not_depend_on_the_chunk_size(clusters):
    whole, pieces = knn(*clusters), knn(*clusters, cells=1)
    assert torch.equal(whole.predictions, pieces.predictions)


def test_knn_weights_equal_the_formula():
    angles = torch.tensor([0.0, 0.5, 0.6], dtype=torch.float64)
    X = torch.stack([angles.cos(), angles.sin()], dim=1)
    query = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    balance = (1 - (math.cos(0.5) + math.cos(0.6)) / 2) / math.log(
        2
    )  # near this value, one vote of 1 outweighs the two others
    y = torch.tensor([1, 0, 0])
    assert knn(X, y, query, torch.tensor([1]), k=3, temperature=0.9 * balance).accuracy == 1
    assert knn(X, y, query, torch.tensor([0]), k=3, temperature=1.1 * balance).accuracy == 1


def test_unlabelled_training_images_have_no_vote(clusters):
    X, y, X_test, y_test = clusters
    more = torch.cat([X, X_test])  # each test image is its own nearest neighbour, without a label
    labels = torch.cat([y, torch.full_like(y_test, -1)])
    assert torch.equal(knn(more, labels, X_test, y_test).predictions, knn(X, y, X_test, y_test).predictions)


def test_fewer_images_than_neighbours_all_vote(clusters):
    X, y, X_test, y_test = clusters
    assert torch.equal(
        knn(X[:7], y[:7], X_test, y_test, k=20).predictions, knn(X[:7], y[:7], X_test, y_test, k=7).predictions
    )


def test_a_class_without_training_images_is_never_predicted(clusters):
    X, y, X_test, _ = clusters
    assert knn(X, y, X_test, torch.full((60,), 4)).accuracy == 0


def test_with_one_class_the_accuracy_is_one(clusters):
    X, _, X_test, _ = clusters
    assert knn(X, torch.zeros(120, dtype=torch.int64), X_test, torch.zeros(60, dtype=torch.int64)).accuracy == 1


def test_a_zero_feature_does_not_give_nan(clusters):
    X, y, X_test, y_test = clusters
    X = torch.cat([X, torch.zeros(1, 10, dtype=torch.float64)])
    assert torch.equal(knn(X, torch.cat([y, y[:1]]), X_test, y_test).predictions, knn(*clusters).predictions)
