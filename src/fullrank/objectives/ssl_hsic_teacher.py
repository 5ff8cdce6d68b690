"""SSL-HSIC with a predictor and a teacher: the predictions and the teacher's embeddings are the views of a sample."""

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.ssl_hsic import ssl_hsic
from fullrank.objectives.terms import Terms


@checks_shapes
def ssl_hsic_teacher(
    P: Float[Tensor, "V N D"], T: Float[Tensor, "V_T N D"], *, regularization: float = 3.0, kernel_scale: float = 1.0
) -> Terms:
    """Return the terms of SSL-HSIC (`ssl_hsic`) on the V + V_T views P_1, …, P_V, sg T_1, …, sg T_{V_T}, with sg the
    stop-gradient. The cost is ((V + V_T) N)² D.

    The authors learn the scale c of the kernel k(x, y) = c/√(c² + ‖x − y‖²): it ascends the mean over the pairs of log
    |∂k/∂‖x − y‖²|, whose maximum is at mean 3c²/(c² + ‖x − y‖²) = 1. For embeddings that are spread over the sphere,
    with ‖x − y‖² near 2, this is c = 1, the scale that they start with and that stays constant here.

    Args:
        P: predictions of the student from V ≥ 2 views of N samples.
        T: embeddings of the first V_T of these views by the teacher, without gradient.
        regularization: weight of the dependence of embeddings on themselves, the paper's γ.
        kernel_scale: scale c of the kernel.

    Returns:
        The terms "dependence" and "regularization".

    Source: Li et al. 2021, Self-Supervised Learning with Kernel Dependence Maximization, and the authors' code, which
    approximates the kernel by random features.

    >>> ssl_hsic_teacher(torch.ones(2, 8, 3), torch.ones(2, 8, 3))
    {'dependence': tensor(0.), 'regularization': tensor(0.)}
    """
    return ssl_hsic(torch.cat([P, T.detach()]), regularization=regularization, kernel_scale=kernel_scale)
