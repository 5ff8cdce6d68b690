import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from sklearn.decomposition import PCA

from fullrank.spectrum import Moments, Spectrum, functional, power_law


@pytest.mark.parametrize(("n", "D"), [(50, 8), (8, 8), (6, 20)])
def test_eigenvalues_are_those_of_pca(n, D, randn):
    Z = randn(n, D) * torch.linspace(3, 0.1, D) + 5
    spectrum = Spectrum.from_embeddings(Z)
    pca = torch.from_numpy(PCA().fit(Z.numpy()).explained_variance_) * (n - 1) / n  # sklearn divides by n − 1
    known = min(n - 1, D)
    torch.testing.assert_close(spectrum.eigenvalues[:known], pca[:known], rtol=1e-10, atol=1e-12)
    assert (spectrum.eigenvalues[known:] == 0).all()
    assert (spectrum.n, spectrum.D) == (n, D)


@pytest.mark.parametrize(("n", "D"), [(50, 8), (6, 20)])
def test_moments_give_the_same_spectrum(n, D, randn):
    Z = randn(n, D) + 5
    direct, streamed = Spectrum.from_embeddings(Z), Spectrum.from_moments(Moments.from_batches(Z.split(3)))
    torch.testing.assert_close(direct.eigenvalues, streamed.eigenvalues, rtol=1e-10, atol=1e-12)
    assert direct.n == streamed.n
    assert (direct.eigenvalues > 0).sum() == (streamed.eigenvalues > 0).sum() == min(n - 1, D)


@pytest.mark.parametrize(("n", "D"), [(50, 8), (8, 8), (6, 20), (1, 3)])
def test_singular_values_are_those_of_the_uncentred_embeddings(n, D, randn):
    Z = randn(n, D) * torch.linspace(3, 0.1, D) + 5
    expected = torch.from_numpy(scipy.linalg.svdvals(Z.numpy()))
    for spectrum in (Spectrum.from_embeddings(Z), Spectrum.from_moments(Moments.from_batches(Z.split(3)))):
        known = min(n, D)
        torch.testing.assert_close(spectrum.singular_values[:known], expected, rtol=1e-9, atol=1e-10)
        assert (spectrum.singular_values[known:] == 0).all()
        assert len(spectrum.singular_values) == D


def test_metrics_equal_those_of_numpy_scipy_and_scikit_learn(randn):
    Z = (randn(200, 8) * torch.linspace(2, 0.1, 8) + 1).numpy()
    Z[:, 7] = 5
    A, spectrum = Z - Z.mean(0), Spectrum.from_embeddings(torch.from_numpy(Z))
    pca, C = PCA().fit(Z).explained_variance_, np.cov(Z.T)
    sigma, uncentred = scipy.linalg.svdvals(A), scipy.linalg.svdvals(Z)
    expected = {
        spectrum.entropy(): scipy.stats.entropy(pca),
        spectrum.entropy(5): scipy.stats.entropy(pca[:5]),
        spectrum.effective_rank(): np.exp(scipy.stats.entropy(sigma)),
        spectrum.participation_ratio(): np.trace(C) ** 2 / np.linalg.norm(C) ** 2,
        spectrum.renyi_entropy(): -np.log(np.linalg.norm(C / np.trace(C)) ** 2),
        spectrum.stable_rank(): np.linalg.norm(A) ** 2 / np.linalg.norm(A, 2) ** 2,
        spectrum.condition_number(7): np.linalg.cond(A[:, :7]) ** 2,
        spectrum.rank_me(epsilon=0.0): np.exp(scipy.stats.entropy(uncentred)),
        spectrum.collapsed_dimensions(): 8 - np.linalg.matrix_rank(A, rtol=1e-3),
    }
    for ours, theirs in expected.items():
        assert ours == pytest.approx(theirs, rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("r", [1, 2, 5])
def test_r_equal_directions_have_rank_r_and_the_others_are_collapsed(r, dtype, randn, orthonormal):
    basis = torch.linalg.qr(randn(32, r)).Q
    spectrum = Spectrum.from_embeddings((orthonormal(200, r) @ basis.T).to(dtype))
    exact = dtype == torch.float64
    for rank in (spectrum.effective_rank(), spectrum.participation_ratio(), spectrum.stable_rank()):
        assert rank == pytest.approx(r, abs=1e-10 if exact else 1e-3)
    assert spectrum.collapsed_dimensions() == 32 - r


def test_metrics_ignore_scale_shift_and_rotation(randn):
    Z = randn(40, 6) * torch.linspace(2, 0.1, 6)
    rotation = torch.linalg.qr(randn(6, 6)).Q
    a, b = Spectrum.from_embeddings(Z), Spectrum.from_embeddings(5 * Z @ rotation + 3)
    metrics = ("effective_rank", "entropy", "renyi_entropy", "participation_ratio", "stable_rank", "condition_number")
    for metric in metrics:
        assert getattr(a, metric)() == pytest.approx(getattr(b, metric)(), rel=1e-10)
    assert a.power_law().alpha == pytest.approx(b.power_law().alpha, rel=1e-10)
    assert a.participation_ratio(corrected=True) == pytest.approx(b.participation_ratio(corrected=True), rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "D"), [(1000, 256), (100, 400)])
def test_rank_16_stays_at_most_16_in_any_precision(n, D, dtype, randn):
    Z = (randn(n, 16) @ randn(16, D) / 4).to(dtype)
    for spectrum in (Spectrum.from_embeddings(Z), Spectrum.from_moments(Moments.from_batches(Z.split(99)))):
        assert (spectrum.eigenvalues > 0).sum() == (spectrum.singular_values > 0).sum() == 16
        assert 14 < spectrum.rank_me() <= 16
        assert 14 < spectrum.effective_rank() <= 16
        assert spectrum.collapsed_dimensions() == min(D, n - 1) - 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [7, 300])
def test_equal_embeddings_have_a_spectrum_of_zeros_despite_rounding(dtype, batch):
    Z = torch.tensor([0.1, -0.7, 1e6 / 3], dtype=dtype).expand(300, 3)
    for spectrum in (Spectrum.from_embeddings(Z), Spectrum.from_moments(Moments.from_batches(Z.split(batch)))):
        assert (spectrum.eigenvalues == 0).all()
        assert spectrum.effective_rank() == 0
        assert spectrum.collapsed_dimensions() == 3


def test_known_eigenvalues_are_sorted_and_negative_eigenvalues_become_zero():
    spectrum = Spectrum.from_eigenvalues(torch.tensor([1.0, 3.0, -1e-9, 2.0]), n=10)
    assert spectrum.eigenvalues.tolist() == [3, 2, 1, 0]
    assert spectrum.eigenvalues.dtype == torch.float64


def test_methods_equal_the_functions(randn):
    spectrum = Spectrum.from_embeddings(randn(40, 6))
    λ = spectrum.eigenvalues
    assert spectrum.rank_me() == functional.rank_me(spectrum.singular_values).item()
    assert spectrum.rank_me(epsilon=0.1) == functional.rank_me(spectrum.singular_values, epsilon=0.1).item()
    assert spectrum.participation_ratio(corrected=True) == functional.participation_ratio_corrected(λ, n=40).item()
    assert spectrum.power_law() == power_law(λ, last=4)
    assert spectrum.power_law(first=2, last=6) == power_law(λ, first=2, last=6)
    assert spectrum.renyi_entropy(3.0) == functional.renyi_entropy(λ, alpha=3.0).item()
    assert spectrum.collapsed_dimensions(0.5) == functional.collapsed_dimensions(λ, n=40, tolerance=0.5).item()
