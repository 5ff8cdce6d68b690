"""Projectors: the networks between the representation r, which is used downstream, and the embedding z, which the objective takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from torch import nn

from fullrank.errors import UserError
from fullrank.methods.directclr_projectors import (
    Diagonal,
    FixedLinear,
    RandomDropout,
    SubVector,
    orthogonal_linear,
    random_low_rank_matrix,
)
from fullrank.structure import Requirement, between

Width = Annotated[int, between(1, 65536)]
Widths = Annotated[
    tuple[Width, ...],
    Requirement("of at most 100 layers", lambda widths: len(widths) <= 100),
    Requirement("and 1e9 weights", lambda widths: sum(inputs * outputs for inputs, outputs in pairwise(widths)) <= 1e9),
]
"""The widths of an mlp that fits into memory."""


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """A map from representations r of D_b dimensions to embeddings z: an MLP, or one of the projectors that DirectCLR's paper compares."""

    kind: Literal["mlp", "diagonal", "orthogonal", "low-rank", "low-rank-diagonal", "sub-vector", "dropout", "groups"] = "mlp"
    """'mlp': Linear, BatchNorm, ReLU for each hidden layer, then Linear; one width is a linear projector, no width is no projector.
    'diagonal': s r, element by element, with s trained. 'orthogonal': Q r, with Q trained. 'low-rank': U Vᵀr, fixed and random, of rank d0.
    'low-rank-diagonal': r with its dimensions from d0 on set to zero. 'sub-vector': the first d0 dimensions of r.
    'dropout': r with all but d0 dimensions set to zero, chosen at random in each step.
    'groups': r, with the objective summed over groups of dimensions, chosen at random in each step."""
    widths: Widths = (2048, 2048, 1024)
    """Widths of the layers of an mlp; the last one is the dimension D of the embeddings. Empty: no projector."""
    batchnorm: bool = True
    """BatchNorm in the hidden layers of an mlp."""
    output_batchnorm: bool = False
    """BatchNorm after the last layer of an mlp too."""
    bias: bool = True
    """Biases in the layers of an mlp that no BatchNorm follows."""
    d0: Width = 360
    """Rank of 'low-rank' and 'low-rank-diagonal'; number of dimensions that 'sub-vector' and 'dropout' select."""
    groups: Width = 8
    """Number of groups of dimensions for 'groups'."""

    @property
    def absent(self) -> bool:
        """Whether there is no projector, so that the embedding is the representation."""
        return self.kind == "mlp" and not self.widths

    def dimensions(self, features: int) -> int:
        """Return the dimension D of the embeddings for representations of `features` dimensions.

        >>> [ProjectorConfig(kind=kind, widths=(64, 16), d0=8).dimensions(32) for kind in ("mlp", "sub-vector", "dropout")]
        [16, 8, 32]
        """
        return {"mlp": (features, *self.widths)[-1], "sub-vector": self.d0}.get(self.kind, features)


def build_projector(config: ProjectorConfig, features: int, *, seed: int = 0) -> nn.Sequential:
    """Build the projector: representations (n, `features`) to embeddings (n, D), with D = `config.dimensions(features)`.

    Fixed random matrices are drawn like weights, from torch's global generator, and are saved with them.

    Args:
        config: the configuration of the projector.
        features: dimension D_b of the representation.
        seed: seed of the dimensions that 'dropout' selects in each step.

    Raises:
        UserError: d0 is more than D_b, or less than 1.

    Source: Jing et al. 2022, Understanding Dimensional Collapse in Contrastive Self-supervised Learning, Table 2 and Appendix F.

    >>> [type(layer).__name__ for layer in build_projector(ProjectorConfig(widths=(64, 16)), features=32)]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    >>> build_projector(ProjectorConfig(kind="sub-vector", d0=2), features=4)(torch.arange(4.0)[None])
    tensor([[0., 1.]])
    """
    D_b, d0 = features, config.d0
    if config.kind in ("low-rank", "low-rank-diagonal", "sub-vector", "dropout") and not 1 <= d0 <= D_b:
        remedy = f"choose 1 to {D_b}, for example projector.d0 = {max(D_b // 4, 1)}"
        raise UserError(f"projector.d0 is {d0}, but representations have {D_b} dimensions; {remedy}")
    match config.kind:
        case "mlp":
            layers = _mlp_layers(config, (D_b, *config.widths))
        case "diagonal":
            layers = [Diagonal(nn.Parameter(torch.ones(D_b)))]
        case "orthogonal":
            layers = [orthogonal_linear(D_b)]
        case "low-rank":
            layers = [FixedLinear(random_low_rank_matrix(d0, D_b))]
        case "low-rank-diagonal":
            layers = [Diagonal((torch.arange(D_b) < d0).float())]
        case "sub-vector":
            layers = [SubVector(d0)]
        case "dropout":
            layers = [RandomDropout(D_b, d0, seed=seed)]
        case "groups":
            layers = []
    return nn.Sequential(*layers)


def _mlp_layers(config: ProjectorConfig, widths: tuple[int, ...]) -> Iterator[nn.Module]:
    for layer, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        last = layer == len(widths) - 1
        norm = config.output_batchnorm if last else config.batchnorm
        yield nn.Linear(inputs, outputs, bias=config.bias and not norm)  # BatchNorm has a bias
        if norm:
            yield nn.BatchNorm1d(outputs)
        if not last:
            yield nn.ReLU(inplace=True)
