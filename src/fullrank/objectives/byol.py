"""BYOL: predict the target network's embedding of another view; the target network is a moving average of the online
network.
"""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_cosines
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def byol(P: Float[Tensor, "V N D"], T: Float[Tensor, "V_T N D"]) -> Terms:
    """Return the term of BYOL, the squared distance of L2-normalised rows, for any number of views. With sg the
    stop-gradient,

        ℒ = 2 mean_{v≠w} mean_i ‖p_vi/‖p_vi‖ − sg t_wi/‖t_wi‖‖² = 2 mean_{v≠w} mean_i (2 − 2 cos(p_vi, sg t_wi))

    With two views it is the sum of the two directions. The loss is between 0 and 8 and equals 4 + 4 ℒ_SimSiam; only
    the origin of T differs. Complete collapse is an optimum; the predictor and the moving target prevent it in
    training.

    Args:
        P: predictions of the online network (student) from V ≥ 2 views of N samples.
        T: embeddings of the first V_T of these views by the target network (teacher), without gradient.

    Returns:
        The term "prediction".

    Source: Grill et al. 2020, Bootstrap Your Own Latent, eq. 2 and the sum over both directions below it; for V > 2
    twice the mean over ordered pairs.

    >>> import torch
    >>> P = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> byol(P, P.flip(0)), byol(P, P)
    ({'prediction': tensor(0.)}, {'prediction': tensor(4.)})
    """
    return {"prediction": 4 - 4 * pair_cosines(P, T.detach()).mean()}
