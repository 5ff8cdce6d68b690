from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import one_hot

from fullrank.errors import UserError
from fullrank.evaluation import linear_probe, linear_probe_adam, linear_probe_sgd, logistic, standardize
from fullrank.evaluation.linear import Head, Schedule, choose_penalty, fit_heads, hold_out, stable_lr


@pytest.fixture
def data(clusters):
    X, y, X_test, y_test = clusters
    X, X_test = standardize(X, X_test)
    return X, y, X_test, y_test


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_sgd_with_weight_decay_converges_to_the_full_batch_optimum(data):
    X, y, X_test, y_test = data
    sgd = linear_probe_sgd(
        *data, classes=3, lr=0.1, epochs=300, decay=(200, 250), weight_decay=0.05, batch_size=120, generator=seeded()
    )
    C = 1 / (0.05 * len(y))
    oracle = LogisticRegression(C=C, tol=1e-8, max_iter=1000).fit(X, y)
    assert np.array_equal(sgd.predictions, oracle.predict(X_test))
    assert sgd.accuracy == oracle.score(X_test, y_test)


def test_sgd_equals_explicit_steps(data):
    """Momentum, weight decay, and a learning rate × 0.1 after the second and the third epoch."""
    X, y = data[:2]
    optimizer = partial(torch.optim.SGD, lr=0.3, momentum=0.9, weight_decay=0.01)
    head = Head(X, y, 3, optimizer, Schedule(epochs=4, decay=(2, 3), factor=0.1, batch_size=50), seeded())
    fit_heads(X, y, [head], 4)
    W, b = head.W.detach(), head.b.detach()
    theta, velocity, generator = torch.zeros(3, 11, dtype=torch.float64), 0.0, seeded()
    Y = torch.cat([X, torch.ones(len(X), 1, dtype=torch.float64)], dim=1)
    for lr in (0.3, 0.3, 0.03, 0.003):
        for rows in torch.randperm(120, generator=generator).split(50):
            error = (Y[rows] @ theta.T).softmax(1) - one_hot(y[rows], 3)
            velocity = 0.9 * velocity + error.T @ Y[rows] / len(rows) + 0.01 * theta
            theta = theta - lr * velocity
    torch.testing.assert_close(torch.cat([W, b[:, None]], dim=1), theta)


def test_the_probe_equals_scikit_learn_with_the_chosen_penalty(data):
    X, y, X_test, y_test = data
    penalties = (1e-1, 1e-3)
    penalty, _ = choose_penalty(logistic.LogisticRegression(X, y), penalties=penalties)
    oracle = LogisticRegression(C=1 / (penalty * len(y))).fit(X, y)
    assert linear_probe(*data, penalties=penalties).accuracy == oracle.score(X_test, y_test)


def test_the_penalty_is_chosen_for_held_out_data():
    """Many noise dimensions: without a penalty, the training accuracy is perfect and the test accuracy poor."""
    generator = seeded()
    y = torch.arange(400) % 2
    X = torch.randn(400, 150, generator=generator)
    X[:, 0] += 1.5 * (2 * y - 1)
    assert choose_penalty(logistic.LogisticRegression(X, y), penalties=(1.0, 1e-6))[0] == 1.0
    X_easy = X[:, :1].repeat(1, 2)
    X_easy[:, 1] = torch.randn(400, generator=generator) * 1e-3 + 1e-3 * (2 * y - 1) * 5
    assert choose_penalty(logistic.LogisticRegression(X_easy, y), penalties=(10.0, 1e-7))[0] == 1e-7


def test_penalties_end_when_two_in_a_row_are_worse_than_the_best(monkeypatch):
    """Each weaker penalty fits more of the noise; the last ones are the slowest to fit."""
    generator = seeded()
    y = torch.arange(1000) % 2
    X = torch.randn(1000, 375, generator=generator)
    X[:, 0] += 1.5 * (2 * y - 1)
    fitted, fit = [], logistic.LogisticRegression.fit
    monkeypatch.setattr(
        logistic.LogisticRegression,
        "fit",
        lambda self, penalty, **other: fitted.append(penalty) or fit(self, penalty, **other),
    )
    best, _ = choose_penalty(logistic.LogisticRegression(X, y), penalties=(1.0, 1e-2, 1e-4, 1e-6, 1e-8))
    assert (best, fitted) == (1.0, [1.0, 1e-2, 1e-4])


def test_few_labels_choose_the_penalty_on_each_tenth_in_turn(monkeypatch):
    y = torch.arange(300) % 3
    X = torch.randn(300, 10, generator=seeded())
    X[torch.arange(300), y] += 1.0
    rows, fit = [], logistic.LogisticRegression.fit

    def spy(self, penalty, **other):
        rows.append((penalty, ~other["rows"]))
        return fit(self, penalty, **other)

    monkeypatch.setattr(logistic.LogisticRegression, "fit", spy)
    choose_penalty(logistic.LogisticRegression(X, y), penalties=(1.0, 1e-2))
    held = torch.stack([mask for penalty, mask in rows if penalty == 1.0])
    assert held.shape == (10, 300)
    assert (held.sum(0) == 1).all()
    assert all(y[mask].bincount().tolist() == [10, 10, 10] for mask in held)


