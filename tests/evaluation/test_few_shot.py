from importlib import import_module

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fullrank.errors import UserError
from fullrank.evaluation import few_shot, label_fraction, linear_probe
from fullrank.evaluation.few_shot import draw_labels


def test_draws_have_the_number_of_labels_per_class_without_repeats():
    y = torch.tensor([2, 0, 1, 2, 0, 2, 1, 0, 0, 4])
    rows = draw_labels(y, labels=2, generator=torch.Generator().manual_seed(0))
    assert y[rows].tolist() == [0, 0, 1, 1, 2, 2, 4]
    assert len(rows.unique()) == len(rows)


def test_images_of_a_class_are_drawn_uniformly():
    y = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1])
    generator = torch.Generator().manual_seed(0)
    counts = sum(torch.bincount(draw_labels(y, labels=2, generator=generator), minlength=8) for _ in range(3000))
    share = counts / 3000
    expected = torch.where(y == 0, 2 / 3, 2 / 5)
    assert (share - expected).abs().max() < 4 * (0.25 / 3000) ** 0.5  # four standard errors at most


def test_mean_and_sd_equal_scikit_learn_on_the_same_draws(clusters):
    X, y, X_test, y_test = clusters
    few = few_shot(X, y, X_test, y_test, labels=3, draws=5, penalty=0.01, seed=7)
    generator = torch.Generator().manual_seed(7)
    expected = []
    for _ in range(5):
        rows = draw_labels(y, labels=3, generator=generator)
        expected.append(LogisticRegression(C=1 / (0.01 * 9)).fit(X[rows], y[rows]).score(X_test, y_test))
    assert few.accuracies == tuple(expected)
    assert few.mean == pytest.approx(np.mean(expected))
    assert few.sd == pytest.approx(np.std(expected, ddof=1))
    assert few.sd > 0


def test_draws_are_a_function_of_the_seed(clusters):
    assert few_shot(*clusters, draws=4, seed=1) == few_shot(*clusters, draws=4, seed=1)
    assert few_shot(*clusters, draws=4, seed=1) != few_shot(*clusters, draws=4, seed=2)


def test_the_first_draws_do_not_depend_on_the_number_of_draws(clusters):
    assert few_shot(*clusters, draws=5).accuracies[:2] == few_shot(*clusters, draws=2).accuracies


def test_unlabelled_images_are_never_drawn(clusters):
    X, y, X_test, y_test = clusters
    X, y = torch.cat([X, X + 100]), torch.cat([y, torch.full_like(y, -1)])
    assert few_shot(X, y, X_test, y_test, draws=3) == few_shot(*clusters, draws=3)


def test_one_class_raises(clusters):
    X, y, X_test, y_test = clusters
    with pytest.raises(UserError, match="two or more classes"):
        few_shot(X, torch.zeros_like(y), X_test, y_test)


def test_a_fraction_of_each_class_is_drawn_and_at_least_one_label(clusters, monkeypatch):
    module = import_module("fullrank.evaluation.few_shot")  # the package has a function of this name
    X, y, X_test, y_test = clusters
    y = y.clone()
    y[:30][y[:30] == 2] = -1  # 40, 40 and 30 labels
    drawn, draw = [], module.draw_labels
    monkeypatch.setattr(module, "draw_labels", lambda y, **options: drawn.append(y[rows := draw(y, **options)]) or rows)
    label_fraction(X, y, X_test, y_test, fraction=0.25, draws=3)
    assert [labels.bincount().tolist() for labels in drawn] == [[10, 10, 8]] * 3  # 7.5 is rounded to the even number
    drawn.clear()
    label_fraction(X, y, X_test, y_test, fraction=0.001, draws=1)
    assert drawn[0].bincount().tolist() == [1, 1, 1]


def test_all_labels_equal_the_linear_probe(clusters):
    expected = linear_probe(*clusters).accuracy
    found = label_fraction(*clusters, fraction=1.0, draws=2)
    assert found.accuracies == (expected, expected)


def test_fractions_equal_scikit_learn_on_the_same_draws(clusters):
    X, y, X_test, y_test = clusters
    found = label_fraction(*clusters, fraction=0.2, draws=3, penalties=(0.01,), seed=4)
    generator, counts = torch.Generator().manual_seed(4), torch.tensor([8, 8, 8])
    expected = []
    for _ in range(3):
        rows = draw_labels(y, labels=counts, generator=generator)
        expected.append(LogisticRegression(C=1 / (0.01 * 24)).fit(X[rows], y[rows]).score(X_test, y_test))
    assert found.accuracies == tuple(expected)


def test_one_draw_has_no_standard_deviation_and_many_classes_have_a_top_five(clusters):
    X, y, X_test, y_test = clusters
    assert few_shot(*clusters, draws=1).sd is None
    assert few_shot(*clusters, draws=2).top5 == ()
    spread = few_shot(X, 5 * y, X_test, 5 * y_test, draws=2)  # classes 0, 5 and 10
    assert spread.top5 == (1.0, 1.0)
