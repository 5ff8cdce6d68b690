"""FroSSL: minimise the Frobenius norm of each view's covariance, so that its eigenvalues become equal, and align the
views.
"""

import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fullrank.errors import pick
from fullrank.objectives.algebra import centered, gram, unit
from fullrank.objectives.faster import fast
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms

# Each normalisation makes the trace of ZᵀZ constant (D, D and N), so that ‖ZᵀZ‖_F is smallest when the eigenvalues are
# equal.
NORMALIZE = {
    "columns": lambda A: unit(A, dim=-2),
    "matrix": lambda A: unit(A, dim=(-2, -1)) * math.sqrt(A.shape[-1]),
    "rows": lambda A: unit(A, dim=-1),
}


@checks_shapes
@fast("columns:frossl")
def frossl(
    Z: Float[Tensor, "V N D"],
    *,
    invariance: float = 1.0,
    variance: float = 1.0,
    log: bool = True,
    center: bool = True,
    normalize: Literal["columns", "matrix", "rows"] = "columns",
) -> Terms:
    """Return the terms of FroSSL, for any number of views. Each Z_v is centred over the batch and its columns scaled to
    unit norm, then

        ℒ = variance · Σ_v log ‖Z_vᵀZ_v‖_F² + invariance · (1/N) Σ_{v<w} ‖Z_v − Z_w‖_F²

    Without the logarithms (`log=False`) the variance term is Σ_v F_v with F_v = ‖Z_vᵀZ_v‖_F². Since d log F = dF/F, its
    gradient is F times larger: raw, with variance = 1, it is 1,700 times as long as that of the invariance term at N =
    256, D = 1024 on random embeddings (with logarithms 0.33 times), and the views hardly count. With variance = min(D,
    N − 1)/D², the inverse of the smallest F, the terms weigh as with logarithms at the optimum, and F/F_min times more
    elsewhere; the logarithm removes this factor, which Section 3.1 of the paper calls self-regulation.

    A constant column stays zero. At complete collapse the variance term is 0 (with logarithms, the value of a single
    non-constant column), and the gradient is zero. The cost is V·N·D·min(N, D): ‖ZᵀZ‖_F = ‖ZZᵀ‖_F, and the smaller of
    the two matrices is computed.

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        invariance: weight of the distance between views; 1 is balanced for the paper's N = 256, D = 1024 and V = 2, and
            4N/D · √(2/(V(V − 1))) for others (docs/derivations/balance.md), which recipes take.
        variance: weight of the variance term; 1 with logarithms, min(D, N − 1)/D² without (columns or matrix
            normalised).
        log: False uses ‖Z_vᵀZ_v‖_F² without the logarithm, and needs another `variance`.
        center: False does not subtract the mean over the samples.
        normalize: "columns": unit norm of each column; "matrix": ‖Z_v‖_F = √D (Appendix A), which makes the loss
            invariant under rotations of the embedding space; "rows": unit norm of each row after centring (Prop. 3.2).

    Returns:
        The terms "variance" and "invariance".

    Raises:
        UserError: `normalize` has another value.

    Source: Skean et al. 2023, FroSSL: Frobenius Norm Minimization for Self-Supervised Learning, eq. 6, with columns of
    unit norm, for which the constant of Appendix E.1 is correct; the authors' code has the same gradients. The library
    cites equations and tables of this preprint, not of the paper of ECCV 2024.

    Two equal views with uncorrelated columns of equal norm are an optimum, V log D:

    >>> import torch
    >>> Z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]]).expand(2, 4, 2)
    >>> frossl(Z)
    {'variance': tensor(1.3863), 'invariance': tensor(0.)}
    """
    Z = pick(normalize, NORMALIZE, "normalize")(centered(Z) if center else Z)
    norm2 = gram(Z).square().sum((-2, -1))  # ‖Z_vᵀZ_v‖_F²
    if log:  # unless Z_v is zero, norm2 ≥ (tr ZᵀZ)² / rank ≥ 1: the bound acts only at complete collapse
        norm2 = norm2.clamp_min(1).log()
    distance = len(Z) * (Z - Z.mean(0)).square().sum()  # Σ_{v<w} ‖Z_v − Z_w‖_F² = V Σ_v ‖Z_v − mean‖_F²
    return {"variance": variance * norm2.sum(), "invariance": invariance * distance / Z.shape[1]}
