"""Stepwise learning: a linear network under the Barlow Twins loss learns the eigenmodes of its data one by one, at
predictable times.

f(x) = Wx, Γ = (1/2n) Σ (x x′ᵀ + x′xᵀ) = V diag(γ) Vᵀ, ℒ(W) = ‖WΓWᵀ − I‖_F². Time is learning rate × step; Γ is a mean
over the n pairs, so time does not depend on n. In arguments, G is Γ, W the weights of D embeddings, t times ≥ 0, s the
initial s(0) ≥ 0 of R modes, gamma their γ, and V their directions.

A kernel machine is a linear network on the features of its kernel, kK̃^{−½} of a point with kernel row k. With Γ =
`contrastive_kernel(K)`, all functions here apply to it, and to a wide network with its tangent kernel.

Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning (arXiv 2303.15438).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory import flow
from fullrank_papers.theory.checks import check_symmetric


def feature_cross_correlation(X: Float[Tensor, "2 N M"]) -> Float[Tensor, "M M"]:
    """Return Γ = (1/2n) Σ_i (x_i x′_iᵀ + x′_i x_iᵀ). The dynamics depend on the data through Γ alone; X is not centred.

    Source: Simon et al. 2023, the feature cross-correlation matrix.

    >>> feature_cross_correlation(torch.tensor([[[1.0, 0.0]], [[1.0, 2.0]]]))
    tensor([[1., 1.],
            [1., 0.]])
    """
    C = X[0].mT @ X[1] / X.shape[1]
    return (C + C.mT) / 2


def barlow_loss(W: Float[Tensor, "D M"], G: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
    """Return ℒ(W) = ‖WΓWᵀ − I‖_F², Barlow Twins without normalisation and with the cross-correlation of both orders of
    the views.

    It equals `barlow_linear` on the 2n ordered pairs (x, x′) and (x′, x), each embedding divided by √(2n).

    >>> barlow_loss(torch.eye(2, 3), 2 * torch.eye(3))
    tensor(2.)
    """
    return _residual(W, G).square().sum()


def vector_field(W: Float[Tensor, "D M"], G: Float[Tensor, "M M"]) -> Float[Tensor, "D M"]:
    """Return dW/dt = −∇ℒ(W) = −4 (WΓWᵀ − I) WΓ.

    Source: Simon et al. 2023.

    >>> vector_field(torch.eye(2, 3), 2 * torch.eye(3))
    tensor([[-8.,  0.,  0.],
            [ 0., -8.,  0.]])
    """
    return -4 * _residual(W, G) @ W @ G


def gradient_descent(
    W: Float[Tensor, "D M"], G: Float[Tensor, "M M"], *, learning_rate: float, steps: Sequence[int]
) -> Float[Tensor, "S D M"]:
    """Run full-batch gradient descent on ℒ from W, and return W at the chosen ascending steps: step k is at time t =
    ηk.

    Raises:
        UserError: the learning rate is at or above the stability limit, or an error of `flow.gradient_descent`.

    >>> W = 1e-3 * torch.eye(1, 2, dtype=torch.float64)
    >>> gradient_descent(W, torch.eye(2, dtype=torch.float64), learning_rate=0.1, steps=[0, 1])[:, 0, 0]
    tensor([0.0010, 0.0014], dtype=torch.float64)
    """
    limit = stability_limit(eigenmodes(G)[0])
    if learning_rate >= limit:
        raise UserError(f"learning rate {learning_rate:g} is not below the stability limit {limit:g}; lower it")
    return flow.gradient_descent(lambda p: barlow_loss(p[0], G), (W,), learning_rate=learning_rate, steps=steps)[0]


def stability_limit(gamma: Float[Tensor, " M"]) -> float:
    """Return 1/(4γ₁): gradient descent converges to WΓWᵀ = I only at a learning rate below it.

    The largest curvature of ℒ there is 8γ₁, that of the singular value of the first mode, and a step of 2/curvature
    only oscillates.

    Source: derived here; Simon et al. 2023 take small steps.

    >>> stability_limit(torch.tensor([2.0, 1.0]))
    0.125
    """
    return (1 / (4 * gamma[0])).item()


def eigenmodes(G: Float[Tensor, "M M"]) -> tuple[Float[Tensor, " M"], Float[Tensor, "M M"]]:
    """Return γ and V of Γ = V diag(γ) Vᵀ with γ descending: the order in which modes are learned. Modes with γ ≤ 0 are
    not learned.

    Raises:
        UserError: Γ is not symmetric.

    >>> gamma, V = eigenmodes(torch.diag(torch.tensor([1.0, 3.0, 2.0])))
    >>> gamma, V[:, 0].abs()
    (tensor([3., 2., 1.]), tensor([0., 1., 0.]))
    """
    check_symmetric(G, "Γ")
    gamma, V = torch.linalg.eigh(G)
    return gamma.flip(-1), V.flip(-1)


SEPARATED = 12.0
"""Logarithm of the ratio of two singular values from which Gram-Schmidt replaces the SVD. Errors are e⁻²⁴, and those of
the SVD e¹²ε."""


def aligned_initialization(
    W: Float[Tensor, "D M"], gamma: Float[Tensor, " K"], V: Float[Tensor, "M K"]
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, "D R"], Float[Tensor, "M R"]]:
    """Return s(0), γ, U and V of the aligned initialisation U diag(s) Vᵀ, whose flow is that of a small generic W:
    modes as learned.

    While W is small it grows as W(0)e^{4Γt}. The j-th mode is learned at the time τ_j when the j-th singular value σ_j
    of W(0)e^{4Γt}V has grown to γσ_j² = 1. u_j and v_j are its singular vectors at that time, γ_j = v_jᵀΓv_j, and
    s_j(0) = e^{−4γ_jτ_j}/√γ_j, so that `learning_times` returns τ_j. There are two simple limits:

        separated γ    Gram-Schmidt: WV = QR, s_j(0) = |R_jj|, U = Q, and V is unchanged
        equal γ        the SVD of the overlap WV of the block: V turns within the block

    It is exact as W → 0, for any γ. Give all modes of `eigenmodes`, not only the first D: mode D + 1 grows as well
    until mode D is learned, and without it the predicted time of the last mode can be wrong by a quarter.
    `benchmarks/results/stepwise.json` has the errors of the learning times.

    Args:
        W: W(0), with γ_j s_j(0)² ≪ 1.
        gamma: γ of K modes, descending.
        V: their directions.

    Returns:
        s(0), γ, U and V of R modes: D, or fewer if fewer γ are positive or W does not contain so many modes. They are
        arguments of `weights(t, s, gamma, U, V)`.

    Source: Simon et al. 2023, small generic initialisation, a Gram-Schmidt process; for equal and near γ not in the
    paper.

    >>> aligned_initialization(torch.tensor([[0.0, -0.02], [0.01, 0.0]]), torch.tensor([2.0, 1.0]), torch.eye(2))[:2]
    (tensor([0.0100, 0.0200]), tensor([2., 1.]))
    """
    positive = gamma > 0
    gamma, overlap = gamma[positive], W @ V[:, positive]
    found = []
    for j in range(min(overlap.shape)):
        mode = _learn_mode(j, overlap, gamma, start=found[-1][0] if found else torch.zeros_like(gamma[0]))
        if mode is None:
            break
        found.append(mode)
    if not found:
        return gamma[:0], gamma[:0], W[:, :0], V[:, :0]
    times, rates, U, turned = (torch.stack(column, -1) for column in zip(*found, strict=True))
    return torch.exp(-4 * rates * times) / rates.sqrt(), rates, _orthonormal(U), V[:, positive] @ _orthonormal(turned)


def _learn_mode(
    j: int, overlap: Float[Tensor, "D K"], gamma: Float[Tensor, " K"], *, start: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return the time when γσ_j² = 1, by Newton's method, with γ, u and v of the singular value σ_j then, or None if it
    is always 0.
    """
    t, low, high = start, -torch.inf, torch.inf
    for _ in range(50):
        mode = _grown_singular_value(j, overlap, gamma, t)
        if mode is None:
            return None
        log_sigma, left, right = mode
        rate = (right.square() * gamma).sum()
        value = 2 * log_sigma + rate.log()
        low, high = (low, t.item()) if value > 0 else (t.item(), high)
        step = value / (8 * rate)
        if step.abs() <= 1e-10 * t.abs():
            break
        t = t - step
        if not low < t < high:  # at a kink, where two singular values cross
            t = torch.full_like(t, (low + high) / 2)
    sign = torch.where(right[right.abs().argmax()] < 0, -1, 1)
    return t, rate, sign * left, sign * right