def test_the_penalty_does_not_depend_on_the_test_set(data):
    X, y, X_test, y_test = data
    a = linear_probe(X, y, X_test, y_test)
    b = linear_probe(X, y, X_test, (y_test + 1) % 3)
    assert torch.equal(a.predictions, b.predictions)


def test_a_tenth_of_each_class_is_held_out_but_never_the_last_row_of_a_class():
    y = np.array([0] * 50 + [1] * 19 + [2] * 9 + [3])
    held = hold_out(y, seed=0)
    assert np.bincount(y[held], minlength=4).tolist() == [5, 1, 0, 0]
    assert not np.array_equal(held, hold_out(y, seed=1))
    assert np.array_equal(held, hold_out(y, seed=0))


def test_with_too_few_labels_to_hold_out_the_penalty_is_the_middle_one(data):
    X, y, _, _ = data
    assert choose_penalty(logistic.LogisticRegression(X[:20], y[:20]), penalties=(1.0, 0.1, 0.01)) == (0.1, None)


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_of_classes_without_labels_are_minus_infinity(data, classes):
    X, y, X_test, _ = data
    labelled = y < classes
    oracle = LogisticRegression(C=1 / (0.01 * int(labelled.sum())), tol=1e-8).fit(X[labelled], 2 * y[labelled] + 1)
    logits = logistic.LogisticRegression(X[labelled], 2 * y[labelled] + 1).fit(0.01).logits(X_test, classes=8)
    expected = [1, 3, 5][:classes]
    assert torch.isfinite(logits).all(0).nonzero().flatten().tolist() == expected
    assert np.array_equal(logits.argmax(1), oracle.predict(X_test))


@pytest.mark.parametrize(
    ("value", "message"), [(torch.nan, "NaN or infinite"), (torch.inf, "NaN or infinite"), (1e30, "standardise")]
)
def test_features_without_an_optimum_are_one_line(data, value, message):
    X, y, X_test, y_test = data
    X = X.clone()
    X[3, 1] = value
    with pytest.raises(UserError, match=message):
        linear_probe(X.float(), y, X_test.float(), y_test)


def test_one_class_raises(data):
    X, _, X_test, y_test = data
    with pytest.raises(UserError, match="two or more classes, got 1"):
        linear_probe(X, torch.ones(120, dtype=torch.int64), X_test, y_test)


@pytest.mark.parametrize(
    "probe", [linear_probe, lambda *data: linear_probe_sgd(*data, classes=3, epochs=10, generator=seeded())]
)
def test_unlabelled_images_change_nothing(data, probe):
    X, y, X_test, y_test = data
    more, labels = torch.cat([X, 100 + X]), torch.cat([y, torch.full_like(y, -1)])
    tests, test_labels = torch.cat([X_test, X]), torch.cat([y_test, torch.full_like(y, -1)])
    scored = probe(more, labels, tests, test_labels)
    assert scored.accuracy == probe(X, y, X_test, y_test).accuracy
    assert len(scored.predictions) == 180


def test_sgd_is_a_function_of_its_generator(data):
    state = torch.get_rng_state()

    def run(seed):
        return linear_probe_sgd(
            *data, classes=3, lr=1.0, epochs=1, decay=(), batch_size=8, generator=seeded(seed)
        ).predictions

    assert torch.equal(run(0), run(0))
    assert any(not torch.equal(run(0), run(seed)) for seed in range(1, 6))
    assert torch.equal(state, torch.get_rng_state())


def test_stable_lr_is_the_limit_of_the_largest_eigenvalue(data):
    X = data[0] * torch.linspace(1, 4, 10, dtype=torch.float64)
    largest = torch.linalg.eigvalsh(X.T @ X / len(X))[-1].item()
    assert stable_lr(X, momentum=0.9, generator=seeded(), iterations=200) == pytest.approx(
        2 * 1.9 / (largest / 2), rel=1e-6
    )
    assert stable_lr(X, momentum=0.9, generator=seeded()) == pytest.approx(2 * 1.9 / (largest / 2), rel=0.05)


def test_zero_features_work(data):
    _, y, _, y_test = data
    X, X_test = torch.zeros(120, 4), torch.zeros(60, 4)
    assert stable_lr(X, momentum=0.9, generator=seeded()) == float("inf")
    for scored in (
        linear_probe(X, y, X_test, y_test),
        linear_probe_sgd(X, y, X_test, y_test, classes=3, epochs=2, generator=seeded()),
    ):
        assert len(scored.predictions.unique()) == 1


