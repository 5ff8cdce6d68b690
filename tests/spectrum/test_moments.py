import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fullrank.errors import UserError
from fullrank.spectrum import Moments, Spectrum, StreamingSpectrum


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


def test_merge_is_the_same_in_any_order(Z):
    a, b, c = map(Moments.from_embeddings, Z.split((10, 20, 30)))
    assert_same(a.merge(b).merge(c), c.merge(b.merge(a)))


def test_merging_two_empty_sets_gives_an_empty_set(Z):
    empty = Moments.from_embeddings(Z[:0])
    both = empty.merge(empty)
    assert both.n == 0
    assert (both.mean == 0).all()
    assert (both.scatter == 0).all()
    assert (both.covariance == 0).all()


def test_a_small_variance_far_from_the_origin_is_exact():
    rng = torch.Generator().manual_seed(0)
    Z = torch.randn(1000, 3, generator=rng, dtype=torch.float64)
    moments = Moments.from_batches((1e6 + Z).split(100))  # Σ z zᵀ − n mean meanᵀ would keep only 4 digits here
    torch.testing.assert_close(moments.covariance, torch.cov(Z.T, correction=0), rtol=1e-8, atol=1e-8)


def test_averaged_covariances_would_lose_the_variance_between_the_means(Z):
    halves = [Moments.from_embeddings(half) for half in (Z[:30], Z[30:] + 100)]
    whole = torch.cov(torch.cat([Z[:30], Z[30:] + 100]).T, correction=0)
    torch.testing.assert_close(halves[0].merge(halves[1]).covariance, whole, rtol=1e-10, atol=1e-10)
    averaged = (halves[0].covariance + halves[1].covariance) / 2
    assert (whole - averaged).diagonal().min() > 2000  # about a quarter of the squared distance


@pytest.mark.parametrize(
    "bad", [torch.ones(2, 5, 3), torch.ones(5), torch.ones(5, 0), torch.ones(5, 3, dtype=torch.int64)]
)
@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "build", [Moments.from_embeddings, Spectrum.from_embeddings, lambda Z: StreamingSpectrum().update(Z)]
)
def test_only_floating_point_embeddings_are_accepted(build, bad):
    with pytest.raises(UserError) as error:
        build(bad)
    assert f"received {bad.dtype} of shape {tuple(bad.shape)}, expected floating-point embeddings (n, D)" in str(
        error.value
    )


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "build", [Moments.from_embeddings, Spectrum.from_embeddings, lambda Z: StreamingSpectrum().update(Z)]
)
def test_the_error_for_a_numpy_array_names_the_conversion(build, Z):
    with pytest.raises(UserError, match=r"ndarray, expected a tensor .* pass torch\.as_tensor\(Z\)$"):
        build(Z.numpy())
    build(torch.as_tensor(Z.numpy()))


def test_missing_batches_raise():
    with pytest.raises(UserError, match="batches is empty"):
        Moments.from_batches([])


def test_moments_are_float64_without_gradient(Z):
    moments = Moments.from_embeddings(Z.float().requires_grad_())
    assert moments.mean.dtype == moments.scatter.dtype == torch.float64
    assert not moments.scatter.requires_grad


def test_all_reduce_with_one_process_changes_nothing(Z):
    moments = Moments.from_embeddings(Z)
    assert moments.all_reduce() is moments


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
    exact = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.tensor(
        [1.0, 30.0]
    )
    for dtype in (torch.bfloat16, torch.float16):
        rounded = exact.to(dtype)
        errors = (rounded.double() - exact).square().sum(0)
        ratio = Moments.from_embeddings(rounded).rounding / errors
        assert ((ratio > 1) & (ratio < 3)).all()  # a tight bound: the spacing is between ε|z|/2 and ε|z|


def test_standard_deviations_can_be_ideal_for_embeddings_in_two_dimensions():
    angle = torch.linspace(0, 2 * torch.pi, 101, dtype=torch.float64)[1:, None]
    a, b = torch.ones(64), torch.tensor([1.0, -1.0]).repeat(32)
    moments = Moments.from_embeddings((angle.cos() * a + angle.sin() * b) / 8)  # unit rows
    torch.testing.assert_close(moments.standard_deviation, torch.full((64,), 1 / 8, dtype=torch.float64))
    assert Spectrum.from_moments(moments).effective_rank() == pytest.approx(2)
