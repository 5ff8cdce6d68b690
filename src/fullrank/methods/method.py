"""What surrounds an objective: networks that turn views into the named tensors which the objective takes."""

import inspect
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.objectives import Terms


class Method(nn.Module):
    """Abstract: subclasses say in `forward` how views become embeddings; `terms` and `after_step` are hooks with a default.

    `forward` returns at least "R", the representations (V, n, D_b) of the full-size views, and every tensor that the objective names.
    """

    backbone: nn.Module
    projector: nn.Module
    objective: Callable[..., Terms]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the tensors that the objective takes: its positional arguments."""
        parameters = inspect.signature(self.objective).parameters.values()
        return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))

    def forward(self, views: list[Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError

    def terms(self, embeddings: dict[str, Tensor]) -> Terms:
        """Return the objective's terms on the embeddings of the whole batch, in float32 or better under any autocast."""
        with torch.autocast(next(iter(embeddings.values())).device.type, enabled=False):
            return self.objective(**{name: at_least_float32(embeddings[name]) for name in self.needs})

    def after_step(self, step: int) -> None:
        """Called after each optimizer step: the place for a target network or a queue."""


def at_least_float32(Z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast half precision up to float32; leave float32 and float64 alone."""
    return Z.float() if Z.dtype in (torch.float16, torch.bfloat16) else Z
