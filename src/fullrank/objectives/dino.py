"""DINO: cross-entropy of the student's distribution over prototypes with the teacher's centred, sharpened distribution
for another view.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_products
from fullrank.objectives.signature import ObjectiveState, checks_shapes, stateful
from fullrank.objectives.terms import Terms


def dino_center(T: Float[Tensor, "V_T N K"], c: Float[Tensor, " K"], *, momentum: float = 0.9) -> Float[Tensor, " K"]:
    """Return the centre after a batch, momentum · c + (1 − momentum) · the mean of the teacher's logits over views and
    samples.

    Source: Caron et al. 2021, eq. 4.

    >>> dino_center(torch.ones(2, 8, 3), torch.zeros(3))
    tensor([0.1000, 0.1000, 0.1000])
    """
    return momentum * c.detach() + (1 - momentum) * T.detach().mean((0, 1))


@stateful(ObjectiveState({"c": ("K", torch.zeros)}, dino_center))
@checks_shapes
def dino(
    S: Float[Tensor, "V N K"],
    T: Float[Tensor, "V_T N K"],
    c: Float[Tensor, " K"],
    *,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.04,
) -> Terms:
    """Return the terms of DINO with multi-crop, the mean cross-entropy H(q_w, p_v) over samples and pairs v ≠ w. With
    sg the stop-gradient,

        p_v = softmax(s_v/student_temperature)    q_w = softmax(sg (t_w − c)/teacher_temperature)
        ℒ = mean_{v≠w} mean_i H(q_wi, p_vi)

    which splits exactly into the teacher's entropy H(q_w), without gradient, and the divergence KL(q_w ‖ p_v). The
    entropy shows collapse: it is 0 if one prototype gets all the probability, and log K if the distribution is uniform.
    The cost and the memory are a few times V·N·K.

    Args:
        S: the student's logits, for V ≥ 2 views of N samples and K prototypes.
        T: the teacher's logits for the first V_T of these views; T gets no gradient.
        c: the centre, a running mean of the teacher's logits (`dino_center`).
        student_temperature: divides the student's logits.
        teacher_temperature: divides the teacher's centred logits; a smaller one sharpens.

    Returns:
        The terms "entropy" and "divergence".

    Source: Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers, eq. 1 to 3 and 5; the mean
    over pairs as in the authors' code.

    If the teacher's logits are the same for every sample, centring makes its distribution uniform:

    >>> logits = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> terms = dino(torch.zeros(2, 8, 4), logits.expand(2, 8, 4), logits)
    >>> terms["entropy"], torch.tensor(4.0).log()
    (tensor(1.3863), tensor(1.3863))
    """
    log_q = ((T - c).detach() / teacher_temperature).log_softmax(-1)
    q, log_p = log_q.exp(), (S / student_temperature).log_softmax(-1)
    entropy = -(q * log_q).sum(-1).mean()  # the mean over pairs too: each view of T is in V − 1 of them
    return {"entropy": entropy, "divergence": -pair_products(log_p, q).mean() - entropy}
