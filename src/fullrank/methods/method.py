"""What surrounds an objective: networks that turn views into the named tensors which the objective takes."""

import inspect
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.objectives import Terms


class Method(nn.Module):
    """Abstract: subclasses say in `forward` how views become embeddings; `terms` and `after_step` are hooks with a default.

    `forward` returns at least "R", the representations (V_0, n, D_b) of the full-size views, and every tensor that the objective names.
    """

    backbone: nn.Module
    """Images (n, C, S, S) to representations (n, D_b): what is kept."""
    projector: nn.Module
    """Representations (n, D_b) to embeddings (n, D): what the objective sees."""
    objective: Callable[..., Terms]
    """Takes embeddings of the whole batch."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the tensors that the objective takes: its positional arguments."""
        parameters = inspect.signature(self.objective).parameters.values()
        return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Tensor]:
        """Embed this process's share of the batch: `views` is a list of (V_k, n, C, S_k, S_k), one entry a size, full size first."""
        raise NotImplementedError

    def terms(self, embeddings: dict[str, Tensor]) -> Terms:
        """Return the objective's terms on the embeddings of the whole batch, in float32 or better under any autocast.

        A hook: a method whose objective takes state (a queue, a centre) adds it here.
        """
        with torch.autocast(next(iter(embeddings.values())).device.type, enabled=False):
            return self.objective(**{name: at_least_float32(embeddings[name]) for name in self.needs})

    def after_step(self, step: int) -> None:
        """Do nothing: a hook, called after optimizer step `step` (from 0), for a target network or a queue."""


def at_least_float32(Z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast half precision up to float32; leave float32 and float64 alone.

    >>> at_least_float32(torch.ones(2, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(2, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return Z.float() if Z.dtype in (torch.float16, torch.bfloat16) else Z
