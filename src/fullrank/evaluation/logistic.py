"""Logistic regression by L-BFGS along the principal axes of the features.

The Hessian of the mean cross-entropy is close to α cov(X) + penalty · I for each class, where α is the mean curvature
of its probability (Böhning 1992). In coordinates in which this matrix is the identity, L-BFGS needs tens of passes over
the features where it needs hundreds in the coordinates of the features. The products with the features have their
precision; sums and weights are float64.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fullrank.errors import UserError


class Logistic(NamedTuple):
    """A fitted classifier.

    Attributes:
        W: Weights in float64: zero for the first of two classes, and for classes that were not fitted.
        b: Biases: −∞ for a class without a training label, so that it is never predicted.
        passes: How often the loss and its gradient were computed: two products with all features.
    """

    W: Float[Tensor, "K D"]
    b: Float[Tensor, " K"]
    passes: int

    def logits(self, X: Float[Tensor, "m D"]) -> Float[Tensor, "m K"]:
        """Return the logits of all classes."""
        return X @ self.W.mT.to(X) + self.b.to(X)


class LogisticRegression:
    """The problem for fixed features and labels: what the fits of several penalties share.

        min_W,b  (1/n) Σᵢ −log softmax(W xᵢ + b)[yᵢ] + ½ penalty ‖W‖²

    For two classes, only the difference of their weights is fitted and penalised, as in scikit-learn. For
    multi-label images, the loss is the sum over the classes of one class against the others:

        min_W,b  (1/n) Σᵢ Σₖ log(1 + exp(−sᵢₖ (wₖ·xᵢ + bₖ))) + ½ penalty ‖W‖²,    sᵢₖ = ±1

    Args:
        X: features.
        y: labels (n,), or 1 for the classes that an image has and 0 for the others (n, K).

    Raises:
        UserError: a feature is NaN or infinite, or its square overflows.
    """

    def __init__(self, X: Float[Tensor, "n D"], y: Tensor) -> None:
        n, D = X.shape
        if not X.square().mean(0).isfinite().all():
            remedy = "standardise the features, or use an earlier checkpoint, or another model"
            raise UserError(f"the features or their squares are NaN or infinite, expected finite numbers; {remedy}")
        self.X = X.clone() if X.is_inference() else X  # tensors of inference mode have no gradient
        if y.ndim == 2:
            self.width, self.columns, self.target = y.shape[1], torch.arange(y.shape[1]), (y == 1).double()
        else:
            classes, self.target = y.unique(return_inverse=True)
            self.width, self.columns = int(classes[-1]) + 1, classes if len(classes) > 2 else classes[1:]
            self.target = self.target if len(classes) > 2 else self.target[:, None].double()
        self.present = y.unique() if y.ndim == 1 else self.columns
        self.mean = X.mean(0).double()
        # the solution lies in the span of the centred features, which has few dimensions for few images
        centred = X - X.mean(0)
        span = torch.linalg.qr(centred.mT).Q if n < D else None
        centred = centred if span is None else centred @ span
        variance, axes = torch.linalg.eigh(centred.mT @ centred / n)
        self.variance, self.axes = variance.double(), (axes if span is None else span @ axes).double()

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
            tolerance: the last step reduced the loss by at most this much.
        """
        X, target = (self.X, self.target) if rows is None else (self.X[rows], self.target[rows])
        softmax, C = target.ndim == 1, len(self.columns)
        # of multi-label images, a class that all images have, or none, stays at zero
        used = X.new_ones(C) if softmax else ((target > 0).any(0) & (target < 1).any(0)).double()

        def logits(W: Tensor, b: Tensor) -> Tensor:
            return (X @ W.to(X)).double() + (b - self.mean @ W)

        def loss(z: Tensor) -> Tensor:
            if softmax:
                return cross_entropy(z, target)
            return (binary_cross_entropy_with_logits(z, target, reduction="none").mean(0) * used).sum()

        W = self.mean.new_zeros(X.shape[1], C) if start is None else start.W[self.columns].mT
        b = self.mean.new_zeros(C) if start is None else start.b[self.columns] + self.mean @ W
        with torch.no_grad():
            p = logits(W, b).softmax(1) if softmax else logits(W, b).sigmoid()
        curvature = ((p * (1 - p)).mean(0) * (C / (C - 1) if softmax else 1)).clamp_min(1e-3)  # (C,)
        least = torch.finfo(X.dtype).eps * self.variance.max().clamp_min(1e-12)
        scale = (curvature * self.variance.clamp_min(least)[:, None] + penalty).rsqrt()  # (axes, C)
        phi = torch.cat([self.axes.mT @ W / scale, (b * curvature.sqrt())[None]])

        def unwhitened(phi: Tensor) -> tuple[Tensor, Tensor]:
            return self.axes @ (scale * phi[:-1]), phi[-1] / curvature.sqrt()

        @torch.enable_grad()
        def loss_and_gradient(values: np.ndarray) -> tuple[float, np.ndarray]:
            phi = torch.from_numpy(values).to(X.device).view(-1, C).requires_grad_()
            W, b = unwhitened(phi)
            value = loss(logits(W, b)) + penalty / 2 * W.square().sum()
            (gradient,) = torch.autograd.grad(value, phi)
            return value.item(), gradient.cpu().numpy().ravel()

        options = {"maxiter": iterations, "ftol": tolerance, "gtol": 0.0, "maxcor": 20}
        found = minimize(loss_and_gradient, phi.cpu().numpy().ravel(), jac=True, method="L-BFGS-B", options=options)
        W, b = unwhitened(torch.from_numpy(found.x).to(X.device).view(-1, C))
        full = Logistic(W.new_zeros(self.width, len(W)), W.new_full((self.width,), -torch.inf), found.nfev + 1)
        full.W[self.columns] = W.mT
        full.b[self.present] = 0.0  # also of the first of two classes
        full.b[self.columns] = b - self.mean @ W
        return full
