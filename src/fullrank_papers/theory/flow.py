"""Training of any loss in continuous time (gradient flow) and in steps (gradient descent). Tests compare every closed
form with it.

A loss is a function of a tuple of float64 tensors. Time is learning rate × step of the loss exactly as given: a
loss that is a sum over n samples runs n times faster than their mean.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from fullrank.errors import UserError

Params = tuple[Tensor, ...]


def gradient(loss: Callable[[Params], Tensor], params: Params) -> Params:
    """Return ∇loss(θ) at θ = params, computed by autograd. It is zero for parameters that the loss does not use.

    >>> gradient(lambda p: p[0].square().sum() / 2, (torch.tensor([1.0, 3.0]),))
    (tensor([1., 3.]),)
    """
    leaves = tuple(x.detach().requires_grad_() for x in params)
    with torch.enable_grad():
        return torch.autograd.grad(loss(leaves), leaves, materialize_grads=True)


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
        params: θ(0), float64 tensors.
        t: ascending times ≥ 0, in units of learning rate × step.
        rtol: allowed error of a step, relative to each entry of θ.
        atol: allowed absolute error of a step, in addition.

    Returns:
        θ(t), each tensor with a first dimension of T times.

    Raises:
        UserError: the flow diverges before the last time.

    Source: Hairer, Nørsett and Wanner 1993, Solving Ordinary Differential Equations I, Sec. II.5 and II.10.

    >>> start = (torch.tensor([1.0, 3.0], dtype=torch.float64),)
    >>> gradient_flow(lambda p: p[0].square().sum() / 2, start, torch.tensor([0.0, 1.0]))[0]  # w(t) = e⁻ᵗ w(0)
    tensor([[1.0000, 3.0000],
            [0.3679, 1.1036]], dtype=torch.float64)
    """
    start = tuple(x.detach() for x in params)

    def flatten(tensors: Iterable[Tensor]) -> Float[Tensor, " P"]:
        return torch.cat([x.flatten() for x in tensors])

    def unflatten(rows: Float[Tensor, "*T P"]) -> Params:
        pieces = rows.split([x.numel() for x in start], -1)
        return tuple(p.reshape(rows.shape[:-1] + x.shape) for p, x in zip(pieces, start, strict=True))

    def velocity(y: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        return -flatten(gradient(loss, unflatten(y)))

    return unflatten(solve_ode(velocity, flatten(start), t, rtol=rtol, atol=atol))


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
        UserError: the velocity is not finite at the start, or x diverges before the last time.

    >>> solve_ode(lambda x: -x, torch.tensor([2.0], dtype=torch.float64), torch.tensor([0.0, 1.0]))[:, 0]
    tensor([2.0000, 0.7358], dtype=torch.float64)
    """
    times = t.double().cpu().numpy()
    if times[-1] == 0:  # scipy returns nothing here
        return start[None]

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        return velocity(torch.tensor(y).to(start.device).view(start.shape)).flatten().cpu().numpy()

    if not velocity(start).isfinite().all():  # scipy would search for a first step forever
        raise UserError("the velocity at t = 0 is NaN or infinite; check the loss, its data and the start")
    with np.errstate(over="ignore", invalid="ignore"):  # a flow that diverges is reported below
        solution = solve_ivp(
            slope, (0.0, times[-1]), start.flatten().cpu().numpy(), method="DOP853", t_eval=times, rtol=rtol, atol=atol
        )
    if not solution.success:
        raise UserError(f"the flow diverges before t = {times[-1]:g}; end earlier, or bound the loss from below")
    return torch.tensor(solution.y.T).to(start.device).view(len(times), *start.shape)


def gradient_descent(
    loss: Callable[[Params], Tensor], params: Params, *, learning_rate: float, steps: Sequence[int]
) -> Params:
    """Run full-batch gradient descent θ_{k+1} = θ_k − η ∇loss(θ_k), θ_0 = params, and return θ at the chosen steps.

    This is Euler's method for `gradient_flow`: step k is at time t = ηk, and at a fixed time the two differ by O(η).
    `steps` are ascending numbers ≥ 0; the tensors of the result have a first dimension of len(steps).

    Raises:
        UserError: an error of `record`.

    >>> start = (torch.tensor([1.0, 3.0], dtype=torch.float64),)
    >>> loss = lambda p: p[0].square().sum() / 2  # so that w_k = (1 − η)ᵏ w_0
    >>> gradient_descent(loss, start, learning_rate=0.5, steps=[0, 2])[0]
    tensor([[1.0000, 3.0000],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    return tuple(record(gradient_descent_iterates(loss, params, learning_rate=learning_rate), steps))


def record(path: Iterable[Sequence[Tensor]], steps: Sequence[int]) -> list[Tensor]:
    """Return the tensors of a path at the chosen steps, each with a first dimension of len(steps).

    Raises:
        UserError: the steps do not ascend from 0 on, the path ends before the last one, or the tensors are not finite
            there.

    >>> record(([torch.tensor(2.0**k)] for k in range(9)), [0, 3])
    [tensor([1., 8.])]
    """
    wanted = set(steps)
    rows = [tensors for step, tensors in zip(range(steps[-1] + 1), path, strict=False) if step in wanted]
    if list(steps) != sorted(wanted) or len(rows) < len(steps):
        raise UserError(
            f"steps {list(steps)} do not ascend from 0 to the end of the path; sort them, or give more batches"
        )
    if not all(x.isfinite().all() for x in rows[-1]):
        raise UserError(f"training diverged before step {steps[-1]}; lower the learning rate")
    return [torch.stack(column) for column in zip(*rows, strict=True)]


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
    params = tuple(x.detach() for x in params)
    while True:
        yield params
        slopes = gradient(loss, params)
        params = tuple(project(x - learning_rate * slope) for x, slope in zip(params, slopes, strict=True))
