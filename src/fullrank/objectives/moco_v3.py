"""MoCo v3: contrast of a prediction with the teacher's embeddings of another view of the batch."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_products, unit, view_pairs
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def moco_v3(P: Float[Tensor, "V N D"], T: Float[Tensor, "V_T N D"], *, temperature: float = 0.2) -> Terms:
    """Return the terms of MoCo v3, for any number of views. With p and t the L2-normalised rows of P and T, and sg the
    stop-gradient,

        ℒ = − 4 temperature · mean_{v≠w} mean_i log ( exp(p_vi · sg t_wi/temperature) / Σ_j exp(p_vi · sg
        t_wj/temperature) )

    which splits exactly into alignment, − 4 mean p_vi · t_wi, and uniformity, 4 temperature times the mean logarithm of
    the denominator. With two views it is the sum of the two directions. The cost is V²·N²·D, and the memory V²·N².

    Args:
        P: predictions of the student from V ≥ 2 views of N samples.
        T: embeddings of the first V_T of these views by the teacher, without gradient.
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Source: Chen et al. 2021, An Empirical Study of Training Self-Supervised Vision Transformers, Algorithm 1; for V > 2
    twice the mean over ordered pairs.

    >>> P = torch.eye(4).expand(2, 4, 4)
    >>> moco_v3(P, P, temperature=1.0)  # 4 log(e + 3)
    {'alignment': tensor(-4.), 'uniformity': tensor(6.9747)}
    """
    U, K = unit(P, dim=-1), unit(T.detach(), dim=-1)
    denominators = [(U[v] @ K[w].mT / temperature).logsumexp(-1).mean() for v, w in view_pairs(len(P), len(T))]
    return {
        "alignment": -4 * pair_products(U, K).mean(),
        "uniformity": 4 * temperature * torch.stack(denominators).mean(),
    }
