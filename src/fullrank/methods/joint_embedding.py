"""Joint embedding methods, in which every view passes through a backbone, a projector and a head."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.method import Method, StateBuffers
from fullrank.objectives import Terms
from fullrank.objectives.signature import tensor_names


class JointEmbedding(Method):
    """A siamese method for objectives that take one kind of embedding: Z, cosines with prototypes S, or the
    representation R.

    All views share one encoder, or each view has a separate one. Each view is one forward pass, so BatchNorm normalises
    with the statistics of one view at a time, as in the code of the papers' authors.

    Args:
        backbone: images (n, C, S, S) to representations (n, D_b).
        projector: representations (n, D_b) to embeddings (n, D).
        objective: the objective, a function of Z, S or R, and of the state.
        head: embeddings (n, D) to the input of the objective.
        view_encoders: (backbone, projector) of the second view and of each further view, if views do not share their
            weights.
        state: the buffers of the objective's state.

    >>> from fullrank.objectives import frossl
    >>> method = JointEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4), frossl)
    >>> embeddings = method([torch.randn(2, 8, 3, 2, 2)])
    >>> {name: tuple(tensor.shape) for name, tensor in embeddings.items()}
    {'R': (2, 8, 5), 'Z': (2, 8, 4)}
    >>> sorted(method.terms(embeddings))
    ['invariance', 'variance']
    """

    def __init__(
        self,
        backbone: nn.Module,
        projector: nn.Module,
        objective: Callable[..., Terms],
        *,
        head: nn.Module | None = None,
        view_encoders: Sequence[tuple[nn.Module, nn.Module]] = (),
        state: StateBuffers | None = None,
    ) -> None:
        super().__init__(backbone, projector, objective, head=head, state=state)
        self.view_encoders = nn.ModuleList(nn.ModuleList(pair) for pair in view_encoders)

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ n _"]]:
        """Embed views, a list of (V_k, n, C, S_k, S_k), full size first: R (V_0, n, D_b), Z (V, n, D), S (V, n, K) with
        prototypes.
        """
        images = [view for group in views for view in group]
        first = (self.backbone, self.projector)
        encoders = [first, *self.view_encoders] if self.view_encoders else [first] * len(images)
        representations = [backbone(view) for (backbone, _), view in zip(encoders, images, strict=True)]
        Z = torch.stack([projector(r) for (_, projector), r in zip(encoders, representations, strict=True)])
        embeddings = {"R": torch.stack(representations[: len(views[0])]), "Z": Z}
        if isinstance(self.head, nn.Identity):
            return embeddings
        return embeddings | {tensor_names(self.objective)[0]: torch.stack([self.head(z) for z in Z])}
