"""The linear support vector machine, one class against the others, by L-BFGS in whitened coordinates."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.config import SvmProtocol
from fullrank.errors import UserError
from fullrank.evaluation.linear import check_classes, hold_out
from fullrank.evaluation.logistic import LARGEST_COVARIANCE, minimize
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
    """Fit a linear SVM for each class against the others. A held-out tenth of the training features selects C, for ties the smallest.

        min_w  ½‖w‖² + C Σᵢ max(0, 1 − sᵢ wᵀ(xᵢ, 1))²,    sᵢ = 1 for the class, −1 for the others

    Source: scikit-learn's LinearSVC, which solves the same problem (squared hinge loss, penalised intercept) on a CPU.

    Args:
        X: standardised training features.
        y: labels of X, -1 for none.
        X_test: test features, standardised in the same way.
        y_test: labels of X_test, -1 for none.
        C: candidates in ascending order; each fit starts from the previous solution. Without held-out rows, it is the middle one.
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
        raise UserError("the features are NaN or infinite, expected finite numbers; use an earlier checkpoint, or another model")
    classes = count_classes(y, y_test)
    held_out = torch.from_numpy(hold_out(y.cpu().numpy(), seed=seed)).to(y.device)
    best, start = C[len(C) // 2], None
    if held_out.any() and len(C) > 1:
        accuracies, solutions = {}, {}
        for c in C:
            start = solutions[c] = fit_svm(X[~held_out], y[~held_out], C=c, start=start, iterations=iterations)
            accuracies[c] = topk_accuracy(decision(start, X[held_out], y, classes=classes), y[held_out]).accuracy
        best = max(accuracies, key=lambda c: (accuracies[c], -c))
        start = solutions[best]
    W = fit_svm(X, y, C=best, start=start, iterations=iterations)
    return replace(topk_accuracy(decision(W, X_test, y, classes=classes), y_test), chosen={"C": best})


def decision(W: Float[Tensor, "D1 K"], X: Float[Tensor, "m D"], y: Int64[Tensor, " n"], *, classes: int) -> Float[Tensor, "m classes"]:
    """Return wᵀ(x, 1) of each class, −∞ for classes without a training label in y."""
    full = X.new_full((len(X), classes), -torch.inf)
    full[:, y.unique()] = X @ W[:-1].to(X) + W[-1].to(X)
    return full


def fit_svm(
    X: Float[Tensor, "n D"],
    y: Int64[Tensor, " n"],
    *,
    C: float,
    start: Float[Tensor, "D1 K"] | None = None,
    iterations: int = SvmProtocol.iterations,
    tolerance: float = 1e-7,
) -> Float[Tensor, "D1 K"]:
    """Return the weights in float64, one column for each class in y; the last row holds the intercepts.

    Minimised is the objective divided by C n, whose Hessian is 2 E[(x, 1)(x, 1)ᵀ] over the features within the margin, plus 1/(C n).
    """
    n, classes = len(X), y.unique()
    signs = torch.where(y[:, None] == classes, 1.0, -1.0).double()
    ridge = 1 / (C * n)
    mean = X.mean(0).double()[:, None]
    if X.shape[1] > LARGEST_COVARIANCE:
        diagonal = 2 * torch.cat([X.square().mean(0).double(), mean.new_ones(1)]) + ridge

        def solve(g: Tensor) -> Tensor:
            return g / diagonal[:, None]
    else:
        moment = (X.mT @ X).double() / n
        second_moment = torch.cat([torch.cat([moment, mean], 1), torch.cat([mean, mean.new_ones(1, 1)]).mT])
        if not second_moment.isfinite().all():
            raise UserError("the squares of the features overflow; standardise the features")
        floor = ridge
        while True:
            factor, failure = torch.linalg.cholesky_ex(2 * second_moment + floor * torch.eye(len(second_moment)).to(second_moment))
            if not failure:
                break
            floor *= 10  # the ridge is smaller than the rounding errors of the covariance

        def solve(g: Tensor) -> Tensor:
            return torch.cholesky_solve(g, factor)

    def loss_and_gradient(W: Tensor) -> tuple[float, Tensor]:
        slack = (1 - signs * (X @ W[:-1].to(X) + W[-1].to(X)).double()).clamp_min(0)
        residual = -2 * signs * slack / n
        slope = torch.cat([(X.mT @ residual.to(X)).double(), residual.sum(0, keepdim=True)])
        return (slack.square().sum() / n + ridge * W.square().sum() / 2).item(), slope + ridge * W

    W = torch.zeros(X.shape[1] + 1, len(classes), dtype=torch.float64, device=X.device) if start is None else start
    return minimize(loss_and_gradient, W, solve, iterations=iterations, tolerance=tolerance)[0]
