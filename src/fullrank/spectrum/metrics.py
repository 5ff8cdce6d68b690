"""The metrics of a spectrum, in a table with formula, convention, caveat and required number of samples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fullrank.spectrum.spectrum import Spectrum

CENTRED = "eigenvalues of the centred covariance, divided by n"
UNCENTRED = "singular values of the uncentred embeddings"

# The meaning of `Metric.better` in tables.
BETTER = "farther from collapse, which does not mean better features"

# With fewer samples per dimension, the small-sample bias of a metric is visible.
SAMPLES_PER_DIMENSION = 10


@dataclass(frozen=True)
class MetricValue:
    """The value of a metric for one spectrum.

    Attributes:
        convention: The eigenvalues or singular values that the metric uses, with n, D and other settings that influence
            the value.
        warning: The effect of too few samples; None if there are enough.
    """

    value: float
    convention: str
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that summarises a spectrum: `METRICS["rank_me"].compute(spectrum)`.

    Attributes:
        formula: The formula as text, in λ_j (eigenvalues), p_j = λ_j/Σλ or σ_j (singular values), depending on
            `convention`.
        reference_values: The value for D equal eigenvalues, and the value for rank 1.
        better: Whether higher or lower values are farther from collapse, "none" if neither is. This does not mean
            better features.
        caveat: How the metric can mislead.
        small_sample_bias: The error of the value if n is small.
        min_samples: The number of samples below which the metric has a warning.
        settings: Other settings that influence the value, as text: a range of indices, or ε.
    """

    name: str
    function: Callable[[Spectrum], float]
    formula: str
    convention: str = CENTRED
    reference_values: str
    better: Literal["higher", "lower", "none"] = "higher"
    caveat: str
    small_sample_bias: str = "too low"
    min_samples: Callable[[Spectrum], int] = lambda spectrum: SAMPLES_PER_DIMENSION * spectrum.D
    settings: Callable[[Spectrum], str] = lambda spectrum: ""

    def compute(self, spectrum: Spectrum) -> MetricValue:
        """Return the value with its convention, and a warning if there are too few samples.

        Raises:
            UserError: the metric needs singular values, and the spectrum was built from eigenvalues alone.
        """
        n, D, needed = spectrum.n, spectrum.D, self.min_samples(spectrum)
        warning = (
            f"{self.small_sample_bias}: {n:,} samples of {D:,} dimensions, expected {needed:,} or more"
            if n < needed
            else None
        )
        convention = "; ".join(filter(None, (self.convention, f"n = {n:,}, D = {D:,}", self.settings(spectrum))))
        return MetricValue(float(self.function(spectrum)), convention, warning)


def fit_range(spectrum: Spectrum) -> str:
    """Return the range of eigenvalues that the α-ReQ fit uses, as text.

    >>> import torch
    >>> fit_range(Spectrum.from_eigenvalues(torch.ones(64), n=320))
    'j = 1 … 32'
    """
    fit = spectrum.power_law()
    return f"j = {fit.first} … {fit.last}"


