"""Faster forms of objectives, beside their formulas: the folder `fast` can be deleted, and every value stays.

The formula is what a reader reads, what the value means, and what autograd differentiates for anything more than a
plain gradient. A faster form is kept where it is measured (`benchmarks/results/fast.json`).
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fullrank.objectives.terms import Terms

F = TypeVar("F", bound=Callable[..., Terms])


def fast(name: str) -> Callable[[F], F]:
    """Return a decorator that computes an objective and its gradient by `fullrank.objectives.fast`, where that applies.

    The formula itself is used for second derivatives, `torch.func`, forward mode, batched gradients, `torch.compile`
    and lower precision, and everywhere if the folder `fast` does not exist.

    Args:
        name: module:class in the folder. The class has `forward(*tensors, **numbers)`, which returns the terms and the
            tensors to save; `backward(tensors, saved, gradients, **numbers)`, which returns the gradient of each tensor
            or None; and perhaps `applies(**numbers)`. Gradients and saved tensors must stay unchanged.

    >>> from fullrank.objectives import frossl
    >>> Z = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(frossl(Z)["variance"], frossl.formula(Z)["variance"])
    True
    """

    def decorate(formula: F) -> F:
        signature = inspect.signature(formula)

        @wraps(formula)
        def objective(*arguments: Any, **keywords: Any) -> Terms:
            if torch.compiler.is_compiling() or (form := faster_form(name)) is None:
                return formula(*arguments, **keywords)
            bound = signature.bind(*arguments, **keywords)
            bound.apply_defaults()
            tensors, numbers = bound.args, bound.kwargs
            if not plain(*tensors) or not getattr(form, "applies", lambda **_: True)(**numbers):
                return formula(*tensors, **numbers)
            names: list[str] = []
            return dict(zip(names, ClosedForm.apply(form, formula, numbers, names, *tensors), strict=True))

        objective.formula = formula  # pyright: ignore[reportAttributeAccessIssue]
        return objective  # pyright: ignore[reportReturnType]

    return decorate


@cache
def faster_form(name: str) -> Any:
    """Return the class `module:class` of the folder `fast`; None without the folder."""
    module, _, form = name.partition(":")
    try:
        return getattr(importlib.import_module(f"fullrank.objectives.fast.{module}"), form)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("fullrank.objectives.fast"):
            raise
        return None


class ClosedForm(torch.autograd.Function):
    """The terms of an objective as one function, with its gradient in closed form."""

    @staticmethod
    def forward(ctx: Any, form: Any, formula: Any, numbers: dict[str, Any], names: list[str], *tensors: Tensor) -> Any:
        """Compute the terms; their names are added to `names`."""
        # A mode of torch sees one function, as it sees one operation of torch, and not its inner operations, which
        # run without gradient: `fullrank check` would take them for a stop-gradient of the objective.
        with torch._C.DisableTorchFunction():
            terms, saved = form.forward(*tensors, **numbers)
        names.extend(terms)
        ctx.form, ctx.formula, ctx.numbers, ctx.count = form, formula, numbers, len(tensors)
        ctx.save_for_backward(*tensors, *saved)
        return tuple(terms.values())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors; of second order or batched, they are those of the formula."""
        tensors, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled() or _transformed() or any(map(_batched, gradients)):
            found = _differentiate(ctx.formula, tensors, gradients, ctx.needs_input_grad[4:], ctx.numbers)
        else:
            found = ctx.form.backward(tensors, saved, gradients, **ctx.numbers)
        return None, None, None, None, *found


def plain(*tensors: Tensor) -> bool:
    """Return whether a closed form applies: float32 or float64, no autocast, no transform of `torch.func`, no forward
    mode, no subclass of Tensor.

    >>> plain(torch.ones(2)), plain(torch.ones(2, dtype=torch.bfloat16))
    (True, False)
    """
    device = tensors[0].device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if autocast or _transformed():
        return False
    floats = (torch.float32, torch.float64)
    return all(type(t) is Tensor and t.dtype in floats and forward_ad.unpack_dual(t).tangent is None for t in tensors)


def _transformed() -> bool:
    """Return whether a transform of `torch.func` is active; torch has no public function for it."""
    return torch._C._are_functorch_transforms_active()


def _batched(gradient: Tensor) -> bool:
    """Return whether this is a batch of gradients, by `is_grads_batched`; torch has no public function for it."""
    return torch._C._functorch.is_legacy_batchedtensor(gradient)  # pyright: ignore[reportAttributeAccessIssue]


def _differentiate(
    formula: Callable[..., Terms],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    numbers: dict[str, Any],
) -> list[Tensor | None]:
    """Return the gradients by autograd of the formula; they have gradients themselves if grad mode is on."""
    second_order = torch.is_grad_enabled()
    with torch.enable_grad():
        tensors = [t.view_as(t) for t in tensors]  # one tensor may be given twice, or depend on another
        outputs = tuple(formula(*tensors, **numbers).values())
    inputs = [t for t, need in zip(tensors, needs, strict=True) if need]
    found = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=second_order, allow_unused=True))
    return [next(found) if need else None for need in needs]
