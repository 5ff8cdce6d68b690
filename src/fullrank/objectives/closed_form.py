"""The gradient of a function in closed form, where autograd would make more products, passes or temporaries than the
mathematics needs.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable[..., Any])
Forward = Callable[..., tuple[Any, Sequence[Tensor]]]
Backward = Callable[..., tuple[Tensor | None, ...]]


def closed_form(forward: Forward, backward: Backward) -> Callable[[F], F]:
    """Return a decorator that gives a function of tensors a faster forward pass and a gradient in closed form.

    The decorated function is the simple form. It defines the value, and it is what autograd differentiates wherever
    more than a plain
    gradient is asked for: second derivatives, `torch.func`, forward mode, batched gradients, `torch.compile`, and lower
    precision. Its tensors are positional; its numbers are keywords without default.

    Args:
        forward: (*tensors, **numbers) → output or outputs, and the tensors to save for the backward pass.
        backward: (tensors, saved, gradients of the outputs, needs, **numbers) → gradients of the tensors. `needs` says
            which tensors need a gradient; None is a gradient that is not needed. Gradients and saved tensors must stay
            unchanged.

    >>> def value(x):
    ...     return x.square().sum(), ()
    >>> def gradient(tensors, saved, gradients, needs):
    ...     return (2 * gradients[0] * tensors[0],)
    >>> @closed_form(value, gradient)
    ... def energy(x):
    ...     return (x * x).sum()
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.grad(energy(x), x), torch.func.grad(energy)(x.detach())
    ((tensor([2., 4.]),), tensor([2., 4.]))
    """

    def decorate(simple: F) -> F:
        class ClosedForm(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, numbers: dict[str, Any], *tensors: Tensor) -> Any:
                # A mode sees one function, as it sees one operation of torch. Otherwise `fullrank check` would record
                # each operation here, which runs without gradient, as a stop-gradient of the objective.
                with torch._C.DisableTorchFunction():
                    outputs, saved = forward(*tensors, **numbers)
                ctx.numbers, ctx.count = numbers, len(tensors)
                ctx.save_for_backward(*tensors, *saved)
                return outputs

            @staticmethod
            def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
                tensors, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
                needs = ctx.needs_input_grad[1:]
                if (
                    torch.is_grad_enabled() or _transformed() or any(map(_batched, gradients))
                ):  # of second order, or batched
                    return None, *_differentiate(simple, tensors, gradients, needs, ctx.numbers)
                return None, *backward(tensors, saved, gradients, needs, **ctx.numbers)

        @wraps(simple)
        def function(*tensors: Tensor, **numbers: Any) -> Any:
            return ClosedForm.apply(numbers, *tensors) if plain(*tensors) else simple(*tensors, **numbers)

        return function  # pyright: ignore[reportReturnType]

    return decorate


def plain(*tensors: Tensor) -> bool:
    """Return whether a closed form applies: float32 or float64, no autocast, no transform of `torch.func`, no forward
    mode, no compilation.

    >>> plain(torch.ones(2)), plain(torch.ones(2, dtype=torch.bfloat16))
    (True, False)
    """
    device = tensors[0].device.type
    return (
        not torch.compiler.is_compiling()
        and not _transformed()
        and all(
            t.dtype in (torch.float32, torch.float64) and forward_ad.unpack_dual(t).tangent is None for t in tensors
        )
        and not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device))
    )


def _transformed() -> bool:
    """Return whether a transform of `torch.func` is active; torch has no public function for it."""
    return torch._C._are_functorch_transforms_active()


def _batched(gradient: Tensor) -> bool:
    """Return whether this is a batch of gradients, by `is_grads_batched` or by `vectorize`; torch has no public
    function for it.
    """
    return torch._C._functorch.is_legacy_batchedtensor(gradient)  # pyright: ignore[reportAttributeAccessIssue]


def _differentiate(
    simple: Callable[..., Any],
    tensors: Sequence[Tensor],
    gradients: Sequence[Tensor],
    needs: Sequence[bool],
    numbers: dict[str, Any],
) -> list[Tensor | None]:
    """Return the gradients by autograd of the simple form; they have gradients themselves if grad mode is on."""
    second_order = torch.is_grad_enabled()
    with torch.enable_grad():
        tensors = [t.view_as(t) for t in tensors]  # one tensor may be given twice, or depend on another
        outputs = simple(*tensors, **numbers)
    inputs = [t for t, need in zip(tensors, needs, strict=True) if need]
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    found = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=second_order, allow_unused=True))
    return [next(found) if need else None for need in needs]
