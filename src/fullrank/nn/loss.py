"""Every objective as a module."""

from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.distributed import gather, on_shards, pays_to_share, require_equal_shapes, world_size
from fullrank.errors import UserError, pick
from fullrank.methods.heads import ClipToUnitBall, L2Normalize
from fullrank.methods.method import OBJECTIVE_STREAM, StateBuffers, at_least_float32
from fullrank.objectives import Objective, Terms, find_objective, find_state, is_of_sums, total
from fullrank.objectives.balance import balance
from fullrank.objectives.signature import EPOCH, GENERATOR, hyperparameters, takes, tensor_names
from fullrank.seeding import mix, seeded

# Objective → what its authors do with the embeddings before it. Without it, the first is not bounded below.
BEFORE: dict[str, type[nn.Module]] = {"spectral_contrastive": ClipToUnitBall, "corinfomax": L2Normalize}
LABELS = "labels"
Embeddings = Tensor | Sequence[Tensor]  # views, or all views of one kind


class Loss(nn.Module):
    """An objective as a module, for a training loop of your own.

        criterion = Loss("vicreg")
        loss = criterion(z0, z1)                        # embeddings (n, D) of two views; of more where it takes them

    An objective of student and teacher takes the views of each: `Loss("byol")((p0, p1), (t0, t1))`, with predictions P
    and targets T. `docs/own-loop.md` lists the tensors of each objective.

    With several processes, n is the share of a process: the loss is that of the whole batch, and after the average of
    DistributedDataParallel so is its gradient. All computation is in float32 or better, under any autocast. A state,
    such as MoCo's queue, is in the buffers; a call in train mode updates it.

    Attributes:
        terms: The weighted terms of the last call by name, without gradient, to log them.
        epoch: The number of epochs so far, for an objective with a schedule. Set it in your loop.

    Args:
        objective: a name in `fullrank.objectives.OBJECTIVES`, a sum such as "frossl + 0.5 byol", or a function of
            this form.
        seed: of the random numbers of an objective that draws some, and of a first queue.
        settings: hyperparameters of the objective; "balanced" is the number of `fullrank.objectives.balance`. For a
            state, also the sizes of its axes: D, K prototypes, or the `size` of a queue.

    Raises:
        UserError: the objective or a setting is unknown, or the size of an axis of the state is missing; at a call:
            tensors of another number or shape.

    >>> z0, z1 = torch.randn(2, 8, 4)
    >>> criterion = Loss("frossl", invariance="balanced")
    >>> loss = criterion(z0, z1)
    >>> sorted(criterion.terms), bool(loss == sum(criterion.terms.values()))
    (['invariance', 'variance'], True)
    """

    def __init__(self, objective: str | Objective, *, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        function = find_objective(objective) if isinstance(objective, str) else objective
        named = function
        while isinstance(named, partial):
            named = named.func
        self.name = getattr(named, "__name__", "objective")
        state, hyper = find_state(function), hyperparameters(function)
        axes = {axis for names, _ in state.tensors.values() for axis in names.split()} if state else set()
        axes = {axis for axis in axes if axis != "V" and not axis.isdecimal()}
        for name in settings:
            pick(name, dict.fromkeys([*hyper, *axes]), f"setting of {self.name}")
        sizes: dict[str, Any] = {axis: settings.get(axis) for axis in sorted(axes)}
        if unknown := [axis for axis, n in sizes.items() if not isinstance(n, Integral) or int(n) < 1]:
            call = f"Loss({self.name!r}, {', '.join(f'{axis}=…' for axis in sorted(axes))})"
            raise UserError(f"{unknown[0]} is {sizes[unknown[0]]!r}, expected a size of the state, 1 or more: {call}")
        self.hyper = {name: value for name, value in settings.items() if name in hyper}
        self.objective = partial(function, **{name: x for name, x in self.hyper.items() if x != "balanced"})
        owner = getattr(function, "owner", None) or self.objective  # of a sum, the objective that has the state
        with seeded(seed):  # the first queue is the same on each process
            self.state = StateBuffers(state, owner, V=2, **sizes) if state else None
        self.before = BEFORE[self.name]() if self.name in BEFORE else nn.Identity()
        self.inputs = [name for name in tensor_names(function) if not (state and name in state.tensors)]
        self.inputs.sort(key=LABELS.__eq__)  # they come last
        self.terms: dict[str, Tensor] = {}
        self.epoch = 0.0
        self.seed = seed
        draws = takes(self.objective, GENERATOR)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64) if draws else None)

    def forward(self, *views: Embeddings, **named: Embeddings) -> Tensor:
        """Return the loss.

        Args:
            views: the views (n, D) of an objective of one kind of embedding, or one sequence or tensor (V, n, D) for
                each kind.
            named: these by name, and the `labels` (n,) of an objective that takes them.

        Raises:
            UserError: an argument is unknown, missing or too many, or the views of a kind are not two or more (n, D).
        """
        for name in named:
            pick(name, dict.fromkeys(self.inputs), f"argument of Loss({self.name!r})")
        kinds = [name for name in self.inputs if name not in named]
        if len(kinds) == 1 and not (len(views) == 1 and _is_stack(views[0])):
            views = (views,)  # pyright: ignore[reportAssignmentType]
        if len(views) != len(kinds):
            expected = f"({', '.join(self.inputs)}), with the views of each in a sequence"
            raise UserError(f"Loss({self.name!r}) got {len(views)} arguments, expected {expected}")
        given = named | dict(zip(kinds, views, strict=True))
        tensors = {
            name: x if name == LABELS and isinstance(x, Tensor) else self._stack(name, x) for name, x in given.items()
        }
        with torch.autocast(tensors[self.inputs[0]].device.type, enabled=False):
            require_equal_shapes(*tensors.values())
            for name, x in tensors.items():
                tensors[name] = x if name == LABELS else self.before(at_least_float32(x))
            updates = self.state if self.training else None
            if is_of_sums(self.objective) and pays_to_share(tensors[self.inputs[0]]):
                terms = on_shards(self._terms, tensors)
                tensors = {name: gather(x.detach(), checked=True) for name, x in tensors.items() if updates}
            else:
                tensors = {name: gather(x, checked=True) for name, x in tensors.items()}
                terms = self._terms(tensors)
            if updates:
                updates.update({name: x.detach() for name, x in tensors.items()})
        if self.training and self.calls is not None:
            self.calls += 1
        self.terms = {name: x.detach() for name, x in terms.items()}
        return total(terms)

    def _stack(self, name: str, views: Embeddings) -> Tensor:
        """Return the views of one kind as (V, n, D)."""
        shapes = [tuple(getattr(view, "shape", ())) for view in views]
        if len(shapes) < 2 or len({*shapes}) > 1 or len(shapes[0]) != 2 or shapes[0][0] * world_size() < 2:
            expected = "two or more views (n, D) of one shape, of a batch of at least two images"
            raise UserError(f"Loss({self.name!r}): {name} has views of shape {shapes}, expected {expected}")
        return views if isinstance(views, Tensor) else torch.stack([*views])

    def _terms(self, tensors: dict[str, Tensor]) -> Terms:
        """Return the terms of the embeddings of all processes."""
        dtype, state = tensors[self.inputs[0]].dtype, self.state.tensors() if self.state else {}
        # Copies, because the update comes before the backward pass.
        arguments = tensors | {name: x.to(dtype, copy=True) for name, x in state.items()}
        return self.objective(*(arguments[name] for name in tensor_names(self.objective)), **self._numbers(tensors))

    def _numbers(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the hyperparameters that depend on the batch, and the random numbers, which are those of all
        processes.
        """
        V, N, D = tensors[self.inputs[0]].shape
        numbers: dict[str, Any] = {name: x for name, x in self.hyper.items() if x == "balanced"}
        if numbers:
            known = balance(self.name, N=N, D=D, V=V, log=hyperparameters(self.objective).get("log", True))
            numbers = {name: pick(name, known, f"balanced setting of {self.name}") for name in numbers}
        if takes(self.objective, EPOCH):
            numbers[EPOCH] = self.epoch
        if self.calls is not None:
            numbers[GENERATOR] = torch.Generator().manual_seed(mix(self.seed, int(self.calls), OBJECTIVE_STREAM))
        return numbers

    def extra_repr(self) -> str:
        """Return the objective and its settings."""
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.hyper.items())])


def _is_stack(views: Embeddings) -> bool:
    """Return whether an argument holds all views, and not one view (n, D)."""
    return not isinstance(views, Tensor) or views.ndim == 3
