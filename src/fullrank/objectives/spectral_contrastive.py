"""The spectral contrastive loss: the views of a sample have a large inner product, different samples a small squared one."""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import off_diagonal
from fullrank.objectives.terms import Terms


def spectral_contrastive(Z: Float[Tensor, "2 N D"]) -> Terms:
    """The spectral contrastive loss on a batch,

        ℒ = − (2/N) Σ_i z¹_i·z²_i + 1/(N(N − 1)) Σ_{i≠j} (z¹_i·z²_j)²

    It is an unbiased estimate of the population's loss, whose optimum spans the leading eigenvectors of the graph that links the views
    of a sample. Rows are not normalised: their length carries the eigenvalues. On the fixed rows of one batch it has no lower bound,
    since a sample orthogonal to all others may be as long as it likes; the authors' code shortens longer rows to a fixed length.

    Args:
        Z: embeddings of exactly two views of N ≥ 2 samples.

    Returns:
        The terms "alignment" and "uniformity".

    Source: HaoChen et al. 2021, Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive Loss; the mean
    over N(N − 1) pairs as in the authors' code.

    Two views that agree, with orthogonal rows:

    >>> import torch
    >>> spectral_contrastive(torch.eye(3).expand(2, 3, 3))
    {'alignment': tensor(-2.), 'uniformity': tensor(0.)}
    """
    Z1, Z2 = Z
    N = len(Z1)
    return {
        "alignment": -2 * (Z1 * Z2).sum(-1).mean(),
        "uniformity": off_diagonal(Z1 @ Z2.mT).square().sum() / (N * (N - 1)),
    }
