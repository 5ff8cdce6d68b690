import pytest
import torch

from fullrank.spectrum import Moments


@pytest.fixture
def Z():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(60, 5, generator=rng, dtype=torch.float64) * torch.arange(1, 6) + 100


def assert_same(a: Moments, b: Moments):
    assert a.n == b.n
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(a.scatter, b.scatter, rtol=1e-12, atol=1e-12 * b.scatter.abs().max().item())


def test_are_count_mean_and_centred_scatter(Z):
    moments = Moments.from_embeddings(Z)
    assert moments.n == 60
    torch.testing.assert_close(moments.mean, Z.mean(0))
    torch.testing.assert_close(moments.scatter, 59 * torch.cov(Z.T))
    torch.testing.assert_close(moments.covariance, torch.cov(Z.T, correction=0))
    torch.testing.assert_close(moments.second_moment, Z.T @ Z / 60)


@pytest.mark.parametrize("sizes", [(30, 30), (1, 59), (7, 13, 40), (0, 60), (60, 0), (1,) * 60])
def test_of_pieces_are_those_of_one_pass(Z, sizes):
    assert_same(Moments.from_batches(Z.split(sizes)), Moments.from_embeddings(Z))


def test_merge_is_the_same_in_any_order(Z):
    a, b, c = map(Moments.from_embeddings, Z.split((10, 20, 30)))
    assert_same(a.merge(b).merge(c), c.merge(b.merge(a)))


def test_update_adds_a_batch(Z):
    assert_same(Moments.from_embeddings(Z[:25]).update(Z[25:]), Moments.from_embeddings(Z))


def test_two_empty_sets_are_empty(Z):
    empty = Moments.from_embeddings(Z[:0])
    both = empty.merge(empty)
    assert both.n == 0
    assert (both.mean == 0).all()
    assert (both.scatter == 0).all()


def test_keep_a_small_variance_far_from_the_origin():
    rng = torch.Generator().manual_seed(0)
    Z = torch.randn(1000, 3, generator=rng, dtype=torch.float64)
    moments = Moments.from_batches((1e6 + Z).split(100))  # Σ z zᵀ − n mean meanᵀ keeps 4 digits here
    torch.testing.assert_close(moments.covariance, torch.cov(Z.T, correction=0), rtol=1e-8, atol=1e-8)


def test_are_float64_without_gradient_whatever_comes_in(Z):
    moments = Moments.from_embeddings(Z.float().requires_grad_())
    assert moments.mean.dtype == moments.scatter.dtype == torch.float64
    assert not moments.scatter.requires_grad


def test_all_reduce_without_other_processes_changes_nothing(Z):
    moments = Moments.from_embeddings(Z)
    assert moments.all_reduce() is moments
