"""NNCLR: contrast of the predictions with the nearest neighbours, among earlier embeddings, of another view."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_products, unit, view_pairs
from fullrank.objectives.moco import moco_queue, random_unit_rows
from fullrank.objectives.signature import ObjectiveState, checks_shapes, stateful
from fullrank.objectives.terms import Terms


def nnclr_queue(T: Float[Tensor, "V_T N D"], queue: Float[Tensor, "size D"]) -> Float[Tensor, "size D"]:
    """Return the queue after a batch: the L2-normalised embeddings of the first view, first in first out, newest rows
    first.

    >>> nnclr_queue(torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [1.0000, 0.0000]])
    """
    return moco_queue(T[:1], queue)


@stateful(ObjectiveState({"queue": ("size D", random_unit_rows)}, nnclr_queue))
@checks_shapes
def nnclr(
    P: Float[Tensor, "V N D"], T: Float[Tensor, "V_T N D"], queue: Float[Tensor, "size D"], *, temperature: float = 0.2
) -> Terms:
    """Return the terms of NNCLR, for any number of views. With p the L2-normalised rows of P, and u_wi the row of the
    queue with the largest cosine to t_wi,

        ℒ = − mean_{v≠w} mean_i log ( exp(u_wi·p_vi/temperature) / Σ_j exp(u_wi·p_vj/temperature) )

    which splits exactly into alignment, the mean of − u_wi·p_vi/temperature, and uniformity, the mean logarithm of the
    denominator. Only P gets a gradient. The cost is V·N·size·D + V²·N²·D, and the memory V·N·size + V²·N².

    Args:
        P: predictions from V ≥ 2 views of N samples.
        T: embeddings of the first V_T of these views, without gradient.
        queue: L2-normalised embeddings of earlier batches (`nnclr_queue`).
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Source: Dwibedi et al. 2021, With a Little Help from My Friends: Nearest-Neighbor Contrastive Learning of Visual
    Representations, with both directions as in its pseudocode; for V > 2 the mean over ordered pairs.

    If all embeddings are equal, the loss is that of a random guess, log N:

    >>> terms = nnclr(torch.ones(2, 8, 4), torch.ones(2, 8, 4), torch.full((15, 4), 0.5))
    >>> terms["alignment"] + terms["uniformity"], torch.tensor(8.0).log()
    (tensor(2.0794), tensor(2.0794))
    """
    p = unit(P, dim=-1)
    u = queue[(T @ queue.mT).argmax(-1)].detach()  # (V_T, N, D)
    denominators = [(u[w] @ p[v].mT / temperature).logsumexp(-1).mean() for v, w in view_pairs(len(P), len(T))]
    return {"alignment": -pair_products(p, u).mean() / temperature, "uniformity": torch.stack(denominators).mean()}
