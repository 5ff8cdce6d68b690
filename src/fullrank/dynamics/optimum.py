"""Where the constrained trace loss ends: its minimum under each of the equivalent constraints, weights that attain it, limits of the flows.

Shapes and symbols as in `fullrank.dynamics.trace`; λ are the eigenvalues of C in ascending order. There is no time in this file.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.dynamics.contrastive_pairs import eigenbasis
from fullrank.errors import UserError, pick

Formulation = Literal["scaled", "bounded", "product", "orthonormal"]


def forced_rank(d: int, *, hidden: int, outputs: int) -> int:
    """How many singular values of W1ᵀW2 orthonormal columns force to 1: k = max(0, d + z − h).

    Raises:
        UserError: h < d or h < z, for which there are no such weights.

    >>> forced_rank(4, hidden=5, outputs=2)
    1
    """
    if hidden < max(d, outputs):
        raise UserError(
            f"no orthonormal columns with {hidden} hidden units for {d} inputs and {outputs} outputs; take at least {max(d, outputs)}, or "
            "fewer inputs (PCA)"
        )
    return max(0, d + outputs - hidden)


def minimum_loss(
    eigenvalues: Float[Tensor, " d"], *, hidden: int, outputs: int, formulation: Formulation = "orthonormal"
) -> Float[Tensor, ""]:
    """The least value of Tr(W2ᵀW1 C W1ᵀW2), in spectral norms and with k = max(0, d + z − h):

        scaled       divided by ‖W1‖² ‖W2‖²     ⎫
        bounded      ‖W1‖ ≤ 1 and ‖W2‖ ≤ 1      ⎬  Σ_{i ≤ min(d,z,h)} min(λ_i, 0)
        product      ‖W2ᵀW1‖ ≤ 1                ⎭
        orthonormal  W1ᵀW1 = I and W2ᵀW2 = I       Σ_{i ≤ k} λ_i + Σ_{k < i ≤ min(d,z)} min(λ_i, 0)

    since k singular values of W1ᵀW2 are forced to 1. With fewer negative eigenvalues than outputs the minimum has the rank of their number.

    Args:
        eigenvalues: of C, ascending.
        hidden: h.
        outputs: z.
        formulation: one of the four.

    Raises:
        UserError: an unknown formulation; orthonormal columns with h < d or h < z.

    Source: Esser et al. 2023, Proposition 3 (corrected: the formulations are equal only under the condition of `equivalent`).

    >>> C = torch.tensor([-1.0, 0.5, 1.0, 2.0])
    >>> minimum(C, hidden=4, outputs=2, formulation="bounded"), minimum(C, hidden=4, outputs=2)
    (tensor(-1.), tensor(-0.5000))
    """
    pick(formulation, dict.fromkeys(get_args(Formulation)), "formulation")
    d = len(eigenvalues)
    forced = forced_rank(d, hidden=hidden, outputs=outputs) if formulation == "orthonormal" else 0
    return eigenvalues[:forced].sum() + eigenvalues[forced : min(d, outputs, hidden)].clamp(max=0).sum()


def formulations_are_equivalent(eigenvalues: Float[Tensor, " d"], *, hidden: int, outputs: int) -> bool:
    """Whether the four formulations of `minimum` have the same value: k = max(0, d + z − h) is 0, or λ_k ≤ 0.

    h ≥ d + z is always enough, h ≥ d + z − min(z, number of negative eigenvalues) too.

    Raises:
        UserError: h < d or h < z.

    Source: Esser et al. 2023, Proposition 3 (corrected: "at least one negative eigenvalue" is not enough).

    >>> [equivalent(torch.tensor([-1.0, 0.5, 1.0, 2.0]), hidden=h, outputs=2) for h in (4, 5)]
    [False, True]
    """
    forced = forced_rank(len(eigenvalues), hidden=hidden, outputs=outputs)
    return forced == 0 or bool(eigenvalues[forced - 1] <= 0)


def frobenius_minimum(eigenvalues: Float[Tensor, " d"], *, c1: float, c2: float) -> Float[Tensor, ""]:
    """The least value of Tr(W2ᵀW1 C W1ᵀW2) with ‖W1‖_F ≤ c₁ and ‖W2‖_F ≤ c₂: c₁²c₂² min(λ₁, 0).

    If λ₁ < 0, *every* minimiser has rank(W1ᵀW2) = 1, also where λ₁ is multiple: the constraint does not prevent collapse.

    Source: Esser et al. 2023, Proposition 2 (stronger: the paper says that one minimiser collapses).

    >>> frobenius_minimum(torch.tensor([-1.0, -0.5]), c1=2.0, c2=1.0)
    tensor(-4.)
    """
    return c1**2 * c2**2 * eigenvalues[0].clamp(max=0)


def minimizing_weights(C: Float[Tensor, "d d"], *, hidden: int, outputs: int) -> tuple[Float[Tensor, "h d"], Float[Tensor, "h z"]]:
    """Orthonormal W1 = [I; 0] and W2 = [A; B] with the least loss: A has the eigenvectors of the first k and of negative λ_i as columns
    and is zero elsewhere, BᵀB = I − AᵀA.

    Raises:
        UserError: C is not symmetric, h < d or h < z.

    Source: Esser et al. 2023, proof of Proposition 3 (corrected: rows of zeros alone do not give orthonormal columns).

    >>> W1, W2 = minimizer(torch.diag(torch.tensor([-3.0, 1.0])), hidden=3, outputs=1)
    >>> (W1.mT @ W2).abs().flatten()
    tensor([1., 0.])
    """
    eigenvalues, V = eigenbasis(C)
    d = len(C)
    columns = min(d, outputs)
    alive = torch.zeros(outputs, dtype=torch.bool, device=C.device)
    alive[:columns] = eigenvalues[:columns] < 0
    alive[: forced_rank(d, hidden=hidden, outputs=outputs)] = True
    W1 = torch.eye(hidden, d, dtype=C.dtype, device=C.device)
    W2 = torch.zeros(hidden, outputs, dtype=C.dtype, device=C.device)
    W2[:d, :columns] = V[:, :columns] * alive[:columns]
    rest = (~alive).nonzero().flatten()  # there is room for them: h − d ≥ z − k
    W2[d + torch.arange(len(rest), device=C.device), rest] = 1
    return W1, W2


def output_limit(
    q0: Float[Tensor, " d"], eigenvalues: Float[Tensor, " d"], *, b: float = 2.0, tolerance: float = 1e-12
) -> Float[Tensor, " d"]:
    """Where one output ends under q′ = −[4Λq − aΛq(qᵀq) − b q(qᵀΛq)], a + b = 4, from any q₀ in the unit ball.

    Let λ be the smallest eigenvalue in whose eigenspace q₀ has a component, and c that component (for simple λ₁, c = (e₁·q₀)e₁):

        |q₀| = 1            c/|c|                     the sphere is invariant, whatever the sign of λ
        λ < 0               c/|c|
        λ = 0               ρ c/|c|, ρ⁸/(1−ρ²)^b = |c|⁸/(1−|q₀|²)^b, which the flow conserves
        λ > 0               0

    so a generic q₀ ends in sign(e₁·q₀) e₁ if λ₁ < 0 is simple.

    Args:
        q0: outputs on the eigenvectors at t = 0, |q₀| ≤ 1.
        eigenvalues: of C, ascending.
        b: of the flow (2 horizontal, 3 polar, 4 canonical); it matters only for λ = 0.
        tolerance: components and differences below it, eigenvalues below it times the largest |λ|, count as zero.

    Raises:
        UserError: |q₀| > 1, from where the flow need not end.

    Source: Esser et al. 2023, Theorem 3 (corrected: |q₀| = 1, q₀ orthogonal to e₁, multiple and zero eigenvalues).

    >>> limit(torch.tensor([-0.1, 0.5]), torch.tensor([-1.0, 2.0]))
    tensor([-1.,  0.])
    >>> limit(torch.tensor([0.0, 0.5]), torch.tensor([-1.0, 2.0]))
    tensor([0., 0.])
    """
    length = torch.linalg.vector_norm(q0).item()
    if length > 1 + tolerance:
        raise UserError(f"outputs of length {length:g} cannot come from orthonormal weights; give q0 = VᵀW1ᵀW2, of length at most 1")
    alive = q0.abs() > tolerance
    if not alive.any():
        return torch.zeros_like(q0)
    scale = tolerance * eigenvalues.abs().max()
    lowest = eigenvalues[alive].min()
    c = torch.where((eigenvalues - lowest).abs() <= scale, q0, 0)
    size = torch.linalg.vector_norm(c).item()
    if length >= 1 - tolerance or lowest < -scale:
        return c / size
    return c * 0 if lowest > scale else c * (_limit_length(size, length, b) / size)


def _limit_length(size: float, length: float, b: float) -> float:
    """The root ρ in [size, 1) of 8 log ρ − b log(1 − ρ²) = 8 log size − b log(1 − length²), by bisection: the left side increases."""
    target = 8 * math.log(size) - b * math.log1p(-(length**2))
    low, high = size, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = middle < 1 and 8 * math.log(middle) - b * math.log1p(-(middle**2)) < target
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def output_limit_projector(
    eigenvalues: Float[Tensor, " d"], *, hidden: int, outputs: int, tolerance: float = 1e-12
) -> Float[Tensor, "d d"]:
    """Where qqᵀ ends from generic orthonormal weights: the projector on the min(z, #negative) lowest eigenvectors, on no fewer than the
    k = max(0, d + z − h) that the weights force.

    Args:
        eigenvalues: of C, ascending.
        hidden: h.
        outputs: z.
        tolerance: eigenvalues and differences below it times the largest |λ| count as zero.

    Raises:
        UserError: h < d or h < z; a zero eigenvalue at the edge, or a multiple one, of which the limit depends on the start.

    Source: Esser et al. 2023, Theorem 3, for several outputs (not in the paper).

    >>> limit_projector(torch.tensor([-2.0, -1.0, 3.0]), hidden=9, outputs=3).diagonal()
    tensor([1., 1., 0.])
    """
    d = len(eigenvalues)
    scale = tolerance * eigenvalues.abs().max()
    rank = max(min(outputs, int((eigenvalues < -scale).sum())), forced_rank(d, hidden=hidden, outputs=outputs))
    multiple = 0 < rank < d and eigenvalues[rank] - eigenvalues[rank - 1] <= scale
    if multiple or (rank < min(outputs, d) and eigenvalues[rank].abs() <= scale):
        raise UserError(f"eigenvalue {rank + 1} of C is zero or multiple, so the limit depends on the start; perturb C or run the flow")
    return torch.diag((torch.arange(d, device=eigenvalues.device) < rank).to(eigenvalues.dtype))