def _grown_singular_value(
    j: int, overlap: Float[Tensor, "D K"], gamma: Float[Tensor, " K"], t: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return log σ_j of W(0)e^{4Γt} with its singular vectors, or None for a rank of j or less.

    The columns differ by many orders of magnitude, so that an SVD of all would lose σ_j. A Gram-Schmidt process,
    largest columns first, projects out those that are far larger than the j-th.
    """
    exponents = 4 * gamma * t
    residuals, sizes, chosen, rest = [overlap], [], [], overlap
    floor = torch.finfo(overlap.dtype).eps * overlap.norm(dim=0)
    for _ in range(j + 1):
        norms = rest.norm(dim=0)
        size = torch.where(norms > 8 * floor, norms.log() + exponents, -torch.inf)
        k = int(size.argmax())
        if not size[k].isfinite():
            return None
        sizes.append(size[k])
        chosen.append(k)
        q = rest[:, k] / norms[k]
        rest = rest - torch.outer(q, q @ rest)
        residuals.append(rest)
    first = sum(bool(size - sizes[j] > SEPARATED) for size in sizes)
    free = torch.ones(len(gamma), dtype=torch.bool, device=gamma.device)
    free[chosen[:first]] = False
    scale = sizes[first]
    U, S, Vh = torch.linalg.svd(residuals[first][:, free] * (exponents[free] - scale).exp(), full_matrices=False)
    right = torch.zeros_like(gamma)
    right[free] = Vh[j - first]
    return S[j - first].log() + scale, U[:, j - first], right


def _orthonormal(A: Float[Tensor, "m R"]) -> Float[Tensor, "m R"]:
    """Return the columns after a Gram-Schmidt process that keeps their signs."""
    Q, R = torch.linalg.qr(A)
    return Q * torch.where(R.diagonal() < 0, -1, 1)


def singular_values(
    t: Float[Tensor, "*T"], s: Float[Tensor, " R"], gamma: Float[Tensor, " R"]
) -> Float[Tensor, "*T R"]:
    """Return s_j(t) = e^{4γ_j t} / √(s_j(0)⁻² + (e^{8γ_j t} − 1) γ_j), the singular values of W from an aligned
    initialisation.

    They solve ds_j/dt = 4γ_j s_j (1 − γ_j s_j²). As t → ∞: 1/√γ_j for γ_j > 0; 0 for γ_j < 0; s_j(0) if either is zero.

    Source: Simon et al. 2023, aligned initialisation.

    >>> singular_values(torch.tensor([0.0, 1.0, 10.0]), torch.tensor([0.1]), torch.tensor([0.25]))[:, 0]
    tensor([0.1000, 0.2697, 2.0000])
    """
    # Numerator and denominator are divided by e^{4γt}, which overflows; the floor keeps a singular value of 0 at 0.
    growth = 8 * gamma * t[..., None]
    decay = torch.exp(-growth).clamp(min=torch.finfo(growth.dtype).tiny)
    return s / (decay - gamma * s.square() * torch.expm1(-growth)).sqrt()


def eigenvalues(t: Float[Tensor, "*T"], s: Float[Tensor, " R"], gamma: Float[Tensor, " R"]) -> Float[Tensor, "*T R"]:
    """Return λ_j(t) = γ_j s_j(t)² = 1 / (1 + ((γ_j s_j(0)²)⁻¹ − 1) e^{−8γ_j t}), the eigenvalues of WΓWᵀ: logistic
    steps from 0 to 1.

    The loss is Σ_j (1 − λ_j)², plus 1 for every embedding dimension without a mode. For γ_j < 0, λ_j < 0 and converges
    to 0.

    Source: Simon et al. 2023.

    >>> eigenvalues(torch.tensor([0.0, 1.0, 10.0]), torch.tensor([0.1]), torch.tensor([0.25]))[:, 0]
    tensor([0.0025, 0.0182, 1.0000])
    """
    return gamma * singular_values(t, s, gamma).square()


def weights(
    t: Float[Tensor, "*T"],
    s: Float[Tensor, " R"],
    gamma: Float[Tensor, " R"],
    U: Float[Tensor, "D R"],
    V: Float[Tensor, "M R"],
) -> Float[Tensor, "*T D M"]:
    """Return W(t) = U diag(s(t)) Vᵀ: the whole trajectory from an aligned initialisation, U with orthonormal columns,
    in closed form.

    Source: Simon et al. 2023, aligned initialisation.

    >>> weights(torch.tensor(0.0), torch.tensor([0.1, 0.2]), torch.ones(2), torch.eye(2), torch.eye(3)[:, :2])
    tensor([[0.1000, 0.0000, 0.0000],
            [0.0000, 0.2000, 0.0000]])
    """
    return U * singular_values(t, s, gamma)[..., None, :] @ V.mT


def learning_times(s: Float[Tensor, " R"], gamma: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Return τ_j = −log(γ_j s_j(0)²) / (8γ_j), the time when mode j is learned: λ_j(τ_j) = 1/(2 − λ_j(0)), a half for a
    small start.

    It is infinite for modes that are not learned, γ_j ≤ 0 or s_j(0) = 0.

    Source: Simon et al. 2023.

    >>> learning_times(torch.tensor([0.01, 0.01, 0.01]), torch.tensor([2.0, 1.0, -1.0]))
    tensor([0.5323, 1.1513,    inf])
    """
    return torch.where(gamma > 0, -torch.log(gamma.clamp(min=0) * s.square()) / (8 * gamma), torch.inf)


def crossing_times(t: Float[Tensor, " T"], values: Float[Tensor, "T R"], *, level: float = 0.5) -> Float[Tensor, " R"]:
    """Return the time when each column of a recorded trajectory first reaches `level`, by linear interpolation:
    measured `learning_times`.

    It is t[0] for a column that starts at the level or above, and infinite for a column that never reaches it.

    >>> crossing_times(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0, 0.0], [0.4, 0.1], [0.8, 0.2]]))
    tensor([1.2500,    inf])
    """
    reached = values >= level
    after = reached.int().argmax(0)  # the first record at or above the level, or 0
    before = (after - 1).clamp(min=0)
    low, high = (values.gather(0, row[None])[0] for row in (before, after))
    fraction = torch.where(after > 0, (level - low) / (high - low), 0)
    return torch.where(reached.any(0), torch.lerp(t[before], t[after], fraction), torch.inf)


def contrastive_kernel(K: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Return K_Γ = (1/2n) K̃^{½} P K̃^{½}, where P swaps the two views of each pair: Γ of a kernel machine, with Γ's
    nonzero eigenvalues.

    K is K̃, the kernel of M = 2n points: all first views, then all second views, in the same order.

    With Γ = K_Γ and W = ZᵀK̃^{−½}, the least weights with embeddings Z (2n, D), all functions of this module apply
    to a kernel machine that is trained by gradient flow on its weights in feature space.

    Raises:
        UserError: K̃ is not symmetric and positive semidefinite, or M is odd.

    Source: Simon et al. 2023, the kernelised solution.

    >>> contrastive_kernel(torch.eye(2))  # two orthogonal points: their sum is learned, their difference is not
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]])
    """
    root = kernel_root(K)
    return root @ root.roll(len(K) // 2, 0) / len(K)


def kernel_root(K: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Return K̃^{½} of the kernel of two views of each point, with eigenvalues of rounding alone as 0.

    Raises:
        UserError: K̃ is not symmetric and positive semidefinite, or M is odd.

    >>> kernel_root(torch.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    check_symmetric(K, "K")
    values, B = torch.linalg.eigh(K)
    noise = len(K) * torch.finfo(K.dtype).eps * values[-1].abs()
    if len(K) % 2 or values[0] < -100 * noise:
        problem = f"K has {len(K)} points and the eigenvalue {values[0]:.3g}"
        raise UserError(f"{problem}; give a positive semidefinite kernel of two views of each point")
    return B * torch.where(values > noise, values, 0).sqrt() @ B.mT


def _residual(W: Float[Tensor, "D M"], G: Float[Tensor, "M M"]) -> Float[Tensor, "D D"]:
    return W @ G @ W.mT - torch.eye(len(W), dtype=W.dtype, device=W.device)
