"""SwAV's queue: earlier embeddings that take part in the assignment of samples to prototypes."""

from typing import Any

import torch
from torch import Tensor

from fullrank.methods.heads import Prototypes
from fullrank.methods.joint_embedding import JointEmbedding
from fullrank.methods.method import at_least_float32
from fullrank.objectives.swav import swav_queue


class QueuedJointEmbedding(JointEmbedding):
    """A `JointEmbedding` with prototypes and a queue of the last embeddings of each full-size view.

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
        networks: backbone, projector and objective, as in `JointEmbedding`.
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
