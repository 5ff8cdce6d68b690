"""Two linear networks Z_v = X_v W_vᵀ, one for each view, under FroSSL's or the Barlow Twins loss: losses, vector
fields, gradient descent.

Weights are one tensor (B, D, M): B = 2 for separate networks, B = 1 for networks that share their weights. The loss
depends on the data only through the moments G (2, 2, M, M), G_vw = X_vᵀX_w. These are sums over samples, without 1/n;
time is learning rate × step of these losses, so it scales as 1/n. A vector field is dW/dt = −∇ℒ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank_papers.theory.flow import record


def moments(X: Float[Tensor, "2 N M"]) -> Float[Tensor, "2 2 M M"]:
    """Return G_vw = X_vᵀX_w of N samples X of two views, sums over the samples. The rows are not centred.

    Source: Skean et al. 2023, FroSSL, section 5.1.

    >>> moments(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]))[0, 1]
    tensor([[0., 2.],
            [0., 0.]])
    """
    return torch.einsum("vnp,wnq->vwpq", X, X)


def _join_views(W: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the vector field of the weights: shared weights take the sum over both views."""
    return torch.stack([first, second]) if len(W) == 2 else (first + second)[None]


def frossl_loss(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> Float[Tensor, ""]:
    """Return FroSSL's loss from moments, Σ_v ‖W_vG_vvW_vᵀ − I‖_F² + Σ_v tr W_vG_vvW_vᵀ − 2 tr W₁G₁₂W₂ᵀ: `frossl_linear`
    of Z_v = X_vW_vᵀ.

    Source: Skean et al. 2023, FroSSL, eq. 8.

    >>> frossl_loss(torch.eye(2)[None], torch.eye(2).expand(2, 2, 2, 2))
    tensor(0.)
    """
    W1, W2 = W[0], W[-1]
    S = torch.stack([W1 @ G[0, 0] @ W1.mT, W2 @ G[1, 1] @ W2.mT])
    return (
        (S - torch.eye(len(W1)).to(W)).square().sum()
        + S.diagonal(dim1=1, dim2=2).sum()
        - 2 * (W1 @ G[0, 1] @ W2.mT).trace()
    )


def barlow_loss(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> Float[Tensor, ""]:
    """Return the Barlow Twins loss from moments, ‖W₁G₁₂W₂ᵀ − I‖_F²: `barlow_linear` of Z_v = X_vW_vᵀ.

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning.

    >>> barlow_loss(torch.eye(2)[None], torch.eye(2).expand(2, 2, 2, 2))
    tensor(0.)
    """
    W1, W2 = W[0], W[-1]
    return (W1 @ G[0, 1] @ W2.mT - torch.eye(len(W1)).to(W)).square().sum()


def frossl_vector_field(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> Float[Tensor, "B D M"]:
    """Return minus the gradient of `frossl_loss`,

        dW₁/dt = 2 (W₁G₁₁ + W₂G₂₁ − 2 W₁G₁₁W₁ᵀW₁G₁₁),   dW₂/dt = 2 (W₂G₂₂ + W₁G₁₂ − 2 W₂G₂₂W₂ᵀW₂G₂₂)

    and the sum of both if the weights are shared.

    Source: Skean et al. 2023, FroSSL, eq. 12 and 13 and appendix D, corrected: the paper omits the minus of the
    descent, which changes the signs of the linear terms; with its equations every W would decay to 0.

    >>> frossl_vector_field(torch.eye(2)[None], torch.eye(2).expand(2, 2, 2, 2)).abs().max()
    tensor(0.)
    """
    W1, W2 = W[0], W[-1]
    A1, A2 = W1 @ G[0, 0], W2 @ G[1, 1]
    return _join_views(W, 2 * (A1 + W2 @ G[1, 0] - 2 * A1 @ W1.mT @ A1), 2 * (A2 + W1 @ G[0, 1] - 2 * A2 @ W2.mT @ A2))


def barlow_vector_field(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> Float[Tensor, "B D M"]:
    """Return minus the gradient of `barlow_loss`, dW₁/dt = 2 (I − P) W₂G₂₁ and dW₂/dt = 2 (I − P)ᵀ W₁G₁₂ with P =
    W₁G₁₂W₂ᵀ.

    The flow conserves ‖W₁‖_F² − ‖W₂‖_F².

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning, for two networks.

    >>> barlow_vector_field(torch.eye(2)[None], torch.eye(2).expand(2, 2, 2, 2)).abs().max()
    tensor(0.)
    """
    W1, W2 = W[0], W[-1]
    residual = torch.eye(len(W1)).to(W) - W1 @ G[0, 1] @ W2.mT
    return _join_views(W, 2 * residual @ W2 @ G[1, 0], 2 * residual.mT @ W1 @ G[0, 1])


@dataclass(frozen=True)
class TwoViewLoss:
    """A loss of weights W and moments G: its value, and minus its gradient."""

    value: Callable[[Tensor, Tensor], Tensor]
    vector_field: Callable[[Tensor, Tensor], Tensor]


FROSSL = TwoViewLoss(frossl_loss, frossl_vector_field)
BARLOW = TwoViewLoss(barlow_loss, barlow_vector_field)


def frossl_optimum(
    G: Float[Tensor, "2 2 M M"], *, dimensions: int
) -> tuple[Float[Tensor, "2 D M"], Float[Tensor, " D"]]:
    """Return the global minimum of `frossl_loss` over two networks and its canonical correlations ρ: the loss is Σ_j (1
    − ρ_j)(3 + ρ_j)/2.

    W_v = diag √((1+ρ)/2) A_vᵀ G_vv^(−½), where A₁ diag(ρ) A₂ᵀ are the D leading singular triples of G₁₁^(−½) G₁₂
    G₂₂^(−½). G₁₁ and G₂₂ may be singular.

    Raises:
        UserError: more dimensions than the rank of G₁₁ or G₂₂.

    Source: Skean et al. 2023, FroSSL, section 5.1, corrected: it is canonical correlation analysis, for any variances.

    >>> W, rho = frossl_optimum(torch.eye(3).expand(2, 2, 3, 3), dimensions=2)
    >>> rho
    tensor([1., 1.])
    """
    (whiten1, rank1), (whiten2, rank2) = _pseudo_inverse_sqrt(G[0, 0]), _pseudo_inverse_sqrt(G[1, 1])
    if dimensions > min(rank1, rank2):
        raise UserError(f"dimensions = {dimensions} exceeds the rank {min(rank1, rank2)} of the data; choose fewer")
    A1, rho, A2 = torch.linalg.svd(whiten1 @ G[0, 1] @ whiten2)
    A1, rho, A2 = A1[:, :dimensions], rho[:dimensions], A2[:dimensions]
    return ((1 + rho) / 2).sqrt()[:, None] * torch.stack([A1.mT @ whiten1, A2 @ whiten2]), rho


def _pseudo_inverse_sqrt(G: Tensor) -> tuple[Tensor, int]:
    """Return the pseudo-inverse of √G, and the rank of G."""
    values, V = torch.linalg.eigh(G)
    nonzero = values > len(G) * torch.finfo(G.dtype).eps * values[-1]
    return V * torch.where(nonzero, values.clamp_min(torch.finfo(G.dtype).tiny).rsqrt(), 0) @ V.mT, int(nonzero.sum())


def small_random_weights(
    generator: torch.Generator, *, networks: int, dimensions: int, inputs: int, scale: float
) -> Float[Tensor, "B D M"]:
    """Draw normal weights (B, D, M) in float64 with rows of norm `scale` on average. With small initial weights, the
    singular vectors align with the data's eigenmodes during training.

    >>> small_random_weights(torch.Generator().manual_seed(0), networks=2, dimensions=3, inputs=5, scale=1e-3).shape
    torch.Size([2, 3, 5])
    """
    return scale * inputs**-0.5 * torch.randn(networks, dimensions, inputs, generator=generator, dtype=torch.float64)


def eigenvalues(W: Float[Tensor, "B D M"], G: Float[Tensor, "2 2 _ _"]) -> Float[Tensor, "2 D"]:
    """Return the eigenvalues of Z_vᵀZ_v = W_vG_vvW_vᵀ of both views, in descending order.

    >>> eigenvalues(torch.diag(torch.tensor([1.0, 2.0]))[None], torch.eye(2).expand(2, 2, 2, 2))
    tensor([[4., 1.],
            [4., 1.]])
    """
    W1, W2 = W[0], W[-1]
    return torch.linalg.eigvalsh(torch.stack([W1 @ G[0, 0] @ W1.mT, W2 @ G[1, 1] @ W2.mT])).flip(-1)


def principal_cosines(
    W: Float[Tensor, "B D M"], V: Float[Tensor, "C D M"], G: Float[Tensor, "2 2 _ _"]
) -> Float[Tensor, "2 D"]:
    """Return the cosines of the principal angles between the embeddings X_vW_vᵀ and X_vV_vᵀ: all 1 if they span the
    same space.

    Either W or V may be shared.

    >>> G = torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)
    >>> principal_cosines(torch.tensor([[[1.0, 0.0]]]).double(), torch.tensor([[[3.0, 4.0]]]).double(), G)
    tensor([[0.6000],
            [0.6000]], dtype=torch.float64)
    """
    whitened = []
    for A in ((W[0], W[-1]), (V[0], V[-1])):
        L = torch.linalg.cholesky(torch.stack([A[v] @ G[v, v] @ A[v].mT for v in (0, 1)]))
        whitened.append(torch.linalg.solve_triangular(L, torch.stack(A), upper=False))
    return torch.linalg.svdvals(whitened[0] @ torch.stack([G[0, 0], G[1, 1]]) @ whitened[1].mT)


@dataclass(frozen=True)
class Trajectory:
    """Loss and eigenvalues recorded during gradient descent at T times.

    Attributes:
        t: Learning rate × step.
        eigenvalues: Eigenvalues of Z_vᵀZ_v of both views, in descending order.
        W: The final weights.
    """

    t: Float[Tensor, " T"]
    loss: Float[Tensor, " T"]
    eigenvalues: Float[Tensor, "T 2 D"]
    W: Float[Tensor, "B D M"]


def gradient_descent(
    loss: TwoViewLoss,
    W: Float[Tensor, "B D M"],
    G: Float[Tensor, "2 2 _ _"],
    *,
    learning_rate: float,
    steps: int,
    every: int = 1,
) -> Trajectory:
    """Run full-batch gradient descent W ← W − η∇ℒ(W), Euler's method for the flow: its error is of first order in η.

    Loss and eigenvalues are recorded at step 0, then at every multiple of `every`, and at the last step.

    Raises:
        UserError: gradient descent diverged.

    Source: Skean et al. 2023, FroSSL, figure 2.

    >>> G = torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)
    >>> W = 0.1 * torch.eye(2, dtype=torch.float64)[None]
    >>> gradient_descent(FROSSL, W, G, learning_rate=0.01, steps=200, every=100).loss
    tensor([3.9204e+00, 9.7296e-11, 0.0000e+00], dtype=torch.float64)
    """
    recorded = sorted({*range(0, steps + 1, every), steps})
    path = accumulate(range(steps), lambda W, _: W + learning_rate * loss.vector_field(W, G), initial=W)
    (Ws,) = record(((W,) for W in path), recorded)
    losses, spectra = (torch.stack([value(W, G) for W in Ws]) for value in (loss.value, eigenvalues))
    return Trajectory(learning_rate * torch.tensor(recorded, dtype=W.dtype), losses, spectra, Ws[-1])
