"""Checks of lower precision: float32, bfloat16 autocast of the network, and bfloat16 embeddings."""

import torch
from torch import Tensor

from fullrank.testing.check_result import CheckResult, exception_line, info, required
from fullrank.testing.network import build_network, embed, images
from fullrank.testing.objective_case import LossAndGradients, ObjectiveCase, loss_of, value_and_grad


def check_float32(case: ObjectiveCase) -> list[CheckResult]:
    """Check that value and gradient in float32 are close to those in float64."""
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    exact, single = value_and_grad(case, tensors), value_and_grad(case, tensors, dtype=torch.float32)
    value = abs(single.loss.item() - exact.loss.item()) / max(exact.scale, 1.0)
    gradient = max(_relative_error(single.gradients[name], exact.gradients[name]) for name in case.embedding_names)
    return [
        required(
            "float32",
            value <= 1e-5 and gradient <= 1e-4 and single.loss.dtype == torch.float32,
            measured=f"{single.loss.dtype}, value off by {value:.1e}, gradient by {gradient:.1e}".removeprefix(
                "torch."
            ),
            expected="float32 for float32; value to 1e-5, gradient to 1e-4",
            remedy="subtract the mean before square, exp or log; use logsumexp, log1p",
        )
    ]


def check_bfloat16(case: ObjectiveCase) -> list[CheckResult]:
    """Check that the loss is within 1 % of float32 if the network is under bfloat16 autocast and the embeddings are
    cast to float32.
    """
    single, half = (_loss_of_network(case, autocast=autocast) for autocast in (False, True))
    value = abs(half.loss.item() - single.loss.item()) / single.scale
    finite = all(bool(g.isfinite().all()) for g in half.gradients.values())
    return [
        required(
            "bfloat16 network",
            finite and value <= 0.01,
            measured=f"loss off by {value:.1%}" if finite else "a gradient is not finite",
            expected="finite, within 1 % of float32",
            remedy="look for divisions by small numbers, which amplify small differences of the embeddings",
        ),
        info("bfloat16 embeddings", _bfloat16_error(case)),
    ]


def _loss_of_network(case: ObjectiveCase, *, autocast: bool) -> LossAndGradients:
    """Return the loss on the output of a network, with the gradients of the network's parameters."""
    D = 16
    student, teacher = (build_network(D, perturbation=perturbation).float() for perturbation in (0.0, 0.1))
    x = images(case.views, 256).float()
    state = {name: t.float() for name, t in case.sample_state(torch.Generator().manual_seed(0), D=D).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        X, T = embed(student, x), embed(teacher, x)
    tensors = case.tensors(X.float(), T.float(), state)
    loss = loss_of(case, tensors)
    gradients = torch.autograd.grad(loss, list(student.parameters()))
    return LossAndGradients(
        loss.detach(), value_and_grad(case, tensors).scale, {str(i): g for i, g in enumerate(gradients)}
    )


def _bfloat16_error(case: ObjectiveCase) -> str:
    tensors = case.random_tensors(torch.Generator().manual_seed(0), N=64, D=16)
    exact = value_and_grad(case, tensors)
    try:
        half = value_and_grad(case, tensors, dtype=torch.bfloat16)
    except Exception as error:  # of any type: linear algebra has no kernels in half precision
        return exception_line(error)
    return f"loss off by {abs(half.loss.item() - exact.loss.item()) / exact.scale:.1%}"


def _relative_error(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
