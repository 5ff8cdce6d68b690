"""Gradient descent of any loss over matrices with orthonormal columns: `fullrank.dynamics.trace.projected_step` without its C."""

from collections.abc import Callable, Iterator

from torch import Tensor

from fullrank.dynamics.flow import Params, check_float64, gradient, parameter_tensors, rebuild_parameters
from fullrank.dynamics.trace import polar_factor
from fullrank.errors import UserError


def projected_gradient_descent(loss: Callable[[Params], Tensor], weights: Params, *, learning_rate: float) -> Iterator[Params]:
    """Weights at steps 0, 1, … without end, each layer W ← the nearest matrix with orthonormal columns to W − η∇ℒ(W).

    To first order in η it follows the gradient flow on the constraint, W′ = −(G − W(WᵀG + GᵀW)/2) with G = ∇ℒ; step k stands at time ηk,
    in the loss's own scale. The loss may compute anything from the weights, so the network need not be linear.

    Args:
        loss: a scalar function of the weights.
        weights: at the start, a dict or tuple of float64 matrices, each with orthonormal columns.
        learning_rate: η.

    Raises:
        UserError: weights that are not float64, or a matrix with more columns than rows.

    Source: Esser et al. 2023, eq. 11 (corrected: the paper prints + η, which is ascent) and Conjecture 1, for any activation.

    >>> import torch
    >>> W = torch.eye(2, dtype=torch.float64)[:, :1]
    >>> steps = projected_iterates(lambda w: w[0][1, 0], (W,), learning_rate=1.0)
    >>> [step[0].flatten() for step, _ in zip(steps, range(2))]
    [tensor([1., 0.], dtype=torch.float64), tensor([ 0.7071, -0.7071], dtype=torch.float64)]
    """
    check_float64(weights)
    for W in parameter_tensors(weights):
        if W.shape[-2] < W.shape[-1]:
            raise UserError(f"a matrix of shape {tuple(W.shape)} cannot have orthonormal columns; take at least {W.shape[-1]} rows")
    return _iterates(loss, weights, learning_rate)


def _iterates(loss: Callable[[Params], Tensor], weights: Params, learning_rate: float) -> Iterator[Params]:
    while True:
        yield weights
        pairs = zip(parameter_tensors(weights), parameter_tensors(gradient(loss, weights)), strict=True)
        weights = rebuild_parameters(weights, [polar_factor(W - learning_rate * G) for W, G in pairs])
