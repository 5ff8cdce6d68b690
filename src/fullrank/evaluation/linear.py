"""Linear probes: classifiers trained on frozen features, by SGD as in the papers, or by a full-batch solver.

Both probes need standardised features (see `standardize`) and report the result of the last iteration, never the best result on the test
set.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fullrank.errors import UserError
from fullrank.evaluation.logistic import Logistic, LogisticRegression
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
    batch_size: int = 256,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    generator: torch.Generator,
) -> ProbeResult:
    """Train a linear classifier by SGD with momentum and return its result after the last epoch.

    The learning rate is the minimum of `lr` and the largest stable rate of heavy-ball descent (`stable_lr`). If the covariance of the
    features has eigenvalues in the hundreds, as for raw pixels, SGD with a rate of 0.3 diverges and the score is meaningless (on the pixels
    of CIFAR-10, 31 % instead of 41 % at the optimum).

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        classes: number of classes.
        lr: initial learning rate.
        epochs: passes over the training features.
        decay: epochs after which the learning rate is multiplied by 0.1.
        batch_size: features per step.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD.
        generator: a CPU generator that draws the order of the features.

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
        batch_size=batch_size,
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
    batch_size: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "classes D"], Float[Tensor, " classes"]]:
    """Return weights and biases after the last epoch. Training starts at zero; the problem is convex."""
    W, b = X.new_zeros(classes, X.shape[1], requires_grad=True), X.new_zeros(classes, requires_grad=True)
    sgd = optimizer([W, b])
    schedule = torch.optim.lr_scheduler.MultiStepLR(sgd, decay, gamma=0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=generator).to(X.device).split(batch_size):
            sgd.zero_grad()
            cross_entropy(linear(X[rows], W, b), y[rows]).backward()
            sgd.step()
        schedule.step()
    return W.detach(), b.detach()


def stable_lr(X: Float[Tensor, "n D"], *, momentum: float, generator: torch.Generator, iterations: int = 20) -> float:
    """Return the largest learning rate at which gradient descent with momentum is stable for softmax regression on X.

        2 (1 + momentum) / L,    L = ½ λ_max(XᵀX / n)

    Source: L bounds the Hessian of the mean cross-entropy (Böhning 1992, Multinomial logistic regression algorithm); heavy-ball
    descent is stable up to 2(1 + momentum) / L (Polyak 1964). λ_max is found by power iteration.

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
    """Fit a multinomial logistic regression by L-BFGS. A held-out tenth of the training features selects the L2 penalty.

        min_W,b  (1/n) Σᵢ −log softmax(W xᵢ + b)[yᵢ] + ½ penalty ‖W‖²

    For two classes, the solver fits and penalises only the difference of their weights.

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        penalties: candidates in descending order; each fit starts from the previous solution.
        iterations: maximum number of iterations per fit; few fits need so many.
        seed: seed of the choice of the held-out tenth.

    Raises:
        UserError: fewer than two classes have labels.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_probe(X, y, X, y).accuracy
    1.0
    """
    X, y = drop_unlabelled(X, y)
    if len(y.unique()) < 2:
        raise UserError(f"a linear probe needs labels of two or more classes, got {len(y.unique())}; label more images")
    problem = LogisticRegression(X, y)
    penalty, start = choose_penalty(problem, penalties=penalties, iterations=iterations, seed=seed)
    model = problem.fit(penalty, start=start, iterations=iterations)
    return topk_accuracy(model.logits(X_test, classes=count_classes(y, y_test)), y_test)


def choose_penalty(
    problem: LogisticRegression, *, penalties: Sequence[float], iterations: int = 100, seed: int = 0
) -> tuple[float, Logistic | None]:
    """Return the penalty with the highest accuracy on a held-out tenth, for ties the largest, and the classifier of the other rows.

    Without held-out rows, it is the middle penalty. The accuracy needs no exact minimum, so these fits stop early. The penalties end when
    two in a row are less accurate than the best one.
    """
    X, y = problem.features, problem.labels
    held_out = torch.from_numpy(hold_out(y.cpu().numpy(), seed=seed)).to(y.device)
    if not held_out.any():
        return penalties[len(penalties) // 2], None
    X_held, y_held, classes = X[held_out], y[held_out], int(y.max()) + 1
    models: list[Logistic] = []
    accuracies: list[float] = []
    for penalty in penalties:
        start = models[-1] if models else None
        models.append(problem.fit(penalty, rows=~held_out, start=start, iterations=iterations, tolerance=1e-5))
        accuracies.append((models[-1].logits(X_held, classes=classes).argmax(1) == y_held).double().mean().item())
        if max(accuracies[-2:]) < max(accuracies):  # two in a row are worse than the best one: weaker penalties overfit more
            break
    best = int(np.argmax(accuracies))
    return penalties[best], models[best]


def hold_out(y: np.ndarray, *, seed: int) -> np.ndarray:
    """Return a mask of a random tenth of each class, rounded down so that every class has at least one label left."""
    held_out = np.zeros(len(y), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(y))
    for label in np.unique(y):
        rows = order[y[order] == label]
        held_out[rows[: len(rows) // 10]] = True
    return held_out
