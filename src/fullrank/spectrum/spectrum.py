"""The spectra of embeddings, centred and as they stand, with one method a measure."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from fullrank.errors import UserError
from fullrank.spectrum import measures
from fullrank.spectrum.moments import Moments, check_embeddings, float64
from fullrank.spectrum.power_law import PowerLaw, power_law


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Two families of numbers of n embeddings Z (n, D), on the CPU, in float64 and in descending order.

    `eigenvalues` λ₁ ≥ … ≥ λ_D ≥ 0 are those of the covariance Σ_i (z_i − mean)(z_i − mean)ᵀ / n; divided by n, not by n − 1.
    `singular_values` σ₁ ≥ … ≥ σ_D ≥ 0 are those of Z itself, not centred; they are computed when they are first asked for.

    The measures are those of `fullrank.spectrum.measures`, as Python numbers; `fullrank.spectrum.readings` gives all of them, each with
    its convention and a warning where n is too small.

    >>> Z = torch.tensor([[1.0, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
    >>> spectrum = Spectrum.from_embeddings(Z)
    >>> spectrum.eigenvalues, spectrum.singular_values
    (tensor([1., 1., 0.], dtype=torch.float64), tensor([2., 2., 0.], dtype=torch.float64))
    >>> spectrum.effective_rank(), spectrum.collapsed_dimensions()
    (2.0, 1)
    """

    eigenvalues: Float64[Tensor, " D"]
    """Of the centred covariance."""
    n: int
    """How many embeddings they were measured on."""
    about_origin: Float64[Tensor, "m m"] | None = field(default=None, repr=False)
    """The second moment ZᵀZ/n, or the Gram matrix ZZᵀ/n where that is smaller; None where the eigenvalues are all that is known."""
    noise: float = field(default=0.0, repr=False)
    """An eigenvalue up to this one may be rounding alone."""

    @classmethod
    def from_embeddings(cls, Z: Float[Tensor, "n D"]) -> "Spectrum":
        """Spectrum of n embeddings, from the smaller of their covariance (D, D) and their Gram matrix (n, n).

        Raises:
            UserError: an embedding is NaN or infinite, or they are not numbers (n, D).
        """
        check_embeddings(Z)
        n, D = Z.shape
        if n >= D or n == 0:
            return cls.from_moments(Moments.from_embeddings(Z))
        eps = torch.finfo(Z.dtype).eps
        Z = float64(Z)
        mean = Z.mean(0)
        A = Z - mean
        noise = noise_edge(Z.square().mean(0) * eps**2 / 12, A.square().mean(0), mean, n=n)
        G, b = A @ A.mT / n, A @ mean / n
        about_origin = G + b[:, None] + b + mean @ mean / n  # ZZᵀ/n without a second product
        return cls(eigenvalues=pad(eigenvalues_of(G, n=n, noise=noise), (0, D - n)), n=n, about_origin=about_origin, noise=noise)

    @classmethod
    def from_moments(cls, moments: Moments) -> "Spectrum":
        """Spectrum of the embeddings that the moments were taken of, in one pass or in pieces.

        Raises:
            UserError: an embedding was NaN or infinite.
        """
        n, C = moments.n, moments.covariance
        noise = noise_edge(moments.rounding / max(n, 1), C.diagonal(), moments.mean, n=n)
        return cls(eigenvalues=eigenvalues_of(C, n=n, noise=noise), n=n, about_origin=moments.second_moment, noise=noise)

    @classmethod
    def from_covariance(cls, C: Float[Tensor, "D D"], *, n: int, mean: Float[Tensor, " D"] | None = None) -> "Spectrum":
        """Spectrum of a known centred covariance, divided by n; singular values need the mean too.

        Raises:
            UserError: the covariance is not symmetric, or not finite.

        >>> spectrum = Spectrum.from_covariance(torch.diag(torch.tensor([1.0, 4.0])), n=100, mean=torch.tensor([0.0, 0.0]))
        >>> spectrum.eigenvalues, spectrum.singular_values
        (tensor([4., 1.], dtype=torch.float64), tensor([20., 10.], dtype=torch.float64))
        """
        noise = torch.finfo(C.dtype).eps * C.norm().item()  # rounded entries move eigenvalues by at most ε‖C‖_F (Weyl)
        C = float64(C)
        if (C - C.mT).norm() > 1e-3 * C.norm():
            raise UserError("received a covariance that is not symmetric, expected C = Cᵀ; take (C + Cᵀ)/2 if it is rounding")
        C = (C + C.mT) / 2
        about_origin = None if mean is None else C + torch.outer(float64(mean), float64(mean))
        return cls(eigenvalues=eigenvalues_of(C, n=n, noise=noise), n=n, about_origin=about_origin, noise=noise)

    @classmethod
    def from_eigenvalues(cls, eigenvalues: Float[Tensor, " D"], *, n: int) -> "Spectrum":
        """Spectrum of known eigenvalues, in any order; negative ones, which can only be rounding, become zero.

        Raises:
            UserError: an eigenvalue is NaN or infinite.
        """
        if not eigenvalues.isfinite().all():
            raise UserError("received NaN or infinite eigenvalues, expected finite ones; leave the spectra of a run that diverged out")
        return cls(eigenvalues=float64(eigenvalues).cpu().clamp_min(0).sort(descending=True).values, n=n)

    @cached_property
    def singular_values(self) -> Float64[Tensor, " D"]:
        """Singular values of Z (n, D), not centred: √n times the root of the second moment's eigenvalues, and zeros up to D.

        Being roots of eigenvalues they are told from zero down to about 10⁻⁶ σ₁.

        Raises:
            UserError: the spectrum was made of eigenvalues alone, which do not say where the mean lies.
        """
        if self.about_origin is None:
            raise UserError("this spectrum knows eigenvalues alone, and singular values need the mean; make it from embeddings or moments")
        found = (self.n * eigenvalues_of(self.about_origin, n=self.n, noise=self.noise)).sqrt()
        return pad(found, (0, self.D - len(found)))

    @property
    def D(self) -> int:
        """How many dimensions the embeddings have."""
        return len(self.eigenvalues)

    def effective_rank(self) -> float:
        """Effective rank exp H(√λ/Σ√λ) (Roy and Vetterli 2007), centred."""
        return measures.effective_rank(self.eigenvalues).item()

    def rank_me(self, *, epsilon: float = 1e-7) -> float:
        """RankMe exp H(σ/Σσ), not centred, and never more than the rank (Garrido et al. 2023)."""
        return measures.rank_me(self.singular_values, epsilon=epsilon).item()

    def entropy(self, k: int | None = None) -> float:
        """Shannon entropy of λ/Σλ, in nats, over all D eigenvalues or the first k."""
        return measures.entropy(self.eigenvalues, k=k).item()

    def renyi(self, alpha: float = 2.0) -> float:
        """Rényi entropy of λ/Σλ of order alpha, in nats."""
        return measures.renyi(self.eigenvalues, alpha=alpha).item()

    def participation_ratio(self, *, corrected: bool = False) -> float:
        """Participation ratio (Σλ)²/Σλ², or the estimate of what it is for n → ∞."""
        if corrected:
            return measures.participation_ratio_corrected(self.eigenvalues, n=self.n).item()
        return measures.participation_ratio(self.eigenvalues).item()

    def stable_rank(self) -> float:
        """Stable rank Σλ/λ₁."""
        return measures.stable_rank(self.eigenvalues).item()

    def condition_number(self, k: int | None = None) -> float:
        """Condition number λ₁/λ_k, with k = D by default."""
        return measures.condition_number(self.eigenvalues, k=k).item()

    def power_law(self, *, first: int = 1, last: int | None = None) -> PowerLaw:
        """α-ReQ: the fit λ_j ∝ j^−α over j = first … last, by default the n/10 eigenvalues that n embeddings resolve."""
        return power_law(self.eigenvalues, first=first, last=max(first + 1, self.n // 10) if last is None else last)

    def collapsed_dimensions(self, tolerance: float = 1e-6) -> int:
        """How many of the observable min(D, n − 1) eigenvalues are at most tolerance · λ₁."""
        return int(measures.collapsed_dimensions(self.eigenvalues, n=self.n, tolerance=tolerance))


def noise_edge(rounding: Float64[Tensor, " D"], variance: Float64[Tensor, " D"], mean: Float64[Tensor, " D"], *, n: int) -> float:
    """The largest eigenvalue that rounding of the embeddings alone can give their covariance.

    Errors of variance s² that are independent have eigenvalues up to s²(1 + √(D/n))², the edge of Marchenko and Pastur. A column's errors
    vary no more than the column: the rounding of a constant is a constant. The mean is off by a few units in float64's last place, which
    leaves (8 ε)² ‖mean‖² even where all embeddings are equal.

    >>> noise_edge(*torch.tensor([[1e-6, 1e-6], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64), n=200)
    1.21e-06
    """
    errors = torch.minimum(rounding, variance).amax().item() if len(rounding) else 0.0
    edge = errors * (1 + (len(rounding) / max(n, 1)) ** 0.5) ** 2
    return edge + (8 * torch.finfo(mean.dtype).eps) ** 2 * mean.square().sum().item()


def eigenvalues_of(C: Float64[Tensor, "m m"], *, n: int, noise: float) -> Float64[Tensor, " m"]:
    """Eigenvalues of a covariance or Gram matrix, in descending order; what cannot be told from rounding is exactly zero.

    Besides the noise of the embeddings, the sums and the decomposition are off by about max(n, m) ε λ₁.
    """
    if not C.isfinite().all():
        raise UserError("received NaN or infinite embeddings, expected finite ones; if training diverged, lower the learning rate")
    descending = torch.linalg.eigvalsh(C).flip(0).cpu()
    rounding = max(n, len(C)) * torch.finfo(C.dtype).eps * descending[0] + noise
    return torch.where(descending > rounding, descending, 0)
