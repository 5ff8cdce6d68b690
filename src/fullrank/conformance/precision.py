"""Fewer digits: float32, bfloat16 around the method, and bfloat16 embeddings as they are."""

import torch
from torch import Tensor

from fullrank.conformance.finding import CheckResult, noted, one_line, required
from fullrank.conformance.loss import Taken, loss_of, take
from fullrank.conformance.network import embed, images, network
from fullrank.conformance.subject import ObjectiveCase


def float32(subject: ObjectiveCase) -> list[CheckResult]:
    """Value and gradient in float32 are those in float64 to a few digits less than it has."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    exact, found = take(subject, tensors), take(subject, tensors, dtype=torch.float32)
    value = abs(found.value.item() - exact.value.item()) / max(exact.scale, 1.0)
    gradient = max(_difference(found.gradients[name], exact.gradients[name]) for name in subject.embeddings)
    return [
        required(
            "float32",
            value <= 1e-5 and gradient <= 1e-4 and found.value.dtype == torch.float32,
            measured=f"{found.value.dtype}, value off by {value:.1e}, gradient by {gradient:.1e}".removeprefix("torch."),
            expected="float32 for float32; value to 1e-5, gradient to 1e-4",
            remedy="subtract what is common before squaring, exp or log; use logsumexp, log1p",
        )
    ]


def bfloat16(subject: ObjectiveCase) -> list[CheckResult]:
    """Under bfloat16 autocast around the network, with embeddings cast up before the objective, the loss is that of float32 to 1 %."""
    full, half = (_behind_a_network(subject, autocast=autocast) for autocast in (False, True))
    value = abs(half.value.item() - full.value.item()) / full.scale
    finite = all(bool(g.isfinite().all()) for g in half.gradients.values())
    return [
        required(
            "bfloat16 around the method",
            finite and value <= 0.01,
            measured=f"loss off by {value:.1%}" if finite else "a gradient is not finite",
            expected="finite, within 1 % of float32",
            remedy="it magnifies small differences of the embeddings: look for divisions by small numbers",
        ),
        noted("bfloat16 embeddings, not cast up", _directly(subject)),
    ]


def _behind_a_network(subject: ObjectiveCase, *, autocast: bool) -> Taken:
    """Take the loss behind a network, with the gradients of its parameters."""
    D = 16
    online, target = (network(D, off=off).float() for off in (0.0, 0.1))
    x = images(subject.views, 256).float()
    state = {name: t.float() for name, t in subject.draw_state(torch.Generator().manual_seed(0), D=D).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        X, T = embed(online, x), embed(target, x)
    tensors = subject.supply(X.float(), T.float(), state)
    loss = loss_of(subject, tensors)
    gradients = torch.autograd.grad(loss, list(online.parameters()))
    return Taken(loss.detach(), take(subject, tensors).scale, {str(i): g for i, g in enumerate(gradients)})


def _directly(subject: ObjectiveCase) -> str:
    tensors = subject.draw(torch.Generator().manual_seed(0), N=64, D=16)
    exact = take(subject, tensors)
    try:
        found = take(subject, tensors, dtype=torch.bfloat16)
    except Exception as error:  # of any kind: linear algebra has no kernels in half precision
        return one_line(error)
    return f"loss off by {abs(found.value.item() - exact.value.item()) / exact.scale:.1%}"


def _difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()
