"""What is examined: an objective, and how the tensors that it names are made from embeddings."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError, suggest
from fullrank.objectives import Objective, total
from fullrank.objectives.algebra import unit
from fullrank.objectives.signature import hyperparameters, required_views, tensor_names

# Name → shape, and the tensor from embeddings (V, N, D). Cosines with orthonormal prototypes are the unit row itself.
EMBEDDINGS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "Z": ("(V, N, D) embeddings", lambda X: X),
    "R": ("(V, N, D) representations, where it stands without mu", lambda X: X),
    "P": ("(V, N, D) predictions", lambda X: X),
    "Q": ("(V, N, D) queries", lambda X: X),
    "S": ("(V, N, K) cosines with prototypes", lambda X: unit(X, dim=-1)),
    "U": ("(N, D) anchors", lambda X: X[0]),
    "U_pos": ("(N, D) their positives", lambda X: X[1]),
    "U_neg": ("(N, D) their negatives", lambda X: X[2]),
}
TARGETS = {
    "T": "(V, N, D) targets, without gradient",
    "K": "(V, N, D) keys, without gradient",
}
STATE = {
    "queue": "(size, D) unit rows, keys of earlier batches",
    "c": "(K,) a running centre",
    "C": "(D, D) a running covariance",
    "R": "(V, D, D) running covariances, beside mu",
    "mu": "(V, D) running means",
}


@dataclass(frozen=True, kw_only=True)
class ObjectiveCase:
    """An objective under examination. The names of its tensors are those of a method, and say what they are."""

    name: str
    objective: Objective
    """Its numbers are at their defaults, or bound."""
    views: int
    """V that it is examined at: 2 where it takes no other, else 3."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of its tensors, in the order of its signature."""
        return tensor_names(self.objective)

    @property
    def state(self) -> tuple[str, ...]:
        """Names of those that are no samples: the same on every process."""
        return tuple(name for name in self.tensors if name in STATE and (name != "R" or "mu" in self.tensors))

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the samples that get no gradient."""
        return tuple(name for name in self.tensors if name in TARGETS)

    @property
    def embeddings(self) -> tuple[str, ...]:
        """Names of the samples that get one."""
        return tuple(name for name in self.tensors if name not in self.state + self.targets)

    def supply(self, X: Float[Tensor, "V N D"], T: Float[Tensor, "V N D"], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its tensors, from embeddings X, targets T, and what does not come from this batch."""
        made = {name: EMBEDDINGS[name][1](X) for name in self.embeddings} | {name: T.detach() for name in self.targets}
        return {name: (made | dict(state))[name] for name in self.tensors}

    def draw_state(self, rng: torch.Generator, *, D: int) -> dict[str, Tensor]:
        """Return a state as a few batches could have left it, in float64."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        def positive(*shape: int) -> Tensor:
            A = normal(*shape, D, 2 * D)
            return A @ A.mT / (2 * D)

        draw: dict[str, Callable[[], Tensor]] = {
            "queue": lambda: unit(normal(3 * D + 1, D), dim=-1),
            "c": lambda: 0.1 * normal(D),
            "C": lambda: positive() / D,  # of unit rows
            "R": lambda: positive(self.views),
            "mu": lambda: 0.1 * normal(self.views, D),
        }
        return {name: draw[name]() for name in self.state}

    def draw(self, rng: torch.Generator, *, N: int = 12, D: int = 5) -> dict[str, Tensor]:
        """Return random tensors of each of its names, in float64."""
        X, T = torch.randn(2, self.views, N, D, generator=rng, dtype=torch.float64)
        return self.supply(X, T, self.draw_state(rng, D=D))


def objective_case(objective: Objective, *, name: str = "", numbers: Mapping[str, Any] | None = None) -> ObjectiveCase:
    """Return an objective with its `numbers` bound, ready for examination.

    Raises:
        UserError: it takes a tensor whose name no method supplies, or a number without a default.

    >>> from fullrank.objectives import vicreg
    >>> subject = objective_case(vicreg)
    >>> subject.name, subject.views, {name: tuple(t.shape) for name, t in subject.draw(torch.Generator()).items()}
    ('vicreg', 2, {'Z': (2, 12, 5)})
    """
    name = name or getattr(objective, "__name__", type(objective).__name__)
    bound = partial(objective, **numbers) if numbers else objective
    known = {key: shape for key, (shape, _) in EMBEDDINGS.items()} | TARGETS | STATE
    if not tensor_names(bound):
        raise UserError(f"'{name}' takes no tensor by position, expected embeddings Z (V, N, D); write def {name.split(':')[-1]}(Z, *, …)")
    for tensor in tensor_names(bound):
        if tensor not in known:
            shapes = ", ".join(f"{key} {shape}" for key, shape in known.items())
            raise UserError(
                f"'{name}' takes '{tensor}' by position, which is no tensor of a method{suggest(tensor, known)}; "
                f"numbers stand behind a *, tensors are {shapes}"
            )
    if missing := [number for number, default in hyperparameters(bound).items() if default is inspect.Parameter.empty]:
        raise UserError(f"'{name}' has no default for {', '.join(missing)}; give each one in the signature, or by --hyper.{missing[0]}")
    subject = ObjectiveCase(name=name, objective=bound, views=3)
    return subject if required_views(bound) is None and _uses_every_view(subject) else ObjectiveCase(name=name, objective=bound, views=2)


def _uses_every_view(subject: ObjectiveCase) -> bool:
    """Whether it takes as many views as it is given; a function without annotation is asked by a call."""
    tensors = {name: t.requires_grad_(name in subject.embeddings) for name, t in subject.draw(torch.Generator()).items()}
    first = tensors[subject.embeddings[0]] if subject.embeddings else None
    if first is None or first.ndim < 3:
        return True
    try:
        terms = subject.objective(**tensors)
        loss = total(terms) if isinstance(terms, dict) else terms
        (gradient,) = torch.autograd.grad(loss, [first])
    except Exception:  # whatever a function of the user's does with a number of views that it is not for; it is called again, with two
        return False
    return bool(gradient[-1].any())
