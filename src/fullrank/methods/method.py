"""What surrounds an objective: networks that turn views into the named tensors which the objective takes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.objectives import Terms
from fullrank.objectives.signature import tensors_of


@dataclass(frozen=True)
class Clock:
    """How long a run is, for what follows a schedule: a target's momentum, prototypes that are frozen at first."""

    steps_per_epoch: int = 1
    total: int = 0
    """Steps of the run; 0 where nobody knows: then nothing that is scheduled changes."""


class Method(nn.Module):
    """Abstract: subclasses say in `forward` how views become embeddings. `state`, `before_step` and `after_step` are hooks with a default.

    `forward` returns "R", the representations (V_0, n, D_b) of the full-size views, "Z", the projector's output (V, n, D) for all views,
    and every other tensor of samples that the objective names.
    """

    backbone: nn.Module
    """Images (n, C, S, S) to representations (n, D_b): what is kept."""
    projector: nn.Module
    """Representations (n, D_b) to embeddings (n, D)."""
    objective: Callable[..., Terms]
    """Takes tensors of the whole batch, and the method's state."""
    clock: Clock = Clock()
    """Set by whoever trains, before the first step."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the embeddings that the objective takes: its positional arguments, without those that are the method's state."""
        return tuple(name for name in tensors_of(self.objective) if name not in self.state())

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Tensor]:
        """Embed this process's share of the batch: `views` is a list of (V_k, n, C, S_k, S_k), one entry a size, full size first."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return nothing: a hook, for what the objective takes beside embeddings (a queue, a centre), the same on every process."""
        return {}

    def terms(self, embeddings: dict[str, Tensor]) -> Terms:
        """Return the objective's terms on the embeddings of the whole batch, in float32 or better under any autocast."""
        with torch.autocast(next(iter(embeddings.values())).device.type, enabled=False):
            known = {name: at_least_float32(embeddings[name]) for name in self.needs} | self.state()
            return self.objective(*(known[name] for name in tensors_of(self.objective)))

    def before_step(self, step: int) -> None:
        """Do nothing: a hook, called before optimizer step `step` (from 0), for what is frozen at first."""

    def after_step(self, step: int, embeddings: dict[str, Tensor]) -> None:
        """Do nothing: a hook, called after optimizer step `step` (from 0), for a target network or the state.

        Args:
            step: its number.
            embeddings: what the objective took, of the whole batch, without gradient.
        """


def at_least_float32(Z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Cast half precision up to float32; leave float32 and float64 alone.

    >>> at_least_float32(torch.ones(2, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(2, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return Z.float() if Z.dtype in (torch.float16, torch.bfloat16) else Z
