"""SSL-HSIC: maximise the dependence of embeddings on the identity of the image, measured by a kernel."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import centered, squared_distances, unit
from fullrank.objectives.faster import fast
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
@fast("pairs:ssl_hsic")
def ssl_hsic(Z: Float[Tensor, "V N D"], *, regularization: float = 3.0, kernel_scale: float = 1.0) -> Terms:
    """Return the terms of SSL-HSIC, for any number of views. With z the n = V N L2-normalised embeddings, k(x, y) =
    c/√(c² + ‖x − y‖²) the inverse multiquadric kernel of scale c, K its matrix, H = I − 1/n, and Y the identity of the
    image of each row,

        HSIC(Z, Y) = mean_{v≠w} mean_i k(z_vi, z_wi) − mean_{a,b} K_ab        HSIC(Z, Z) = ‖HKH‖_F²/n²
        ℒ = − HSIC(Z, Y) + regularization · √HSIC(Z, Z)

    Complete collapse has loss 0 and no gradient. A joint rotation and the length of rows do not change the loss. The
    cost is (V N)² D. The memory is at most (V N)².

    Args:
        Z: embeddings of V ≥ 2 views of N samples.
        regularization: weight of the dependence of embeddings on themselves, the paper's γ.
        kernel_scale: scale c of the kernel.

    Returns:
        The terms "dependence" and "regularization".

    Source: Li et al. 2021, Self-Supervised Learning with Kernel Dependence Maximization, with its estimator of HSIC(Z,
    Y), where the kernel of Y is N for two views of one image and 0 otherwise. (With 1 in place of N, HSIC(Z, Y) would
    be N times smaller, and collapse the optimum.) The kernel is computed exactly; the authors approximate it by random
    features.

    >>> ssl_hsic(torch.ones(2, 8, 3))
    {'dependence': tensor(0.), 'regularization': tensor(0.)}
    """
    V, N, _ = Z.shape
    K = kernel(squared_distances(unit(Z, dim=-1).flatten(0, 1)), kernel_scale)  # (V N, V N)
    positives = K.view(V, N, V, N).diagonal(dim1=1, dim2=3).sum() - K.diagonal().sum()
    return {
        "dependence": K.mean() - positives / (V * (V - 1) * N),
        "regularization": regularization * torch.linalg.matrix_norm(centered(centered(K).mT)) / (V * N),
    }


def kernel(D2: Float[Tensor, "*N"], scale: float) -> Float[Tensor, "*N"]:
    """Return the inverse multiquadric kernel of squared distances.

    >>> kernel(torch.tensor([0.0, 3.0]), 1.0)
    tensor([1.0000, 0.5000])
    """
    return scale * (scale**2 + D2).rsqrt()
