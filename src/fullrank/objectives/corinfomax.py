"""CorInfoMax: a large log-determinant of a running covariance of the embeddings, and agreement of the two views."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.distributed import sample_mean
from fullrank.objectives.algebra import logdet, products
from fullrank.objectives.signature import ObjectiveState, checks_shapes, stateful
from fullrank.objectives.terms import Terms


def corinfomax_moments(
    Z: Float[Tensor, "2 N D"], R: Float[Tensor, "2 D D"], mu: Float[Tensor, "2 D"], *, forgetting: float = 0.01
) -> tuple[Float[Tensor, "2 D D"], Float[Tensor, "2 D"]]:
    """Return the running moments of each view after a batch. With f the forgetting,

        μ′ = f μ + (1 − f) mean_i z_i        R′ = f R + (1 − f) mean_i (z_i − μ′)(z_i − μ′)ᵀ

    Source: Ozsoy et al. 2022.

    >>> Z = torch.tensor([[1.0], [3.0]]).expand(2, 2, 1)
    >>> R, mu = corinfomax_moments(Z, torch.ones(2, 1, 1), torch.zeros(2, 1), forgetting=0.5)
    >>> R.flatten(), mu.flatten()
    (tensor([1.5000, 1.5000]), tensor([1., 1.]))
    """
    mu = forgetting * mu + (1 - forgetting) * sample_mean(Z)[:, 0]
    A = Z - mu[:, None]
    return forgetting * R + (1 - forgetting) / Z.shape[1] * products(A, A), mu


def identities(V: int, D: int, _: int) -> Float[Tensor, "V D D"]:
    """Return V identity matrices: the running covariances before the first batch."""
    return torch.eye(D).repeat(V, 1, 1)


@stateful(ObjectiveState({"R": ("V D D", identities), "mu": ("V D", torch.zeros)}, corinfomax_moments))
@checks_shapes
def corinfomax(
    Z: Float[Tensor, "2 N D"],
    R: Float[Tensor, "2 D D"],
    mu: Float[Tensor, "2 D"],
    *,
    invariance: float = 250.0,
    epsilon: float = 1e-6,
    forgetting: float = 0.01,
) -> Terms:
    """Return the terms of CorInfoMax. With R′ the running covariance of each view after this batch
    (`corinfomax_moments`),

        ℒ = − Σ_v (1/D) log det(R′_v + ε I) + invariance · mean_{n,d} (z¹ − z²)²

    The gradient flows only through the part of R′ of this batch. The cost is N·D² + D³, and the memory D²: the state R
    has full rank, so the determinant of a smaller matrix (N, N) cannot replace its own. Embeddings are not normalised
    here: the method supplies L2-normalised rows, which bound the determinant.

    Args:
        Z: embeddings of exactly two views of N samples.
        R: running covariances of the views before this batch; they start at the identity.
        mu: running means of the views before this batch; they start at zero.
        invariance: weight of the distance between views.
        epsilon: ε, the eigenvalue that a collapsed dimension has in the determinant.
        forgetting: weight of the past in the running moments, the paper's λ.

    Returns:
        The terms "entropy" and "invariance".

    Source: Ozsoy et al. 2022, Self-Supervised Learning with an Information Maximization Criterion, on the scale of its
    code.

    Two views that agree, spread evenly over all dimensions, after a past of the same covariance I/D:

    >>> Z, I = torch.cat([torch.eye(2), -torch.eye(2)]).expand(2, 4, 2), torch.eye(2).expand(2, 2, 2)
    >>> corinfomax(Z, I / 2, torch.zeros(2, 2))  # 2 log 2
    {'entropy': tensor(1.3863), 'invariance': tensor(0.)}
    """
    R, _ = corinfomax_moments(Z, R.detach(), mu.detach(), forgetting=forgetting)
    return {
        "entropy": -logdet(R, epsilon=epsilon).sum() / Z.shape[-1],
        "invariance": invariance * (Z[0] - Z[1]).square().mean(),
    }
