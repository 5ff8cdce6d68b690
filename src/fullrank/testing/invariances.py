"""Measurement of invariances: which changes of the embeddings leave the value of an objective unchanged."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fullrank.testing.check_result import CheckResult, info
from fullrank.testing.objective_case import ObjectiveCase, loss_of, value_and_grad

Tensors = Mapping[str, Tensor]
Transform = Callable[[ObjectiveCase, Tensors, torch.Generator], Tensors]
"""A function of all tensors of an objective, in float64."""

ROUNDING = 1e-9
"""Largest change of the value, in units of Σ|terms|, that counts as rounding."""


def check_invariances(case: ObjectiveCase) -> list[CheckResult]:
    """Report for each transform whether the value changes; no invariance is required."""
    return [
        info(f"invariant under {name}", "yes" if change <= ROUNDING else f"no: value changes by {change:.2g}")
        for name, change in relative_changes(case).items()
    ]


def relative_changes(case: ObjectiveCase) -> dict[str, float]:
    """Return the change of the value, in units of Σ|terms|, under each transform of the embeddings.

    >>> from fullrank.testing.objective_case import objective_case
    >>> from fullrank.objectives import simclr
    >>> [name for name, change in relative_changes(objective_case(simclr)).items() if change > ROUNDING]
    ['scale of each dimension', 'shift of each dimension']
    """
    tensors = case.random_tensors(torch.Generator().manual_seed(0))
    before = value_and_grad(case, tensors)
    after = {
        name: loss_of(case, transform(case, tensors, torch.Generator().manual_seed(1)))
        for name, transform in TRANSFORMS.items()
    }
    return {name: ((loss - before.loss).abs() / before.scale).item() for name, loss in after.items()}


def _transform_samples(transform: Callable[[Tensor, torch.Generator], Tensor]) -> Transform:
    """Return a transform of all embeddings and targets, with the same random numbers for each tensor."""

    def apply(case: ObjectiveCase, tensors: Tensors, generator: torch.Generator) -> Tensors:
        state, samples = generator.get_state(), case.embedding_names + case.target_names
        return {name: transform(t, generator.set_state(state)) if name in samples else t for name, t in tensors.items()}

    return apply


def _transform_space(matrix: Callable[[int, torch.Generator], Tensor]) -> Transform:
    """Return an orthogonal transform of the embedding space, including the state; `matrix` returns its (D, D)
    matrix.
    """

    def apply(case: ObjectiveCase, tensors: Tensors, generator: torch.Generator) -> Tensors:
        A = matrix(next(iter(tensors.values())).shape[-1], generator)
        axes = {name: axes for name, (axes, _) in case.state.tensors.items()} if case.state else {}
        return {name: A.mT @ t @ A if axes.get(name, "").endswith("D D") else t @ A for name, t in tensors.items()}

    return apply


def _flip_views(case: ObjectiveCase, tensors: Tensors, generator: torch.Generator) -> Tensors:
    """Reverse the views, and the state tensors that have one entry per view."""
    axes = {name: axes for name, (axes, _) in case.state.tensors.items()} if case.state else {}
    return {
        name: t.flip(0) if (axes[name].startswith("V") if name in axes else t.ndim == 3) else t
        for name, t in tensors.items()
    }


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5


TRANSFORMS: dict[str, Transform] = {
    "order of samples": _transform_samples(lambda t, g: t[..., torch.randperm(t.shape[-2], generator=g), :]),
    "order of dimensions": _transform_space(
        lambda D, g: torch.eye(D, dtype=torch.float64)[torch.randperm(D, generator=g)]
    ),
    "order of views": _flip_views,
    "rotation": _transform_space(lambda D, g: torch.linalg.qr(torch.randn(D, D, generator=g, dtype=torch.float64)).Q),
    "scale": _transform_samples(lambda t, g: 1.7 * t),
    "scale of each dimension": _transform_samples(lambda t, g: _uniform(g, t.shape[-1]) * t),
    "shift of each dimension": _transform_samples(
        lambda t, g: t + torch.randn(t.shape[-1], generator=g, dtype=torch.float64)
    ),
    "scale of each row": _transform_samples(lambda t, g: _uniform(g, *t.shape[:-1], 1) * t),
}
"""Name → transform of the tensors."""
