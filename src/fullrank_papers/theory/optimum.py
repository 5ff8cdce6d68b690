"""The minimum of the constrained trace loss under each of four constraints, weights that attain it, and the limits of
its flows.

Shapes and symbols are those of `fullrank_papers.theory.trace`: h hidden units, z outputs, and λ the eigenvalues of C in
ascending order.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from fullrank.errors import UserError, pick
from fullrank_papers.theory.checks import check_output_length

Formulation = Literal["scaled", "bounded", "product", "orthonormal"]


def forced_rank(d: int, *, hidden: int, outputs: int) -> int:
    """Return how many singular values of W1ᵀW2 are 1 for any weights with orthonormal columns: k = max(0, d + z − h).

    Raises:
        UserError: h < d or h < z; such weights do not exist.

    >>> forced_rank(4, hidden=5, outputs=2)
    1
    """
    if hidden < max(d, outputs):
        raise UserError(
            f"no orthonormal columns: {hidden} hidden units are fewer than {d} inputs or {outputs} outputs; "
            f"use at least {max(d, outputs)} hidden units, or reduce the inputs with PCA"
        )
    return max(0, d + outputs - hidden)


def minimum_loss(
    eigenvalues: Float[Tensor, " d"], *, hidden: int, outputs: int, formulation: Formulation = "orthonormal"
) -> Float[Tensor, ""]:
    """Return the minimum of Tr(W2ᵀW1 C W1ᵀW2), with spectral norms and k = max(0, d + z − h):

        scaled       divided by ‖W1‖² ‖W2‖²     ⎫
        bounded      ‖W1‖ ≤ 1 and ‖W2‖ ≤ 1      ⎬  Σ_{i ≤ min(d,z,h)} min(λ_i, 0)
        product      ‖W2ᵀW1‖ ≤ 1                ⎭
        orthonormal  W1ᵀW1 = I and W2ᵀW2 = I       Σ_{i ≤ k} λ_i + Σ_{k < i ≤ min(d,z)} min(λ_i, 0)

    since k singular values of W1ᵀW2 are forced to 1. With fewer negative eigenvalues than outputs the rank at the
    minimum is their number.

    Raises:
        UserError: an unknown formulation; orthonormal columns with h < d or h < z.

    All four are equal if and only if k = 0 or λ_k ≤ 0. h ≥ d + z is always sufficient, and so is h ≥ d + z − min(z,
    number of negative eigenvalues).

    Source: Esser et al. 2023, Proposition 3 (corrected: "at least one negative eigenvalue" is not sufficient).

    >>> C = torch.tensor([-1.0, 0.5, 1.0, 2.0])
    >>> minimum_loss(C, hidden=4, outputs=2, formulation="bounded"), minimum_loss(C, hidden=4, outputs=2)
    (tensor(-1.), tensor(-0.5000))
    """
    pick(formulation, dict.fromkeys(get_args(Formulation)), "formulation")
    d = len(eigenvalues)
    forced = forced_rank(d, hidden=hidden, outputs=outputs) if formulation == "orthonormal" else 0
    return eigenvalues[:forced].sum() + eigenvalues[forced : min(d, outputs, hidden)].clamp(max=0).sum()


def output_limit(
    q0: Float[Tensor, " d"], eigenvalues: Float[Tensor, " d"], *, b: float = 2.0, tolerance: float = 1e-12
) -> Float[Tensor, " d"]:
    """Return the limit of one output under q′ = −[4Λq − aΛq(qᵀq) − b q(qᵀΛq)], a + b = 4, from any q₀ in the unit ball.

    Let λ be the smallest eigenvalue for which q₀ has a component c in the eigenspace (for simple λ₁, c = (e₁·q₀)e₁):

        |q₀| = 1            c/|c|                     the sphere is invariant, for either sign of λ
        λ < 0               c/|c|
        λ = 0               ρ c/|c|, ρ⁸/(1−ρ²)^b = |c|⁸/(1−|q₀|²)^b, which the flow conserves
        λ > 0               0

    so a generic q₀ converges to sign(e₁·q₀) e₁ if λ₁ < 0 is simple.

    Args:
        q0: outputs on the eigenvectors at t = 0, |q₀| ≤ 1.
        eigenvalues: of C, ascending.
        b: of the flow (2 horizontal, 3 polar, 4 canonical); it matters only for λ = 0.
        tolerance: components and differences below it, and eigenvalues below it times the largest |λ|, count as zero.

    Raises:
        UserError: |q₀| > 1: the flow may not converge.

    Source: Esser et al. 2023, Theorem 3 (corrected: |q₀| = 1, q₀ orthogonal to e₁, multiple and zero eigenvalues).

    >>> output_limit(torch.tensor([-0.1, 0.5]), torch.tensor([-1.0, 2.0]))
    tensor([-1.,  0.])
    >>> output_limit(torch.tensor([0.0, 0.5]), torch.tensor([-1.0, 2.0]))
    tensor([0., 0.])
    """
    check_output_length(q0[:, None], tolerance)
    length = torch.linalg.vector_norm(q0).item()
    nonzero = q0.abs() > tolerance
    if not nonzero.any():
        return torch.zeros_like(q0)
    scale = tolerance * eigenvalues.abs().max()
    lowest = eigenvalues[nonzero].min()
    c = torch.where((eigenvalues - lowest).abs() <= scale, q0, 0)
    size = torch.linalg.vector_norm(c).item()
    if length >= 1 - tolerance or lowest < -scale:
        return c / size
    if lowest > scale:
        return torch.zeros_like(q0)

    def conserved(rho: float, norm: float) -> float:
        return 8 * math.log(rho) - b * math.log1p(-(norm**2))

    rho = brentq(lambda rho: conserved(rho, rho) - conserved(size, length), size, 1 - 1e-15, xtol=1e-15)
    return c * (rho / size)


def output_limit_projector(
    eigenvalues: Float[Tensor, " d"], *, hidden: int, outputs: int, tolerance: float = 1e-12
) -> Float[Tensor, "d d"]:
    """Return the limit of qqᵀ from generic orthonormal weights: the projector on the min(z, #negative) lowest
    eigenvectors.

    It projects on at least the k = max(0, d + z − h) eigenvectors that the weights force. Eigenvalues and differences
    below `tolerance` times the largest |λ| count as zero.

    Raises:
        UserError: h < d or h < z; the last eigenvalue included is zero or multiple, so that the limit depends on the
            start.

    Source: Esser et al. 2023, Theorem 3, for several outputs (not in the paper).

    >>> output_limit_projector(torch.tensor([-2.0, -1.0, 3.0]), hidden=9, outputs=3).diagonal()
    tensor([1., 1., 0.])
    """
    d = len(eigenvalues)
    scale = tolerance * eigenvalues.abs().max()
    rank = max(min(outputs, int((eigenvalues < -scale).sum())), forced_rank(d, hidden=hidden, outputs=outputs))
    multiple = 0 < rank < d and eigenvalues[rank] - eigenvalues[rank - 1] <= scale
    if multiple or (rank < min(outputs, d) and eigenvalues[rank].abs() <= scale):
        raise UserError(
            f"eigenvalue {rank + 1} of C is zero or multiple, so the limit depends on the start; integrate the flow"
        )
    return torch.diag((torch.arange(d, device=eigenvalues.device) < rank).to(eigenvalues.dtype))
