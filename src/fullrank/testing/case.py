"""A test case: an objective, the tensors on which it is tested, its loss and its gradients."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError, suggest
from fullrank.methods.builders import BY_TENSORS
from fullrank.objectives import Objective, ObjectiveState, Terms, find_state, total
from fullrank.objectives.algebra import unit
from fullrank.objectives.signature import EPOCH, GENERATOR, hyperparameters, required_views, takes, tensor_names
from fullrank.seeding import seeded

# Name → shape, and a function from embeddings (V, N, D) to the tensor. With the identity as prototypes, the cosines
# equal the normalised embeddings.
EMBEDDINGS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "Z": ("(V, N, D) embeddings", lambda X: X),
    "R": ("(V, N, D) representations", lambda X: X),
    "P": ("(V, N, D) predictions", lambda X: X),
    "Q": ("(V, N, D) queries", lambda X: X),
    "S": ("(V, N, K) cosines with prototypes", lambda X: unit(X, dim=-1)),
    "U": ("(N, D) anchors", lambda X: X[0]),
    "U_pos": ("(N, D) their positives", lambda X: X[1]),
    "U_neg": ("(N, D) their negatives", lambda X: X[2]),
}
TARGETS = {"T": "(V, N, D) targets, without gradient", "K": "(V, N, D) keys, without gradient"}


@dataclass(frozen=True, kw_only=True)
class ObjectiveCase:
    """An objective to test. Tensor argument names follow the convention of `Method` (Z, P, T, …), which determines
    their role.

    Attributes:
        objective: The function, with its hyperparameters bound if they differ from the defaults.
        views: Number V of views of the test tensors: 2 if the objective takes only 2 views, else 3.
    """

    name: str
    objective: Objective
    views: int

    @property
    def state(self) -> ObjectiveState:
        """The description of the objective's state; without tensors if it has none."""
        return find_state(self.objective) or ObjectiveState({}, update=lambda: ())

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors, which are the same on every process."""
        return tuple(self.state.tensors)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the per-sample tensors that do not require a gradient."""
        names = tensor_names(self.objective)
        return tuple(name for name in names if name in TARGETS and name not in self.state_names)

    @property
    def embedding_names(self) -> tuple[str, ...]:
        """Names of the per-sample tensors that require a gradient."""
        return tuple(name for name in tensor_names(self.objective) if name not in (*TARGETS, *self.state_names))

    def tensors(
        self, X: Float[Tensor, "V N D"], T: Float[Tensor, "V N D"], state: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors that the objective takes, computed from embeddings X, targets T and a state."""
        make = {name: EMBEDDINGS.get(name, EMBEDDINGS["Z"])[1] for name in self.embedding_names}
        constants = dict.fromkeys(self.target_names, T.detach()) | dict(state)
        return {name: make[name](X) if name in make else constants[name] for name in tensor_names(self.objective)}

    def initial_state(self, *, D: int, size: int, seed: int = 0) -> dict[str, Tensor]:
        """Return the state before the first batch; `size` is the number of rows of a queue."""
        with seeded(seed):
            return self.state.initial(V=self.views, D=D, K=D, size=size)

    def next_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state after a batch, given the tensors of the batch and the current state."""
        return self.state.next(tensors, objective=self.objective)

    def sample_state(self, generator: torch.Generator, *, D: int) -> dict[str, Tensor]:
        """Return the state after five random batches with different means, in float64."""
        state = {name: t.double() for name, t in self.initial_state(D=D, size=3 * D + 1).items()}
        for _ in range(5):
            X, T = torch.randn(2, self.views, 4 * D, D, generator=generator, dtype=torch.float64)
            X_mean, T_mean = 0.5 * torch.randn(2, D, generator=generator, dtype=torch.float64)
            state = self.next_state(self.tensors(X + X_mean, T + T_mean, state))
        return state

    def random_tensors(self, *, N: int = 12, D: int = 5, seed: int = 0) -> dict[str, Tensor]:
        """Return random tensors by name, in float64."""
        generator = torch.Generator().manual_seed(seed)
        X, T = torch.randn(2, self.views, N, D, generator=generator, dtype=torch.float64)
        return self.tensors(X, T, self.sample_state(generator, D=D))


def objective_case(objective: Objective, *, name: str = "", hyper: Mapping[str, Any] | None = None) -> ObjectiveCase:
    """Return the test case of an objective, with the hyperparameters `hyper` bound.

    A tensor of a method that `fullrank.methods.builders.BY_TENSORS` lists, but the library does not know, is tested
    like Z (V, N, D).

    Raises:
        UserError: the objective takes a tensor that no method supplies, or has a hyperparameter without a default.

    >>> from fullrank.objectives import vicreg
    >>> case = objective_case(vicreg)
    >>> case.name, case.views, {name: tuple(t.shape) for name, t in case.random_tensors().items()}
    ('vicreg', 2, {'Z': (2, 12, 5)})
    """
    name = name or getattr(objective, "__name__", type(objective).__name__)
    case = ObjectiveCase(name=name, objective=partial(objective, **hyper) if hyper else objective, views=3)
    known = {key: shape for key, (shape, _) in EMBEDDINGS.items()} | TARGETS
    if "labels" in case.embedding_names:
        raise UserError(f"'{name}' takes labels, which no test draws; check a function of Z that gives it fixed labels")
    supplied = {*known, *(tensor for names in BY_TENSORS for tensor in names)}
    if unknown := [tensor for tensor in case.embedding_names if tensor not in supplied]:
        raise UserError(
            f"'{name}' takes '{unknown[0]}' by position, but no method supplies it{suggest(unknown[0], known)}; make "
            "hyperparameters keyword-only (after `*`), declare a state with `@stateful`, register a method in "
            f"BY_TENSORS, or use one of {', '.join(f'{key} {shape}' for key, shape in known.items())}"
        )
    if not case.embedding_names:
        raise UserError(f"'{name}' takes no embeddings by position; write def {name.split(':')[-1]}(Z, *, …)")
    numbers = hyperparameters(case.objective)
    if missing := [key for key, default in numbers.items() if default is inspect.Parameter.empty]:
        remedy = f"give it in the signature, or set hyper.{missing[0]}"
        raise UserError(f"'{name}' has no default for {', '.join(missing)}; {remedy}")
    return case if required_views(case.objective) is None and _uses_every_view(case) else replace(case, views=2)


def _uses_every_view(case: ObjectiveCase) -> bool:
    """Return whether every view gets a gradient. The objective is called, because its signature may have no shapes."""
    name, tensors = case.embedding_names[0], case.random_tensors()
    if tensors[name].ndim < 3:
        return True
    try:
        loss = loss_of(case, tensors | {name: tensors[name].requires_grad_()})
        (gradient,) = torch.autograd.grad(loss, tensors[name])
    except Exception:  # of any type, from a function of two views
        return False
    return bool(gradient[-1].any())


class LossAndGradients(NamedTuple):
    """The loss of an objective on some tensors, and its gradients.

    Attributes:
        scale: Σ |terms|, or 1 if all are zero. Tolerances are relative to this, not to the loss, because terms can
            cancel.
        gradients: By the name of the tensor; zeros for a tensor without gradient.
    """

    loss: Tensor
    scale: float
    gradients: dict[str, Tensor]


def call(case: ObjectiveCase, tensors: Mapping[str, Tensor], *, seed: int = 0) -> Any:
    """Return what the objective returns at epoch 0, with a new generator from `seed` if it draws random numbers."""
    given: dict[str, Any] = {EPOCH: 0.0} if takes(case.objective, EPOCH) else {}
    if takes(case.objective, GENERATOR):
        given[GENERATOR] = torch.Generator().manual_seed(seed)
    return case.objective(**tensors, **given)


def terms_of(case: ObjectiveCase, tensors: Mapping[str, Tensor], *, seed: int = 0) -> Terms:
    """Return the terms. A bare tensor, which `check_terms` reports, counts as a single term."""
    terms = call(case, tensors, seed=seed)
    return {"loss": terms} if isinstance(terms, Tensor) else terms


def loss_of(case: ObjectiveCase, tensors: Mapping[str, Tensor], *, seed: int = 0) -> Tensor:
    """Return the sum of the terms.

    >>> from fullrank.objectives import vicreg
    >>> loss_of(objective_case(vicreg), {"Z": torch.zeros(2, 4, 3)})
    tensor(24.7500)
    """
    return total(terms_of(case, tensors, seed=seed))


def value_and_grad(
    case: ObjectiveCase, tensors: Mapping[str, Tensor], *, dtype: torch.dtype = torch.float64
) -> LossAndGradients:
    """Return the loss and the gradients at copies of `tensors` in `dtype`."""
    copies = {name: t.detach().to(dtype, copy=True).requires_grad_() for name, t in tensors.items()}
    terms = torch.stack(list(terms_of(case, copies).values()))
    gradients = torch.autograd.grad(terms.sum(), list(copies.values()), materialize_grads=True)
    scale = terms.detach().abs().sum().item() or 1.0
    return LossAndGradients(terms.detach().sum(), scale, dict(zip(copies, gradients, strict=True)))


def max_abs(tensors: Iterable[Tensor]) -> float:
    """Return the largest absolute value; NaN if any value is NaN.

    >>> max_abs([torch.ones(2), torch.tensor([-3.0])])
    3.0
    """
    return torch.cat([t.detach().flatten() for t in tensors]).abs().max().item()
