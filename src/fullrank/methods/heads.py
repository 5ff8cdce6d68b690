"""Heads: modules between the projector and the objective."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fullrank.methods.method import StepModule, TrainingLength, at_least_float32
from fullrank.methods.projectors import ProjectorConfig, build_projector
from fullrank.objectives.algebra import unit


class L2Normalize(nn.Module):
    """Normalisation of embeddings to unit length, z / ‖z‖, in float32 or float64.

    >>> L2Normalize()(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    def forward(self, Z: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Normalise each row; a row of zeros stays zero."""
        return unit(at_least_float32(Z), dim=-1)


class ClipToUnitBall(nn.Module):
    """Clipping of embeddings to the unit ball, z / max(1, ‖z‖), in float32 or float64.

    >>> ClipToUnitBall()(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    def forward(self, Z: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Normalise each row that is longer than 1."""
        Z = at_least_float32(Z)
        return Z / torch.linalg.vector_norm(Z, dim=-1, keepdim=True).clamp_min(1)


class Prototypes(StepModule):
    """Cosines of embeddings with K prototypes, in float32 or float64 because they are divided by a small temperature.

    The prototypes are normalised in the forward pass, not after a step, so the loss does not depend on their length;
    length and weight decay only change their effective learning rate. In a loop of your own, call `before_step` to
    freeze them.

    Args:
        dimensions: dimension D of the embeddings.
        number: number K of prototypes.
        freeze: number of epochs at the start in which the prototypes are not trained (Caron et al. 2020, 2021).

    >>> Prototypes(4, 10)(torch.randn(8, 4)).shape
    torch.Size([8, 10])
    """

    def __init__(self, dimensions: int, number: int, *, freeze: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(unit(torch.randn(number, dimensions), dim=-1))
        self.freeze = freeze

    def before_step(self, step: int, training_length: TrainingLength) -> None:
        """Freeze the prototypes in the first `freeze` epochs, and train them afterwards."""
        self.frozen = step < self.freeze * training_length.steps_per_epoch

    def forward(self, Z: Float[Tensor, "n D"]) -> Float[Tensor, "n K"]:
        """Return S (n, K), in [−1, 1]."""
        # The gradient is zero instead of None, because DistributedDataParallel expects a gradient for each parameter.
        weight = self.weight.detach() + 0 * self.weight if self.frozen else self.weight
        with torch.autocast(Z.device.type, enabled=False):
            return unit(at_least_float32(Z), dim=-1) @ unit(weight, dim=-1).mT


class Predictor(nn.Sequential):
    """The head of a student that predicts the teacher's embedding. The optimizer finds it by `predicts`
    (`constant_predictor`).
    """

    predicts = True


def build_predictor(dimensions: int, hidden: int) -> Predictor:
    """Build the predictor of SimSiam and BYOL: Linear, BatchNorm, ReLU, Linear, from D dimensions through `hidden`
    units to D.

    >>> build_predictor(4, 8)(torch.randn(6, 4)).shape
    torch.Size([6, 4])
    """
    return Predictor(*build_projector(ProjectorConfig(widths=(hidden, dimensions)), dimensions))
