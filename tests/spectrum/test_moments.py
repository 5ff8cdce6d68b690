import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.spectrum import Moments


@pytest.fixture
def Z():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(60, 5, generator=rng, dtype=torch.float64) * torch.arange(1, 6) + 100


def assert_same(a: Moments, b: Moments):
    assert a.n == b.n
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(a.scatter, b.scatter, rtol=1e-12, atol=1e-12 * b.scatter.abs().max().item())
    torch.testing.assert_close(a.rounding, b.rounding, rtol=1e-12, atol=0)


def test_moments_are_count_mean_and_centred_scatter(Z):
    moments = Moments.from_embeddings(Z)
    assert moments.n == 60
    torch.testing.assert_close(moments.mean, Z.mean(0))
    torch.testing.assert_close(moments.scatter, 59 * torch.cov(Z.T))
    torch.testing.assert_close(moments.covariance, torch.cov(Z.T, correction=0))
    torch.testing.assert_close(moments.second_moment, Z.T @ Z / 60)
    torch.testing.assert_close(moments.standard_deviation, Z.std(0, correction=0))


@pytest.mark.parametrize("sizes", [(30, 30), (1, 59), (7, 13, 40), (0, 60), (60, 0), (1,) * 60])
def test_batches_of_any_sizes_give_the_moments_of_one_pass(Z, sizes):
    assert_same(Moments.from_batches(Z.split(sizes)), Moments.from_embeddings(Z))


def test_a_small_variance_far_from_the_origin_is_exact():
    rng = torch.Generator().manual_seed(0)
    Z = torch.randn(1000, 3, generator=rng, dtype=torch.float64)
    moments = Moments.from_batches((1e6 + Z).split(100))  # Σ z zᵀ − n mean meanᵀ would keep only 4 digits here
    torch.testing.assert_close(moments.covariance, torch.cov(Z.T, correction=0), rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_merging_in_any_order_gives_the_moments_of_one_pass(sizes, random):
    rng = torch.Generator().manual_seed(sum(sizes))
    whole = torch.randn(sum(sizes), 3, generator=rng, dtype=torch.float64) + 10
    pieces = [Moments.from_embeddings(piece) for piece in whole.split(sizes)]
    while len(pieces) > 1:
        a, b = (pieces.pop(random.randrange(len(pieces))) for _ in "ab")
        pieces.append(a.merge(b))
    assert_same(pieces[0], Moments.from_embeddings(whole))


def test_rounding_bounds_the_rounding_error_of_the_input():
    exact = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact *= torch.tensor([1.0, 30.0])
    for dtype in (torch.bfloat16, torch.float16):
        rounded = exact.to(dtype)
        errors = (rounded.double() - exact).square().sum(0)
        ratio = Moments.from_embeddings(rounded).rounding / errors
        assert ((ratio > 1) & (ratio < 3)).all()  # a tight bound: the spacing is between ε|z|/2 and ε|z|
