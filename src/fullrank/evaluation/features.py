"""Dimensions of features, and their standardisation for probes."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.models import features as frozen
from fullrank.models.features import Features, multi_labels_of, preprocessed_batches, stream_features

__all__ = [
    "Features",
    "extract_features",
    "format_slice",
    "multi_labels_of",
    "preprocessed_batches",
    "select_dimensions",
    "standardize",
    "stream_features",
]


def extract_features(*arguments: Any, dimensions: slice = slice(None), **options: Any) -> Features:
    """Return the given dimensions of `fullrank.models.features.extract_features`."""
    return select_dimensions(frozen.extract_features(*arguments, **options), dimensions)


def select_dimensions(features: Features, dimensions: slice) -> Features:
    """Return the given dimensions of the features: `slice(360)` for the first 360, `slice(360, None)` for the rest.

    Raises:
        UserError: the slice is empty, has a step, or exceeds the dimensions of the features.

    >>> select_dimensions(Features(torch.arange(4.0)[None], torch.tensor([-1]), ["a.jpg"]), slice(1, 3)).X
    tensor([[1., 2.]])
    """
    D = features.X.shape[1]
    start, stop = dimensions.start or 0, D if dimensions.stop is None else dimensions.stop
    if not (0 <= start < stop <= D and dimensions.step in (None, 1)):
        raise UserError(
            f"dimensions is {format_slice(dimensions)}, expected a range within 0:{D}, such as :{max(D // 4, 1)}"
        )
    return replace(features, X=features.X[:, dimensions])


def format_slice(dimensions: slice) -> str:
    """Return a slice in Python notation.

    >>> format_slice(slice(360)), format_slice(slice(360, None)), format_slice(slice(None))
    (':360', '360:', ':')
    """
    bounds = ["" if bound is None else str(bound) for bound in (dimensions.start, dimensions.stop, dimensions.step)]
    return ":".join(bounds if bounds[2] else bounds[:2])


def standardize(X: Float[Tensor, "n D"], *others: Float[Tensor, "_ D"]) -> tuple[Float[Tensor, "_ D"], ...]:
    """Return (x − μ) / σ for each argument, with the mean μ and the standard deviation σ of the first.

    A column that is constant in the first argument becomes zero in all arguments: a probe cannot learn from a constant,
    and other values in the test set must not change the result. Without standardisation, the scales of features
    influence a probe.

    >>> standardize(torch.tensor([[1.0, 5], [3, 5]]), torch.tensor([[5.0, 7]]))
    (tensor([[-1.,  0.],
            [ 1.,  0.]]), tensor([[3., 0.]]))
    """
    deviation, mean = torch.std_mean(X, dim=0, correction=0)
    # The deviation of a constant column is a rounding error: at most ε·|μ|, up to a small factor.
    scale = torch.where(deviation > 8 * torch.finfo(X.dtype).eps * mean.abs(), 1 / deviation, 0)
    return tuple((Y - mean) * scale for Y in (X, *others))
