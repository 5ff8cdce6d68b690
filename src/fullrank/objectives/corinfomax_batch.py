"""CorInfoMax of one batch, without running moments: maximise the log-determinant of the scatter of each view, and align
the views.
"""

import math

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import gram, logdet
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def corinfomax_batch(Z: Float[Tensor, "2 N D"], *, invariance: float = 1.0, epsilon: float = 1e-3) -> Terms:
    """Return the terms of CorInfoMax in the form that the FroSSL paper uses: without running moments, centring or
    division by N,

        ℒ = − Σ_v log det(Z_vᵀZ_v + ε I) + invariance · (1/N) ‖Z₁ − Z₂‖_F²

    The determinant is unbounded in the scale of Z. The cost is N·D·min(N, D): log det(ε I_D + ZᵀZ) = (D − N) log ε +
    log det(ε I_N + ZZᵀ), and the smaller of the two is computed. In float32, the rounding error 10⁻⁶ tr(ZᵀZ) replaces ε
    in the smaller determinant if it is larger: for long rows and nearly singular views, the value is then neither that
    of ε nor that of the larger number.

    Args:
        Z: embeddings of exactly two views of N samples.
        invariance: weight of the distance between views.
        epsilon: ε, added to each eigenvalue of the scatter.

    Returns:
        The terms "entropy" and "invariance".

    Source: Skean et al. 2023, FroSSL, eq. 7, after Ozsoy et al. 2022, Self-Supervised Learning with an Information
    Maximization Criterion. (Its cost is lower than the paper states: no eigendecomposition is needed, and not always
    D³.)

    >>> import torch
    >>> Z = 2 * torch.tensor([[1.0, 0], [0, 1], [0, 0]])
    >>> corinfomax_batch(torch.stack([Z, Z]), epsilon=1e-6)  # − 4 log 4
    {'entropy': tensor(-5.5452), 'invariance': tensor(0.)}
    """
    _, N, D = Z.shape
    volume = logdet(gram(Z), epsilon=epsilon) + max(D - N, 0) * math.log(epsilon)
    return {"entropy": -volume.sum(), "invariance": invariance * (Z[0] - Z[1]).square().sum() / N}
