"""What an objective's signature says: which tensors it takes, for how many views, and which numbers."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fullrank.objectives.terms import Terms

T = TypeVar("T")


def tensor_names(objective: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors that an objective takes: its positional arguments.

    >>> from fullrank.objectives import frossl
    >>> tensor_names(frossl)
    ('Z',)
    """
    parameters = inspect.signature(objective).parameters.values()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def hyperparameters(objective: Callable[..., Any]) -> dict[str, Any]:
    """Return the numbers of an objective, its keyword-only arguments, with their defaults, or what a `functools.partial` made of them.

    >>> from functools import partial
    >>> from fullrank.objectives import vicreg
    >>> hyperparameters(partial(vicreg, covariance=4.0))
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    return {p.name: p.default for p in inspect.signature(objective).parameters.values() if p.kind is p.KEYWORD_ONLY}


def in_step(update: Callable[..., T], objective: Callable[..., Terms]) -> Callable[..., T]:
    """Return the update of a state with those of its numbers bound that the objective has too: what both name, both take alike.

    >>> from functools import partial
    >>> from fullrank.objectives.tico import tico, tico_covariance
    >>> hyperparameters(in_step(tico_covariance, partial(tico, forgetting=0.5)))
    {'forgetting': 0.5}
    """
    own = hyperparameters(objective)
    return partial(update, **{name: own[name] for name in hyperparameters(update) if name in own})


def required_views(objective: Callable[..., Terms]) -> int | None:
    """Return 2 where the first tensor is annotated as that of exactly two views, "2 N D"; None where any number V ≥ 2 will do.

    >>> from fullrank.objectives import frossl, vicreg
    >>> required_views(frossl), required_views(vicreg)
    (None, 2)
    """
    first = next(iter(inspect.signature(objective).parameters.values()))
    return 2 if getattr(first.annotation, "dim_str", "").startswith("2 ") else None
