"""The check of an objective's tensors at each call, from the axes in its signature; a wrong call is an error, never a
number.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_args

from torch import Tensor

from fullrank.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def checks_shapes(objective: F) -> F:
    """Return the objective with a check of its tensors: their number, their axes, and the number of views. A decorator.

    The axes are those of the annotations, for example "2 N D" or "V N D". Axes of one name have the same length in all
    tensors. A tensor with the default None may be left out.

    Raises:
        UserError: at a call with other tensors.

    >>> import torch
    >>> from fullrank.objectives import vicreg
    >>> vicreg(torch.zeros(3, 8, 4))
    Traceback (most recent call last):
    fullrank.errors.UserError: vicreg: Z has V = 3 views, shape (3, 8, 4), expected exactly 2, (2, N, D); choose two views, or use frossl
    """
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(objective).parameters.values() if p.kind in positional]
    axes = {p.name: _axes(p.annotation) for p in parameters}
    needed = {p.name: axes[p.name] for p in parameters if p.default is not None}
    name = getattr(objective, "__name__", "objective")

    @wraps(objective)
    def checked(*tensors: Any, **keywords: Any) -> Any:
        if len(tensors) > len(axes):
            raise UserError(
                f"{name}: got {len(tensors)} arguments by position, expected {_describe(needed)}; {_stacked(name, needed)}"
            )
        sizes: dict[str, int] = {}
        for position, (key, names) in enumerate(axes.items()):
            if position < len(tensors) or key in keywords:
                tensor = tensors[position] if position < len(tensors) else keywords[key]
                if tensor is not None or key in needed:
                    _check_tensor(name, key, names, tensor, sizes, needed)
        return objective(*tensors, **keywords)

    return checked  # pyright: ignore[reportReturnType]


def _axes(annotation: Any) -> tuple[str, ...]:
    """Return the names of the axes in an annotation, also in `Float[Tensor, "N D"] | None`."""
    return next(
        (tuple(kind.dim_str.split()) for kind in (annotation, *get_args(annotation)) if hasattr(kind, "dim_str")), ()
    )


def _check_tensor(
    name: str, key: str, names: tuple[str, ...], tensor: Any, sizes: dict[str, int], axes: dict[str, tuple[str, ...]]
) -> None:
    expected = f"({', '.join(names)})"
    if not isinstance(tensor, Tensor):
        raise UserError(
            f"{name}: {key} is a {type(tensor).__name__}, expected a tensor {expected}; {_stacked(name, axes)}"
        )
    shape = tuple(tensor.shape)
    if len(shape) != len(names):
        raise UserError(f"{name}: {key} has the shape {shape}, expected {expected}; {_stacked(name, axes)}")
    for position, (axis, size) in enumerate(zip(names, shape, strict=True)):
        if axis.isdecimal() and size != int(axis):
            views = f"V = {size} views, shape {shape}" if position == 0 else f"the shape {shape}"
            raise UserError(
                f"{name}: {key} has {views}, expected exactly {axis}, {expected}; choose two views, or use frossl"
            )
        if not axis.isdecimal() and sizes.setdefault(axis, size) != size:
            raise UserError(
                f"{name}: {key} has the shape {shape}, expected {axis} = {sizes[axis]} as in the tensors before, {expected}"
            )


def _describe(axes: dict[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{key} ({', '.join(names)})" for key, names in axes.items())


def _stacked(name: str, axes: dict[str, tuple[str, ...]]) -> str:
    """Return the remedy for views that are not in one tensor."""
    views = ", ".join(
        f"torch.stack([{key.lower()}1, {key.lower()}2])" if len(names) == 3 else key for key, names in axes.items()
    )
    return f"join the views of a batch in one tensor, for example {name}({views})"
