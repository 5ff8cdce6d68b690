"""The plain joint embedding: one backbone and one projector, shared by all views."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fullrank.objectives import Terms
from fullrank.methods.method import Method


class JointEmbedding(Method):
    """z = projector(backbone(x)) for every view; the objectives that take `Z` alone.

    Each view passes on its own, so that BatchNorm sees the statistics of one view at a time, as in the papers' code.
    """

    def __init__(self, backbone: nn.Module, projector: nn.Module, objective: Callable[..., Terms]) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        self.objective = objective

    def forward(self, views: list[Tensor]) -> dict[str, Tensor]:
        """Embed views, a list of (V_k, n, C, S_k, S_k), full size first: R (V_0, n, D_b) and Z (V, n, D)."""
        representations = [self.backbone(view) for group in views for view in group]
        return {
            "R": torch.stack(representations[: len(views[0])]),                         # (V_0, n, D_b)
            "Z": torch.stack([self.projector(r) for r in representations]),             # (V, n, D)
        }
