"""Inputs that are not embeddings, eigenvalues or curves: each function names what it received."""

import math

import pytest
import torch

from fullrank import spectrum
from fullrank.errors import UserError

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
    "entropy": spectrum.functional.entropy,
    "renyi_entropy": spectrum.functional.renyi_entropy,
    "effective_rank": spectrum.functional.effective_rank,
    "rank_me": spectrum.functional.rank_me,
    "participation_ratio": spectrum.functional.participation_ratio,
    "participation_ratio_corrected": lambda x: spectrum.functional.participation_ratio_corrected(x, n=9),
    "stable_rank": spectrum.functional.stable_rank,
    "condition_number": spectrum.functional.condition_number,
    "collapsed_dimensions": lambda x: spectrum.functional.collapsed_dimensions(x, n=9),
    "power_law": spectrum.power_law,
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
    "spectrum": spectrum.Spectrum.from_embeddings,
    "moments": spectrum.Moments.from_embeddings,
    "streaming": lambda Z: spectrum.StreamingSpectrum().update(Z),
    "uniformity": spectrum.uniformity,
    "alignment": lambda Z: spectrum.alignment(Z, Z),
}


@pytest.mark.parametrize("function", OF_EMBEDDINGS.values(), ids=OF_EMBEDDINGS)
@pytest.mark.parametrize("Z", NOT_EMBEDDINGS.values(), ids=NOT_EMBEDDINGS)
def test_what_are_not_embeddings_is_an_error(function, Z):
    with pytest.raises(UserError, match="expected"):
        function(Z)


def streamed(Z):
    streaming = spectrum.StreamingSpectrum()
    for batch in Z.split(4):
        streaming.update(batch)
    return streaming.compute()


FINITE = {
    "spectrum": spectrum.Spectrum.from_embeddings,
    "moments": lambda Z: spectrum.Spectrum.from_moments(spectrum.Moments.from_embeddings(Z)),
    "streaming": streamed,
    "uniformity": spectrum.uniformity,
    "alignment": lambda Z: spectrum.alignment(Z, Z),
    "alignment, second view": lambda Z: spectrum.alignment(torch.ones_like(Z), Z),
}


@pytest.mark.parametrize("function", FINITE.values(), ids=FINITE)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(9, 3), (5, 8)], ids=["tall", "wide"])
def test_embeddings_that_are_not_finite_are_an_error(function, value, shape):
    Z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    Z[1, 2] = value
    with pytest.raises(UserError, match="NaN or infinite"):
        function(Z)
