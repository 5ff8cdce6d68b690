"""MoCo: contrast of a query and its key against a queue of keys from earlier batches."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_cosines, unit, view_pairs
from fullrank.objectives.signature import ObjectiveState, checks_shapes, stateful
from fullrank.objectives.terms import Terms


def moco_queue(K: Float[Tensor, "V_K N D"], queue: Float[Tensor, "size D"]) -> Float[Tensor, "size D"]:
    """Return the queue after a batch: first in, first out, newest rows first.

    The L2-normalised rows of all keys, view after view, are put before the rows of the queue; the first `size` rows
    remain.

    >>> moco_queue(torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000],
            [1.0000, 0.0000]])
    """
    return torch.cat([unit(K.detach(), dim=-1).flatten(0, 1), queue.detach()])[: len(queue)]


def random_unit_rows(size: int, D: int) -> Float[Tensor, "size D"]:
    """Return L2-normalised rows with uniform directions, drawn from torch's global generator: the queue before the
    first batch.
    """
    return unit(torch.randn(size, D), dim=-1)


@stateful(ObjectiveState({"queue": ("size D", random_unit_rows)}, moco_queue))
@checks_shapes
def moco(
    Q: Float[Tensor, "V N D"], K: Float[Tensor, "V_K N D"], queue: Float[Tensor, "size D"], *, temperature: float = 0.2
) -> Terms:
    """Return the terms of MoCo v2 with symmetric views. With q and k the L2-normalised rows of Q and K, and u_j the
    rows of the queue,

        ℒ = − mean_{v≠w} mean_i log ( exp(q_vi·k_wi/temperature) / (exp(q_vi·k_wi/temperature) + Σ_j
        exp(q_vi·u_j/temperature)) )

    which splits exactly into alignment, the mean of − q_vi·k_wi/temperature, and uniformity, the mean logarithm of the
    denominator. Only Q gets a gradient. The cost is V·N·size·D, and the memory at most V·N·size.

    Args:
        Q: queries, the student's embeddings of V ≥ 2 views.
        K: keys, the teacher's embeddings of the first V_K of these views.
        queue: keys of earlier batches, not normalised here, because `moco_queue` returns L2-normalised rows.
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Source: He et al. 2020, Momentum Contrast for Unsupervised Visual Representation Learning, eq. 1, with the projector
    and the temperature of Chen et al. 2020, Improved Baselines with Momentum Contrastive Learning; the mean over
    ordered pairs of views as Chen et al. 2021, An Empirical Study of Training Self-Supervised Vision Transformers.

    If all embeddings are equal, the loss is that of a random guess, log(1 + size):

    >>> terms = moco(torch.ones(2, 8, 4), torch.ones(2, 8, 4), torch.full((15, 4), 0.5))
    >>> terms["alignment"] + terms["uniformity"], torch.tensor(16.0).log()
    (tensor(2.7726), tensor(2.7726))
    """
    positives = pair_cosines(Q, K.detach()) / temperature  # (pairs v≠w, N)
    negatives = (unit(Q, dim=-1) / temperature @ queue.detach().mT).logsumexp(-1)  # (V, N)
    negatives = torch.stack([negatives[v] for v, _ in view_pairs(len(Q), len(K))])
    return {"alignment": -positives.mean(), "uniformity": torch.logaddexp(positives, negatives).mean()}
