"""The configuration of the optimizer."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fullrank.structure import between


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer and its hyperparameters."""

    name: Literal["lars", "sgd", "adamw"] = "lars"
    """'lars' adapts the step of each weight (You et al. 2017), with the clip of LARC, as in the public recipes."""
    lr: Annotated[float, between(0, 1_000_000)] = 0.3
    """Peak learning rate; it is not scaled with the batch size."""
    weight_decay: Annotated[float, between(0, 1000)] = 1e-4
    """Weight decay of the weights; biases and norms have no weight decay."""
    momentum: Annotated[float, between(0, 0.99999)] = 0.9
    """Momentum of LARS and SGD; the first beta of AdamW. 0.9 is usual."""
    trust_coefficient: Annotated[float, between(0, 1000)] = 0.02
    """LARS: the adapted step of a weight, as a fraction of its norm; most public recipes use 0.02 with the clip, 0.001 without it."""
    trust_clip: bool = True
    """LARS: limit the adapted learning rate to `lr`, as in LARC; without the clip, `lr` multiplies the adapted step."""
