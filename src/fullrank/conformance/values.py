"""What an objective returns: weighted terms by name, finite scalars, the same ones for the same embeddings."""

from typing import Any

import torch
from torch import Tensor

from fullrank.conformance.finding import CheckResult, required
from fullrank.conformance.loss import terms_of
from fullrank.conformance.subject import ObjectiveCase

ROUNDING = 1e-12  # of the largest term: the same products are rounded anew where tensors lie elsewhere in memory
RETURN = 'return {"name": weighted scalar, …}; the loss is their sum'


def terms(subject: ObjectiveCase) -> list[CheckResult]:
    """Terms by name, each a finite scalar of the embeddings' precision, differentiable; pure: nothing remembered, drawn or overwritten."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    returned: Any = subject.objective(**{name: t.clone().requires_grad_() for name, t in tensors.items()})
    form = form_of(returned)
    found = [required("returns terms", not form, measured=form or ", ".join(returned), expected="scalars by name", remedy=RETURN)]
    if form and not (isinstance(returned, Tensor) and returned.ndim == 0):  # a bare scalar is examined further
        return found
    values: list[Tensor] = list(returned.values()) if isinstance(returned, dict) else [returned]
    loss = torch.stack(values).sum()
    return [
        *found,
        required(
            "finite",
            bool(loss.isfinite()),
            measured=f"loss {loss.item():.4g}",
            expected="a finite loss on normal embeddings",
            remedy="look for a division by zero, or the logarithm or root of a negative number",
        ),
        required(
            "keeps the precision",
            all(value.dtype == torch.float64 for value in values),
            measured=", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in values})),
            expected="float64 for float64",
            remedy="make new tensors like the embeddings: Z.new_zeros(…), or dtype=Z.dtype",
        ),
        required(
            "differentiable",
            loss.requires_grad,
            measured="has a gradient" if loss.requires_grad else "is detached from the embeddings",
            expected="a gradient",
            remedy="leave out detach, no_grad, item, and numpy on the way to the loss",
        ),
        *_pure(subject, tensors, torch.stack(values).detach()),
    ]


def form_of(returned: object) -> str:
    """What is wrong with the form of what an objective returned; empty if nothing.

    >>> form_of({"variance": torch.tensor(1.0)}), form_of({"variance": 1.0}), form_of(torch.ones(2))
    ('', "'variance' is a float", 'a bare tensor (2,)')
    """
    if isinstance(returned, Tensor):
        return f"a bare tensor {tuple(returned.shape)}"
    if not isinstance(returned, dict):
        return f"a {type(returned).__name__}"
    for name, value in returned.items():
        if not isinstance(value, Tensor):
            return f"'{name}' is a {type(value).__name__}"
        if value.shape:
            return f"'{name}' has the shape {tuple(value.shape)}"
    return "" if returned else "no term"


def _pure(subject: ObjectiveCase, tensors: dict[str, Tensor], first: Tensor) -> list[CheckResult]:
    copies = {name: t.clone() for name, t in tensors.items()}
    before = torch.get_rng_state()
    second = torch.stack(list(terms_of(subject, copies).values()))
    drawn = not torch.equal(before, torch.get_rng_state())
    overwritten = [name for name, t in tensors.items() if not torch.equal(t, copies[name])]
    difference = (second - first).abs().max().item()
    rounding = ROUNDING * first.abs().max().item()
    faults = [
        *(["draws random numbers"] if drawn else []),
        *([f"overwrites {', '.join(overwritten)}"] if overwritten else []),
        *([f"differs by {difference:.2g} at the second call"] if not difference <= rounding else []),
    ]
    return [
        required(
            "pure",
            not faults,
            measured="; ".join(faults) or "the same value twice",
            expected="a function of its tensors alone",
            remedy="take what it remembers or draws as an argument, and change no argument in place",
        )
    ]
