"""Where dimensions die: value and gradient at embeddings that have collapsed in part or wholly."""

import math

import torch
from torch import Tensor

from fullrank.conformance.finding import CheckResult, required
from fullrank.conformance.loss import largest, take
from fullrank.conformance.subject import ObjectiveCase

COLLAPSES = {
    # The mean of equal numbers is off by rounding for 0.1, exact for 0.5.
    "constant columns": lambda t: t.index_fill(-1, torch.tensor([1]), 0.1).index_fill(-1, torch.tensor([2]), 0.5),
    "zero column": lambda t: t.index_fill(-1, torch.tensor([1]), 0.0),
    "equal rows": lambda t: t[..., :1, :].expand_as(t),
    "equal rows and views": lambda t: t[(0,) * (t.ndim - 2)][:1].expand_as(t),
    "all zero": torch.zeros_like,
    "rank one": lambda t: t[..., :1].expand_as(t),
}


def collapse(subject: ObjectiveCase) -> list[CheckResult]:
    """Finite value and moderate gradient where dimensions, samples or all are equal; a residue of rounding, normalised, reaches 1/ε."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    samples = subject.embeddings + subject.targets
    limit = 100 * max(10.0, _steepest(take(subject, tensors).gradients, subject))  # of a gradient at living embeddings
    found = []
    for name, collapsed in COLLAPSES.items():
        at = {key: collapsed(t) if key in samples else t for key, t in tensors.items()}
        taken = [take(subject, at, dtype=dtype) for dtype in (torch.float32, torch.float64)]
        steepest = max((_steepest(t.gradients, subject) for t in taken), key=lambda g: math.inf if math.isnan(g) else g)
        finite = all(t.value.isfinite() for t in taken)
        found.append(
            required(
                f"collapse: {name}",
                finite and steepest < limit,  # NaN is not below
                measured=f"loss {taken[-1].value.item():.4g}, largest gradient {steepest:.2g}" if finite else "the loss is not finite",
                expected=f"finite, gradient below {limit:.2g}",
                remedy="guard the norm, logarithm or root at zero, in the backward pass too (clamp before, not after)",
            )
        )
    return found


def _steepest(gradients: dict[str, Tensor], subject: ObjectiveCase) -> float:
    return largest(gradients[name] for name in subject.embeddings)
