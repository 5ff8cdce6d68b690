"""The losses that the theory of learning dynamics studies: sums without normalisation, for which closed forms are
known.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import squared_distances
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def contrastive_linear(U: Float[Tensor, "N D"], U_pos: Float[Tensor, "N D"], U_neg: Float[Tensor, "N D"]) -> Terms:
    """Return the terms of the simplest contrastive loss, Σ_i u_iᵀ(u_i⁻ − u_i⁺). Without a constraint it is unbounded
    below.

    Args:
        U: embeddings of N anchors.
        U_pos: embeddings of their positives.
        U_neg: embeddings of their negatives.

    Returns:
        The terms "alignment" and "contrast".

    Source: Esser et al. 2023, Representation Learning Dynamics of Self-Supervised Models, eq. 1.

    >>> U = torch.eye(3)
    >>> contrastive_linear(U, U, -U)
    {'alignment': tensor(-3.), 'contrast': tensor(-3.)}
    """
    return {"alignment": -(U * U_pos).sum(), "contrast": (U * U_neg).sum()}


@checks_shapes
def alignment_linear(U: Float[Tensor, "N D"], U_pos: Float[Tensor, "N D"]) -> Terms:
    """Return the term of the simplest non-contrastive loss, − Σ_i u_iᵀu_i⁺. Without a constraint, directions of
    negative alignment converge to zero under its gradient flow, and all others diverge.

    Args:
        U: embeddings of N anchors.
        U_pos: embeddings of their positives.

    Returns:
        The term "alignment".

    Source: Esser et al. 2023, Representation Learning Dynamics of Self-Supervised Models, eq. 2.

    >>> alignment_linear(torch.eye(3), torch.eye(3))
    {'alignment': tensor(-3.)}
    """
    return {"alignment": -(U * U_pos).sum()}


@checks_shapes
def frossl_linear(Z: Float[Tensor, "2 N D"]) -> Terms:
    """Return the terms of FroSSL in the form for which the dynamics are solved, ‖Z₁ᵀZ₁ − I‖_F² + ‖Z₂ᵀZ₂ − I‖_F² + ‖Z₁ −
    Z₂‖_F².

    Args:
        Z: embeddings of exactly two views of N samples.

    Returns:
        The terms "variance" and "invariance".

    Source: Skean et al. 2023, FroSSL, eq. 8.

    >>> frossl_linear(torch.eye(3).expand(2, 3, 3))
    {'variance': tensor(0.), 'invariance': tensor(0.)}
    """
    identity = torch.eye(Z.shape[-1], dtype=Z.dtype, device=Z.device)
    return {"variance": (Z.mT @ Z - identity).square().sum(), "invariance": (Z[0] - Z[1]).square().sum()}


@checks_shapes
def barlow_linear(Z: Float[Tensor, "2 N D"]) -> Terms:
    """Return the term of Barlow Twins in the form for which the dynamics are solved, ‖Z₁ᵀZ₂ − I‖_F². Joint rotations do
    not change it.

    Args:
        Z: embeddings of exactly two views of N samples.

    Returns:
        The term "redundancy".

    Source: Simon et al. 2023, On the Stepwise Nature of Self-Supervised Learning.

    >>> barlow_linear(torch.eye(3).expand(2, 3, 3))
    {'redundancy': tensor(0.)}
    """
    identity = torch.eye(Z.shape[-1], dtype=Z.dtype, device=Z.device)
    return {"redundancy": (Z[0].mT @ Z[1] - identity).square().sum()}


@checks_shapes
def infonce_squared(Z: Float[Tensor, "2 N D"]) -> Terms:
    """Return the terms of InfoNCE with squared distances. With z the anchors Z₁ and z′ their positives Z₂,

        ℒ = − Σ_i log ( exp(−½‖z_i − z′_i‖²) / (exp(−½‖z_i − z′_i‖²) + Σ_{j≠i} exp(−½‖z_i − z_j‖²)) )

    which is the sum of alignment, ½ Σ_i ‖z_i − z′_i‖², and uniformity, the sum of the logarithms of the denominators.

    Args:
        Z: embeddings of N anchors and of their positives.

    Returns:
        The terms "alignment" and "uniformity".

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, eq. 2.

    >>> infonce_squared(torch.zeros(2, 8, 3))["uniformity"], 8 * torch.tensor(8.0).log()
    (tensor(16.6355), tensor(16.6355))
    """
    positives = -(Z[0] - Z[1]).square().sum(-1) / 2
    anchors = Z[0] - Z[0].detach().mean(0)  # far from the origin, the squares would cancel
    logits = (-squared_distances(anchors) / 2).diagonal_scatter(
        positives
    )  # the positive replaces the distance of each anchor to itself
    return {"alignment": -positives.sum(), "uniformity": logits.logsumexp(-1).sum()}


THEORY = {f.__name__: f for f in (contrastive_linear, alignment_linear, frossl_linear, barlow_linear, infonce_squared)}
"""Name → loss of the theory."""
