from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy, one_hot

from fullrank.errors import UserError
from fullrank.evaluation import linear_probe, linear_probe_sgd, standardize
from fullrank.evaluation.linear import choose_penalty, fit_logistic, fit_sgd, hold_out, predict_logits, stable_lr


@pytest.fixture
def task(clusters):
    X, y, X_test, y_test = clusters
    X, X_test = standardize(X, X_test)
    return X, y, X_test, y_test


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_full_batch_minimises_the_loss_it_states(task):
    X, y, _, _ = task
    model = fit_logistic(X, y, penalty=0.05, iterations=1000)
    W = torch.tensor(model.coef_, requires_grad=True)
    b = torch.tensor(model.intercept_, requires_grad=True)
    (cross_entropy(X @ W.T + b, y) + 0.05 / 2 * W.square().sum()).backward()
    assert max(W.grad.abs().max(), b.grad.abs().max()) < 2e-4  # the solver stops at 1e-4
    assert W.detach().abs().max() > 0.1


def test_sgd_with_weight_decay_predicts_as_the_full_batch_optimum(task):
    X, y, X_test, y_test = task
    sgd = linear_probe_sgd(*task, classes=3, lr=0.1, epochs=300, decay=(200, 250), weight_decay=0.05, batch=120, generator=seeded())
    C = 1 / (0.05 * len(y))
    oracle = LogisticRegression(C=C, tol=1e-8, max_iter=1000).fit(X, y)
    assert np.array_equal(sgd.predicted, oracle.predict(X_test))
    assert sgd.accuracy == oracle.score(X_test, y_test)


def test_sgd_takes_the_steps_of_the_protocol(task):
    """Momentum, weight decay, and a tenth of the learning rate after the second and third epoch, written out."""
    X, y = task[:2]
    optimizer = partial(torch.optim.SGD, lr=0.3, momentum=0.9, weight_decay=0.01)
    W, b = fit_sgd(X, y, classes=3, optimizer=optimizer, epochs=4, decay=(2, 3), batch=50, generator=seeded())
    theta, velocity, generator = torch.zeros(3, 11, dtype=torch.float64), 0.0, seeded()
    Y = torch.cat([X, torch.ones(len(X), 1, dtype=torch.float64)], dim=1)
    for lr in (0.3, 0.3, 0.03, 0.003):
        for rows in torch.randperm(120, generator=generator).split(50):
            error = (Y[rows] @ theta.T).softmax(1) - one_hot(y[rows], 3)
            velocity = 0.9 * velocity + error.T @ Y[rows] / len(rows) + 0.01 * theta
            theta = theta - lr * velocity
    torch.testing.assert_close(torch.cat([W, b[:, None]], dim=1), theta)


def test_probe_scores_as_scikit_learn_with_the_chosen_penalty(task):
    X, y, X_test, y_test = task
    penalties = (1e-1, 1e-3)
    penalty = choose_penalty(X, y, penalties=penalties)
    oracle = LogisticRegression(C=1 / (penalty * len(y))).fit(X, y)
    assert linear_probe(*task, penalties=penalties).accuracy == oracle.score(X_test, y_test)


def test_penalty_is_chosen_for_unseen_data():
    """Twenty classes' worth of noise dimensions: without a penalty the fit is perfect on its data and poor elsewhere."""
    generator = seeded()
    y = torch.arange(400) % 2
    X = torch.randn(400, 150, generator=generator)
    X[:, 0] += 1.5 * (2 * y - 1)
    assert choose_penalty(X, y, penalties=(1.0, 1e-6)) == 1.0
    X_easy = X[:, :1].repeat(1, 2)
    X_easy[:, 1] = torch.randn(400, generator=generator) * 1e-3 + 1e-3 * (2 * y - 1) * 5
    assert choose_penalty(X_easy, y, penalties=(10.0, 1e-7)) == 1e-7


def test_penalty_does_not_look_at_the_test_set(task):
    X, y, X_test, y_test = task
    a = linear_probe(X, y, X_test, y_test)
    b = linear_probe(X, y, X_test, (y_test + 1) % 3)
    assert torch.equal(a.predicted, b.predicted)


