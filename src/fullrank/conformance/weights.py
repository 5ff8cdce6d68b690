"""The numbers of an objective: one that bears the name of a term is its weight."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fullrank.conformance.finding import CheckResult, required
from fullrank.conformance.loss import terms_of
from fullrank.conformance.subject import ObjectiveCase
from fullrank.objectives.signature import hyperparameters


def weights(subject: ObjectiveCase) -> list[CheckResult]:
    """A number that bears the name of a term is its weight, and doubles this term alone."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    terms = terms_of(subject, tensors)
    found = []
    for name, default in hyperparameters(subject.objective).items():
        if name in terms:
            doubled = terms_of(replace(subject, objective=partial(subject.objective, **{name: 2 * default})), tensors)
            wrong = [t for t in terms if not _close(doubled[t], terms[t] * (2 if t == name else 1))]
            found.append(
                required(
                    f"weight {name}",
                    not wrong,
                    measured=f"changes {', '.join(wrong)}" if wrong else "doubles its term alone",
                    expected="doubles the term of its name, no other",
                    remedy="multiply the term by the number, or give one of them another name",
                )
            )
    return found


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs() <= 1e-12 * b.abs().clamp_min(1e-300))
