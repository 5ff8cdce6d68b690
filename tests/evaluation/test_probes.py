"""The probes, each against scikit-learn, a naive loop, or explicit steps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import sklearn.linear_model
import torch
from sklearn.svm import LinearSVC
from torch.nn.functional import cross_entropy, one_hot

from fullrank import evaluation
from fullrank.errors import UserError
from fullrank.evaluation.linear import draw_labels, held_out_tenths, stable_lr
from fullrank.evaluation.logistic import LogisticRegression
from fullrank.evaluation.protocol import AdamProtocol, SgdProtocol


@pytest.fixture
def data(clusters):
    X, y, X_test, y_test = clusters
    return *evaluation.standardize(X, X_test)[:1], y, evaluation.standardize(X, X_test)[1], y_test


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def correlated(n=600, D=40, classes=4, *, dtype=torch.float64):
    """Features whose covariance has eigenvalues 1/j², as images have, and labels that depend on all of them."""
    generator = seeded()
    rotation = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]
    whitened = torch.randn(n, D, generator=generator, dtype=torch.float64)
    X = whitened / torch.arange(1, D + 1) @ rotation
    noise = -(-torch.rand(n, classes, generator=generator, dtype=torch.float64).log()).log()
    y = (whitened @ torch.randn(D, classes, generator=generator, dtype=torch.float64) / D**0.5 + noise).argmax(1)
    return (X - X.mean(0)).to(dtype), y


def objective(model, X, y, penalty):
    """The documented loss and the largest entry of its gradient, by autograd in float64."""
    W, b = model.W.clone().requires_grad_(), model.b.clone().requires_grad_()
    loss = cross_entropy(X.double() @ W.mT + b, y) + penalty / 2 * W.square().sum()
    loss.backward()
    fitted = slice(len(W) == 2, None)  # the first of two classes has the weight zero
    return loss.item(), max(W.grad[fitted].abs().max(), b.grad[fitted].abs().max()).item()


def oracle(X, y, penalty):
    options = {"tol": 1e-10, "max_iter": 20_000, "solver": "newton-cholesky"}
    return sklearn.linear_model.LogisticRegression(C=1 / (penalty * len(y)), **options).fit(X, y)


@pytest.mark.parametrize(("classes", "penalty"), [(2, 1e-3), (3, 1e-1), (10, 1e-5)])
def test_the_optimum_of_logistic_regression_is_that_of_scikit_learn(classes, penalty):
    X, y = correlated(classes=classes)
    model, expected = LogisticRegression(X, y).fit(penalty, tolerance=1e-12), oracle(X, y, penalty)
    assert objective(model, X, y, penalty)[1] < 1e-6
    W = expected.coef_
    np.testing.assert_allclose(model.W[-len(W) :], W, atol=2e-3 * np.abs(W).max())
    found = model.logits(X).softmax(1)
    torch.testing.assert_close(found, torch.from_numpy(expected.predict_proba(X)), atol=1e-4, rtol=0)


def test_the_default_stops_close_to_the_minimum_in_few_passes_in_float32():
    X, y = correlated(n=3000, D=300, classes=10, dtype=torch.float32)
    (X,) = evaluation.standardize(X)
    problem, model, passes = LogisticRegression(X, y), None, []
    for penalty in (1e-1, 1e-2, 1e-3, 1e-4):
        model = problem.fit(penalty, start=model, tolerance=1e-6)
        passes.append(model.passes)
    assert sum(passes) <= 60  # hundreds without the covariance
    loss, gradient = objective(problem.fit(1e-3), X, y, 1e-3)
    least, _ = objective(LogisticRegression(X.double(), y).fit(1e-3, tolerance=1e-13), X, y, 1e-3)
    assert -1e-12 < loss - least < 1e-6
    assert gradient < 1e-3


def test_rows_that_are_left_out_change_nothing():
    X, y = correlated()
    rows = torch.arange(len(y)) % 3 > 0
    some = LogisticRegression(X, y).fit(1e-2, rows=rows, tolerance=1e-13)
    alone = LogisticRegression(X[rows], y[rows]).fit(1e-2, tolerance=1e-13)
    torch.testing.assert_close(some[:2], alone[:2], atol=1e-5, rtol=0)


DEGENERATE = {
    "a constant column": lambda X: torch.cat([X, torch.full((len(X), 1), 3.0)], 1),
    "equal columns": lambda X: 30 * X.repeat(1, 4),
    "a column of zeros": lambda X: torch.cat([X, torch.zeros(len(X), 1)], 1),
    "fewer rows than columns": lambda X: torch.cat([X, torch.randn(len(X), 2 * len(X), generator=seeded(1))], 1),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_features_have_a_small_gradient(name):
    X, y = correlated(n=200, D=10, dtype=torch.float32)
    X = DEGENERATE[name](X)
    loss, gradient = objective(LogisticRegression(X, y).fit(1e-6), X, y, 1e-6)
    assert gradient < 1e-2
    best = LogisticRegression(X.double(), y).fit(1e-6, tolerance=1e-12, iterations=1000)
    assert loss - objective(best, X, y, 1e-6)[0] < 1e-4


@pytest.mark.parametrize("probe", [evaluation.linear_probe, evaluation.linear_svm])
def test_the_penalty_is_chosen_for_held_out_data(probe):
    """Many noise dimensions: without a penalty, the training accuracy is perfect and the test accuracy poor."""
    y = torch.arange(400) % 2
    X = torch.randn(400, 300, generator=seeded())
    X[:, 0] += 1.5 * (2 * y - 1)
    options = {"penalties": (1.0, 1e-6)} if probe is evaluation.linear_probe else {"C": (1e-4, 100.0)}
    strong = next(iter(options.values()))[0]
    assert list(probe(X, y, X, **options).chosen.values()) == [strong]
    few = {name: (*values, 5.0) for name, values in options.items()}  # no class has ten labels: the middle one
    assert list(probe(X[:16], y[:16], X, **few).chosen.values()) == [next(iter(few.values()))[1]]


def test_held_out_tenths_keep_a_label_of_each_class():
    y = torch.tensor([0] * 50 + [1] * 19 + [2] * 9 + [3])
    tenths = held_out_tenths(y, seed=0)
    assert all(y[tenths == k].bincount(minlength=4).tolist() == [5, 1, 0, 0] for k in range(10))
    assert torch.equal(tenths, held_out_tenths(y, seed=0))
    assert not torch.equal(tenths, held_out_tenths(y, seed=1))


def test_no_tenth_divides_a_group():
    y = torch.tensor([0] * 60 + [1] * 30 + [2])
    groups = torch.cat([torch.arange(60) // 3, torch.arange(30) % 3 + 100, torch.tensor([100])])
    tenths = held_out_tenths(y, groups=groups, seed=0)
    assert all(len(tenths[groups == group].unique()) == 1 for group in groups.unique())
    assert [(tenths == k).sum().item() for k in range(10)].count(6) == 7  # two groups of class 0
    matrix = held_out_tenths(one_hot(y), groups=groups, seed=0)
    assert all(len(matrix[groups == group].unique()) == 1 for group in groups.unique())
    alone = torch.full_like(y, -1)
    assert torch.equal(held_out_tenths(y, groups=alone, seed=3), held_out_tenths(y, seed=3))


@pytest.mark.parametrize("probe", [evaluation.linear_probe, evaluation.linear_svm])
def test_copies_of_one_image_in_a_group_do_not_make_a_weak_penalty_look_good(probe):
    """180 images of 200 dimensions, five copies each: whoever remembers a copy knows the others."""
    groups, generator = torch.arange(900) // 5, seeded()
    y, X = (torch.arange(180) % 2)[groups], torch.randn(180, 200, generator=generator)[groups]
    X += 0.01 * torch.randn(900, 200, generator=generator)
    X[:, 0] += 2 * y - 1
    options = {"penalties": (1.0, 1e-6)} if probe is evaluation.linear_probe else {"C": (1e-4, 100.0)}
    strong, weak = next(iter(options.values()))
    assert list(probe(X, y, X, **options, groups=groups).chosen.values()) == [strong]
    assert list(probe(X, y, X, **options).chosen.values()) == [weak]


@pytest.mark.parametrize("probe", [evaluation.linear_probe, evaluation.linear_svm, evaluation.knn])
def test_classes_without_labels_are_never_predicted(data, probe):
    X, y, X_test, _ = data
    found, plain = probe(X, 2 * y + 1, X_test).logits, probe(X, y, X_test).logits
    assert found.isfinite().any(0).nonzero().flatten().tolist() == [1, 3, 5]
    assert torch.equal(found.argmax(1), 2 * plain.argmax(1) + 1)


@pytest.mark.parametrize("probe", [evaluation.linear_probe, evaluation.linear_svm])
def test_features_that_are_not_finite_and_one_class_are_user_errors(data, probe):
    X, y, X_test, _ = data
    broken = X.clone()
    broken[3, 1] = torch.inf
    with pytest.raises(UserError, match="NaN or infinite"):
        probe(broken, y, X_test)
    with pytest.raises(UserError, match="two or more classes"):
        probe(X, torch.ones_like(y), X_test)


def test_features_of_zeros_have_one_prediction(data):
    _, y, _, _ = data
    X, X_test = torch.zeros(120, 4), torch.zeros(60, 4)
    assert stable_lr(X, momentum=0.9, generator=seeded()) == math.inf
    for found in (
        evaluation.linear_probe(X, y, X_test),
        evaluation.gradient_probe(X, y, X_test, SgdProtocol(epochs=2)),
        evaluation.knn(X, y, X_test),
    ):
        assert len(found.logits.argmax(1).unique()) == 1


@pytest.mark.parametrize("classes", [2, 3])
def test_the_svm_is_that_of_scikit_learn_at_its_optimum(data, classes):
    X, y, X_test, _ = data
    X, y = X[y < classes], y[y < classes]
    exact = LinearSVC(C=0.01, tol=1e-10, max_iter=100_000, dual=False).fit(X, y)
    found = evaluation.linear_svm(X, y, X_test, C=(0.01,)).logits
    decision = exact.decision_function(X_test)
    expected = decision if classes > 2 else np.stack([-decision, decision], 1)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert evaluation.linear_svm(X, y, X_test, C=(0.01,), iterations=1).note


@pytest.mark.parametrize(("k", "temperature", "cells"), [(1, 0.07, 2**24), (15, 0.3, 1), (500, 5.0, 100)])
def test_knn_counts_the_votes_one_by_one(clusters, k, temperature, cells):
    X, y, X_test, _ = clusters
    found = evaluation.knn(X, y, X_test, k=k, temperature=temperature, cells=cells).logits.exp()
    matrix = evaluation.knn(X, one_hot(y), X_test, k=k, temperature=temperature, cells=cells).logits
    for query, shares, of_matrix in zip(X_test, found, matrix, strict=True):
        cosines = [float(query @ x / (query.norm() * x.norm())) for x in X]
        votes = [0.0] * 3
        for i in sorted(range(len(X)), key=lambda i: -cosines[i])[:k]:
            votes[y[i]] += math.exp(cosines[i] / temperature)
        expected = torch.tensor(votes, dtype=torch.float64) / sum(votes)
        torch.testing.assert_close(shares, expected)
        torch.testing.assert_close(of_matrix, expected)


def test_a_class_of_a_target_matrix_has_the_solution_of_scikit_learn():
    X = torch.randn(80, 5, generator=seeded(1))
    Y = ((X[:, :2] + torch.randn(80, 2, generator=seeded(2))) > 0).long()
    found = evaluation.linear_probe(X, torch.cat([Y, torch.zeros(80, 1).long()], 1), X, penalties=(0.05,))
    for k in range(2):
        expected = oracle(X.double(), Y[:, k], 0.05).decision_function(X.double())
        np.testing.assert_allclose(found.logits[:, k], expected, atol=5e-3)
    assert (found.logits[:, 2] == 0).all()
    assert found.note.startswith("1 of 3 classes")


def test_few_labels_are_drawn_uniformly_without_repeats():
    y = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 3])
    generator = seeded()
    draws = [draw_labels(y, labels=2, generator=generator) for _ in range(3000)]
    assert all(y[rows].tolist() == [0, 0, 1, 1, 3] and len(rows.unique()) == 5 for rows in draws)
    expected = torch.tensor([1, 2 / 3, 2 / 5, 1])[torch.where(y == 0, 1, torch.where(y == 1, 2, 3))]
    assert (torch.cat(draws).bincount() / 3000 - expected).abs().max() < 4 * (0.25 / 3000) ** 0.5


def test_few_shot_and_fractions_equal_scikit_learn_on_the_same_draws(clusters):
    X, y, X_test, y_test = clusters
    options = {"draws": 3, "seed": 7, "penalties": (0.01,)}
    for predictions, count in (
        (evaluation.few_shot(X, y, X_test, labels=3, **options), 3),
        (evaluation.few_shot(X, y, X_test, fractions=0.2, **options), 8),  # of 40 labels of a class
        (evaluation.few_shot(X, y, X_test, fractions=1e-6, **options), 1),
    ):
        generator = seeded(7)
        for found in predictions:
            rows = draw_labels(y, labels=count, generator=generator)
            assert evaluation.accuracy(found.logits, y_test) == oracle(X[rows], y[rows], 0.01).score(X_test, y_test)


def test_the_gradient_probe_equals_explicit_steps(data):
    """SGD with momentum and weight decay, and Adam (Kingma and Ba 2015), × 0.5 after the second epoch."""
    X, y, X_test, _ = data
    shared = {"epochs": 3, "decay": (2,), "decay_factor": 0.5, "batch_size": 50}
    sgd = SgdProtocol(lr=(0.3,), weight_decay=0.01, limit_lr=False, **shared)
    adam = AdamProtocol(lr=(0.02,), betas=(0.8, 0.95), **shared)
    X1, X1_test = (torch.cat([x, torch.ones(len(x), 1).double()], 1) for x in (X, X_test))
    for protocol in (sgd, adam):
        theta, m, v, t, generator = torch.zeros(3, 11).double(), 0.0, 0.0, 0, seeded(4)
        for factor in (1, 1, 0.5):
            for rows in torch.randperm(120, generator=generator).split(50):
                g = ((X1[rows] @ theta.T).softmax(1) - one_hot(y[rows], 3)).T @ X1[rows] / len(rows)
                if protocol is sgd:
                    m = 0.9 * m + g + 0.01 * theta
                    theta = theta - 0.3 * factor * m
                    continue
                m, v, t = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2, t + 1
                theta = theta - 0.02 * factor * (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
        torch.testing.assert_close(evaluation.gradient_probe(X, y, X_test, protocol, seed=4).logits, X1_test @ theta.T)


def test_the_learning_rate_is_limited_to_the_largest_stable_one(data):
    X, y, X_test, y_test = data
    largest = torch.linalg.eigvalsh(X.T @ X / len(X))[-1].item()
    assert stable_lr(X, momentum=0.9, generator=seeded(), iterations=200) == pytest.approx(7.6 / largest, rel=1e-6)
    found = evaluation.gradient_probe(100 * X, y, 100 * X_test, SgdProtocol(epochs=30))
    assert found.chosen["lr"] == pytest.approx(7.6 / (1e4 * largest), rel=0.05)
    assert "limited" in found.note
    assert evaluation.accuracy(found.logits, y_test) > 0.6
    free = evaluation.gradient_probe(100 * X, y, 100 * X_test, SgdProtocol(epochs=2, limit_lr=False))
    assert (free.chosen, free.note) == ({"lr": 0.3}, "")
    wild = SgdProtocol(lr=(1e12,), epochs=30, decay=(), weight_decay=1e6, limit_lr=False)
    assert "diverged" in evaluation.gradient_probe(X, y, X_test, wild).note


def test_one_of_several_learning_rates_is_chosen_on_held_out_features(data):
    X, y, X_test, _ = data
    protocol = SgdProtocol(lr=(1e12, 0.1), weight_decay=1.0, epochs=40, limit_lr=False)  # the first rate diverges
    found = evaluation.gradient_probe(X, y, X_test, protocol)
    assert found.chosen == {"lr": 0.1}
    assert "chosen from" in found.note
    with pytest.raises(UserError, match="ten labels of a class"):
        evaluation.gradient_probe(X[:18], y[:18], X_test, protocol)
    with pytest.raises(UserError, match="or two groups of images"):
        evaluation.gradient_probe(X, y, X_test, protocol, groups=y)  # every class is one group


def test_passes_take_the_place_of_the_features_in_each_epoch(data):
    X, y, X_test, y_test = data
    protocol = SgdProtocol(epochs=3, decay=())
    asked = iter([X] * 5)
    same = evaluation.gradient_probe(X, y, X_test, protocol, passes=asked)
    assert torch.equal(same.logits, evaluation.gradient_probe(X, y, X_test, protocol).logits)
    assert len(list(asked)) == 2
    assert evaluation.accuracy(evaluation.gradient_probe(X, y, X_test, protocol, passes=[-X] * 3).logits, y_test) < 0.2


def test_probes_are_functions_of_their_seed_and_leave_the_random_state_alone(data):
    X, y, X_test, _ = data
    state = torch.get_rng_state()
    protocol = replace(SgdProtocol(), epochs=1, batch_size=8)
    first, again, other = (evaluation.gradient_probe(X, y, X_test, protocol, seed=seed).logits for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())