def test_sgd_is_stable_on_features_of_huge_variance(data):
    X, y, X_test, y_test = data
    one = 30 * X[:, :1] @ torch.ones(1, 300, dtype=torch.float64)  # one direction has all the variance: 270,000
    X, X_test = (
        torch.cat([X, one], 1),
        torch.cat([X_test, 30 * X_test[:, :1] @ torch.ones(1, 300, dtype=torch.float64)], 1),
    )
    assert stable_lr(X, momentum=0.9, generator=seeded()) < 1e-4
    assert linear_probe_sgd(X, y, X_test, y_test, classes=3, epochs=30, generator=seeded()).accuracy > 0.4


def test_adam_equals_explicit_steps(data):
    """The bias-corrected averages of Kingma and Ba 2015, with a learning rate × 0.5 after the second epoch."""
    X, y, X_test, _ = data
    options = {"lr": 0.02, "epochs": 3, "decay": (2,), "decay_factor": 0.5, "batch_size": 50, "betas": (0.8, 0.95)}
    found = linear_probe_adam(*data, classes=3, generator=seeded(), **options)
    theta, m, v, t, generator = torch.zeros(3, 11, dtype=torch.float64), 0.0, 0.0, 0, seeded()
    Y = torch.cat([X, torch.ones(len(X), 1, dtype=torch.float64)], dim=1)
    for lr in (0.02, 0.02, 0.01):
        for rows in torch.randperm(120, generator=generator).split(50):
            g = ((Y[rows] @ theta.T).softmax(1) - one_hot(y[rows], 3)).T @ Y[rows] / len(rows)
            m, v, t = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2, t + 1
            theta = theta - lr * (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
    assert torch.equal(found.predictions, (X_test @ theta[:, :-1].T + theta[:, -1]).argmax(1))
    assert found.chosen == {"lr": 0.02}


@pytest.mark.parametrize("seed", [0, 2])
def test_the_learning_rate_is_chosen_on_held_out_training_features(data, seed):
    """The rate is the best of separate classifiers on nine tenths; the result is that of a separate classifier on all
    rows."""
    X, y, X_test, y_test = data
    rates, options = (1e-4, 0.3, 100.0), {"classes": 3, "epochs": 2, "decay": (1,), "batch_size": 16, "limit_lr": False}
    swept = linear_probe_sgd(*data, lr=rates, generator=seeded(seed), **options)
    inner = int(torch.randint(2**31, (), generator=seeded(seed)))
    held = torch.from_numpy(hold_out(y.numpy(), seed=inner))

    def alone(rate, rows, *test):
        return linear_probe_sgd(X[rows], y[rows], *test, lr=rate, generator=seeded(inner), **options)

    scores = [alone(rate, ~held, X[held], y[held]).accuracy for rate in rates]
    best = rates[scores.index(max(scores))]
    assert len(set(scores)) > 1
    assert swept.chosen == {"lr": best}
    assert torch.equal(swept.predictions, alone(best, slice(None), X_test, y_test).predictions)
    assert f"{best:g} was chosen from 0.0001, 0.3, 100 on held-out training images" in swept.note


def test_several_rates_need_labels_to_hold_out(data):
    X, y, X_test, y_test = data
    with pytest.raises(UserError, match="2 learning rates need ten labels of a class"):
        linear_probe_sgd(X[:18], y[:18], X_test, y_test, classes=3, lr=(0.1, 1.0), generator=seeded())


def test_a_limited_rate_is_stated_and_can_be_allowed(data):
    X, y, X_test, y_test = data
    X, X_test = 100 * X, 100 * X_test
    limit = stable_lr(X, momentum=0.9, generator=seeded())
    limited = linear_probe_sgd(X, y, X_test, y_test, classes=3, epochs=2, generator=seeded())
    assert limited.chosen == {"lr": pytest.approx(limit)}
    assert f"limited to {limit:.2g}" in limited.note
    free = linear_probe_sgd(X, y, X_test, y_test, classes=3, epochs=2, limit_lr=False, generator=seeded())
    assert (free.chosen, free.note) == ({"lr": 0.3}, "")
    assert not torch.equal(free.predictions, limited.predictions)


def test_passes_take_the_place_of_the_features_in_each_epoch(data):
    """One pass equal to the features changes nothing; with labels missing, the same rows of each pass are left out."""
    X, y, X_test, y_test = data
    y = y.clone()
    y[::7] = -1
    asked = []
    options = {"classes": 3, "epochs": 3, "decay": ()}
    plain = linear_probe_sgd(X, y, X_test, y_test, generator=seeded(), **options)
    same = linear_probe_sgd(
        X, y, X_test, y_test, passes=lambda epoch: asked.append(epoch) or X, generator=seeded(), **options
    )
    noise = linear_probe_sgd(X, y, X_test, y_test, passes=lambda epoch: -X, generator=seeded(), **options)
    assert torch.equal(plain.predictions, same.predictions)
    assert asked == [0, 1, 2]
    assert noise.accuracy < 0.2 < 0.5 < plain.accuracy


def test_a_diverged_classifier_is_stated(data):
    result = linear_probe_sgd(
        *data, classes=3, lr=1e200, epochs=3, decay=(), weight_decay=1.0, limit_lr=False, generator=seeded()
    )
    assert "diverged" in result.note
