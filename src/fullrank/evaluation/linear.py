"""Linear classifiers of fixed features: the protocol of the papers, by SGD, and the optimum itself, by a full-batch solver.

Both take features that are standardised already (see `standardize`) and report where the training ends, never the best on the test set.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fullrank.errors import UserError
from fullrank.evaluation.result import ProbeResult, count_classes, drop_unlabelled, topk_accuracy


def linear_probe_sgd(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    classes: int,
    lr: float = 0.3,
    epochs: int = 100,
    decay: tuple[int, ...] = (60, 80),
    batch: int = 256,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    generator: torch.Generator,
) -> ProbeResult:
    """Train a linear classifier by SGD with momentum and report it after the last epoch.

    The learning rate is `lr`, or the greatest at which heavy-ball descent is stable where that is less (`stable_lr`): features whose
    covariance has eigenvalues in the hundreds, such as raw pixels, make 0.3 diverge, and its score an artefact (on the pixels of
    CIFAR-10, 31 % for the 41 % of the optimum).

    Args:
        X: standardised training features.
        y: their labels, -1 for none.
        X_test: test features, standardised likewise.
        y_test: their labels, -1 for none.
        classes: how many there are.
        lr: learning rate at the start.
        epochs: passes over the training features.
        decay: the learning rate falls to a tenth after each of these epochs.
        batch: features a step.
        momentum: of SGD.
        weight_decay: of SGD.
        generator: on the CPU; draws the order of the features.

    Source: Skean et al. 2024 (FroSSL), Section 5: SGD, lr 0.3, no weight decay, × 0.1 at epochs 60 and 80 of 100, batch 256.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe_sgd(X, y, X, y, classes=2, generator=torch.Generator()).accuracy
    1.0
    """
    X, y = drop_unlabelled(X, y)
    lr = min(lr, stable_lr(X, momentum=momentum, generator=generator))
    W, b = fit_sgd(
        X,
        y,
        classes=classes,
        optimizer=partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay),
        epochs=epochs,
        decay=decay,
        batch=batch,
        generator=generator,
    )
    return topk_accuracy(linear(X_test, W, b), y_test)


def fit_sgd(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    *,
    classes: int,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    epochs: int,
    decay: tuple[int, ...],
    batch: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "classes D"], Float[Tensor, " classes"]]:
    """Return weights and biases after the last epoch; they start at zero, as good a start as any for a convex problem."""
    W, b = X.new_zeros(classes, X.shape[1], requires_grad=True), X.new_zeros(classes, requires_grad=True)
    descent = optimizer([W, b])
    schedule = torch.optim.lr_scheduler.MultiStepLR(descent, decay, gamma=0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=generator).to(X.device).split(batch):
            descent.zero_grad()
            cross_entropy(linear(X[rows], W, b), y[rows]).backward()
            descent.step()
        schedule.step()
    return W.detach(), b.detach()


def stable_lr(X: Float[Tensor, "n D"], *, momentum: float, generator: torch.Generator, iterations: int = 20) -> float:
    """Return the greatest learning rate at which gradient descent with momentum is stable for softmax regression on X.

        2 (1 + momentum) / L,    L = ½ λ_max(XᵀX / n)

    Source: L bounds the Hessian of the mean cross-entropy (Böhning 1992, Multinomial logistic regression algorithm); the heavy ball is
    stable up to 2(1 + momentum) / L (Polyak 1964). λ_max is found by power iteration.

    >>> round(stable_lr(torch.eye(4) * 2, momentum=0.0, generator=torch.Generator()), 3)
    4.0
    """
    v = torch.randn(X.shape[1], generator=generator).to(X)
    for _ in range(iterations):
        v = X.mT @ (X @ v)
        v = v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
    curvature = (X @ v).square().mean().item() / 2
    return 2 * (1 + momentum) / curvature if curvature > 0 else float("inf")


def linear_probe(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    penalties: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
    iterations: int = 100,
    seed: int = 0,
) -> ProbeResult:
    """Fit a multinomial logistic regression by L-BFGS; its L2 penalty is chosen on a held-out tenth of the training features.

        min_W,b  (1/n) Σᵢ −log softmax(W xᵢ + b)[yᵢ] + ½ penalty ‖W‖²

    Of two classes, only the difference of their weights is fitted, and penalised.

    Args:
        X: standardised training features.
        y: their labels, -1 for none.
        X_test: test features, standardised likewise.
        y_test: their labels, -1 for none.
        penalties: to choose from, in descending order: each fit starts where the last ended.
        iterations: most that a fit may take; stopping early regularises a little more.
        seed: decides which tenth is held out.

    Raises:
        UserError: fewer than two classes are labelled.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe(X, y, X, y).accuracy
    1.0
    """
    X, y = drop_unlabelled(X, y)
    if len(y.unique()) < 2:
        raise UserError(f"a linear probe tells classes apart, and {len(y.unique())} of them is labelled; label images of two or more")
    penalty = choose_penalty(X, y, penalties=penalties, iterations=iterations, seed=seed)
    model = fit_logistic(X, y, penalty=penalty, iterations=iterations)
    return topk_accuracy(logits(model, X_test, classes=count_classes(y, y_test)), y_test)


def choose_penalty(
    X: Float[Tensor, "n D"], y: Int64[Tensor, " n"], *, penalties: Sequence[float], iterations: int = 100, seed: int = 0
) -> float:
    """Return the penalty of highest accuracy on a held-out tenth; of equals the greatest, and the middle one if nothing can be held out."""
    held = torch.from_numpy(hold_out(y.cpu().numpy(), seed=seed)).to(y.device)
    if not held.any():
        return penalties[len(penalties) // 2]
    model = LogisticRegression(warm_start=True)
    accuracies = []
    for penalty in penalties:
        fit_logistic(X[~held], y[~held], penalty=penalty, iterations=iterations, model=model)
        accuracies.append(model.score(X[held].cpu().numpy(), y[held].cpu().numpy()))
    return penalties[int(np.argmax(accuracies))]


def hold_out(y: np.ndarray, *, seed: int) -> np.ndarray:
    """Mark a tenth of each class at random, rounded down, so that no class loses its last label."""
    held = np.zeros(len(y), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(y))
    for label in np.unique(y):
        rows = order[y[order] == label]
        held[rows[: len(rows) // 10]] = True
    return held


def fit_logistic(
    X: Float[Tensor, "n D"], y: Int64[Tensor, " n"], *, penalty: float, iterations: int = 100, model: LogisticRegression | None = None
) -> LogisticRegression:
    """Fit scikit-learn's regression, whose C is 1 / (penalty · n); a given `model` starts from its own coefficients."""
    model = LogisticRegression() if model is None else model
    model.set_params(C=1 / (penalty * len(y)), max_iter=iterations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # `iterations` is a budget
        return model.fit(X.cpu().numpy(), y.cpu().numpy())


def logits(model: LogisticRegression, X: Float[Tensor, "n D"], *, classes: int) -> Float[Tensor, "n classes"]:
    """Return the model's logits, −∞ for classes that it has not seen."""
    seen = torch.from_numpy(model.decision_function(X.cpu().numpy()))
    if seen.ndim == 1:  # of two classes, scikit-learn gives the logit of the second
        seen = torch.stack([torch.zeros_like(seen), seen], dim=1)
    full = seen.new_full((len(X), classes), -torch.inf)
    full[:, torch.from_numpy(model.classes_)] = seen
    return full.to(X)
