"""DirectCLR, as released: contrastive learning of the first dimensions of the representation itself, without a projector."""

from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.objectives.algebra import unit
from fullrank.objectives.terms import Terms


def directclr(R: Float[Tensor, "2 N D"], *, d0: int = 360, temperature: float = 0.1) -> Terms:
    """DirectCLR in the form of its authors' code. With z the unit rows of the first d0 dimensions of R, and s_ij = z¹_i·z²_j/temperature,

        ℒ = − ½ mean_i [ log (exp s_ii / Σ_j exp s_ij) + log (exp s_ii / Σ_j exp s_ji) ]

    which splits exactly into alignment, − mean_i s_ii, and uniformity, the mean of the two logarithms of the sums. All negatives are
    from the other view. The dimensions from d0 on get no gradient; they learn by the layers that they share with the others.

    Args:
        R: representations, the backbone's output, of exactly two views of N samples.
        d0: dimensions that the loss sees, 1 to D.
        temperature: divides the cosines.

    Returns:
        The terms "alignment" and "uniformity".

    Raises:
        UserError: d0 is not between 1 and D.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Section 6, and its code; the
    paper's own form is `directclr_paper`.

    When all representations are equal, the loss is that of a guess, log N:

    >>> import torch
    >>> terms = directclr(torch.ones(2, 8, 5), d0=3)
    >>> terms["alignment"] + terms["uniformity"], torch.tensor(8.0).log()
    (tensor(2.0794), tensor(2.0794))
    """
    Z1, Z2 = subvector(R, d0=d0)
    S = Z1 @ Z2.mT / temperature
    return {
        "alignment": -S.diagonal().mean(),
        "uniformity": (S.logsumexp(0) + S.logsumexp(1)).mean() / 2,
    }


def subvector(R: Float[Tensor, "2 N D"], *, d0: int) -> Float[Tensor, "2 N d0"]:
    """The unit rows of the first d0 dimensions.

    Raises:
        UserError: d0 is not between 1 and D.

    >>> import torch
    >>> subvector(torch.ones(2, 1, 8), d0=4)[0]
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    D = R.shape[-1]
    if not 1 <= d0 <= D:
        raise UserError(
            f"d0 is {d0}, but representations have {D} dimensions; choose 1 to {D} of them, such as hyper.d0 = {max(D // 4, 1)}"
        )
    return unit(R[..., :d0], dim=-1)
