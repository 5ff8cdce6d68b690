"""The numbers of an objective: one that bears the name of a term is its weight."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fullrank.contract.finding import Finding, required
from fullrank.contract.loss import terms_of
from fullrank.contract.subject import Subject
from fullrank.objectives.signature import numbers_of


def weights(subject: Subject) -> list[Finding]:
    """A number that bears the name of a term is its weight, and doubles this term alone."""
    tensors = subject.draw(torch.Generator().manual_seed(0))
    terms = terms_of(subject, tensors)
    found = []
    for name, default in numbers_of(subject.objective).items():
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
