"""The state of an objective: tensors that it carries from batch to batch, such as a queue, a centre or running
moments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from fullrank.errors import UserError
from fullrank.objectives.signature import bind_shared_hyperparameters, tensor_names
from fullrank.objectives.terms import Terms

F = TypeVar("F", bound=Callable[..., Terms])


@dataclass(frozen=True)
class ObjectiveState:
    """The description of a state: its tensors, their initial values, and the update after a batch.

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
    """Name of each tensor → its axes, and the function from its shape to its initial value, for example torch.zeros.
    An axis is V (views), D (dimensions), K (prototypes), size (rows of a queue), or an integer."""
    update: Callable[..., Tensor | tuple[Tensor, ...]]
    """A pure function of embeddings and state by name. It returns the new tensors in the order of `tensors`, or a
    single tensor."""

    def initial(self, **sizes: int) -> dict[str, Tensor]:
        """Return the state before the first batch.

        Raises:
            UserError: the size of an axis is unknown.
        """

        def shape(name: str, axes: str) -> list[int]:
            if unknown := [axis for axis in axes.split() if not axis.isdecimal() and axis not in sizes]:
                known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
                raise UserError(
                    f"state '{name}' has the axis {unknown[0]}, whose size is unknown here; use an integer, or one of {known}"
                )
            return [int(axis) if axis.isdecimal() else sizes[axis] for axis in axes.split()]

        return {name: initial(*shape(name, axes)) for name, (axes, initial) in self.tensors.items()}

    def next(self, tensors: Mapping[str, Tensor], *, objective: Callable[..., Any]) -> dict[str, Tensor]:
        """Return the state after a batch.

        Args:
            tensors: embeddings of the whole batch, and the current state.
            objective: the objective; a hyperparameter that it shares with the update, such as `forgetting`, has the
                same value in both.
        """
        update = bind_shared_hyperparameters(self.update, objective)
        new = update(*(tensors[name] for name in tensor_names(update)))
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
