"""Checks of the terms: their form, precision and purity, and the weights of terms."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullrank.objectives.signature import hyperparameters, takes_generator
from fullrank.objectives.terms import RETURN_FORM, TAKE_A_GENERATOR, GlobalRandomState, form_error
from fullrank.testing.check_result import CheckResult, info, required
from fullrank.testing.objective_case import ObjectiveCase, call, terms_of

ROUNDING = 1e-12
"""Largest rounding difference of two calls, in units of the largest term; products round differently at other memory
addresses."""


def check_terms(case: ObjectiveCase) -> list[CheckResult]:
    """Check that the objective returns named, finite, differentiable scalars in the precision of the embeddings, and
    that it is pure.
    """
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    returned: Any = call(case, {name: t.clone().requires_grad_() for name, t in tensors.items()})
    error = form_error(returned)
    results = [
        required(
            "returns terms",
            not error,
            measured=error or ", ".join(returned),
            expected="scalars by name",
            remedy=RETURN_FORM,
        )
    ]
    if error and not (isinstance(returned, Tensor) and returned.ndim == 0):  # the other checks accept a bare scalar
        return results
    values: list[Tensor] = list(returned.values()) if isinstance(returned, dict) else [returned]
    loss = torch.stack(values).sum()
    return [
        *results,
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
            remedy="create new tensors like the embeddings: Z.new_zeros(…), or dtype=Z.dtype",
        ),
        required(
            "differentiable",
            loss.requires_grad,
            measured="has a gradient" if loss.requires_grad else "is detached from the embeddings",
            expected="a gradient",
            remedy="remove detach, no_grad, item, and numpy between the embeddings and the loss",
        ),
        _check_purity(case, tensors, torch.stack(values).detach()),
        *([_compare_seeds(case, tensors)] if takes_generator(case.objective) else []),
    ]


def _check_purity(case: ObjectiveCase, tensors: dict[str, Tensor], first: Tensor) -> CheckResult:
    """Check that a second call gives the same terms, draws no random numbers, and changes no argument."""
    copies = {name: t.clone() for name, t in tensors.items()}
    state = GlobalRandomState()
    second = torch.stack(list(terms_of(case, copies).values()))
    changed = [name for name, t in tensors.items() if not torch.equal(t, copies[name])]
    difference = (second - first).abs().max().item()
    drawn = state.changed()
    errors = [f"draws from the global generator of {' and '.join(drawn)}"] if drawn else []
    errors += [f"changes {', '.join(changed)} in place"] if changed else []
    errors += (
        [] if difference <= ROUNDING * first.abs().max().item() else [f"differs by {difference:.2g} at the second call"]
    )
    return required(
        "pure",
        not errors,
        measured="; ".join(errors) or "the same value twice",
        expected="a function only of its tensors",
        remedy=f"take state as an argument, {TAKE_A_GENERATOR}, and change no argument in place",
    )


def _compare_seeds(case: ObjectiveCase, tensors: dict[str, Tensor]) -> CheckResult:
    """Report how much the loss changes with the seed of the generator."""
    losses = torch.stack(
        [torch.stack(list(terms_of(case, tensors, seed=seed).values())).sum().detach() for seed in range(8)]
    )
    return info(
        "random numbers",
        f"from `generator`: the loss is {losses.mean().item():.4g} ± {losses.std().item():.2g} over eight seeds",
    )


def check_weights(case: ObjectiveCase) -> list[CheckResult]:
    """Check that a hyperparameter with the name of a term is its weight: doubling the weight doubles this term and no
    other.
    """
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    terms = terms_of(case, tensors)
    results = []
    for name, default in hyperparameters(case.objective).items():
        if name in terms:
            doubled = terms_of(replace(case, objective=partial(case.objective, **{name: 2 * default})), tensors)
            wrong = [t for t in terms if not _is_close(doubled[t], terms[t] * (2 if t == name else 1))]
            results.append(
                required(
                    f"weight {name}",
                    not wrong,
                    measured=f"changes {', '.join(wrong)}" if wrong else "doubles only its term",
                    expected="doubles the term of its name, no other",
                    remedy="multiply the term by the hyperparameter, or rename one of them",
                )
            )
    return results


def _is_close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs() <= 1e-12 * b.abs().clamp_min(1e-300))
