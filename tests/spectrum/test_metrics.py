import pytest
import torch

from fullrank.spectrum import METRICS, Spectrum, compute_metrics

every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


DEGENERATE = {"zeros": torch.zeros(20, 5), "equal": torch.ones(20, 5), "bfloat16": torch.ones(20, 5).bfloat16() / 3}
DEGENERATE |= {"one sample": torch.ones(1, 5), "n < D": torch.eye(3, 7), "one dimension": torch.ones(9, 1)}


@every_metric
@pytest.mark.parametrize("Z", DEGENERATE.values(), ids=DEGENERATE)
def test_no_metric_is_nan_or_negative(metric, Z):
    assert metric.compute(Spectrum.from_embeddings(Z)).value >= 0


@every_metric
def test_every_value_has_its_convention_and_a_warning_for_few_samples(metric, orthonormal):
    few = metric.compute(Spectrum.from_embeddings(orthonormal(16, 8)))
    assert "; n = 16, D = 8" in few.convention
    assert ("uncentred" in few.convention) == (metric.name == "RankMe")
    assert few.warning.endswith("16 samples of 8 dimensions, expected 80 or more")
    assert metric.compute(Spectrum.from_embeddings(orthonormal(80, 8))).warning is None


def test_the_convention_contains_epsilon_and_the_range_of_the_fit():
    Z = torch.randn(320, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Z[:, 40:] = 0
    spectrum = Spectrum.from_embeddings(Z)
    metrics = compute_metrics(spectrum)
    assert metrics["rank_me"].convention.endswith("; n = 320, D = 64; ε = 10⁻⁷")
    assert metrics["rank_me"].value == spectrum.rank_me(epsilon=1e-7)
    for name in ("alpha_req", "alpha_req_r2"):
        assert metrics[name].convention.endswith("; n = 320, D = 64; j = 1 … 32")
    few = Spectrum.from_embeddings(Z[:, 35:])
    assert compute_metrics(few)["alpha_req"].convention.endswith("; n = 320, D = 29; j = 1 … 5")


def test_the_corrected_participation_ratio_needs_10_samples_per_participation_ratio():
    eigenvalues = torch.tensor([1.0, 1.0] + [1e-3] * 98)
    enough, few = (
        compute_metrics(Spectrum.from_eigenvalues(eigenvalues, n=n))["participation_ratio_corrected"] for n in (25, 20)
    )
    assert enough.warning is None
    assert "20 samples of 100 dimensions, expected 22" in few.warning


def test_known_eigenvalues_give_all_metrics_except_rank_me():
    assert set(METRICS) - set(compute_metrics(Spectrum.from_eigenvalues(torch.ones(3), n=100))) == {"rank_me"}
    assert list(compute_metrics(Spectrum.from_embeddings(torch.eye(3)))) == list(METRICS)
