from copy import deepcopy

import pytest
import torch

from fullrank.images import Preprocess
from fullrank.methods import BackboneConfig, JointEmbedding, ProjectorConfig, build_backbone, build_projector
from fullrank.objectives import frossl
from fullrank.run.rows import SpectrumMetrics
from fullrank.run.monitor import evaluate_spectrum, intraclass_correlation, variance_within_views
from fullrank.spectrum import Spectrum

PREPROCESS = Preprocess(channels=3, size=12, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


@pytest.fixture(scope="module")
def trained():
    """Return a method with BatchNorm statistics, dropout, and one layer in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = build_backbone(
            BackboneConfig(
                arguments={"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1], "drop_rate": 0.5}, stem="small"
            )
        )
        method = JointEmbedding(backbone, build_projector(ProjectorConfig(widths=(12, 6)), 16), frossl)
        for _ in range(3):
            method([torch.randn(2, 16, 3, 12, 12)])
    method.backbone.bn1.eval()
    return method


@pytest.fixture(scope="module")
def pixels():
    return torch.randint(0, 256, (70, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("count", "batch"), [(70, 7), (70, 32), (70, 512), (10, 4)]
)  # 10 images are fewer than the backbone's dimensions
def test_batches_give_the_spectra_of_all_images(trained, pixels, count, batch):
    pixels = pixels[:count]
    evaluation = evaluate_spectrum(trained, pixels, PREPROCESS, batch_size=batch)
    copy = deepcopy(trained).eval()
    with torch.no_grad():
        R = copy.backbone(PREPROCESS.normalize(pixels))
        Z = copy.projector(R)
    torch.testing.assert_close(evaluation.features, R)
    for name, whole in (("backbone", R), ("projector", Z)):
        expected = Spectrum.from_embeddings(whole)
        assert (evaluation.spectra[name].n, evaluation.spectra[name].D) == (count, whole.shape[1])
        largest = expected.eigenvalues[0].item()
        torch.testing.assert_close(
            evaluation.spectra[name].eigenvalues, expected.eigenvalues, rtol=1e-4, atol=1e-6 * largest
        )
        assert largest > 0
        assert len(evaluation.spectra[name].second_moment) == min(count, whole.shape[1])


def test_modes_buffers_gradients_and_randomness_are_unchanged(trained, pixels):
    before = deepcopy(trained)
    random = torch.get_rng_state()
    evaluation = evaluate_spectrum(trained, pixels, PREPROCESS)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in trained.modules()] == [m.training for m in before.modules()]
    assert {m.training for m in trained.modules()} == {True, False}
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in trained.state_dict().items())
    assert all(parameter.grad is None for parameter in trained.parameters())
    assert not evaluation.features.requires_grad


def test_features_under_bfloat16_are_float32(trained, pixels):
    exact = evaluate_spectrum(trained, pixels, PREPROCESS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = evaluate_spectrum(trained, pixels, PREPROCESS)
    assert rounded.features.dtype == torch.float32
    ratio = rounded.spectra["backbone"].eigenvalues[0] / exact.spectra["backbone"].eigenvalues[0]
    assert ratio.item() == pytest.approx(1, abs=0.05)


def test_features_of_a_method_in_float64_are_float64(trained, pixels):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        evaluation = evaluate_spectrum(deepcopy(trained).double(), pixels, PREPROCESS)
    finally:
        torch.set_default_dtype(default)
    assert evaluation.features.dtype == torch.float64


def test_metrics_are_those_of_the_spectrum():
    spectrum = Spectrum.from_eigenvalues(torch.tensor([4.0, 2.0, 1.0]), n=100)
    metrics = SpectrumMetrics.from_spectrum(spectrum)
    assert metrics.effective_rank == spectrum.effective_rank()
    assert metrics.condition_number == pytest.approx(4)
    assert metrics.entropy == spectrum.entropy()
    assert (metrics.collapsed_dimensions, metrics.dimensions, metrics.samples) == (0, 3, 100)


def test_an_infinite_condition_number_is_none():
    metrics = SpectrumMetrics.from_spectrum(Spectrum.from_eigenvalues(torch.tensor([4.0, 2.0, 0.0]), n=100))
    assert metrics.condition_number is None
    assert metrics.collapsed_dimensions == 1


@pytest.mark.parametrize("distance", [0.0, 1.0, 100.0])
def test_relative_variance_is_the_share_of_the_mean_square_that_is_variance(distance):
    Z = distance + torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = sum(Z) / 50
    expected = sum((z - mean) @ (z - mean) for z in Z) / sum(z @ z for z in Z)
    assert SpectrumMetrics.from_spectrum(Spectrum.from_embeddings(Z)).relative_variance == pytest.approx(
        expected.item(), rel=1e-9
    )


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_equal_embeddings_have_relative_variance_zero(value):
    assert SpectrumMetrics.from_spectrum(Spectrum.from_embeddings(torch.full((50, 4), value))).relative_variance == 0


def test_eigenvalues_alone_have_no_relative_variance():
    assert SpectrumMetrics.from_spectrum(Spectrum.from_eigenvalues(torch.ones(3), n=50)).relative_variance is None


@pytest.mark.parametrize("V", [2, 3, 8])
def test_intraclass_correlation_equals_its_formula_as_loops(V):
    R = torch.randn(V, 20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(V))
    R += 3 + torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = sum(r for view in R for r in view) / (20 * V)
    between = sum((R[v, i] - mean) @ (R[w, i] - mean) for i in range(20) for v in range(V) for w in range(V) if v != w)
    square = sum((R[v, i] - mean) @ (R[v, i] - mean) for i in range(20) for v in range(V))
    assert intraclass_correlation(R) == pytest.approx((between / (V - 1) / square).item())


def test_equal_views_have_correlation_one_and_independent_views_zero():
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(1, 4000, 8, generator=generator)
    assert intraclass_correlation(R.expand(3, -1, -1)) == pytest.approx(1)
    assert intraclass_correlation(torch.randn(2, 4000, 8, generator=generator)) == pytest.approx(0, abs=0.02)


def test_correlation_needs_two_views_and_variance():
    assert intraclass_correlation(torch.randn(1, 6, 3)) is None
    assert intraclass_correlation(torch.ones(2, 6, 3)) is None


def test_correlation_ignores_scale_shift_and_rotation():
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(2, 30, 4, dtype=torch.float64, generator=generator)
    Q = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    assert intraclass_correlation(7 * R @ Q + 2) == pytest.approx(intraclass_correlation(R))


def test_the_variance_within_views_ignores_the_difference_between_views():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(2, 1, 5, generator=generator)
    assert variance_within_views(means.expand(2, 40, 5)) < 1e-13
    assert variance_within_views(means + torch.randn(2, 40, 5, generator=generator)) > 0.1
    assert variance_within_views(torch.randn(1, 4000, 5, generator=generator)) == pytest.approx(1, abs=0.01)
