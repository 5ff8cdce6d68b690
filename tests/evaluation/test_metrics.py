import numpy as np
import pytest

from fullrank.evaluation.metrics import class_metrics


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    generator = np.random.default_rng(0)
    y, P = generator.integers(3, size=60), generator.dirichlet([1, 1, 1], size=60)
    areas = [np.mean([[(a > b) + (a == b) / 2 for b in P[y != k, k]] for a in P[y == k, k]]) for k in range(3)]
    assert class_metrics(y, P.argmax(1), P).auroc == pytest.approx(np.mean(areas))


def test_balanced_accuracy_of_the_majority_class_is_chance():
    y = np.array([0] * 83 + [1] * 17)
    metrics = class_metrics(y, np.zeros(100, int), np.tile([0.6, 0.4], (100, 1)))
    assert (metrics.balanced_accuracy, metrics.auroc) == (0.5, 0.5)
    assert metrics.per_class == {0: 1.0, 1: 0.0}
    assert metrics.confusion == ((83, 0), (17, 0))


def test_a_class_without_test_images_has_no_recall():
    metrics = class_metrics(np.array([0, 2, 2]), np.array([0, 1, 2]), np.eye(3)[[0, 1, 2]])
    assert metrics.per_class == {0: 1.0, 2: 0.5}
    assert metrics.balanced_accuracy == 0.75
    assert metrics.confusion == ((1, 0, 0), (0, 0, 0), (0, 1, 1))


def test_one_class_has_no_auroc():
    assert class_metrics(np.zeros(4, int), np.zeros(4, int), np.full((4, 2), 0.5)).auroc is None
