"""What an objective declares by its signature: its tensors and their axes, its hyperparameters, and its state."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, get_args

from torch import Tensor

from fullrank.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])

# Names of the arguments through which an objective gets its random numbers, and the epochs trained before the step.
GENERATOR, EPOCH = "generator", "epoch"


def tensor_names(objective: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors that an objective needs: its positional arguments, except those with the default
    None.

    >>> from fullrank.objectives import moco, swav
    >>> tensor_names(moco), tensor_names(swav)
    (('Q', 'K', 'queue'), ('S',))
    """
    return tuple(p.name for p in _positional(objective) if p.default is not None)


def takes_representations(objective: Callable[..., Any]) -> bool:
    """Return whether an objective takes R, and nothing else but labels.

    >>> takes_representations(lambda R, labels: {}), takes_representations(lambda Z, R: {})
    (True, False)
    """
    return {*tensor_names(objective)} - {"labels"} == {"R"}


def optional_tensor_names(objective: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the tensors that an objective takes but does not need: its positional arguments with the
    default None.

    >>> from fullrank.objectives import swav
    >>> optional_tensor_names(swav)
    ('queue',)
    """
    return tuple(p.name for p in _positional(objective) if p.default is None)


def hyperparameters(objective: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only arguments of an objective with their defaults, or with the values that a
    `functools.partial` binds.

    `generator` and `epoch` are not among them, because the training loop supplies them.

    >>> from functools import partial
    >>> from fullrank.objectives import vicreg
    >>> hyperparameters(partial(vicreg, covariance=4.0))
    {'invariance': 25.0, 'variance': 25.0, 'covariance': 4.0}
    """
    keyword_only = (p for p in inspect.signature(objective).parameters.values() if p.kind is p.KEYWORD_ONLY)
    return {p.name: p.default for p in keyword_only if p.name not in (GENERATOR, EPOCH)}


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a keyword-only argument of that name: `generator: torch.Generator`, or `epoch`.

    >>> def sliced(Z, *, generator):
    ...     return {}
    >>> takes(sliced, "generator"), hyperparameters(sliced)
    (True, {})
    """
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


def required_views(objective: Callable[..., Any]) -> int | None:
    """Return 2 if a tensor is annotated with exactly two views, "2 N D"; None if the objective takes any number V ≥ 2.

    >>> from fullrank.objectives import frossl, vicreg
    >>> required_views(frossl), required_views(vicreg)
    (None, 2)
    """
    return 2 if any(axis_names(parameter)[:1] == ("2",) for parameter in _positional(objective)) else None


def _positional(objective: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(objective).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def axis_names(parameter: inspect.Parameter) -> tuple[str, ...]:
    """Return the names of the axes in an annotation, also in `Float[Tensor, "N D"] | None`."""
    kinds = (parameter.annotation, *get_args(parameter.annotation))
    return next((tuple(kind.dim_str.split()) for kind in kinds if hasattr(kind, "dim_str")), ())


def checks_shapes(objective: F) -> F:
    """Return the objective with a check of its tensors: floats, their number, axes, and views. A decorator.

    The axes are those of the annotations, for example "2 N D" or "V N D". Axes of one name have the same length in all
    tensors. A tensor with the default None may be left out.

    Raises:
        UserError: at a call with other tensors.

    >>> import torch
    >>> from fullrank.objectives import vicreg
    >>> vicreg(torch.zeros(3, 8, 4))
    Traceback (most recent call last):
    fullrank.errors.UserError: vicreg: Z has the shape (3, 8, 4), expected (2, N, D), exactly 2 views; choose two views, or use frossl
    """  # noqa: E501
    name = getattr(objective, "__name__", "objective")
    axes = {p.name: (axis_names(p), p.default is None) for p in _positional(objective)}
    required = [(key, names) for key, (names, optional) in axes.items() if not optional]
    stacked = (f"torch.stack([{key.lower()}1, {key.lower()}2])" if len(names) == 3 else key for key, names in required)
    remedy = f"join the views of a batch in one tensor, for example {name}({', '.join(stacked)})"

    @wraps(objective)
    def checked(*tensors: Any, **keywords: Any) -> Any:
        if len(tensors) > len(axes):
            raise UserError(f"{name}: got {len(tensors)} arguments by position, expected {', '.join(axes)}; {remedy}")
        sizes: dict[str, int] = {}
        given = dict(zip(axes, tensors, strict=False)) | keywords
        for key, (names, optional) in axes.items():
            absent = key not in given or (optional and given[key] is None)
            if not absent and (error := _shape_error(given[key], names, sizes, remedy)):
                raise UserError(f"{name}: {key} {error}")
        return objective(*tensors, **keywords)

    return checked  # pyright: ignore[reportReturnType]


def _shape_error(tensor: Any, axes: tuple[str, ...], sizes: dict[str, int], remedy: str) -> str:
    """Return what is wrong with the shape of a tensor, or an empty string; add the lengths of its axes to `sizes`."""
    expected = f"({', '.join(axes)})"
    if not isinstance(tensor, Tensor):
        return f"is a {type(tensor).__name__}, expected a tensor {expected}; {remedy}"
    shape = tuple(tensor.shape)
    if not tensor.is_floating_point():
        return f"has the type {tensor.dtype}, expected floats {expected}; call .float()"
    if len(shape) != len(axes):
        return f"has the shape {shape}, expected {expected}; {remedy}"
    for axis, size in zip(axes, shape, strict=True):
        if axis.isdecimal() and size != int(axis):
            return f"has the shape {shape}, expected {expected}, exactly {axis} views; choose two views, or use frossl"
        if not axis.isdecimal() and sizes.setdefault(axis, size) != size:
            return f"has the shape {shape}, expected {expected} with {axis} = {sizes[axis]} as in the tensors before"
    return ""


@dataclass(frozen=True)
class ObjectiveState:
    """The state of an objective: tensors that it carries from batch to batch, such as a queue, a centre or running
    moments; with their initial values and the update after a batch.

    Attributes:
        tensors: Name of each tensor → its axes, and the function from its shape to its initial value, for example
            torch.zeros. An axis is V (views), D (dimensions), K (prototypes), size (rows of a queue), or an integer.
        update: A pure function of embeddings and state by name. It returns the new tensors in the order of `tensors`,
            or a single tensor.

    >>> import torch
    >>> def running_mean(Z, mean, *, momentum=0.9):
    ...     return momentum * mean + (1 - momentum) * Z.mean((0, 1))
    >>> state = ObjectiveState({"mean": ("D", torch.zeros)}, running_mean)
    >>> state.initial(D=2)
    {'mean': tensor([0., 0.])}
    >>> state.next({"Z": torch.ones(2, 8, 2), "mean": torch.zeros(2)}, objective=lambda Z, mean: {})
    {'mean': tensor([0.1000, 0.1000])}
    """

    tensors: Mapping[str, tuple[str, Callable[..., Tensor]]]
    update: Callable[..., Tensor | tuple[Tensor, ...]]

    def initial(self, **sizes: int) -> dict[str, Tensor]:
        """Return the state before the first batch.

        Raises:
            UserError: the size of an axis is unknown.
        """
        state = {}
        for name, (axes, initial) in self.tensors.items():
            if unknown := [axis for axis in axes.split() if not (axis.isdecimal() or sizes.get(axis))]:
                known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items() if size)
                axis = f"the axis {unknown[0]}, whose size is unknown here"
                raise UserError(f"state '{name}' has {axis}; use an integer, or one of {known}")
            state[name] = initial(*(sizes.get(axis) or int(axis) for axis in axes.split()))
        return state

    def next(self, tensors: Mapping[str, Tensor], *, objective: Callable[..., Any]) -> dict[str, Tensor]:
        """Return the state after a batch.

        Args:
            tensors: embeddings of the whole batch, and the current state.
            objective: the objective; a hyperparameter that it shares with the update, such as `forgetting`, has the
                same value in both.
        """
        shared = hyperparameters(objective)
        numbers = {name: shared[name] for name in hyperparameters(self.update) if name in shared}
        new = self.update(*(tensors[name] for name in tensor_names(self.update)), **numbers)
        return dict(zip(self.tensors, (new,) if isinstance(new, Tensor) else new, strict=True))


def stateful(state: ObjectiveState) -> Callable[[F], F]:
    """Return a decorator that attaches a state to an objective, as its attribute `state`.

    >>> import torch
    >>> @stateful(ObjectiveState({"mean": ("D", torch.zeros)}, lambda Z, mean: Z.mean((0, 1))))
    ... def distance_to_last_mean(Z, mean):
    ...     return {"distance": (Z - mean).square().mean()}
    >>> list(distance_to_last_mean.state.tensors)
    ['mean']
    """

    def attach(objective: F) -> F:
        objective.state = state  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
        return objective

    return attach