def test_held_out_is_a_tenth_of_each_class_and_never_its_last():
    y = np.array([0] * 50 + [1] * 19 + [2] * 9 + [3])
    held = hold_out(y, seed=0)
    assert np.bincount(y[held], minlength=4).tolist() == [5, 1, 0, 0]
    assert not np.array_equal(held, hold_out(y, seed=1))
    assert np.array_equal(held, hold_out(y, seed=0))


def test_too_few_labels_to_hold_any_out_take_the_middle_penalty(task):
    X, y, _, _ = task
    assert choose_penalty(X[:20], y[:20], penalties=(1.0, 0.1, 0.01)) == 0.1


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_of_unseen_classes_are_minus_infinity(task, classes):
    X, y, X_test, _ = task
    seen = y < classes
    model = fit_logistic(X[seen], 2 * y[seen] + 1, penalty=0.01)
    votes = predict_logits(model, X_test, classes=8)
    expected = [1, 3, 5][:classes]
    assert torch.isfinite(votes).all(0).nonzero().flatten().tolist() == expected
    assert np.array_equal(votes.argmax(1), model.predict(X_test))


def test_one_class_is_refused_in_words(task):
    X, _, X_test, y_test = task
    with pytest.raises(UserError, match="1 of them is labelled; label images of two or more"):
        linear_probe(X, torch.ones(120, dtype=torch.int64), X_test, y_test)


@pytest.mark.parametrize("probe", [linear_probe, lambda *task: linear_probe_sgd(*task, classes=3, epochs=10, generator=seeded())])
def test_unlabelled_images_change_nothing(task, probe):
    X, y, X_test, y_test = task
    more, labels = torch.cat([X, 100 + X]), torch.cat([y, torch.full_like(y, -1)])
    tests, test_labels = torch.cat([X_test, X]), torch.cat([y_test, torch.full_like(y, -1)])
    scored = probe(more, labels, tests, test_labels)
    assert scored.accuracy == probe(X, y, X_test, y_test).accuracy
    assert len(scored.predicted) == 180


def test_sgd_is_a_function_of_the_generator_and_leaves_the_global_one_alone(task):
    state = torch.get_rng_state()

    def run(seed):
        return linear_probe_sgd(*task, classes=3, lr=1.0, epochs=1, decay=(), batch=8, generator=seeded(seed)).predicted

    assert torch.equal(run(0), run(0))
    assert any(not torch.equal(run(0), run(seed)) for seed in range(1, 6))
    assert torch.equal(state, torch.get_rng_state())


def test_stable_lr_is_the_limit_of_the_largest_eigenvalue(task):
    X = task[0] * torch.linspace(1, 4, 10, dtype=torch.float64)
    largest = torch.linalg.eigvalsh(X.T @ X / len(X))[-1].item()
    assert stable_lr(X, momentum=0.9, generator=seeded(), iterations=200) == pytest.approx(2 * 1.9 / (largest / 2), rel=1e-6)
    assert stable_lr(X, momentum=0.9, generator=seeded()) == pytest.approx(2 * 1.9 / (largest / 2), rel=0.05)


def test_features_that_are_all_zero_teach_nothing_and_break_nothing(task):
    _, y, _, y_test = task
    X, X_test = torch.zeros(120, 4), torch.zeros(60, 4)
    assert stable_lr(X, momentum=0.9, generator=seeded()) == float("inf")
    for scored in (linear_probe(X, y, X_test, y_test), linear_probe_sgd(X, y, X_test, y_test, classes=3, epochs=2, generator=seeded())):
        assert len(scored.predicted.unique()) == 1


def test_sgd_is_stable_on_features_of_huge_variance(task):
    X, y, X_test, y_test = task
    one = 30 * X[:, :1] @ torch.ones(1, 300, dtype=torch.float64)  # one direction holds all the variance: 270,000
    X, X_test = torch.cat([X, one], 1), torch.cat([X_test, 30 * X_test[:, :1] @ torch.ones(1, 300, dtype=torch.float64)], 1)
    assert stable_lr(X, momentum=0.9, generator=seeded()) < 1e-4
    assert linear_probe_sgd(X, y, X_test, y_test, classes=3, epochs=30, generator=seeded()).accuracy > 0.4
