"""EMP-SSL: align each view with the mean of all views, and maximise the total coding rate (TCR) of each view."""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import gram, logdet, unit
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def emp_ssl(Z: Float[Tensor, "V N D"], *, invariance: float = 200.0, epsilon: float = 0.2) -> Terms:
    """Return the terms of EMP-SSL, for any number of views (the authors use 20 patches and more). With z the
    L2-normalised rows of Z, and Z_v the matrix (N, D) of a view,

        ℒ = invariance · mean_{v,i} (1 − cos(z_vi, mean_w z_wi)) − mean_v ½ log det(I + D/(N·epsilon) Z_vᵀ Z_v)

    The second term is minus the coding rate. lightly adds it with the other sign, which minimises the coding rate. The
    cost is V·N·D·min(N, D).

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        invariance: weight of the first term, the paper's λ.
        epsilon: squared distortion of the coding rate; the paper writes ε², the authors' code takes 0.2 for it.

    Returns:
        The terms "invariance" and "coding_rate".

    Source: Tong et al. 2023, EMP-SSL: Towards Self-Supervised Learning in One Training Epoch, eq. 5, and the authors'
    code.

    Four orthogonal samples have the coding rate ½ · 4 log(1 + 1/epsilon):

    >>> import torch
    >>> emp_ssl(torch.eye(4).expand(2, 4, 4), epsilon=1.0)  # − 2 log 2
    {'invariance': tensor(0.), 'coding_rate': tensor(-1.3863)}
    """
    _, N, D = Z.shape
    Z = unit(Z, dim=-1)
    cosine = (Z * unit(Z.mean(0), dim=-1)).sum(-1)
    coding_rate = logdet(D / (N * epsilon) * gram(Z), epsilon=1.0).mean() / 2
    return {"invariance": invariance * (1 - cosine).mean(), "coding_rate": -coding_rate}