# Metrics by key, in the order of tables. The keys are the field names in logs and JSON files; tables show
# `Metric.name`.
METRICS = {
    "effective_rank": Metric(
        name="effective rank",
        function=Spectrum.effective_rank,
        formula="exp(−Σ q log q), q = √λ/Σ√λ",
        reference_values="D, 1",
        caveat="the square root gives small eigenvalues more weight: noise in every dimension counts as rank",
    ),
    "rank_me": Metric(
        name="RankMe",
        function=Spectrum.rank_me,
        formula="exp(−Σ p log p), p = (σ/Σσ + ε)/(1 + r ε) over the r nonzero σ, ε = 10⁻⁷",
        convention=UNCENTRED,
        reference_values="D, 1",
        caveat="a mean far from the origin counts as a direction, and a very large mean hides the other directions",
        settings=lambda spectrum: "ε = 10⁻⁷",
    ),
    "participation_ratio": Metric(
        name="participation ratio",
        function=Spectrum.participation_ratio,
        formula="(Σλ)²/Σλ²",
        reference_values="D, 1",
        caveat="the largest eigenvalues dominate: collapsed dimensions hardly change the value",
    ),
    "participation_ratio_corrected": Metric(
        name="participation ratio, corrected",
        function=lambda spectrum: spectrum.participation_ratio(corrected=True),
        formula="1/PR ≈ 1/PR_n − 1/(n − 1), PR_n uncorrected; a ratio of unbiased estimates of (tr C)² and tr C²",
        reference_values="D, 1",
        caveat="not unbiased, as it is a ratio: a bias of the order 1/n remains, and a larger one with heavy tails",
        small_sample_bias="high variance",
        min_samples=lambda spectrum: round(SAMPLES_PER_DIMENSION * spectrum.participation_ratio()),
    ),
    "stable_rank": Metric(
        name="stable rank",
        function=Spectrum.stable_rank,
        formula="Σλ/λ₁, also known as NESum",
        reference_values="D, 1",
        caveat="one large eigenvalue hides all other eigenvalues",
    ),
    "entropy": Metric(
        name="entropy (nats)",
        function=Spectrum.entropy,
        formula="−Σ p log p",
        reference_values="log D, 0",
        caveat="on a log scale: a decrease of 0.1 means about 10 % fewer directions",
    ),
    "renyi_entropy": Metric(
        name="Rényi-2 entropy (nats)",
        function=Spectrum.renyi_entropy,
        formula="−log Σ p² = −log ‖C‖_F²/(tr C)²",
        reference_values="log D, 0",
        caveat="FroSSL maximises this entropy of columns with unit norm, so the metric cannot rank FroSSL runs",
    ),
    "condition_number": Metric(
        name="condition number",
        function=Spectrum.condition_number,
        formula="λ₁/λ_D",
        reference_values="1, ∞",
        better="lower",
        caveat="depends on the smallest eigenvalue alone; infinite as soon as one eigenvalue is zero",
        small_sample_bias="too high",
    ),
    "condition_number_14": Metric(
        name="condition number at 14",
        function=lambda spectrum: spectrum.condition_number(min(14, spectrum.D)),
        formula="λ₁/λ₁₄, or λ₁/λ_D if D < 14 (Skean et al. 2023)",
        reference_values="1, ∞",
        better="lower",
        caveat="ignores all dimensions after the 14th",
        small_sample_bias="too high",
        min_samples=lambda spectrum: SAMPLES_PER_DIMENSION * min(14, spectrum.D),
    ),
    "alpha_req": Metric(
        name="α-ReQ",
        function=lambda spectrum: spectrum.power_law().alpha,
        formula="−slope of log λ_j on log j, weights 1/j, j ≤ n/10 and λ_j > 0",
        reference_values="0, ∞",
        better="none",
        caveat="depends on the range of the fit, which excludes collapsed dimensions; check R² too",
        small_sample_bias="uses only the first n/10 eigenvalues",
        settings=fit_range,
    ),
    "alpha_req_r2": Metric(
        name="α-ReQ, R²",
        function=lambda spectrum: spectrum.power_law().r2,
        formula="share of the weighted variance of log λ_j that the line explains",
        reference_values="1, 1",
        better="none",
        caveat="can be high for spectra that bend; well below 1 if there is no power law",
        small_sample_bias="uses only the first n/10 eigenvalues",
        settings=fit_range,
    ),
    "collapsed_dimensions": Metric(
        name="collapsed dimensions",
        function=Spectrum.collapsed_dimensions,
        formula="number of the first min(D, n − 1) with λ_j ≤ 10⁻⁶ λ₁",
        reference_values="0, D − 1",
        better="lower",
        caveat="does not count a dimension with λ_j = 10⁻⁵ λ₁, even if the dimension is useless",
        small_sample_bias="too low",
    ),
}


def compute_metrics(spectrum: Spectrum) -> dict[str, MetricValue]:
    """Return every metric of a spectrum by key in `METRICS`; RankMe is missing if only the eigenvalues are known.

    >>> import torch
    >>> metric = compute_metrics(Spectrum.from_embeddings(torch.eye(3)))["effective_rank"]
    >>> round(metric.value, 6), metric.convention
    (2.0, 'eigenvalues of the centred covariance, divided by n; n = 3, D = 3')
    >>> metric.warning
    'too low: 3 samples of 3 dimensions, expected 30 or more'
    """
    known = {key: m for key, m in METRICS.items() if m.convention == CENTRED or spectrum.second_moment is not None}
    return {key: metric.compute(spectrum) for key, metric in known.items()}
