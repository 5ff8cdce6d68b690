"""SimSiam: predict the direction of another view's embedding; only the prediction gets a gradient."""

from jaxtyping import Float
from torch import Tensor

from fullrank.objectives.algebra import pair_cosines
from fullrank.objectives.signature import checks_shapes
from fullrank.objectives.terms import Terms


@checks_shapes
def simsiam(P: Float[Tensor, "V N D"], T: Float[Tensor, "V_T N D"]) -> Terms:
    """Return the term of SimSiam, for any number of views. With sg the stop-gradient,

        ℒ = − mean_{v≠w} mean_i cos(p_vi, sg t_wi)

    The loss is between −1 and 1. Complete collapse is an optimum; the predictor and the stop-gradient prevent it in
    training.

    Args:
        P: predictions from V ≥ 2 views of N samples.
        T: embeddings of the first V_T of these views, without gradient.

    Returns:
        The term "prediction".

    Source: Chen and He 2021, Exploring Simple Siamese Representation Learning, eq. 1 and 4; for V > 2 the mean over
    ordered pairs.

    >>> import torch
    >>> P = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> simsiam(P, P.flip(0)), simsiam(P, P)
    ({'prediction': tensor(-1.)}, {'prediction': tensor(-0.)})
    """
    return {"prediction": -pair_cosines(P, T.detach()).mean()}
