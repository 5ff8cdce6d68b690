import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from fullrank.errors import UserError
from fullrank.evaluation import linear_svm, standardize
from fullrank.evaluation.svm import fit_svm, second_moment


@pytest.fixture
def data(clusters):
    X, y, X_test, y_test = clusters
    X, X_test = standardize(X, X_test)
    return X, y, X_test, y_test


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("C", [1e-3, 1.0])
def test_weights_equal_those_of_scikit_learn(data, C, classes):
    X, y = data[:2]
    X, y = X[y < classes], y[y < classes]
    W = fit_svm(X, y, C=C, moment=second_moment(X), tolerance=1e-14)
    oracle = LinearSVC(C=C, tol=1e-10, max_iter=100_000).fit(X, y)
    found = W if classes > 2 else W[:, 1:]
    np.testing.assert_allclose(found[:-1].T, oracle.coef_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[-1], oracle.intercept_, rtol=1e-4, atol=1e-6)


def test_the_accuracy_equals_that_of_scikit_learn_with_the_chosen_constant(data):
    X, y, X_test, y_test = data
    result = linear_svm(*data, C=(1e-4, 1e-2, 1.0))
    oracle = LinearSVC(C=result.chosen["C"], tol=1e-8, max_iter=100_000).fit(X, y)
    assert np.array_equal(result.predictions, oracle.predict(X_test))
    assert result.accuracy == oracle.score(X_test, y_test)


def test_the_constant_is_chosen_for_held_out_data():
    """Many noise dimensions: a large C separates the training features, and classifies new ones poorly."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    X = torch.randn(400, 300, generator=generator)
    X[:, 0] += 1.5 * (2 * y - 1)
    assert linear_svm(X, y, X, y, C=(1e-4, 100.0)).chosen == {"C": 1e-4}
    y_noise = torch.randint(2, (400,), generator=generator)
    assert linear_svm(X, y, X, y_noise, C=(1e-4, 100.0)).chosen == {"C": 1e-4}  # whatever the test labels are


def test_with_too_few_labels_to_hold_out_the_constant_is_the_middle_one(data):
    X, y, X_test, y_test = data
    assert linear_svm(X[:20], y[:20], X_test, y_test, C=(1e-3, 1e-2, 1.0)).chosen == {"C": 1e-2}


def test_labels_may_be_missing_and_classes_empty(data):
    X, y, X_test, y_test = data
    y = torch.where(y == 1, 12, y)
    more, labels = torch.cat([X, 100 + X]), torch.cat([y, torch.full_like(y, -1)])
    found, plain = (
        linear_svm(*train, X_test, torch.where(y_test == 1, 12, y_test)) for train in ((more, labels), (X, y))
    )
    assert torch.equal(found.predictions, plain.predictions)
    assert set(found.predictions.tolist()) <= {0, 2, 12}
    assert found.accuracy > 0.5
    assert found.top5 == 1.0  # three classes have finite scores


def test_more_dimensions_than_images_give_the_same_classifier(data):
    X, y, X_test, y_test = data
    noise = torch.randn(180, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    X, X_test = torch.cat([X, noise[:120]], 1), torch.cat([X_test, noise[120:]], 1)
    result = linear_svm(X, y, X_test, y_test, C=(1e-3,))
    oracle = LinearSVC(C=1e-3, tol=1e-8, max_iter=100_000).fit(X, y)
    assert np.array_equal(result.predictions, oracle.predict(X_test))


def test_more_dimensions_than_the_covariance_may_have(data, monkeypatch):
    full = linear_svm(*data, C=(1e-2,))
    monkeypatch.setattr("fullrank.evaluation.svm.LARGEST_COVARIANCE", 4)
    assert torch.equal(linear_svm(*data, C=(1e-2,)).predictions, full.predictions)


@pytest.mark.parametrize(("value", "message"), [(torch.nan, "NaN or infinite"), (1e30, "standardise")])
def test_features_without_an_optimum_are_one_line(data, value, message):
    X, y, X_test, y_test = data
    X = X.clone()
    X[3, 1] = value
    with pytest.raises(UserError, match=message):
        linear_svm(X.float(), y, X_test.float(), y_test)


def test_one_class_raises(data):
    X, y, X_test, y_test = data
    with pytest.raises(UserError, match="two or more classes, got 1"):
        linear_svm(X, torch.zeros_like(y), X_test, y_test)
