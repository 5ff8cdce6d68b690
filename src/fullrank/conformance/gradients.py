"""The gradient: for every embedding, for no target and no state, and that of finite differences."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import gradcheck

from fullrank.conformance.finding import CheckResult, noted, required
from fullrank.conformance.held import Held
from fullrank.conformance.loss import largest, loss_of, take
from fullrank.conformance.subject import ObjectiveCase


def reach(subject: ObjectiveCase) -> list[CheckResult]:
    """Each view of the embeddings gets a finite gradient; targets and state get none."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    gradients = take(subject, tensors).gradients
    without = [name for name in subject.embeddings if not all(view.any() for view in gradients[name])]
    infinite = [name for name in subject.embeddings if not gradients[name].isfinite().all()]
    faults = [*(f"none for a view of {name}" for name in without), *(f"not finite for {name}" for name in infinite)]
    steepest = largest(gradients[name] for name in subject.embeddings)
    found = [
        required(
            "reaches every view",
            not faults,
            measured="; ".join(faults) or f"largest component {steepest:.2g}",
            expected=f"a finite gradient for {', '.join(subject.embeddings)}",
            remedy="let every view enter the loss; one that only serves as a target is T or K",
        )
    ]
    if still := subject.targets + subject.state:
        leaks = [name for name in still if gradients[name].any()]
        found.append(
            required(
                "leaves targets and state alone",
                not leaks,
                measured=f"a gradient for {', '.join(leaks)}" if leaks else "no gradient",
                expected=f"no gradient for {', '.join(still)}",
                remedy="detach them inside: they come from a target network or from earlier batches",
            )
        )
    return found


def finite_differences(subject: ObjectiveCase) -> list[CheckResult]:
    """Autograd's gradient is that of central differences, in float64."""
    name = "equals finite differences"
    tensors = subject.draw(torch.Generator().manual_seed(0), N=8, D=4)
    points = [tensors[key].detach().clone().requires_grad_() for key in subject.embeddings]

    def plain(*embeddings: Tensor) -> Tensor:
        return loss_of(subject, tensors | dict(zip(subject.embeddings, embeddings, strict=True)))

    if _agree(plain, points):
        return [required(name, True, measured="yes", expected="gradcheck in float64", remedy="")]
    held = Held()
    with held:
        plain(*points)

    def with_stops(*embeddings: Tensor) -> Tensor:
        with torch.enable_grad(), held.again():
            return plain(*embeddings)

    if held.tape and _agree(with_stops, points):
        return [noted(name, "yes, with what it detaches held fixed")]
    return [
        required(
            name,
            False,
            measured="no",
            expected="gradcheck in float64",
            remedy="look for an in-place change, .data, or a backward of your own",
        )
    ]


def _agree(function: Callable[..., Tensor], points: list[Tensor]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gradcheck(function, points, raise_exception=False)
