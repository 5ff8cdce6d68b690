"""Checks of arguments that several theories share."""

import functools
import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

import torch
from jaxtyping import AbstractArray
from torch import Tensor

from fullrank.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def tensor_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Check, before each call, the arguments that are annotated as tensors: their type, number of axes and precision.

    They are float32 or float64 tensors, all of one dtype (times `t` may have another), with as many axes as the
    annotation names.

    Raises:
        UserError: when called with a list, integers, complex or half-precision numbers, two dtypes, or a wrong number
            of axes.

    >>> from jaxtyping import Float
    >>> @tensor_arguments
    ... def double(x: Float[Tensor, "n d"]) -> Tensor:
    ...     return 2 * x
    >>> double([[1.0]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    fullrank.errors.UserError: x is a list, expected a float64 tensor (n, d); convert it with ...
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    annotated = {name: dims for name, p in parameters.items() if (dims := _axes(p.annotation)) is not None}

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        dtypes: dict[torch.dtype, str] = {}
        for name, given in (*zip(names, args, strict=False), *kwargs.items()):
            if name not in annotated or (given is None and parameters[name].default is None):
                continue
            axes, is_sequence = annotated[name]
            for value in given if is_sequence and isinstance(given, (list, tuple)) else (given,):
                dtype = _check_tensor(value, name, axes)
                if name != "t":
                    dtypes[dtype] = name
        if len(dtypes) > 1:
            (one, a), (other, b) = (
                (name, str(dtype).removeprefix("torch.")) for dtype, name in list(dtypes.items())[:2]
            )
            raise UserError(f"{one} is {a} and {other} is {b}, expected one precision; convert them with .double()")
        return function(*args, **kwargs)

    return checked


def _axes(annotation: Any) -> tuple[list[str], bool] | None:
    """Return the axes of an annotated tensor, and whether it is a sequence of tensors; None for other annotations."""
    if inspect.isclass(annotation) and issubclass(annotation, AbstractArray):
        return annotation.dim_str.split(), False
    if get_origin(annotation) not in (UnionType, Union, Sequence):
        return None
    found = [axes for part in get_args(annotation) if (axes := _axes(part)) is not None]
    return (found[0][0], get_origin(annotation) is Sequence) if found else None


def _check_tensor(value: object, name: str, axes: list[str]) -> torch.dtype:
    """Check one argument, and return its dtype."""
    shape = f"({', '.join(axes)})"
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        what = (
            f"a {str(value.dtype).removeprefix('torch.')} tensor"
            if isinstance(value, Tensor)
            else f"a {type(value).__name__}"
        )
        remedy = f"{name}.double()" if isinstance(value, Tensor) else f"torch.tensor({name}, dtype=torch.float64)"
        raise UserError(f"{name} is {what}, expected a float64 tensor {shape}; convert it with {remedy}")
    variadic = any(axis.startswith(("*", "...")) for axis in axes)
    fixed = sum(not axis.startswith(("*", "...")) for axis in axes)
    if value.ndim < fixed or (value.ndim > fixed and not variadic):
        raise UserError(
            f"{name} has shape {tuple(value.shape)}, expected {shape}: {fixed} axes"
            f"{' or more' if variadic else ''}; reshape it"
        )
    return value.dtype


def check_symmetric(A: Tensor, name: str, remedy: str) -> None:
    """Check that A is square and equal to its transpose, up to rounding; `name` and `remedy` are parts of the error
    message.

    Raises:
        UserError: A is not symmetric or not finite.

    >>> check_symmetric(torch.eye(2), "C", "give (C + Cᵀ)/2")
    """
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        raise UserError(f"{name} of shape {tuple(A.shape)} is not symmetric; give a square matrix")
    if not A.isfinite().all():
        raise UserError(
            f"{name} has NaN or infinite entries, expected finite entries; check the data that it was computed from"
        )
    gap = (A - A.mT).abs().max()
    if gap > 1e-6 * A.abs().max():
        raise UserError(
            f"{name} is not symmetric: entries differ by up to {gap:.3g} from those across the diagonal; {remedy}"
        )


def check_steps(steps: Sequence[int]) -> None:
    """Check the steps to record: at least one, ascending, from 0 on.

    Raises:
        UserError: the steps are empty or do not ascend from 0 on.
    """
    if not steps or steps[0] < 0 or any(b <= a for a, b in pairwise(steps)):
        raise UserError(f"steps must ascend from 0 or later, received {list(steps)}; sort them and remove duplicates")


def rounding_tolerance(dtype: torch.dtype) -> float:
    """Return how far from 1 the length of an output can be by rounding alone.

    >>> rounding_tolerance(torch.float64)
    1e-12
    """
    return 1e-12 if dtype == torch.float64 else 1e-6


def check_output_length(q: Tensor, tolerance: float = 1e-9) -> None:
    """Check that q = VᵀW1ᵀW2 can come from orthonormal weights: its spectral norm is at most 1.

    Raises:
        UserError: the norm is above 1, or an output is not finite.
    """
    if not q.isfinite().all():
        raise UserError("q0 has NaN or infinite entries, expected outputs of at most length 1; compute q0 = VᵀW1ᵀW2")
    length = torch.linalg.matrix_norm(q, 2).item()
    if length > 1 + max(tolerance, rounding_tolerance(q.dtype)):
        raise UserError(
            f"q0 has length {length:g}, but outputs of orthonormal weights have at most 1; compute q0 = VᵀW1ᵀW2"
        )
