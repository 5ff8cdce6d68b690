"""Training of linear (or ReLU) layers under InfoNCE step by step, along the flows of `infonce`: what its theory is held against."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.flow import check_steps
from fullrank.dynamics.infonce import linear_vector_field
from fullrank.errors import UserError


def train_infonce(
    weights: Sequence[Float[Tensor, "_ _"]],
    batches: Iterable[Float[Tensor, "2 _ m"]],
    *,
    learning_rate: float,
    steps: Sequence[int],
    flow: Callable[[Sequence[Tensor], Tensor], list[Tensor]] = linear_vector_field,
) -> list[Tensor]:
    """Gradient descent W_l ← W_l + η Ẇ_l on one batch after the other, recorded at the chosen steps.

    It is `flow.descend` on the loss itself, with the gradient in closed form, which is faster than autograd.

    Args:
        weights: W₁, …, W_L at step 0, each (outputs, inputs).
        batches: inputs of anchors and positives for each step; `itertools.repeat(x)` is full-batch gradient descent.
        learning_rate: η, of the loss as a sum over the samples of a batch.
        steps: ascending numbers ≥ 0 of the steps to record; step k stands at time t = ηk.
        flow: `linear_flow` or `relu_flow`.

    Returns:
        W₁, …, W_L at those steps, each with a first dimension of len(steps).

    Raises:
        UserError: steps that do not ascend from 0 on, fewer batches than steps, a learning rate at which the weights blow up.

    Source: Sections 4 and 5 and Appendix C of Jing et al. 2022 (stochastic gradient descent without momentum or weight decay).

    >>> from itertools import repeat
    >>> x = torch.tensor([[[0.0], [2.0]], [[0.0], [2.0]]])
    >>> train([torch.eye(1)], repeat(x), learning_rate=0.1, steps=[0, 1])
    [tensor([[[1.0000]],
    <BLANKLINE>
            [[1.0954]]])]
    """
    check_steps(steps)
    wanted, recorded, now = set(steps), [], list(weights)
    if 0 in wanted:
        recorded.append(now)
    for step, x in enumerate(islice(batches, steps[-1]), start=1):
        now = [W + learning_rate * W_dot for W, W_dot in zip(now, flow(now, x), strict=True)]
        if step in wanted:
            recorded.append(now)
    if len(recorded) < len(wanted):
        raise UserError(f"the batches ended before step {steps[-1]}; give as many, or itertools.repeat(x)")
    if not all(W.isfinite().all() for W in now):
        raise UserError(f"the weights blow up at a learning rate of {learning_rate:g}; give a smaller one")
    return [torch.stack(layer) for layer in zip(*recorded, strict=True)]
