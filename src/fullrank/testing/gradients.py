"""Checks of the gradient: which tensors get a gradient, whether it equals finite differences, and its size at collapsed
embeddings.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.overrides import TorchFunctionMode

from fullrank.testing.check_result import CheckResult, info, required
from fullrank.testing.objective_case import ObjectiveCase, loss_of, max_abs, value_and_grad

COLLAPSES: dict[str, Callable[[Tensor], Tensor]] = {
    # The mean of a constant column has a rounding error for 0.1, and is exact for 0.5.
    "constant columns": lambda t: t.index_fill(-1, torch.tensor([1]), 0.1).index_fill(-1, torch.tensor([2]), 0.5),
    "zero column": lambda t: t.index_fill(-1, torch.tensor([1]), 0.0),
    "equal rows": lambda t: t[..., :1, :].expand_as(t),
    "equal rows and views": lambda t: t[(0,) * (t.ndim - 2)][:1].expand_as(t),
    "all zero": torch.zeros_like,
    "rank one": lambda t: t[..., :1].expand_as(t),
}
"""Name → function that collapses embeddings (…, N, D) partly or completely."""


def check_gradient_flow(case: ObjectiveCase) -> list[CheckResult]:
    """Check that each view of the embeddings gets a finite gradient, and that targets and state get none."""
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    gradients = value_and_grad(case, tensors).gradients
    errors = [
        f"none for a view of {name}" for name in case.embedding_names if not all(view.any() for view in gradients[name])
    ]
    errors += [f"not finite for {name}" for name in case.embedding_names if not gradients[name].isfinite().all()]
    results = [
        required(
            "reaches every view",
            not errors,
            measured="; ".join(errors)
            or f"largest component {max_abs(gradients[name] for name in case.embedding_names):.2g}",
            expected=f"a finite gradient for {', '.join(case.embedding_names)}",
            remedy="use every view in the loss; name a tensor that is only a target T or K",
        )
    ]
    if constants := case.target_names + case.state_names:
        leaks = [name for name in constants if gradients[name].any()]
        results.append(
            required(
                "no gradient for targets and state",
                not leaks,
                measured=f"a gradient for {', '.join(leaks)}" if leaks else "no gradient",
                expected=f"no gradient for {', '.join(constants)}",
                remedy="detach targets and state in the function; they come from a teacher or from earlier batches",
            )
        )
    return results


def check_finite_differences(case: ObjectiveCase) -> list[CheckResult]:
    """Check that autograd's gradient equals central differences, in float64."""
    name = "equals finite differences"
    tensors = case.random_tensors(torch.Generator().manual_seed(0), N=8, D=4)
    points = [tensors[key].detach().clone().requires_grad_() for key in case.embedding_names]

    def loss(*embeddings: Tensor) -> Tensor:
        return loss_of(case, tensors | dict(zip(case.embedding_names, embeddings, strict=True)))

    if _passes_gradcheck(loss, points):
        return [required(name, True, measured="yes", expected="gradcheck in float64", remedy="")]
    recorder = StopGradientRecorder()
    with recorder:
        loss(*points)

    def loss_with_constants(*embeddings: Tensor) -> Tensor:
        with torch.enable_grad(), recorder.replay():
            return loss(*embeddings)

    if recorder.recorded and _passes_gradcheck(loss_with_constants, points):
        return [info(name, "yes, with detached values constant")]
    remedy = "look for an in-place change, .data, or a custom backward"
    return [required(name, False, measured="no", expected="gradcheck in float64", remedy=remedy)]


def _passes_gradcheck(function: Callable[..., Tensor], points: list[Tensor]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gradcheck(function, points, raise_exception=False)


class StopGradientRecorder(TorchFunctionMode):
    """A mode that records each tensor that is detached or computed under `no_grad`, and returns the recorded tensors in
    a replay.

    A gradient with stop-gradients is not the derivative of the function itself. It is the derivative of the function in
    which the detached tensors are constants, which the replay computes.

    >>> recorder, x = StopGradientRecorder(), torch.tensor(3.0)
    >>> with recorder:
    ...     _ = x * x.detach()
    >>> with recorder.replay():
    ...     print(2 * x * (2 * x).detach())
    tensor(18.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[Tensor] = []
        self.position: int | None = None

    def replay(self) -> "StopGradientRecorder":
        """Start a replay from the first recorded tensor."""
        self.position = 0
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ):
        """Call `func`; if its result has no gradient, record the result, or replace it in a replay."""
        out = func(*args, **(kwargs or {}))
        stops_gradient = func is Tensor.detach or not torch.is_grad_enabled()
        if not stops_gradient or not isinstance(out, Tensor):
            return out
        if self.position is None:
            self.recorded.append(out.clone())
            return out
        self.position += 1
        recorded = self.recorded[self.position - 1].clone()
        return out.copy_(recorded) if args and out is args[0] else recorded  # an in-place function returns its argument


def check_collapse(case: ObjectiveCase) -> list[CheckResult]:
    """Check for a finite loss and a bounded gradient at collapsed embeddings; dividing by a rounding error gives a
    gradient of 1/ε.
    """
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    samples = case.embedding_names + case.target_names
    limit = 100 * max(10.0, _max_gradient(value_and_grad(case, tensors).gradients, case))  # at random embeddings
    results = []
    for name, collapse in COLLAPSES.items():
        collapsed = {key: collapse(t) if key in samples else t for key, t in tensors.items()}
        losses = [value_and_grad(case, collapsed, dtype=dtype) for dtype in (torch.float32, torch.float64)]
        gradient = max(
            (_max_gradient(result.gradients, case) for result in losses), key=lambda g: math.inf if math.isnan(g) else g
        )
        finite = all(result.loss.isfinite() for result in losses)
        results.append(
            required(
                f"collapse: {name}",
                finite and gradient < limit,  # False for NaN
                measured=f"loss {losses[-1].loss.item():.4g}, largest gradient {gradient:.2g}"
                if finite
                else "the loss is not finite",
                expected=f"finite, gradient below {limit:.2g}",
                remedy="guard the norm, logarithm or root at zero, in the backward pass too (clamp before, not after)",
            )
        )
    return results


def _max_gradient(gradients: dict[str, Tensor], case: ObjectiveCase) -> float:
    return max_abs(gradients[name] for name in case.embedding_names)
