"""TeacherStudent branches: one learns, the other gives the targets, without gradient."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.ema import EMA, cosine
from fullrank.methods.method import Method
from fullrank.methods.objective_state import ObjectiveState
from fullrank.objectives import Terms
from fullrank.objectives.signature import tensor_names


class TeacherStudent(Method):
    """The objective's first tensor comes from the online branch, its second from the target, for full-size views alone.

    online  backbone → projector → head, all views: (V, n, D) or (V, n, K)
    target  the projector's output itself, or a moving average of backbone and projector (and head, where `ema_head`): (V_0, n, …)

    Args:
        backbone: images (n, C, S, S) to representations (n, D_b).
        projector: representations (n, D_b) to embeddings (n, D).
        objective: takes the online branch's tensor, the target's, and what the memory holds.
        head: of the online branch, a predictor or prototypes.
        momentum: (from, to) of the moving average, by half a cosine over the run; None: the online branch is its own target.
        ema_head: the target has a head too.
        memory: what the objective takes beside embeddings.

    >>> from fullrank.methods.heads import build_predictor
    >>> from fullrank.objectives import byol
    >>> backbone, projector = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4)
    >>> method = TeacherStudent(backbone, projector, byol, head=build_predictor(4, 8), momentum=(0.99, 1.0))
    >>> {name: tuple(tensor.shape) for name, tensor in method([torch.randn(2, 8, 3, 2, 2)]).items()}
    {'R': (2, 8, 5), 'Z': (2, 8, 4), 'P': (2, 8, 4), 'T': (2, 8, 4)}
    """

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        objective: Callable[..., Terms],
        *,
        head: nn.Module | None = None,
        momentum: tuple[float, float] | None = None,
        ema_head: bool = False,
        memory: ObjectiveState | None = None,
    ) -> None:
        super().__init__(backbone, projector, objective, head=head, memory=memory)
        self.momentum = momentum
        self.ema_head = ema_head
        self.target = None if momentum is None else EMA(*self._averaged)

    @property
    def _averaged(self) -> tuple[nn.Module, ...]:
        return (self.backbone, self.projector, self.head) if self.ema_head else (self.backbone, self.projector)

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ n _"]]:
        """Embed views, a list of (V_k, n, C, S_k, S_k), full size first."""
        online, target = tensor_names(self.objective)[:2]
        representations = [self.backbone(view) for group in views for view in group]
        Z = torch.stack([self.projector(r) for r in representations])
        T = Z[: len(views[0])].detach() if self.target is None else torch.stack([self.target(view) for view in views[0]])
        return {"R": torch.stack(representations[: len(views[0])]), "Z": Z, online: torch.stack([self.head(z) for z in Z]), target: T}

    def after_step(self, step: int, embeddings: dict[str, Tensor]) -> None:
        """Move the target towards the online branch, and the memory on."""
        if self.target is not None and self.momentum is not None:
            self.target.update(*self._averaged, momentum=cosine(step, self.training_length.total, *self.momentum))
        super().after_step(step, embeddings)
