"""The linear support vector machine, one class against the others, by L-BFGS in whitened coordinates."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.errors import UserError
from fullrank.evaluation.linear import check_classes, hold_out
from fullrank.evaluation.logistic import LARGEST_COVARIANCE, minimize
from fullrank.evaluation.protocol import SvmProtocol
from fullrank.evaluation.result import ProbeResult, count_classes, drop_unlabelled, topk_accuracy


def linear_svm(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    X_test: Float[Tensor, "m D"],
    y_test: Int64[Tensor, " m"],
    *,
    C: Sequence[float] = SvmProtocol.C,
    iterations: int = SvmProtocol.iterations,
    seed: int = 0,
) -> ProbeResult:
    """Fit a linear SVM for each class against the others. A held-out tenth of the training features selects C, for ties
    the smallest.

        min_w  ½‖w‖² + C Σᵢ max(0, 1 − sᵢ wᵀ(xᵢ, 1))²,    sᵢ = 1 for the class, −1 for the others

    Source: scikit-learn's LinearSVC, which solves the same problem (squared hinge loss, penalised intercept) on a CPU.

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        C: candidates in ascending order; each fit starts from the previous solution. Without held-out rows, it is the
            middle one.
        iterations: maximum number of iterations per fit.
        seed: seed of the choice of the held-out tenth.

    Raises:
        UserError: fewer than two classes have labels, or a feature is not finite.

    >>> X, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    >>> linear_svm(X, y, X, y).accuracy
    1.0
    """
    X, y = drop_unlabelled(X, y)
    check_classes(y)
    if not X.isfinite().all():
        raise UserError(
            "the features are NaN or infinite, expected finite numbers; use an earlier checkpoint, or another model"
        )
    classes = count_classes(y, y_test)
    if len(X) < X.shape[1]:  # the weights lie in the span of the features
        rotation = torch.linalg.qr(X.mT)[0]
        X, X_test = X @ rotation, X_test @ rotation
    held_out = torch.from_numpy(hold_out(y.cpu().numpy(), seed=seed)).to(y.device)
    best, start, moment = C[len(C) // 2], None, second_moment(X)
    if held_out.any() and len(C) > 1:
        accuracies, solutions = {}, {}
        for c in C:
            start = fit_svm(
                X[~held_out], y[~held_out], C=c, moment=moment, start=start, iterations=iterations, tolerance=1e-5
            )
            solutions[c] = start
            accuracies[c] = topk_accuracy(decision(start, X[held_out], y, classes=classes), y[held_out]).accuracy
        best = max(accuracies, key=lambda c: (accuracies[c], -c))
        start = solutions[best]
    W = fit_svm(X, y, C=best, moment=moment, start=start, iterations=iterations)
    return replace(topk_accuracy(decision(W, X_test, y, classes=classes), y_test), chosen={"C": best})


def decision(
    W: Float[Tensor, "D1 K"], X: Float[Tensor, "m D"], y: Int64[Tensor, " n"], *, classes: int
) -> Float[Tensor, "m classes"]:
    """Return wᵀ(x, 1) of each class, −∞ for classes without a training label in y."""
    full = X.new_full((len(X), classes), -torch.inf)
    full[:, y.unique()] = X @ W[:-1].to(X) + W[-1].to(X)
    return full


def second_moment(X: Float[Tensor, "n D"]) -> Float[Tensor, "D1 D1"] | None:
    """Return E[(x, 1)(x, 1)ᵀ] in float64, None if it would cost more than it saves.

    Raises:
        UserError: it overflows.
    """
    if X.shape[1] > LARGEST_COVARIANCE:
        return None
    mean = X.mean(0).double()[:, None]
    moment = torch.cat([torch.cat([(X.mT @ X).double() / len(X), mean], 1), torch.cat([mean, mean.new_ones(1, 1)]).mT])
    if not moment.isfinite().all():
        raise UserError("the squares of the features overflow; standardise the features")
    return moment


def fit_svm(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    *,
    C: float,
    moment: Float[Tensor, "D1 D1"] | None = None,
    start: Float[Tensor, "D1 K"] | None = None,
    iterations: int = SvmProtocol.iterations,
    tolerance: float = 1e-7,
) -> Float[Tensor, "D1 K"]:
    """Return the weights in float64, one column for each class in y; the last row holds the intercepts.

    Minimised is the objective divided by C n, whose Hessian is 2 E[(x, 1)(x, 1)ᵀ] over the features within the margin,
    plus 1/(C n).

    Args:
        X: training features.
        y: their labels.
        C: weight of the sum of the losses.
        moment: `second_moment` of similar features, which whitens the problem; None: its diagonal.
        start: the solution of a similar problem.
        iterations: maximum number of iterations.
        tolerance: the objective at the end is above the minimum by about this much.
    """
    n, classes = len(X), y.unique()
    signs = torch.where(y[:, None] == classes, 1.0, -1.0).double()
    ridge = 1 / (C * n)

    def loss_and_gradient(W: Tensor) -> tuple[float, Tensor]:
        slack = (1 - signs * (X @ W[:-1].to(X) + W[-1].to(X)).double()).clamp_min(0)
        residual = -2 * signs * slack / n
        slope = torch.cat([(X.mT @ residual.to(X)).double(), residual.sum(0, keepdim=True)])
        return (slack.square().sum() / n + ridge * W.square().sum() / 2).item(), slope + ridge * W

    W = torch.zeros(X.shape[1] + 1, len(classes), dtype=torch.float64, device=X.device) if start is None else start
    solve = _inverse(X, moment, ridge)
    return minimize(loss_and_gradient, W, solve, iterations=iterations, tolerance=tolerance)[0]


def _inverse(X: Tensor, moment: Tensor | None, ridge: float) -> Callable[[Tensor], Tensor]:
    """Return the function g ↦ (2 E[(x, 1)(x, 1)ᵀ] + ridge)⁻¹ g, or with the diagonal of the matrix."""
    if moment is None:
        diagonal = 2 * torch.cat([X.square().mean(0).double(), X.new_ones(1, dtype=torch.float64)]) + ridge
        return lambda g: g / diagonal[:, None]
    while True:
        factor, failure = torch.linalg.cholesky_ex(2 * moment + ridge * torch.eye(len(moment)).to(moment))
        if not failure:
            factor = factor.to(X)  # the square root of the condition number is small enough for float32
            return lambda g: torch.cholesky_solve(g.to(factor), factor).double()
        ridge *= 10  # smaller than the rounding errors of the covariance
