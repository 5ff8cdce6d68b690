"""The configuration of the networks: a timm model by its name with arguments of its architecture, and a projector."""

import re
from dataclasses import field
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fullrank.config import JsonObject, config
from fullrank.errors import UserError

# Arguments of `timm.create_model` and `build_model_with_cfg`, which load files, fill the network with weights or change
# global settings, and arguments that the recipe itself sets.
NOT_ARCHITECTURE = re.compile(
    r"^(model_name|scriptable|exportable|no_jit|kwargs|model_cls|variant|model_cfg|feature_cfg|kwargs_filter|num_classes"
    r"|in_chans|device|dtype|out_indices|feature_cls)$|pretrained|checkpoint_|cache|weights|url|file|(^|_)hub(_|$)"
)
WORD = re.compile(r"[\w-]{0,40}", re.ASCII)


@config
class BackboneConfig:
    """The network that maps an image to its representation.

    Attributes:
        name: A timm model, without pretrained weights; names with a colon, such as hf-hub:…, would load files.
        arguments: Further arguments of the network's architecture, as JSON, such as {"channels": [32, 64, 96, 128]}.
        stem: 'small', for images of about 32 px: the ResNet starts with a 3×3 convolution of stride 1, without
            max-pooling.
        last_residual: False: the last block of the ResNet has no shortcut, and the representation comes only from its
            convolutions.
    """

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] = "resnet18"
    arguments: JsonObject = field(default_factory=dict)
    stem: Literal["standard", "small"] = "standard"
    last_residual: bool = True

    def __post_init__(self) -> None:
        for name, value in self.arguments.items():
            _check_argument(name, value)


def _check_argument(name: str, value: Any) -> None:
    """Check that an argument describes an architecture: no file, no weights, and numbers of a sensible size.

    Raises:
        UserError: it does not.
    """
    what, (low, high) = f"backbone.arguments: '{name}'", (0, 1) if "drop" in name else (-65536, 65536)
    if NOT_ARCHITECTURE.search(name):
        raise UserError(f"{what} is not an argument of an architecture, such as channels or img_size; remove it")
    for leaf in _leaves(value):
        if isinstance(leaf, str) and not WORD.fullmatch(leaf):
            raise UserError(f"{what} is {leaf!r}, expected a number, or a word of letters, digits, '_' and '-'")
        if isinstance(leaf, int | float) and not isinstance(leaf, bool) and not low <= leaf <= high:
            raise UserError(f"{what} is {leaf}, expected a number from {low} to {high}; change it")


def _leaves(value: Any) -> list[Any]:
    branches = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return [leaf for branch in branches for leaf in _leaves(branch)]
    return [value]


def _fits(widths: tuple[int, ...]) -> tuple[int, ...]:
    if len(widths) > 100 or sum(inputs * outputs for inputs, outputs in pairwise(widths)) > 1e9:
        raise ValueError(f"got {widths}, expected at most 100 layers and 1e9 weights")
    return widths


Width = Annotated[int, Field(ge=1, le=65536)]
# The widths of an mlp that fits into memory.
Widths = Annotated[tuple[Width, ...], AfterValidator(_fits)]


ProjectorKind = Literal[
    "mlp", "diagonal", "orthogonal", "low-rank", "low-rank-diagonal", "sub-vector", "dropout", "groups"
]


@config
class ProjectorConfig:
    """A map from representations r of D_b dimensions to embeddings z: an MLP, or one of the projectors that DirectCLR's
    paper compares.

    Attributes:
        kind: 'mlp': Linear, BatchNorm, `activation` for each hidden layer, then Linear; one width is a linear
            projector, no width is no projector. 'diagonal': s r, element by element, with s trained. 'orthogonal': Q r,
            with Q trained. 'low-rank': U Vᵀr, fixed and random, of rank d0. 'low-rank-diagonal': r with its dimensions
            from d0 on set to zero. 'sub-vector': the first d0 dimensions of r. 'dropout': r with all but d0 dimensions
            set to zero, chosen at random in each step. 'groups': r, with the objective summed over groups of
            dimensions, chosen at random in each step.
        widths: Widths of the layers of an mlp; the last one is the dimension D of the embeddings. Empty: no projector.
        batchnorm: BatchNorm in the hidden layers of an mlp.
        output_batchnorm: BatchNorm after the last layer of an mlp too.
        output_iternorm: Number of groups of dimensions that an iterative normalisation whitens after the last layer of
            an mlp; 0: none. VIbCReg's has 64.
        output_affine: Whether BatchNorm and iterative normalisation after the last layer have a scale and a shift;
            SimSiam's has not.
        activation: Activation after each hidden layer of an mlp; DINO's head has GELU.
        bias: Biases in the layers of an mlp that no BatchNorm follows.
        d0: Rank of 'low-rank' and 'low-rank-diagonal'; number of dimensions that 'sub-vector' and 'dropout' select.
        groups: Number of groups of dimensions for 'groups'.
    """

    kind: ProjectorKind = "mlp"
    widths: Widths = (2048, 2048, 1024)
    batchnorm: bool = True
    output_batchnorm: bool = False
    output_iternorm: Annotated[int, Field(ge=0, le=65536)] = 0
    output_affine: bool = True
    activation: Literal["relu", "gelu"] = "relu"
    bias: bool = True
    d0: Width = 360
    groups: Width = 8

    @property
    def absent(self) -> bool:
        """Whether there is no projector, so that the embedding is the representation."""
        return self.kind == "mlp" and not self.widths

    def dimensions(self, features: int) -> int:
        """Return the dimension D of the embeddings for representations of `features` dimensions.

        >>> kinds = ("mlp", "sub-vector", "dropout")
        >>> [ProjectorConfig(kind=kind, widths=(64, 16), d0=8).dimensions(32) for kind in kinds]
        [16, 8, 32]
        """
        return {"mlp": (features, *self.widths)[-1], "sub-vector": self.d0}.get(self.kind, features)
