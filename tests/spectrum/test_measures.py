import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullrank.errors import UserError
from fullrank.spectrum import measures

spectra = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12).map(lambda x: torch.tensor(sorted(x, reverse=True), dtype=torch.float64))

RANKS = {
    "exp entropy": lambda x: measures.entropy(x).exp(),
    "exp renyi 0": lambda x: measures.renyi(x, alpha=0.0).exp(),
    "exp renyi 1/2": lambda x: measures.renyi(x, alpha=0.5).exp(),
    "exp renyi 2": lambda x: measures.renyi(x).exp(),
    "exp renyi inf": lambda x: measures.renyi(x, alpha=math.inf).exp(),
    "effective rank": measures.effective_rank,
    "participation ratio": measures.participation_ratio,
    "stable rank": measures.stable_rank,
}
every_rank = pytest.mark.parametrize("rank", RANKS.values(), ids=RANKS.keys())


@every_rank
@pytest.mark.parametrize("r", [1, 3, 8])
def test_r_equal_eigenvalues_among_zeros_have_rank_r(rank, r):
    eigenvalues = torch.zeros(8, dtype=torch.float64)
    eigenvalues[:r] = 0.3
    assert rank(eigenvalues).item() == pytest.approx(r, abs=1e-12)


@every_rank
@given(spectra)
def test_lies_between_one_and_D_and_ignores_the_scale(rank, eigenvalues):
    value = rank(eigenvalues).item()
    assert 1 - 1e-9 <= value <= len(eigenvalues) + 1e-9
    assert rank(7 * eigenvalues).item() == pytest.approx(value, rel=1e-9)


@every_rank
def test_of_many_spectra_is_that_of_each(rank):
    rng = torch.Generator().manual_seed(0)
    many = torch.rand(3, 2, 6, generator=rng, dtype=torch.float64).sort(descending=True).values
    each = torch.stack([torch.stack([rank(x) for x in row]) for row in many])
    assert torch.equal(rank(many), each)


@given(spectra)
def test_renyi_falls_with_its_order_and_meets_shannon_at_one(eigenvalues):
    values = [measures.renyi(eigenvalues, alpha=a).item() for a in (0.0, 0.5, 1.0, 2.0, math.inf)]
    assert all(a >= b - 1e-9 for a, b in pairwise(values))
    near = [measures.renyi(eigenvalues, alpha=a).item() for a in (1 - 1e-5, 1 + 1e-5)]
    assert sum(near) / 2 == pytest.approx(values[2], abs=1e-6)


def test_against_the_formulas():
    x = [4.0, 1.0, 0.25, 0.0]
    eigenvalues = torch.tensor(x, dtype=torch.float64)
    p = [v / 5.25 for v in x[:3]]
    q = [s / 3.5 for s in (2.0, 1.0, 0.5)]
    assert measures.entropy(eigenvalues).item() == pytest.approx(-sum(v * math.log(v) for v in p), abs=1e-14)
    assert measures.effective_rank(eigenvalues).item() == pytest.approx(math.exp(-sum(v * math.log(v) for v in q)), abs=1e-13)
    assert measures.renyi(eigenvalues).item() == pytest.approx(-math.log(sum(v * v for v in p)), abs=1e-14)
    assert measures.renyi(eigenvalues, alpha=3.0).item() == pytest.approx(-math.log(sum(v**3 for v in p)) / 2, abs=1e-14)
    assert measures.participation_ratio(eigenvalues).item() == pytest.approx(5.25**2 / (16 + 1 + 1 / 16), abs=1e-13)
    assert measures.stable_rank(eigenvalues).item() == pytest.approx(5.25 / 4, abs=1e-14)
    assert measures.condition_number(eigenvalues, k=3) == 16
    assert measures.condition_number(eigenvalues) == math.inf


def test_zeros_have_no_rank_no_entropy_and_no_nan():
    zeros = torch.zeros(5, dtype=torch.float64)
    for measure in (measures.effective_rank, measures.participation_ratio, measures.stable_rank, measures.entropy):
        assert measure(zeros) == 0
    for alpha in (0.0, 0.5, 1.0, 2.0, math.inf):
        assert measures.renyi(zeros, alpha=alpha) == 0
    assert measures.condition_number(zeros) == math.inf
    assert measures.dead_dimensions(zeros, n=100) == 5


def test_dead_dimensions_are_not_those_that_few_samples_cannot_show():
    eigenvalues = torch.tensor([1.0, 0.1, 1e-7, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert [measures.dead_dimensions(eigenvalues, n=n).item() for n in (100, 7, 6, 5, 4, 3, 1, 0)] == [4, 4, 3, 2, 1, 0, 0, 0]
    assert measures.dead_dimensions(eigenvalues, n=100, tolerance=1e-8) == 3


@pytest.mark.parametrize("k", [0, 6, -1])
def test_condition_number_says_which_k_there_are(k):
    with pytest.raises(UserError, match=f"k = {k}, but there are 5 eigenvalues; choose k from 1 to 5"):
        measures.condition_number(torch.ones(5), k=k)
