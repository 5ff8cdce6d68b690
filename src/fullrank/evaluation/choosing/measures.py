"""The measures without labels by which `choose` compares models."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.evaluation.graph_stability import graph_stability
from fullrank.evaluation.intrinsic_dimension import mst_dimension
from fullrank.run.monitor import intraclass_correlation
from fullrank.spectrum import Spectrum, StreamingSpectrum


class Sample(NamedTuple):
    """The features of the same n images: of each image, and of two augmented views of it."""

    X: Float[Tensor, "n D"]
    first: Float[Tensor, "n D"]
    second: Float[Tensor, "n D"]


@dataclass(frozen=True)
class Measure:
    """A number that is computed from features without labels."""

    name: str
    better: Literal["higher", "lower"]
    compute: Callable[[Sample], float]
    meaning: str
    decides: bool = False
    """Whether `choose` decides by it; the others are shown for comparison."""

    @property
    def sign(self) -> int:
        """1 if higher is better, -1 if lower is better."""
        return 1 if self.better == "higher" else -1


def spectrum_of(X: Float[Tensor, "n D"]) -> Spectrum:
    """Return the spectrum of features, from the smaller of covariance and Gram matrix."""
    streaming = StreamingSpectrum()
    streaming.update(X)
    return streaming.compute()


MEASURES: dict[str, Measure] = {
    "graph_stability": Measure(
        name="kNN-graph stability",
        better="higher",
        compute=lambda sample: graph_stability(sample.first, sample.second, k=10),
        meaning="share of the 10 nearest neighbours of an image that two augmented views of it have in common",
        decides=True,
    ),
    "agreement": Measure(
        name="agreement of the views",
        better="higher",
        compute=lambda sample: intraclass_correlation(torch.stack([sample.first, sample.second])) or 0.0,
        meaning="share of the variance of the features that is between images and not between views of one image",
    ),
    "rank_me": Measure(
        name="RankMe",
        better="higher",
        compute=lambda sample: spectrum_of(sample.X).rank_me(),
        meaning="effective rank of the features without centring (Garrido et al. 2023)",
    ),
    "participation_ratio": Measure(
        name="participation ratio",
        better="higher",
        compute=lambda sample: spectrum_of(sample.X).participation_ratio(),
        meaning="number of directions that share the variance: (Σλ)² / Σλ²",
    ),
    "idest": Measure(
        name="IdEst",
        better="lower",
        compute=lambda sample: (
            mst_dimension(sample.X.numpy()) or math.nan
        ),  # equal embeddings have no dimension to compare
        meaning="intrinsic dimension by minimum spanning trees (Mordacq, Kalogeiton and Oudot 2026)",
    ),
}
"""The measures, by their key in tables and files; the one that decides comes first.

`docs/choose.md` says how well each ordered runs of known accuracy. LiDAR ordered them almost as well as graph
stability, but needs 50 views of each image and more images than dimensions, so it is not among them.
"""
