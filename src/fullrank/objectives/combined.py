"""Weighted sums of objectives, and schedules from one to another: "frossl(end=10) + 0.5 byol(start=10)"."""

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from fullrank.errors import UserError, pick
from fullrank.objectives.signature import EPOCH, hyperparameters
from fullrank.objectives.terms import Terms

# Objectives whose authors change the embeddings before the objective, which would change those of other summands.
ALONE = ("spectral_contrastive", "corinfomax")


@dataclass(frozen=True)
class Summand:
    """An objective of a sum.

    Attributes:
        name: Its name.
        objective: The function, with its hyperparameters.
        weight: The factor of its terms.
        start: The epoch from which it counts.
        end: The epoch from which it counts no more.
    """

    name: str
    objective: partial[Terms]
    weight: float
    start: float = 0.0
    end: float = math.inf

    def arguments(self) -> dict[str, inspect.Parameter]:
        """Return the parameters of the objective that are not hyperparameters."""
        hyper = hyperparameters(self.objective)
        return {name: p for name, p in inspect.signature(self.objective).parameters.items() if name not in hyper}


class CombinedObjective:
    """A weighted sum of objectives, which is an objective: a function of the tensors of all its summands.

    It has no hyperparameters, because its text has their values. Its terms have the names "byol prediction" and so on.
    A summand that does not count in an epoch has the weight 0, so that the parameters that only it uses keep a
    gradient, as DistributedDataParallel requires. Adam's weight decay moves them then; that of AdamW hardly does.

    Attributes:
        summands: The objectives of the sum.
        owner: The objective of the state, with its hyperparameters; None without a state.

    Args:
        text: summands joined by `+`. A summand is the name of an objective, with a weight before it, and with
            hyperparameters in parentheses after it: "frossl + 0.5 simclr(temperature=0.2)". Among these, `start` and
            `end` are the epochs from which the summand counts, and counts no more.
        objectives: the objectives by name.

    Raises:
        UserError: the text has another form, an objective or a hyperparameter is unknown, an objective occurs twice,
            several have a state, one is of `ALONE`, or none counts in some epoch.

    >>> import torch
    >>> from fullrank.objectives import OBJECTIVES
    >>> loss = CombinedObjective("frossl(end=10) + 0.5 byol(start=10)", OBJECTIVES)
    >>> Z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]]).expand(2, 4, 2)
    >>> loss(Z, Z, -Z, epoch=15.0)
    {'frossl variance': tensor(0.), 'frossl invariance': tensor(0.), 'byol prediction': tensor(4.)}
    """

    def __init__(self, text: str, objectives: Mapping[str, Callable[..., Terms]]) -> None:
        self.__name__ = text
        self.summands = tuple(_summands(text, objectives))
        names = [summand.name for summand in self.summands]
        owners = [summand.objective for summand in self.summands if hasattr(summand.objective.func, "state")]
        if len({*names}) < len(names):
            raise UserError(f"objective '{text}' has an objective twice; give each once, with one weight")
        if len(owners) > 1:
            raise UserError(f"objective '{text}' has {len(owners)} objectives with a state; give at most one of them")
        if alone := [name for name in names if name in ALONE]:
            raise UserError(f"{alone[0]} limits or normalises the embeddings and cannot be in a sum; leave it out")
        for epoch in [0.0, *(summand.end for summand in self.summands if summand.end < math.inf)]:
            if not any(summand.start <= epoch < summand.end for summand in self.summands):
                raise UserError(f"objective '{text}': no objective counts in epoch {epoch:g}; change start or end")
        self.owner = owners[0] if owners else None
        self.state = getattr(self.owner.func, "state") if self.owner else None  # noqa: B009
        parameters: dict[str, inspect.Parameter] = {}
        for name, parameter in (pair for summand in self.summands for pair in summand.arguments().items()):
            exact = str(getattr(parameter.annotation, "dim_str", "")).startswith("2")  # exactly two views
            parameters[name] = parameter if exact else parameters.get(name, parameter)
        if any(summand.start > 0 or summand.end < math.inf for summand in self.summands):
            parameters[EPOCH] = inspect.Parameter(EPOCH, inspect.Parameter.KEYWORD_ONLY)
        order = sorted(parameters.values(), key=lambda p: (p.kind, p.default is None))  # optional tensors last
        self.__signature__ = inspect.Signature(order)
        self._uses = [(summand, tuple(inspect.signature(summand.objective).parameters)) for summand in self.summands]
        self._known = {EPOCH, *(name for _, names in self._uses for name in names)}
        self._tensors = [p.name for p in order if p.kind is not p.KEYWORD_ONLY]

    def __call__(self, *tensors: Tensor, **keywords: Any) -> Terms:
        if len(tensors) > len(self._tensors) or (unknown := keywords.keys() - self._known):
            received = f"{len(tensors)} tensors" if len(tensors) > len(self._tensors) else ", ".join(unknown)
            raise UserError(f"{self.__name__} got {received}, expected {', '.join(self._tensors)}")
        given = dict(zip(self._tensors, tensors, strict=False)) | keywords
        epoch, terms = given.get(EPOCH, 0.0), {}
        for summand, names in self._uses:
            weight = summand.weight if summand.start <= epoch < summand.end else 0.0
            found = summand.objective(**{name: given[name] for name in names if name in given})
            terms |= {f"{summand.name} {term}": weight * value for term, value in found.items()}
        return terms


def _summands(text: str, objectives: Mapping[str, Callable[..., Terms]]) -> Iterator[Summand]:
    example = "'frossl + 0.5 byol' or 'frossl(end=10) + byol(start=10)'"
    try:
        tree = ast.parse(re.sub(r"(?<=[\d.])\s+(?=[a-z])", " * ", text.strip()), mode="eval").body
        parts = [_part(node) for node in _addends(tree)]
    except (SyntaxError, ValueError, TypeError, RecursionError):
        raise UserError(f"objective {text!r:.200} is no sum of objectives, expected for example {example}") from None
    for name, weight, given, epochs in parts:
        function = pick(name, objectives, "objective")
        for key in given:
            pick(key, hyperparameters(function), f"hyperparameter of {name}")
        yield Summand(name, partial(function, **given), weight, **epochs)


def _addends(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield from _addends(left)
            yield right
        case _:
            yield node


def _part(node: ast.expr, weight: float = 1.0) -> tuple[str, float, dict[str, Any], dict[str, float]]:
    """Return the name of a summand, its weight, its hyperparameters and its epochs."""
    match node:
        case ast.BinOp(ast.Constant(float() | int() as factor), ast.Mult(), part) if weight == 1:
            return _part(part, float(factor))
        case ast.Name(name):
            return name, weight, {}, {}
        case ast.Call(ast.Name(name), [], keywords):
            given = {str(each.arg): ast.literal_eval(each.value) for each in keywords}
            epochs = {key: float(given.pop(key)) for key in ("start", "end") if key in given}
            return name, weight, given, epochs
    raise ValueError(node)
