import pytest
import torch
from sklearn.decomposition import PCA

from fullrank.errors import UserError
from fullrank.spectrum import Moments, Spectrum, measures


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def randn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def orthonormal(rng, n, D):
    """Columns that are centred and orthonormal (n, D)."""
    return torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), randn(rng, n, D)], 1)).Q[:, 1:]


@pytest.mark.parametrize(("n", "D"), [(50, 8), (8, 8), (6, 20)])
def test_eigenvalues_are_those_of_pca(n, D, rng):
    Z = randn(rng, n, D) * torch.linspace(3, 0.1, D) + 5
    spectrum = Spectrum.from_embeddings(Z)
    pca = torch.from_numpy(PCA().fit(Z.numpy()).explained_variance_) * (n - 1) / n  # sklearn divides by n − 1
    known = min(n - 1, D)
    torch.testing.assert_close(spectrum.eigenvalues[:known], pca[:known], rtol=1e-10, atol=1e-12)
    assert (spectrum.eigenvalues[known:] == 0).all()
    assert (spectrum.n, spectrum.D) == (n, D)


@pytest.mark.parametrize(("n", "D"), [(50, 8), (6, 20)])
def test_moments_give_the_same_spectrum(n, D, rng):
    Z = randn(rng, n, D) + 5
    direct, streamed = Spectrum.from_embeddings(Z), Spectrum.from_moments(Moments.from_batches(Z.split(3)))
    torch.testing.assert_close(direct.eigenvalues, streamed.eigenvalues, rtol=1e-10, atol=1e-12)
    assert direct.n == streamed.n
    assert (direct.eigenvalues > 0).sum() == (streamed.eigenvalues > 0).sum() == min(n - 1, D)


def test_isotropic_embeddings_have_full_rank_by_every_measure(rng):
    spectrum = Spectrum.from_embeddings(3 * orthonormal(rng, 40, 6) + 1)
    for rank in (spectrum.effective_rank(), spectrum.participation_ratio(), spectrum.stable_rank()):
        assert rank == pytest.approx(6, abs=1e-10)
    assert spectrum.condition_number() == pytest.approx(1, abs=1e-10)
    assert spectrum.dead_dimensions() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("r", [1, 2, 5])
def test_r_equal_directions_have_rank_r_and_the_others_are_dead(r, dtype, rng):
    basis = torch.linalg.qr(randn(rng, 32, r)).Q
    spectrum = Spectrum.from_embeddings((orthonormal(rng, 200, r) @ basis.T).to(dtype))
    exact = dtype == torch.float64
    for rank in (spectrum.effective_rank(), spectrum.participation_ratio(), spectrum.stable_rank()):
        assert rank == pytest.approx(r, abs=1e-10 if exact else 1e-3)
    assert spectrum.dead_dimensions() == 32 - r


def test_measures_ignore_scale_shift_and_rotation(rng):
    Z = randn(rng, 40, 6) * torch.linspace(2, 0.1, 6)
    rotation = torch.linalg.qr(randn(rng, 6, 6)).Q
    a, b = Spectrum.from_embeddings(Z), Spectrum.from_embeddings(5 * Z @ rotation + 3)
    for measure in ("effective_rank", "entropy", "renyi", "participation_ratio", "stable_rank", "condition_number"):
        assert getattr(a, measure)() == pytest.approx(getattr(b, measure)(), rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [7, 300])
def test_equal_embeddings_have_no_spectrum_despite_rounding(dtype, batch):
    Z = torch.tensor([0.1, -0.7, 1e6 / 3], dtype=dtype).expand(300, 3)
    for spectrum in (Spectrum.from_embeddings(Z), Spectrum.from_moments(Moments.from_batches(Z.split(batch)))):
        assert (spectrum.eigenvalues == 0).all()
        assert spectrum.effective_rank() == 0
        assert spectrum.dead_dimensions() == 3


def test_a_direction_that_varies_little_is_not_taken_for_rounding(rng):
    Z = orthonormal(rng, 100, 3) * torch.tensor([1.0, 1e-2, 1e-5], dtype=torch.float64) + 1
    eigenvalues = Spectrum.from_embeddings(Z).eigenvalues * 100
    torch.testing.assert_close(eigenvalues, torch.tensor([1.0, 1e-4, 1e-10], dtype=torch.float64), rtol=1e-4, atol=0)


def test_fewer_samples_than_dimensions_leave_no_dimension_dead(rng):
    assert Spectrum.from_embeddings(randn(rng, 5, 20)).dead_dimensions() == 0


def test_one_embedding_has_a_spectrum_of_zeros(rng):
    spectrum = Spectrum.from_embeddings(randn(rng, 1, 4))
    assert (spectrum.effective_rank(), spectrum.dead_dimensions()) == (0, 0)


def test_known_eigenvalues_are_sorted_and_rounding_below_zero_is_cut():
    spectrum = Spectrum.from_eigenvalues(torch.tensor([1.0, 3.0, -1e-9, 2.0]), n=10)
    assert spectrum.eigenvalues.tolist() == [3, 2, 1, 0]
    assert spectrum.eigenvalues.dtype == torch.float64


def test_its_methods_are_the_measures(rng):
    spectrum = Spectrum.from_embeddings(randn(rng, 40, 6))
    λ = spectrum.eigenvalues
    assert spectrum.effective_rank() == measures.effective_rank(λ).item()
    assert spectrum.entropy() == measures.entropy(λ).item()
    assert spectrum.renyi(3.0) == measures.renyi(λ, alpha=3.0).item()
    assert spectrum.participation_ratio() == measures.participation_ratio(λ).item()
    assert spectrum.stable_rank() == measures.stable_rank(λ).item()
    assert spectrum.condition_number(3) == measures.condition_number(λ, k=3).item()
    assert spectrum.dead_dimensions(0.5) == measures.dead_dimensions(λ, n=40, tolerance=0.5).item()
    assert isinstance(spectrum.dead_dimensions(), int)
    assert isinstance(spectrum.effective_rank(), float)


def test_ten_samples_a_dimension_are_enough(rng):
    assert Spectrum.from_embeddings(randn(rng, 40, 4)).enough_samples()
    assert not Spectrum.from_embeddings(randn(rng, 39, 4)).enough_samples()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_says_when_embeddings_are_not_finite(bad, rng):
    Z = randn(rng, 10, 3)
    Z[4, 1] = bad
    with pytest.raises(UserError, match="received NaN or infinite embeddings"):
        Spectrum.from_embeddings(Z)
    with pytest.raises(UserError, match="received NaN or infinite embeddings"):
        Spectrum.from_moments(Moments.from_embeddings(Z))
