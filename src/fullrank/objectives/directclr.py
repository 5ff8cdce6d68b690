"""DirectCLR, in the form of the released code: a contrastive loss on the first dimensions of the representation,
without a projector.
"""

from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.objectives.algebra import unit
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def directclr(R: Float[Tensor, "2 N D"], *, d0: int = 360, temperature: float = 0.1) -> Terms:
    """Return the terms of DirectCLR as in its authors' code. With z the L2-normalised first d0 dimensions of R and
    s_ij = z¹_i·z²_j/temperature,

        ℒ = − ½ mean_i [ log (exp s_ii / Σ_j exp s_ij) + log (exp s_ii / Σ_j exp s_ji) ]

    which is the sum of alignment, − mean_i s_ii, and uniformity, the mean of the two logarithms of the sums. All
    negatives are from the other view. The dimensions from d0 on get no gradient from the loss; they change through the
    layers that all dimensions share. The cost is N²·d0, and the memory N².

    Args:
        R: representations (outputs of the backbone) of exactly two views of N samples.
        d0: number of dimensions in the loss, 1 to D.
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Raises:
        UserError: d0 is not between 1 and D.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Section 6, and
    its code; the form in the paper is `directclr_paper`.

    When all representations are equal, the loss is that of a random guess, log N:

    >>> import torch
    >>> terms = directclr(torch.ones(2, 8, 5), d0=3)
    >>> terms["alignment"] + terms["uniformity"], torch.tensor(8.0).log()
    (tensor(2.0794), tensor(2.0794))
    """
    Z1, Z2 = subvector(R, d0=d0)
    S = Z1 / temperature @ Z2.mT
    return {"alignment": -S.diagonal().mean(), "uniformity": (S.logsumexp(0) + S.logsumexp(1)).mean() / 2}


def subvector(R: Float[Tensor, "2 N D"], *, d0: int) -> Float[Tensor, "2 N d0"]:
    """Return the L2-normalised rows of the first d0 dimensions.

    Raises:
        UserError: d0 is not between 1 and D.

    >>> import torch
    >>> subvector(torch.ones(2, 1, 8), d0=4)[0]
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    D = R.shape[-1]
    if not 1 <= d0 <= D:
        raise UserError(
            f"d0 is {d0}, but representations have {D} dimensions; choose 1 to {D}, such as hyper.d0 = {max(D // 4, 1)}"
        )
    return unit(R[..., :d0], dim=-1)
