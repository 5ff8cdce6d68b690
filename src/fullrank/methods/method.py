"""What surrounds an objective: networks that turn views into the named tensors which the objective takes."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.heads import unfreeze_prototypes
from fullrank.methods.objective_state import ObjectiveState, no_memory
from fullrank.methods.precision import at_least_float32
from fullrank.methods.step_random import StepRandomModule
from fullrank.methods.training_length import TrainingLength
from fullrank.objectives import Terms
from fullrank.objectives.signature import tensor_names


class Method(nn.Module):
    """Abstract: subclasses say in `forward` how views become embeddings; `state`, `before_step` and `after_step` are hooks with a default.

    `forward` returns "R", the representations (V_0, n, D_b) of the full-size views, "Z", the projector's output (V, n, D) for all views,
    and every other tensor of samples that the objective names.

    Args:
        backbone: images (n, C, S, S) to representations (n, D_b): what is kept.
        projector: representations (n, D_b) to embeddings (n, D).
        objective: takes tensors of the whole batch, and the method's state.
        head: embeddings (n, D) to what the objective takes, where that is not Z: a predictor, prototypes.
        memory: what the objective takes beside embeddings.
    """

    training_length: TrainingLength = TrainingLength()
    """Set by whoever trains, before the first step."""

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        objective: Callable[..., Terms],
        *,
        head: nn.Module | None = None,
        memory: ObjectiveState | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        self.objective = objective
        self.head = head or nn.Identity()
        self.memory = memory or no_memory()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the embeddings that the objective takes: its positional arguments, without those that are the method's state."""
        return tuple(name for name in tensor_names(self.objective) if name not in self.state())

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Tensor]:
        """Embed this process's share of the batch: `views` is a list of (V_k, n, C, S_k, S_k), one entry a size, full size first."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return what the objective takes beside embeddings, the same on every process: a hook, by default what the memory holds."""
        return self.memory.tensors()

    def terms(self, embeddings: dict[str, Tensor]) -> Terms:
        """Return the objective's terms on the embeddings of the whole batch, in float32 or better under any autocast."""
        with torch.autocast(next(iter(embeddings.values())).device.type, enabled=False):
            known = {name: at_least_float32(embeddings[name]) for name in self.inputs} | self.state()
            return self.objective(*(known[name] for name in tensor_names(self.objective)))

    def before_step(self, step: int) -> None:
        """Get ready for optimizer step `step` (from 0): a hook, by default prototypes are frozen or let go, and what is random is drawn."""
        unfreeze_prototypes(self.head, step, self.training_length)
        for module in self.modules():  # those of a target and of other branches too: all take the same
            if isinstance(module, StepRandomModule):
                module.before_step(step)

    def after_step(self, step: int, embeddings: dict[str, Tensor]) -> None:
        """Follow optimizer step `step` (from 0): a hook, by default the memory moves on.

        Args:
            step: its number.
            embeddings: what the objective took, of the whole batch, without gradient.
        """
        self.memory.update(embeddings)
