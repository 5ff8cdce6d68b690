"""Multinomial logistic regression by L-BFGS in whitened coordinates.

The Hessian of the mean cross-entropy is close to α (I − 11ᵀ/K) ⊗ XᵀX/n, where α is the mean curvature of the softmax
(Böhning 1992). In coordinates that whiten α XᵀX/n + penalty · I, it is close to the identity, so that L-BFGS needs tens
of passes over the features where it needs hundreds in the coordinates of the features. The products with the features
have their precision; sums and weights are float64.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fullrank.errors import UserError

# Features of more dimensions are not whitened: their covariance would cost more than it saves.
LARGEST_COVARIANCE = 4096
# Number of steps from which L-BFGS estimates the curvature.
HISTORY = 20


class Logistic(NamedTuple):
    """A fitted classifier.

    Attributes:
        W: Weights in float64; for two classes one row, the weights of the second class relative to the first.
        classes: The labels in ascending order.
        passes: How often the loss and its gradient were computed: two products with all features.
    """

    W: Float[Tensor, "C D"]
    b: Float[Tensor, " C"]
    classes: Int64[Tensor, " K"]
    passes: int

    def logits(self, X: Float[Tensor, "m D"]) -> Float[Tensor, "m classes"]:
        """Return the logits of the classes up to the largest label, −∞ for classes without a training label."""
        full = X.new_full((len(X), int(self.classes.max()) + 1), -torch.inf)
        full[:, self.classes] = _all_logits(X @ self.W.mT.to(X) + self.b.to(X))
        return full


class LogisticRegression:
    """The problem for fixed features and labels: what the fits of several penalties share.

        min_W,b  (1/n) Σᵢ −log softmax(W xᵢ + b)[yᵢ] + ½ penalty ‖W‖²

    For two classes, only the difference of their weights is fitted and penalised, as in scikit-learn. The solution lies
    in the span of the features, so fewer features than dimensions are first rotated into as many dimensions.

    Raises:
        UserError: a feature is NaN or infinite.
    """

    def __init__(self, X: Float[Tensor, "n D"], y: Int64[Tensor, " n"]) -> None:
        if not X.isfinite().all():
            raise UserError(
                "the features are NaN or infinite, expected finite numbers; use an earlier checkpoint, or another model"
            )
        self.features = X
        self.classes, labels = y.unique(return_inverse=True)
        self.rotation = None
        if len(X) < X.shape[1]:
            self.rotation, triangle = torch.linalg.qr(X.mT)  # X = triangleᵀ rotationᵀ
            X = triangle.mT.contiguous()
        self.X, self.labels, self.target = X, y, labels
        self._second_moment: Tensor | None = None

    def fit(
        self,
        penalty: float,
        *,
        rows: Bool[Tensor, " n"] | None = None,
        start: Logistic | None = None,
        iterations: int = 100,
        tolerance: float = 1e-7,
    ) -> Logistic:
        """Return the minimum.

        Args:
            penalty: weight of ½‖W‖².
            rows: fit to these rows only; None: to all.
            start: the solution of a similar problem.
            iterations: maximum number of steps.
            tolerance: the loss at the end is above the minimum by about this much.
        """
        X, outputs = self.X, len(self.classes) if len(self.classes) > 2 else 1
        theta = torch.zeros(
            X.shape[1] + 1, outputs, dtype=torch.float64, device=X.device
        )  # the last row holds the biases
        if start is not None:
            W = start.W if self.rotation is None else start.W @ self.rotation.to(start.W)
            theta = torch.cat([W.mT, start.b[None]])
        weights = torch.ones(len(X), dtype=torch.float64, device=X.device) if rows is None else rows.double()
        weights = weights / weights.sum()
        penalties = torch.full((len(theta), 1), penalty, dtype=torch.float64, device=X.device)
        penalties[-1] = 0.0

        def loss_and_gradient(theta: Tensor) -> tuple[float, Tensor]:
            logits = _all_logits((X @ theta[:-1].to(X) + theta[-1].to(X)).double())
            log_p = logits.log_softmax(1)
            loss = -(weights @ log_p.gather(1, self.target[:, None])).sum() + (penalties * theta.square()).sum() / 2
            residual = log_p.exp()
            residual.scatter_add_(1, self.target[:, None], residual.new_full((len(X), 1), -1.0))
            residual = residual[:, -outputs:] * weights[:, None]
            slope = torch.cat([(X.mT @ residual.to(X)).double(), residual.sum(0, keepdim=True)])
            return loss.item(), slope + penalties * theta

        p = _all_logits((X @ theta[:-1].to(X) + theta[-1].to(X)).double()).softmax(1)
        curvature = (weights @ (1 - p.square().sum(1))).item() / max(outputs - 1, 2)
        solve = self._whitening(max(curvature, 1e-3), penalty)
        theta, passes = minimize(loss_and_gradient, theta, solve, iterations=iterations, tolerance=tolerance)
        W, b = theta[:-1].mT, theta[-1]
        return Logistic(W if self.rotation is None else W @ self.rotation.mT.to(W), b, self.classes, passes + 1)

    def second_moment(self) -> Float[Tensor, "D1 D1"]:
        """Return E[(x, 1)(x, 1)ᵀ] in float64, which is computed once.

        Raises:
            UserError: it overflows.
        """
        if self._second_moment is None:
            mean = self.X.mean(0).double()[:, None]
            moment = (self.X.mT @ self.X).double() / len(self.X)
            if not moment.isfinite().all():  # no ridge would make it positive definite
                raise UserError("the squares of the features overflow; standardise the features")
            self._second_moment = torch.cat([torch.cat([moment, mean], 1), torch.cat([mean, mean.new_ones(1, 1)]).mT])
        return self._second_moment

    def _whitening(self, curvature: float, penalty: float) -> Callable[[Tensor], Tensor]:
        """Return the function g ↦ A⁻¹ g for A = curvature · E[(x, 1)(x, 1)ᵀ] + penalty · diag(1, …, 1, 0), or for its
        diagonal.
        """
        D = self.X.shape[1]
        ridge = torch.full((D + 1,), penalty, dtype=torch.float64, device=self.X.device)
        ridge[-1] = 1e-6  # keeps the matrix positive definite
        if D > LARGEST_COVARIANCE:
            diagonal = curvature * torch.cat([self.X.square().mean(0).double(), ridge.new_ones(1)]) + ridge
            return lambda g: g / diagonal[:, None]
        second_moment = self.second_moment()
        while True:
            factor, failure = torch.linalg.cholesky_ex(curvature * second_moment + ridge.diag())
            if not failure:
                factor = factor.to(self.X)  # the square root of the condition number is small enough for float32
                return lambda g: torch.cholesky_solve(g.to(factor), factor).double()
            ridge *= 10  # equal features, and a penalty smaller than the rounding errors of their covariance


class OneForEachClass(LogisticRegression):
    """One logistic regression for each class against the others, of which an image may have several.

    min_w,b  (1/n) Σᵢ log(1 + exp(−sᵢ (w·xᵢ + b))) + ½ penalty ‖w‖²,    sᵢ = ±1
    """

    def __init__(self, X: Float[Tensor, "n D"], y: Int64[Tensor, "n K"]) -> None:
        super().__init__(X, (y[:, 0] == 1).long())
        self.matrix = (y == 1).long()

    def fit(self, penalty: float, *, rows: Any = None, start: Any = None, **options: Any) -> "Logistics":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the minimum of each class that some of the rows have and others lack."""
        if self.X.shape[1] <= LARGEST_COVARIANCE:
            self.second_moment()  # before the copies, so that it is computed once for all classes
        used = self.matrix if rows is None else self.matrix[rows]
        models = {}
        for k in (used.any(0) & ~used.all(0)).nonzero().flatten().tolist():
            problem = copy(self)
            problem.classes, problem.target = self.matrix[:, k].unique(return_inverse=True)
            before = start.models.get(k) if start else None
            models[k] = LogisticRegression.fit(problem, penalty, rows=rows, start=before, **options)
        return Logistics(models, self.matrix.shape[1])


