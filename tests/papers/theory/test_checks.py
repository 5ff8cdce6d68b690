"""What would give wrong numbers without an error is an error of one line."""

import pytest
import torch

from fullrank.errors import UserError
from fullrank_papers.theory import contrastive_pairs, fixed_projector, flow, stepwise, trace

eye, one = torch.eye(3, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
upper = torch.ones(3, 3, dtype=torch.float64).triu()

WRONG = {
    "not symmetric": lambda: contrastive_pairs.eigenbasis(upper),
    "NaN": lambda: contrastive_pairs.eigenbasis(float("nan") * eye),
    "multiple": lambda: fixed_projector.collapsed_weights(eye, eye, eye),
    "kernel": lambda: stepwise.contrastive_kernel(eye),
    "outputs have length": lambda: trace.integrate_outputs(2 * eye, torch.ones(3).double(), one),
    "length nan": lambda: trace.integrate_outputs(float("nan") * eye, torch.ones(3).double(), one),
    "no orthonormal columns": lambda: trace.orthonormal_weights(3, hidden=2, outputs=1, generator=torch.Generator()),
    "stability limit": lambda: trace.euler_outputs(0.1 * eye, torch.ones(3).double(), learning_rate=1.0, steps=1),
    "the flow diverges": lambda: flow.gradient_flow(lambda p: -p[0].pow(3).sum(), (one,), 10 * one),
    "diverged before step 50": lambda: flow.gradient_descent(
        lambda p: -p[0].pow(3).sum(), (one,), learning_rate=1.0, steps=[50]
    ),
    "do not ascend": lambda: flow.record(([one] for _ in range(9)), [3, 2]),
    "end of the path": lambda: flow.record(([one] for _ in range(9)), [3, 20]),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_the_theory_does_not_hold_for_is_an_error(message):
    with pytest.raises(UserError, match=message) as error:
        WRONG[message]()
    assert "\n" not in str(error.value)
