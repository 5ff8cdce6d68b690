"""Joint embedding methods, in which every view passes through a backbone, a projector and a head."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.heads import Prototypes
from fullrank.methods.method import Method, at_least_float32
from fullrank.objectives.swav import swav_queue


class JointEmbedding(Method):
    """A siamese method for objectives that take one kind of embedding: Z, cosines with prototypes S, or the
    representation R.

    All views share one encoder, or each view has a separate one. Each view is one forward pass, so BatchNorm normalises
    with the statistics of one view at a time, as in the code of the papers' authors.

    Args:
        networks: backbone, projector and objective, as in `Method`; the objective is a function of Z, S or R, and of
            the state.
        view_encoders: (backbone, projector) of the second view and of each further view, if views do not share their
            weights.
        keywords: `head` and `state`, as in `Method`.

    >>> from fullrank.objectives import frossl
    >>> method = JointEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, 4), frossl)
    >>> embeddings = method([torch.randn(2, 8, 3, 2, 2)])
    >>> {name: tuple(tensor.shape) for name, tensor in embeddings.items()}
    {'R': (2, 8, 5), 'Z': (2, 8, 4)}
    >>> sorted(method.terms(embeddings))
    ['invariance', 'variance']
    """

    def __init__(self, *networks: Any, view_encoders: Sequence[tuple[nn.Module, nn.Module]] = (), **keywords: Any):
        super().__init__(*networks, **keywords)
        self.head_name = self.input_names[0]
        self.view_encoders = nn.ModuleList(nn.ModuleList(pair) for pair in view_encoders)

    def forward(self, views: list[Float[Tensor, "_ n C _ _"]]) -> dict[str, Float[Tensor, "_ n _"]]:
        """Embed views, a list of (V_k, n, C, S_k, S_k), full size first: R (V_0, n, D_b), Z (V, n, D), S (V, n, K) with
        prototypes.
        """
        images = [view for group in views for view in group]
        first = (self.backbone, self.projector)
        encoders = [first, *self.view_encoders] if self.view_encoders else [first] * len(images)
        representations = [backbone(view) for (backbone, _), view in zip(encoders, images, strict=True)]
        Z = torch.stack([projector(r) for r, (_, projector) in zip(representations, encoders, strict=True)])
        embeddings = {"R": torch.stack(representations[: len(views[0])]), "Z": Z}
        if isinstance(self.head, nn.Identity):
            return embeddings
        return embeddings | {self.head_name: torch.stack([self.head(z) for z in Z])}


class QueuedJointEmbedding(JointEmbedding):
    """A `JointEmbedding` with prototypes and SwAV's queue: the last embeddings of each full-size view take part in the
    assignment of samples to prototypes.

    The queue holds the embeddings of the whole batch, so it is the same on every process; it is a buffer, which
    checkpoints contain. Its cosines are computed in each step with the prototypes of that step. It is used from epoch
    `start` on, if it is full by then.

    Attributes:
        queue: (full, size, D), unit rows, newest first; zeros until filled.
        queue_used: Whether the last training step used the queue; the loss on held-out images does what that step did.

    Args:
        full: number of full-size views that are assigned to prototypes.
        size: number of embeddings of each view.
        start: epoch from which the queue is used.
        networks: backbone, projector and objective, as in `Method`.
        keywords: the other arguments of `JointEmbedding`, with prototypes as the head.

    Source: Caron et al. 2020, Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, Section 4.2;
    the rule when the queue is used is that of the authors' code.
    """

    queue: Tensor
    queue_used = False

    def __init__(self, *networks: Any, full: int, size: int, start: float, **keywords: Any) -> None:
        super().__init__(*networks, **keywords)
        assert isinstance(self.head, Prototypes)
        self.start = start
        self.register_buffer("queue", torch.zeros(full, size, self.head.weight.shape[1]))

    def optional_tensors(self, samples: int) -> tuple[Tensor, ...]:
        """Return the cosines (full, size, K) of the queue with the prototypes, without gradient, if the queue is
        used.
        """
        if self.training:
            self.queue_used = self.epoch >= self.start and self.current_step * samples >= self.queue.shape[1]
        if not self.queue_used:
            return ()
        with torch.no_grad():
            return (torch.stack([self.head(rows) for rows in self.queue]),)

    def after_step(self, step: int, embeddings: dict[str, Tensor]) -> None:
        """Put the embeddings of the batch before those of the queue."""
        super().after_step(step, embeddings)
        self.queue.copy_(swav_queue(at_least_float32(embeddings["Z"]), self.queue))
