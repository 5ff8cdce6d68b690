"""The spectral contrastive loss: maximise inner products of views of a sample, minimise squared inner products of
different samples.
"""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def spectral_contrastive(Z: Float[Tensor, "2 N D"]) -> Terms:
    """Return the terms of the spectral contrastive loss on a batch,

        ℒ = − (2/N) Σ_i z¹_i·z²_i + 1/(N(N − 1)) Σ_{i≠j} (z¹_i·z²_j)²

    This is an unbiased estimate of the population loss. The optimum of the population loss spans the leading
    eigenvectors of the graph that connects the views of a sample. Rows are not normalised: their length represents the
    eigenvalues. On a single batch, the loss has no lower bound, because the length of a sample orthogonal to all others
    is not limited; the authors' code limits the length of rows. The cost is N·D·min(N, D): for N > D, the sum comes
    from the matrices (D, D), and no matrix (N, N) exists.

    Args:
        Z: embeddings of exactly two views of N ≥ 2 samples.

    Returns:
        The terms "alignment" and "uniformity".

    Source: HaoChen et al. 2021, Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss;
    the mean over N(N − 1) pairs as in the authors' code.

    Two equal views with orthogonal rows:

    >>> import torch
    >>> spectral_contrastive(torch.eye(3).expand(2, 3, 3))
    {'alignment': tensor(-2.), 'uniformity': tensor(0.)}
    """
    Z1, Z2 = Z
    N, D = Z1.shape
    positives = (Z1 * Z2).sum(-1)
    # ‖Z₁Z₂ᵀ‖_F² = tr(Z₁ᵀZ₁ Z₂ᵀZ₂)
    pairs = (Z1 @ Z2.mT).square().sum() if N <= D else ((Z1.mT @ Z1) * (Z2.mT @ Z2)).sum()
    return {"alignment": -2 * positives.mean(), "uniformity": (pairs - positives.square().sum()) / (N * (N - 1))}
