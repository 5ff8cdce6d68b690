"""What the signature of an objective declares: its tensors, number of views, hyperparameters, and whether it draws
random numbers.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fullrank.objectives.terms import Terms
from fullrank.signatures import GENERATOR, optional_tensor_names, tensor_names

__all__ = [
    "GENERATOR",
    "bind_shared_hyperparameters",
    "hyperparameters",
    "optional_tensor_names",
    "required_views",
    "takes_generator",
    "tensor_names",
]

T = TypeVar("T")


def hyperparameters(objective: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of an objective with their defaults, or with the values that a
    `functools.partial` binds.

    `generator` is not among them, because the training loop supplies it.

    >>> from functools import partial
    >>> from fullrank.objectives import vicreg
    >>> hyperparameters(partial(vicreg, covariance=4.0))
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    keyword_only = (p for p in inspect.signature(objective).parameters.values() if p.kind is p.KEYWORD_ONLY)
    return {p.name: p.default for p in keyword_only if p.name != GENERATOR}


def takes_generator(function: Callable[..., Any]) -> bool:
    """Return whether a function draws random numbers from a keyword-only argument `generator: torch.Generator`.

    >>> def sliced(Z, *, generator):
    ...     return {}
    >>> takes_generator(sliced), hyperparameters(sliced)
    (True, {})
    """
    parameter = inspect.signature(function).parameters.get(GENERATOR)
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


def bind_shared_hyperparameters(update: Callable[..., T], objective: Callable[..., Any]) -> Callable[..., T]:
    """Return the update of a state, with the hyperparameters that it shares with the objective bound to the objective's
    values.

    >>> from functools import partial
    >>> from fullrank.objectives.tico import tico, tico_covariance
    >>> hyperparameters(bind_shared_hyperparameters(tico_covariance, partial(tico, forgetting=0.5)))
    {'forgetting': 0.5}
    """
    values = hyperparameters(objective)
    return partial(update, **{name: values[name] for name in hyperparameters(update) if name in values})


def required_views(objective: Callable[..., Terms]) -> int | None:
    """Return 2 if the first tensor is annotated with exactly two views, "2 N D"; None if the objective takes any number
    V ≥ 2.

    >>> from fullrank.objectives import frossl, vicreg
    >>> required_views(frossl), required_views(vicreg)
    (None, 2)
    """
    first = next(iter(inspect.signature(objective).parameters.values()))
    return 2 if getattr(first.annotation, "dim_str", "").startswith("2 ") else None
