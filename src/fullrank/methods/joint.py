"""The plain joint embedding: one backbone and one projector, shared by all views."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.method import Method
from fullrank.objectives import Terms


class JointEmbedding(Method):
    """z = projector(backbone(x)) for every view; the objectives that take `Z` alone.

    Each view passes on its own, so that BatchNorm sees the statistics of one view at a time, as in the papers' code.

    Args:
        backbone: images (n, C, S, S) to representations (n, D_b).
        projector: representations (n, D_b) to embeddings (n, D).
        objective: takes `Z` alone.

    >>> from fullrank.objectives import frossl
    >>> method = JointEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4), frossl)
    >>> embeddings = method([torch.randn(2, 8, 3, 2, 2)])
    >>> {name: tuple(tensor.shape) for name, tensor in embeddings.items()}
    {'R': (2, 8, 5), 'Z': (2, 8, 4)}
    >>> sorted(method.terms(embeddings))
    ['invariance', 'variance']
    """

    def __init__(self, backbone: nn.Module, projector: nn.Module, objective: Callable[..., Terms]) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        self.objective = objective

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ n _"]]:
        """Embed views, a list of (V_k, n, C, S_k, S_k), full size first: R (V_0, n, D_b) and Z (V, n, D)."""
        representations = [self.backbone(view) for group in views for view in group]
        return {
            "R": torch.stack(representations[: len(views[0])]),  # (V_0, n, D_b)
            "Z": torch.stack([self.projector(r) for r in representations]),  # (V, n, D)
        }
