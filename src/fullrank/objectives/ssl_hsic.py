"""SSL-HSIC: maximise the dependence of embeddings on the identity of the image, measured by a kernel."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import centered, mean_over_pairs, squared_distances, unit
from fullrank.objectives.shapes import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def ssl_hsic(Z: Float[Tensor, "V N D"], *, regularization: float = 3.0, kernel_scale: float = 1.0) -> Terms:
    """Return the terms of SSL-HSIC, for any number of views. With z the n = V N L2-normalised embeddings, k(x, y) = c/√(c² + ‖x − y‖²) the
    inverse multiquadric kernel of scale c, K its matrix, H = I − 1/n, and Y the identity of the image of each row,

        HSIC(Z, Y) = mean_{v≠w} mean_i k(z_vi, z_wi) − mean_{a,b} K_ab        HSIC(Z, Z) = ‖HKH‖_F²/n²
        ℒ = − HSIC(Z, Y) + regularization · √HSIC(Z, Z)

    Complete collapse has loss 0 and no gradient. A joint rotation and the length of rows do not change the loss.

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        regularization: weight of the dependence of embeddings on themselves, the paper's γ.
        kernel_scale: scale c of the kernel.

    Returns:
        The terms "dependence" and "regularization".

    Source: Li et al. 2021, Self-Supervised Learning with Kernel Dependence Maximization, with its estimator of HSIC(Z, Y), where the kernel
    of Y is N for two views of one image and 0 otherwise. (With 1 in place of N, HSIC(Z, Y) would be N times smaller, and collapse the
    optimum.) The kernel is computed exactly; the authors approximate it by random features.

    >>> ssl_hsic(torch.ones(2, 8, 3))
    {'dependence': tensor(0.), 'regularization': tensor(0.)}
    """
    V, N, _ = Z.shape
    D2 = squared_distances(unit(Z, dim=-1).flatten(0, 1))  # (V N, V N)
    K = kernel_scale * (kernel_scale**2 + D2).rsqrt()
    positives = K.view(V, N, V, N).diagonal(dim1=1, dim2=3)  # (V, V, N)
    return {
        "dependence": K.mean() - mean_over_pairs(positives),
        "regularization": regularization * torch.linalg.matrix_norm(centered(centered(K).mT)) / (V * N),
    }
