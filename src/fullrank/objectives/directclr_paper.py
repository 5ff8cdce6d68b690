"""DirectCLR, in the form of the paper: InfoNCE on the first dimensions of the representation, with negatives from the
anchor's view.
"""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.directclr import subvector
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def directclr_paper(R: Float[Tensor, "2 N D"], *, d0: int = 360) -> Terms:
    """Return the terms of DirectCLR as in the paper. With z and z′ the L2-normalised first d0 dimensions of anchors R₁
    and positives R₂,

        ℒ = − Σ_i log ( exp z_i·z′_i / (exp z_i·z′_i + Σ_{j≠i} exp z_i·z_j) )

    which is the sum of alignment, − Σ_i z_i·z′_i, and uniformity, the sum of the logarithms of the denominators. The
    loss is a sum over the samples, so its gradient grows with the batch size. The cost is N²·d0, and the memory N².

    Args:
        R: representations (outputs of the backbone) of exactly two views of N samples.
        d0: number of dimensions in the loss, 1 to D.

    Returns:
        The terms "alignment" and "uniformity".

    Raises:
        UserError: d0 is not between 1 and D.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Section 6,
    corrected: the printed sum has no minus sign and does not define the denominator, which is here that of its eq. 2.

    >>> import torch
    >>> terms = directclr_paper(torch.ones(2, 8, 5), d0=3)
    >>> terms["alignment"] + terms["uniformity"], 8 * torch.tensor(8.0).log()
    (tensor(16.6355), tensor(16.6355))
    """
    Z1, Z2 = subvector(R, d0=d0)
    S = Z1 @ Z1.mT
    positives = (Z1 * Z2).sum(-1)
    denominators = S.diagonal_scatter(positives).logsumexp(-1)  # the positive in the place of the anchor itself
    return {"alignment": -positives.sum(), "uniformity": denominators.sum()}
