"""Inputs that are not embeddings, eigenvalues or curves: each function names what it received."""

import math

import pytest
import torch

from fullrank.errors import UserError
from fullrank.spectrum import (
    Moments,
    Spectrum,
    StreamingSpectrum,
    alignment,
    count_learned,
    functional,
    power_law,
    saturation,
    uniformity,
)

pytestmark = pytest.mark.usefixtures("untyped")

NOT_EIGENVALUES = {
    "list": [2.0, 1.0],
    "integer": torch.tensor([2, 1]),
    "complex": torch.tensor([2.0 + 0j, 1.0]),
    "bool": torch.tensor([True, False]),
    "number": torch.tensor(1.0),
    "empty": torch.ones(0),
    "NaN": torch.tensor([2.0, math.nan]),
    "infinite": torch.tensor([math.inf, 1.0]),
    "negative": torch.tensor([2.0, -1e-3]),
    "ascending": torch.tensor([1.0, 2.0]),
    "none": None,
}

FUNCTIONS = {
    "entropy": functional.entropy,
    "renyi_entropy": functional.renyi_entropy,
    "effective_rank": functional.effective_rank,
    "rank_me": functional.rank_me,
    "participation_ratio": functional.participation_ratio,
    "participation_ratio_corrected": lambda x: functional.participation_ratio_corrected(x, n=9),
    "stable_rank": functional.stable_rank,
    "condition_number": functional.condition_number,
    "collapsed_dimensions": lambda x: functional.collapsed_dimensions(x, n=9),
    "power_law": power_law,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("x", NOT_EIGENVALUES.values(), ids=NOT_EIGENVALUES)
def test_what_is_not_a_descending_spectrum_is_an_error(function, x):
    with pytest.raises(UserError, match=r"expected|descending") as error:
        function(x)
    assert "\n" not in str(error.value)


NOT_EMBEDDINGS = {
    "list": [[1.0, 2.0]],
    "integer": torch.ones(9, 3, dtype=torch.int64),
    "complex": torch.ones(9, 3, dtype=torch.complex64),
    "views": torch.ones(2, 9, 3),
    "vector": torch.ones(9),
    "no dimensions": torch.ones(9, 0),
    "none": None,
}

OF_EMBEDDINGS = {
    "spectrum": Spectrum.from_embeddings,
    "moments": Moments.from_embeddings,
    "streaming": lambda Z: StreamingSpectrum().update(Z),
    "uniformity": uniformity,
    "alignment": lambda Z: alignment(Z, Z),
}


@pytest.mark.parametrize("function", OF_EMBEDDINGS.values(), ids=OF_EMBEDDINGS)
@pytest.mark.parametrize("Z", NOT_EMBEDDINGS.values(), ids=NOT_EMBEDDINGS)
def test_what_are_not_embeddings_is_an_error(function, Z):
    with pytest.raises(UserError, match="expected"):
        function(Z)


def streamed(Z):
    streaming = StreamingSpectrum()
    for batch in Z.split(4):
        streaming.update(batch)
    return streaming.compute()


FINITE = {
    "spectrum": Spectrum.from_embeddings,
    "moments": lambda Z: Spectrum.from_moments(Moments.from_embeddings(Z)),
    "streaming": streamed,
    "uniformity": uniformity,
    "alignment": lambda Z: alignment(Z, Z),
    "alignment, second view": lambda Z: alignment(torch.ones_like(Z), Z),
}


@pytest.mark.parametrize("function", FINITE.values(), ids=FINITE)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(9, 3), (5, 8)], ids=["tall", "wide"])
def test_embeddings_that_are_not_finite_are_an_error(function, value, shape):
    Z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    Z[1, 2] = value
    with pytest.raises(UserError, match="NaN or infinite"):
        function(Z)


@pytest.mark.parametrize("name", ["spectrum", "moments", "streaming"])
@pytest.mark.parametrize("shape", [(9, 3), (5, 8)], ids=["tall", "wide"])
def test_overflow_is_named(name, shape, randn):
    with pytest.raises(UserError, match="overflow"):
        FINITE[name](1e200 * randn(*shape))


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1e14, 1e200, 1e305])
def test_alignment_and_uniformity_do_not_depend_on_the_scale(scale, randn):
    X, Y = randn(9, 4), randn(9, 4)
    assert alignment(scale * X, Y) == pytest.approx(alignment(X, Y), rel=1e-12)
    assert uniformity(scale * X) == pytest.approx(uniformity(X), rel=1e-12)


@pytest.mark.parametrize(
    "curves",
    [
        [1.0],
        torch.tensor([1, 2]),
        torch.tensor(1.0),
        torch.tensor([1.0, math.nan]),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(0, 3),
    ],
    ids=["list", "integer", "number", "NaN", "complex", "no rows"],
)
def test_what_are_not_curves_is_an_error(curves):
    for function in (saturation, count_learned):
        with pytest.raises(UserError, match="expected"):
            function(curves)


@pytest.mark.parametrize(
    "C",
    [
        [[1.0]],
        torch.ones(2, 3),
        torch.ones(3),
        torch.eye(3, dtype=torch.int64),
        torch.eye(3, dtype=torch.complex64),
        torch.ones(0, 0),
    ],
    ids=["list", "rectangular", "vector", "integer", "complex", "empty"],
)
def test_what_is_not_a_covariance_is_an_error(C):
    for function in (lambda C: Spectrum.from_covariance(C, n=9), functional.collision_entropy):
        with pytest.raises(UserError, match="expected"):
            function(C)


def test_covariances_and_eigenvalues_that_are_not_finite_or_do_not_match_are_errors():
    with pytest.raises(UserError, match="NaN"):
        Spectrum.from_covariance(math.nan * torch.eye(3), n=9)
    with pytest.raises(UserError, match="NaN"):
        functional.collision_entropy(math.nan * torch.eye(3))
    with pytest.raises(UserError, match="mean"):
        Spectrum.from_covariance(torch.eye(3), n=9, mean=torch.zeros(2))
    for x in ([1.0], torch.ones(2, 2), torch.tensor([1, 2]), torch.ones(0)):
        with pytest.raises(UserError, match="expected"):
            Spectrum.from_eigenvalues(x, n=9)


def test_batches_of_different_dimensions_are_an_error(randn):
    for first in (2, 20):  # before and after the moments replace the embeddings
        streaming = StreamingSpectrum()
        streaming.update(randn(first, 8))
        with pytest.raises(UserError, match="7 dimensions"):
            streaming.update(randn(4, 7))
    with pytest.raises(UserError, match="dimensions"):
        Moments.from_embeddings(randn(9, 3)).merge(Moments.from_embeddings(randn(9, 4)))
