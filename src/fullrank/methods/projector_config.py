"""The configuration of a projector, the network between the representation r and the embedding z."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

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
    """A map from representations r of D_b dimensions to embeddings z: an MLP, or one of the projectors that DirectCLR's
    paper compares.
    """

    kind: Literal[
        "mlp", "diagonal", "orthogonal", "low-rank", "low-rank-diagonal", "sub-vector", "dropout", "groups"
    ] = "mlp"
    """'mlp': Linear, BatchNorm, `activation` for each hidden layer, then Linear; one width is a linear projector, no
    width is no projector. 'diagonal': s r, element by element, with s trained. 'orthogonal': Q r, with Q trained.
    'low-rank': U Vᵀr, fixed and random, of rank d0. 'low-rank-diagonal': r with its dimensions from d0 on set to zero.
    'sub-vector': the first d0 dimensions of r. 'dropout': r with all but d0 dimensions set to zero, chosen at random in
    each step. 'groups': r, with the objective summed over groups of dimensions, chosen at random in each step."""
    widths: Widths = (2048, 2048, 1024)
    """Widths of the layers of an mlp; the last one is the dimension D of the embeddings. Empty: no projector."""
    batchnorm: bool = True
    """BatchNorm in the hidden layers of an mlp."""
    output_batchnorm: bool = False
    """BatchNorm after the last layer of an mlp too."""
    output_affine: bool = True
    """Whether the BatchNorm after the last layer has a scale and a shift; SimSiam's has not."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation after each hidden layer of an mlp; DINO's head has GELU."""
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
