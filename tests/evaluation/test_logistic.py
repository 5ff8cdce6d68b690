"""The solver finds scikit-learn's optimum, in few passes over the features, also for degenerate features."""

import numpy as np
import pytest
import sklearn.linear_model
import torch
from torch.nn.functional import cross_entropy

from fullrank.evaluation import logistic, standardize
from fullrank.evaluation.logistic import LogisticRegression


def correlated(n=600, D=40, classes=4, *, decay=2.0, dtype=torch.float64, seed=0):
    """Features whose covariance has eigenvalues j**-decay, as images have, and labels that depend on all of them."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]
    whitened = torch.randn(n, D, generator=generator, dtype=torch.float64)
    X = whitened * torch.arange(1, D + 1, dtype=torch.float64) ** (-decay / 2) @ rotation
    noise = -(-torch.rand(n, classes, generator=generator, dtype=torch.float64).log()).log()
    y = (whitened @ torch.randn(D, classes, generator=generator, dtype=torch.float64) / D**0.5 + noise).argmax(1)
    return (X - X.mean(0)).to(dtype), y


def objective(model, X, y, penalty):
    """The documented loss and the largest entry of its gradient, by autograd in float64."""
    W, b = model.W.clone().requires_grad_(), model.b.clone().requires_grad_()
    logits = X.double() @ W.mT + b
    logits = torch.cat([torch.zeros_like(logits), logits], 1) if len(W) == 1 else logits
    loss = cross_entropy(logits, y) + penalty / 2 * W.square().sum()
    loss.backward()
    assert W.grad is not None
    assert b.grad is not None
    return loss.item(), max(W.grad.abs().max(), b.grad.abs().max()).item()


@pytest.mark.parametrize("penalty", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_optimum_is_that_of_scikit_learn(classes, penalty):
    X, y = correlated(classes=classes)
    model = LogisticRegression(X, y).fit(penalty, tolerance=1e-12)
    oracle = sklearn.linear_model.LogisticRegression(
        C=1 / (penalty * len(y)), tol=1e-10, max_iter=20_000, solver="newton-cholesky"
    ).fit(X, y)
    assert objective(model, X, y, penalty)[1] < 1e-6
    np.testing.assert_allclose(model.W, oracle.coef_, atol=2e-3 * np.abs(oracle.coef_).max())
    expected = torch.from_numpy(oracle.predict_proba(X))
    torch.testing.assert_close(model.logits(X, classes=classes).softmax(1), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("penalty", [1e-1, 1e-3, 1e-5])
def test_the_default_stops_close_to_the_minimum_in_float32(penalty):
    X, y = correlated(dtype=torch.float32)
    loss, gradient = objective(LogisticRegression(X, y).fit(penalty), X, y, penalty)
    least, _ = objective(LogisticRegression(X.double(), y).fit(penalty, tolerance=1e-14), X, y, penalty)
    assert -1e-12 < loss - least < 1e-6
    assert gradient < 1e-3


def test_a_path_of_penalties_takes_few_passes():
    """Hundreds without the covariance: features of equal variance have eigenvalues from 1 to 10⁻⁵."""
    X, y = correlated(n=3000, D=300, classes=10, decay=2.0, dtype=torch.float32)
    X, _ = standardize(X, X)
    problem, model, passes = LogisticRegression(X, y), None, []
    for penalty in (1e-1, 1e-2, 1e-3, 1e-4):
        model = problem.fit(penalty, start=model, tolerance=1e-6)
        passes.append(model.passes)
    assert sum(passes) <= 60, passes
    again = problem.fit(1e-4, start=model, tolerance=1e-5)
    assert again.passes <= 3


def test_passes_count_every_evaluation(monkeypatch):
    X, y = correlated(n=100, D=5)
    calls = []
    minimize = logistic.minimize

    def counted(function, x, solve, **options):
        return minimize(lambda theta: calls.append(0) or function(theta), x, solve, **options)

    monkeypatch.setattr(logistic, "minimize", counted)
    assert LogisticRegression(X, y).fit(1e-3).passes == len(calls) + 1  # the curvature at the start is one pass


def test_rows_that_are_left_out_change_nothing():
    X, y = correlated()
    rows = torch.arange(len(y)) % 3 > 0
    some = LogisticRegression(X, y).fit(1e-2, rows=rows, tolerance=1e-13)
    alone = LogisticRegression(X[rows], y[rows]).fit(1e-2, tolerance=1e-13)
    torch.testing.assert_close(some.W, alone.W, atol=1e-5, rtol=0)
    torch.testing.assert_close(some.b, alone.b, atol=1e-5, rtol=0)


def constant_column(X):
    return torch.cat([X, torch.full((len(X), 1), 3.0)], 1)


def equal_columns(X):
    return 30 * X.repeat(1, 4)


def zero_column(X):
    return torch.cat([X, torch.zeros(len(X), 1)], 1)


def fewer_rows_than_columns(X):
    return torch.cat([X, torch.randn(len(X), 2 * len(X), generator=torch.Generator().manual_seed(1))], 1)


@pytest.mark.parametrize("penalty", [1e-2, 1e-6])
@pytest.mark.parametrize("degenerate", [constant_column, equal_columns, zero_column, fewer_rows_than_columns])
def test_degenerate_features_have_a_small_gradient(degenerate, penalty):
    X, y = correlated(n=200, D=10, dtype=torch.float32)
    X = degenerate(X)
    model = LogisticRegression(X, y).fit(penalty)
    loss, gradient = objective(model, X, y, penalty)
    assert gradient < 1e-2
    least, _ = objective(
        LogisticRegression(X.double(), y).fit(penalty, tolerance=1e-12, iterations=1000), X, y, penalty
    )
    assert loss - least < 1e-4


def test_the_start_may_have_more_dimensions_than_rows():
    X, y = correlated(n=30, D=60)
    problem = LogisticRegression(X, y)
    first = problem.fit(1e-2, tolerance=1e-12)
    assert first.W.shape == (4, 60)
    assert problem.fit(1e-2, start=first, tolerance=1e-10).passes <= 3


def test_features_of_many_dimensions_are_fitted_without_their_covariance(monkeypatch):
    monkeypatch.setattr(logistic, "LARGEST_COVARIANCE", 8)
    X, y = correlated(D=20)
    problem = LogisticRegression(X, y)
    assert objective(problem.fit(1e-2, tolerance=1e-12), X, y, 1e-2)[1] < 1e-5
    assert problem._second_moment is None


def test_problems_with_other_labels_share_the_second_moment():
    problem = LogisticRegression(torch.randn(30, 3, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 2)
    others = [problem.with_labels(torch.arange(30) % k) for k in (2, 3)]
    assert others[0].second_moment() is others[1].second_moment()
