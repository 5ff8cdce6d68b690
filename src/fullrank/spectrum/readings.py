"""Every measure of a spectrum in one table: its formula, its convention, how it misleads, and how many samples it takes."""

from collections.abc import Callable
from dataclasses import dataclass

from fullrank.spectrum.spectrum import Spectrum

CENTRED = "eigenvalues of the centred covariance, divided by n"
AS_THEY_STAND = "singular values of the embeddings, not centred"

FEW = 10
"""Below this many samples a dimension, what few samples do to a measure shows."""


@dataclass(frozen=True)
class Reading:
    """What a measure says of one spectrum."""

    value: float
    convention: str
    """Of which numbers, with n, D and what else decides the value."""
    warning: str | None = None
    """What is wrong with the value, where n is too small for it."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that sums up a spectrum: `MEASURES["RankMe"].read(spectrum)`."""

    of: Callable[[Spectrum], float]
    formula: str
    """In λ_j, p_j = λ_j/Σλ and σ_j of the numbers that `convention` names."""
    convention: str = CENTRED
    full: str
    """Its value for D equal directions, and for one alone."""
    misleads: str
    few: str = "reads low"
    """What becomes of it where n is small."""
    samples: Callable[[Spectrum], int] = lambda spectrum: FEW * spectrum.D
    """How many samples it takes."""
    detail: Callable[[Spectrum], str] = lambda spectrum: ""
    """What else decides the value: a range, or ε."""

    def read(self, spectrum: Spectrum) -> Reading:
        """Return the value with its convention, and a warning where there are too few samples.

        Raises:
            UserError: the measure needs singular values, and the spectrum was made of eigenvalues alone.
        """
        n, D, needed = spectrum.n, spectrum.D, self.samples(spectrum)
        warning = f"{self.few}: {n:,} samples of {D:,} dimensions, expected {needed:,} or more" if n < needed else None
        convention = "; ".join(filter(None, (self.convention, f"n = {n:,}, D = {D:,}", self.detail(spectrum))))
        return Reading(float(self.of(spectrum)), convention, warning)


def range_of_fit(spectrum: Spectrum) -> str:
    """Return the eigenvalues that α-ReQ is fitted to.

    >>> import torch
    >>> range_of_fit(Spectrum.from_eigenvalues(torch.ones(64), n=320))
    'j = 1 … 32'
    """
    fit = spectrum.power_law()
    return f"j = {fit.first} … {fit.last}"


MEASURES = {
    "effective rank": Measure(
        of=Spectrum.effective_rank,
        formula="exp(−Σ q log q), q = √λ/Σ√λ",
        full="D, 1",
        misleads="roots lift the tail: noise in every dimension reads as rank",
    ),
    "RankMe": Measure(
        of=Spectrum.rank_me,
        formula="exp(−Σ p log p), p = (σ/Σσ + ε)/(1 + r ε) over the r that are not zero, ε = 10⁻⁷",
        convention=AS_THEY_STAND,
        full="D, 1",
        misleads="a mean far from the origin counts as a direction, and a large one hides the others",
        detail=lambda spectrum: "ε = 10⁻⁷",
    ),
    "participation ratio": Measure(
        of=Spectrum.participation_ratio,
        formula="(Σλ)²/Σλ²",
        full="D, 1",
        misleads="the leading eigenvalues decide it: dead dimensions hardly show",
    ),
    "participation ratio, corrected": Measure(
        of=lambda spectrum: spectrum.participation_ratio(corrected=True),
        formula="1/PR ≈ 1/PR_n − 1/(n − 1), from unbiased tr Σ² and (tr Σ)²",
        full="D, 1",
        misleads="unbiased for Gaussian embeddings; heavy tails leave a bias of the order 1/n",
        few="is scattered",
        samples=lambda spectrum: round(FEW * spectrum.participation_ratio()),
    ),
    "stable rank": Measure(
        of=Spectrum.stable_rank,
        formula="Σλ/λ₁, also known as NESum",
        full="D, 1",
        misleads="one large eigenvalue hides all others",
    ),
    "entropy (nats)": Measure(
        of=Spectrum.entropy,
        formula="−Σ p log p",
        full="log D, 0",
        misleads="a logarithm: 0.1 less is a tenth of the directions",
    ),
    "Rényi-2 entropy (nats)": Measure(
        of=Spectrum.renyi,
        formula="−log Σ p² = −log ‖C‖_F²/(tr C)²",
        full="log D, 0",
        misleads="what FroSSL maximises for columns of unit norm, so a FroSSL run is not judged by it",
    ),
    "condition number": Measure(
        of=Spectrum.condition_number,
        formula="λ₁/λ_D",
        full="1, ∞",
        misleads="the smallest eigenvalue alone decides it; infinite as soon as one dimension is dead",
        few="reads high",
    ),
    "condition number at 14": Measure(
        of=lambda spectrum: spectrum.condition_number(min(14, spectrum.D)),
        formula="λ₁/λ₁₄, or λ₁/λ_D where D < 14 (Skean et al. 2024)",
        full="1, ∞",
        misleads="says nothing of the dimensions beyond",
        few="reads high",
        samples=lambda spectrum: FEW * min(14, spectrum.D),
    ),
    "α-ReQ": Measure(
        of=lambda spectrum: spectrum.power_law().alpha,
        formula="−slope of log λ_j on log j, weights 1/j, j ≤ n/10 and λ_j > 0",
        full="0, ∞",
        misleads="the range decides it, and dead dimensions are outside of it; read it with its R²",
        few="takes the first n/10 eigenvalues alone",
        detail=range_of_fit,
    ),
    "α-ReQ, R²": Measure(
        of=lambda spectrum: spectrum.power_law().r2,
        formula="share of the weighted variance of log λ_j that the line explains",
        full="1, 1",
        misleads="high even for spectra that bend; well below 1 where there is no power law",
        few="takes the first n/10 eigenvalues alone",
        detail=range_of_fit,
    ),
    "dead dimensions": Measure(
        of=Spectrum.collapsed_dimensions,
        formula="how many of the first min(D, n − 1) have λ_j ≤ 10⁻⁶ λ₁",
        full="0, D − 1",
        misleads="a dimension of 10⁻⁵ λ₁ lives, whatever it is worth",
        few="reads high",
    ),
}
"""Name → measure, in the order in which they are shown."""


def readings(spectrum: Spectrum) -> dict[str, Reading]:
    """Every measure of a spectrum; without RankMe where its eigenvalues are all that is known.

    >>> import torch
    >>> found = readings(Spectrum.from_embeddings(torch.eye(3)))["effective rank"]
    >>> round(found.value, 6), found.convention
    (2.0, 'eigenvalues of the centred covariance, divided by n; n = 3, D = 3')
    >>> found.warning
    'reads low: 3 samples of 3 dimensions, expected 30 or more'
    """
    known = {name: m for name, m in MEASURES.items() if m.convention == CENTRED or spectrum.about_origin is not None}
    return {name: measure.read(spectrum) for name, measure in known.items()}
