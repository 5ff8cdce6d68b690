"""Training of any loss in continuous time (gradient flow) and in steps (gradient descent). Tests compare every closed
form with it.

A loss is a function of a dict or tuple of float64 tensors. Time is learning rate × step of the loss exactly as given: a
loss that is a sum over n samples runs n times faster than their mean.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.checks import check_steps, tensor_arguments

Params = TypeVar("Params", dict[str, Tensor], tuple[Tensor, ...])


def gradient(loss: Callable[[Params], Tensor], params: Params) -> Params:
    """Return ∇loss(θ), computed by autograd, like `params` (θ). It is zero for parameters that the loss does not use.

    Raises:
        UserError: the loss is not a scalar tensor.

    >>> gradient(lambda p: p["w"].square().sum() / 2, {"w": torch.tensor([1.0, 3.0])})
    {'w': tensor([1., 3.])}
    """
    leaves = [x.detach().requires_grad_() for x in parameter_tensors(params)]
    with torch.enable_grad():
        value = loss(rebuild_parameters(params, leaves))
    if not (isinstance(value, Tensor) and value.ndim == 0):
        got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise UserError(
            f"the loss returned {got} instead of one number; for an objective's terms, return sum(terms.values())"
        )
    return rebuild_parameters(params, torch.autograd.grad(value, leaves, materialize_grads=True))


@tensor_arguments
def gradient_flow(
    loss: Callable[[Params], Tensor],
    params: Params,
    t: Float[Tensor, " T"],
    *,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> Params:
    """Integrate the gradient flow dθ/dt = −∇loss(θ), θ(0) = params, and return θ at the times t.

    The solver is an explicit Runge-Kutta method of order 8 with adaptive steps (DOP853). Its steps do not depend on t:
    between them it interpolates with order 7.

    Args:
        loss: a scalar function of the parameters.
        params: θ(0), a dict or tuple of float64 tensors.
        t: ascending times ≥ 0, in units of learning rate × step.
        rtol: allowed error of a step, relative to each entry of θ.
        atol: allowed absolute error of a step, in addition.

    Returns:
        θ(t), named like `params`, each tensor with a first dimension of T times.

    Raises:
        UserError: the parameters are not float64, the times do not ascend from 0 on, or the flow diverges before the
            last time.

    Source: Hairer, Nørsett and Wanner 1993, Solving Ordinary Differential Equations I, Sec. II.5 and II.10.

    >>> start = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    >>> gradient_flow(lambda p: p["w"].square().sum() / 2, start, torch.tensor([0.0, 1.0]))["w"]  # w(t) = e⁻ᵗ w(0)
    tensor([[1.0000, 3.0000],
            [0.3679, 1.1036]], dtype=torch.float64)
    """
    check_float64(params)
    rows = solve_ode(
        lambda y: -_flatten(gradient(loss, _unflatten(y, params))), _flatten(params), t, rtol=rtol, atol=atol
    )
    return _unflatten(rows, params)


@tensor_arguments
def solve_ode(
    velocity: Callable[[Tensor], Tensor],
    start: Float[Tensor, "..."],
    t: Float[Tensor, " T"],
    *,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> Float[Tensor, "T ..."]:
    """Solve x′ = velocity(x), x(0) = start, with the solver and tolerances of `gradient_flow`, and return x at the
    times t.

    Raises:
        UserError: the start is not float64, the times do not ascend from 0 on, the velocity is not finite at the start,
            or x diverges before the last time.

    >>> solve_ode(lambda x: -x, torch.tensor([2.0], dtype=torch.float64), torch.tensor([0.0, 1.0]))[:, 0]
    tensor([2.0000, 0.7358], dtype=torch.float64)
    """
    check_float64((start,))
    times = t.double().cpu().numpy()
    if len(times) == 0 or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) <= 0).any():
        raise UserError(
            f"times must be finite and ascend from 0 or later, received {t.tolist()}; sort them and remove duplicates"
        )
    if times[-1] == 0:  # scipy returns nothing here
        return start[None]

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        return velocity(torch.tensor(y).to(start.device).view(start.shape)).flatten().cpu().numpy()

    if not velocity(start).isfinite().all():  # scipy would search for a first step forever
        raise UserError(
            "the velocity at t = 0 is NaN or infinite, expected finite numbers; check the loss, its data and the start"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # a flow that diverges is reported below
        solution = solve_ivp(
            slope, (0.0, times[-1]), start.flatten().cpu().numpy(), method="DOP853", t_eval=times, rtol=rtol, atol=atol
        )
    if not solution.success:
        reached = max(solution.t, default=0.0)
        raise UserError(
            f"the flow diverges between t = {reached:g} and {times[-1]:g}; end earlier, or bound the loss from below"
        )
    return torch.tensor(solution.y.T).to(start.device).view(len(times), *start.shape)


def gradient_descent(
    loss: Callable[[Params], Tensor], params: Params, *, learning_rate: float, steps: Sequence[int]
) -> Params:
    """Run full-batch gradient descent θ_{k+1} = θ_k − η ∇loss(θ_k), θ_0 = params, and return θ at the chosen steps.

    This is Euler's method for `gradient_flow`: step k is at time t = ηk, and at a fixed time the two differ by O(η).
    `steps` are ascending numbers ≥ 0; the tensors of the result have a first dimension of len(steps).

    Raises:
        UserError: the parameters are not float64, the steps do not ascend from 0 on, or gradient descent diverges.

    >>> start = {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    >>> loss = lambda p: p["w"].square().sum() / 2  # so that w_k = (1 − η)ᵏ w_0
    >>> gradient_descent(loss, start, learning_rate=0.5, steps=[0, 2])["w"]
    tensor([[1.0000, 3.0000],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    check_float64(params)
    check_steps(steps)
    wanted = set(steps)
    path = islice(gradient_descent_iterates(loss, params, learning_rate=learning_rate), steps[-1] + 1)
    rows = [parameter_tensors(current) for step, current in enumerate(path) if step in wanted]
    if not all(x.isfinite().all() for x in rows[-1]):
        raise UserError(
            f"gradient descent diverged before step {steps[-1]} at learning rate {learning_rate:g}; lower it"
        )
    return rebuild_parameters(params, [torch.stack(column) for column in zip(*rows, strict=True)])


def gradient_descent_iterates(
    loss: Callable[[Params], Tensor],
    params: Params,
    *,
    learning_rate: float,
    project: Callable[[Tensor], Tensor] = lambda x: x,
) -> Iterator[Params]:
    """Yield θ_0, θ_1, … of gradient descent without end, each tensor of a step passed through `project`; gradients are
    computed lazily.
    """
    while True:
        yield params
        pairs = zip(parameter_tensors(params), parameter_tensors(gradient(loss, params)), strict=True)
        params = rebuild_parameters(params, [project(x - learning_rate * slope) for x, slope in pairs])


def parameter_tensors(params: dict[str, Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
    """Return the detached tensors of a dict or tuple of parameters.

    Raises:
        UserError: the parameters are neither, or contain something else than tensors.
    """
    values = (
        list(params.values())
        if isinstance(params, dict)
        else list(params)
        if isinstance(params, (tuple, list))
        else [params]
    )
    wrong = next((type(x).__name__ for x in values if not isinstance(x, Tensor)), None)
    if wrong or not isinstance(params, (dict, tuple, list)):
        found = wrong or "Tensor"
        raise UserError(
            f"parameters are or contain a {found}, expected a dict or tuple of float64 tensors; wrap one tensor as (W,)"
        )
    return [x.detach() for x in values]


def rebuild_parameters(params: Params, new: Sequence[Tensor]) -> Params:
    """Return the tensors `new` in a container like `params`."""
    if isinstance(params, dict):
        return dict(zip(params, new, strict=True))
    return tuple(new)


def check_float64(params: dict[str, Tensor] | tuple[Tensor, ...]) -> None:
    """Check that all parameters are float64.

    Raises:
        UserError: a parameter has another dtype.
    """
    wrong = sorted({str(x.dtype).removeprefix("torch.") for x in parameter_tensors(params)} - {"float64"})
    if wrong:
        raise UserError(
            f"parameters are {', '.join(wrong)}, expected float64; convert them and the data with .double()"
        )


def _flatten(params: dict[str, Tensor] | tuple[Tensor, ...]) -> Float[Tensor, " P"]:
    """Return all parameters as one vector."""
    return torch.cat([x.reshape(-1) for x in parameter_tensors(params)])


def _unflatten(rows: Float[Tensor, "*T P"], params: Params) -> Params:
    """Invert `_flatten`, for one row or many."""
    originals = parameter_tensors(params)
    pieces = rows.split([x.numel() for x in originals], -1)
    return rebuild_parameters(
        params, [piece.reshape(rows.shape[:-1] + x.shape) for piece, x in zip(pieces, originals, strict=True)]
    )