class Logistics(NamedTuple):
    """Fitted classifiers of one class against the others.

    Attributes:
        models: Class → classifier; a class that all images have, or none, has no classifier.
    """

    models: dict[int, Logistic]
    classes: int

    def logits(self, X: Float[Tensor, "m D"]) -> Float[Tensor, "m classes"]:
        """Return the logits of the classes, 0 without a classifier."""
        logits = X.new_zeros(len(X), self.classes)
        for k, model in self.models.items():
            logits[:, k] = model.logits(X).diff(dim=1).flatten()
        return logits


def _all_logits(z: Tensor) -> Tensor:
    """Return the logits of all classes: for two classes, that of the first is zero."""
    return torch.cat([torch.zeros_like(z), z], 1) if z.shape[1] == 1 else z


def minimize(
    function: Callable[[Tensor], tuple[float, Tensor]],
    x: Tensor,
    solve: Callable[[Tensor], Tensor],
    *,
    iterations: int,
    tolerance: float,
) -> tuple[Tensor, int]:
    """Minimise a smooth convex function by L-BFGS, and return the minimum with the number of evaluations.

    Args:
        function: x ↦ value and gradient.
        x: the start.
        solve: g ↦ A⁻¹ g, where A is close to the Hessian.
        iterations: maximum number of steps.
        tolerance: stop when ½ gᵀHg, which is about the distance of the value from the minimum, is at most this; H is
            the estimated inverse Hessian.

    Source: Nocedal and Wright 2006, Numerical Optimization, Algorithm 7.4, with A⁻¹ in the place of I.
    """
    value, gradient = function(x)
    evaluations, steps, scale = 1, [], 1.0
    for _ in range(iterations):
        direction = -_inverse_hessian_product(gradient, solve, scale, steps)
        slope = (gradient * direction).sum().item()
        if -slope / 2 <= tolerance:
            break
        length = 1.0
        while True:
            new_value, new_gradient = function(x + length * direction)
            evaluations += 1
            if new_value <= value + 1e-4 * length * slope:
                break
            length = max(
                -slope * length**2 / (2 * (new_value - value - slope * length)), 0.1 * length
            )  # the minimum of the parabola
            if not length >= 1e-6:  # rounding errors are larger than what can be gained, or the value is NaN
                return x, evaluations
        change, turn = length * direction, new_gradient - gradient
        if (product := (change * turn).sum().item()) > 0:
            steps = [*steps[1 - HISTORY :], (change, turn, product)]
            scale = product / (turn * solve(turn)).sum().item()  # the curvature of the last step, relative to A
        x, value, gradient = x + change, new_value, new_gradient
    return x, evaluations


def _inverse_hessian_product(
    g: Tensor, solve: Callable[[Tensor], Tensor], scale: float, steps: list[tuple[Tensor, Tensor, float]]
) -> Tensor:
    """Return the product of the gradient with the estimated inverse Hessian, by the two loops over the last steps."""
    factors = []
    for change, turn, product in reversed(steps):
        factor = (change * g).sum().item() / product
        g = g - factor * turn
        factors.append(factor)
    g = scale * solve(g)
    for (change, turn, product), factor in zip(steps, reversed(factors), strict=True):
        g = g + (factor - (turn * g).sum().item() / product) * change
    return g
