"""The spectrum of embeddings: eigenvalues of their covariance, uncentred singular values, and one method for each
metric.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from fullrank.distributed import all_gather_object, world_size
from fullrank.errors import UserError
from fullrank.spectrum import functional
from fullrank.spectrum.functional import check_finite, check_floats
from fullrank.spectrum.moments import Moments, check_embeddings, to_float64
from fullrank.spectrum.power_law import PowerLaw, power_law


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Eigenvalues and singular values of n embeddings Z (n, D), on the CPU, in float64, in descending order.

    `eigenvalues` λ₁ ≥ … ≥ λ_D ≥ 0 belong to the covariance Σ_i (z_i − mean)(z_i − mean)ᵀ / n (divided by n, not by n −
    1). `singular_values` σ₁ ≥ … ≥ σ_D ≥ 0 belong to the uncentred Z and are computed on first access.

    The methods call the functions of `fullrank.spectrum.functional` and return Python numbers;
    `fullrank.spectrum.compute_metrics` computes all metrics, each with its convention and a warning if n is too small.

    Attributes:
        eigenvalues: Eigenvalues of the centred covariance.
        n: Number of embeddings.
        second_moment: The uncentred second moment ZᵀZ/n, or the Gram matrix ZZᵀ/n if n < D; None if only the
            eigenvalues are known.
        noise: The largest eigenvalue that rounding alone can cause.

    >>> Z = torch.tensor([[1.0, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
    >>> spectrum = Spectrum.from_embeddings(Z)
    >>> spectrum.eigenvalues, spectrum.singular_values
    (tensor([1., 1., 0.], dtype=torch.float64), tensor([2., 2., 0.], dtype=torch.float64))
    >>> spectrum.effective_rank(), spectrum.collapsed_dimensions()
    (2.0, 1)
    """

    eigenvalues: Float64[Tensor, " D"]
    n: int
    second_moment: Float64[Tensor, "m m"] | None = field(default=None, repr=False)
    noise: float = field(default=0.0, repr=False)

    @classmethod
    def from_embeddings(cls, Z: Float[Tensor, "n D"]) -> "Spectrum":
        """Return the spectrum of n embeddings, computed from the smaller of covariance (D, D) and Gram matrix (n, n).

        Raises:
            UserError: an embedding is NaN or infinite, or so large that its square overflows float64; Z is not
                floating-point (n, D).
        """
        check_embeddings(Z)
        n, D = Z.shape
        if n >= D or n == 0:
            return cls.from_moments(Moments.from_embeddings(Z))
        eps = torch.finfo(Z.dtype).eps
        Z = to_float64(Z)
        mean = Z.mean(0)
        A = Z - mean
        noise = rounding_bound(Z.square().mean(0) * eps**2 / 12, A.square().mean(0), mean, n=n)
        G, b = A @ A.mT / n, A @ mean / n
        second_moment = G + b[:, None] + b + mean @ mean / n  # ZZᵀ/n without a second product
        eigenvalues = pad(descending_eigenvalues(G, n=n, noise=noise), (0, D - n))
        return cls(eigenvalues=eigenvalues, n=n, second_moment=second_moment, noise=noise)

    @classmethod
    def from_moments(cls, moments: Moments) -> "Spectrum":
        """Return the spectrum of the embeddings that have these moments.

        Raises:
            UserError: an embedding was NaN or infinite.
        """
        n, C = moments.n, moments.covariance
        noise = rounding_bound(moments.rounding / max(n, 1), C.diagonal(), moments.mean, n=n)
        return cls(
            eigenvalues=descending_eigenvalues(C, n=n, noise=noise),
            n=n,
            second_moment=moments.second_moment,
            noise=noise,
        )

    @classmethod
    def from_eigenvalues(cls, eigenvalues: Float[Tensor, " D"], *, n: int) -> "Spectrum":
        """Return the spectrum of known eigenvalues, in any order; negative eigenvalues, which rounding causes, become
        zero.

        Raises:
            UserError: an eigenvalue is NaN or infinite, or the eigenvalues are not a floating-point tensor (D,).
        """
        check_floats(eigenvalues, "eigenvalues", "tensor (D,) with D > 0", lambda x: x.ndim == 1)
        check_finite(eigenvalues, "eigenvalues")
        return cls(eigenvalues=to_float64(eigenvalues).cpu().clamp_min(0).sort(descending=True).values, n=n)

    @cached_property
    def singular_values(self) -> Float64[Tensor, " D"]:
        """Singular values of the uncentred Z (n, D): √(n × eigenvalue) of the second moment, padded with zeros to D.

        Square roots of eigenvalues lose precision: singular values below about 10⁻⁶ σ₁ become zero.

        Raises:
            UserError: the spectrum was built from eigenvalues alone, without the mean.
        """
        if self.second_moment is None:
            have = "but this spectrum has only eigenvalues"
            raise UserError(f"singular values need the mean, {have}; use from_embeddings or from_moments")
        eigenvalues = descending_eigenvalues(self.second_moment, n=self.n, noise=self.noise)
        return pad((self.n * eigenvalues).sqrt(), (0, self.D - len(eigenvalues)))

    @property
    def D(self) -> int:
        """Number of dimensions of the embeddings."""
        return len(self.eigenvalues)

    def effective_rank(self) -> float:
        """Return the effective rank exp H(√λ/Σ√λ) (Roy and Vetterli 2007), centred."""
        return functional.effective_rank(self.eigenvalues).item()

    def rank_me(self, *, epsilon: float = 1e-7) -> float:
        """Return RankMe exp H(σ/Σσ), uncentred; RankMe never exceeds the rank (Garrido et al. 2023)."""
        return functional.rank_me(self.singular_values, epsilon=epsilon).item()

    def entropy(self, k: int | None = None) -> float:
        """Return the Shannon entropy of λ/Σλ, in nats, over all D eigenvalues or the first k."""
        return functional.entropy(self.eigenvalues, k=k).item()

    def renyi_entropy(self, alpha: float = 2.0) -> float:
        """Return the Rényi entropy of λ/Σλ of order alpha, in nats."""
        return functional.renyi_entropy(self.eigenvalues, alpha=alpha).item()

    def participation_ratio(self, *, corrected: bool = False) -> float:
        """Return the participation ratio (Σλ)²/Σλ², or an estimate of the ratio for n → ∞."""
        if corrected:
            return functional.participation_ratio_corrected(self.eigenvalues, n=self.n).item()
        return functional.participation_ratio(self.eigenvalues).item()

    def stable_rank(self) -> float:
        """Return the stable rank Σλ/λ₁."""
        return functional.stable_rank(self.eigenvalues).item()

    def condition_number(self, k: int | None = None) -> float:
        """Return the condition number λ₁/λ_k, by default with k = D."""
        return functional.condition_number(self.eigenvalues, k=k).item()

    def power_law(self, *, first: int = 1, last: int | None = None) -> PowerLaw:
        """Return α-ReQ, the fit λ_j ∝ j^−α over j = first … last, by default up to n/10: n embeddings resolve about
        n/10 eigenvalues.
        """
        return power_law(self.eigenvalues, first=first, last=max(first + 1, self.n // 10) if last is None else last)

    def collapsed_dimensions(self, tolerance: float = 1e-6) -> int:
        """Return how many of the first min(D, n − 1) eigenvalues are at most tolerance · λ₁."""
        return int(functional.collapsed_dimensions(self.eigenvalues, n=self.n, tolerance=tolerance))

    def relative_variance(self) -> float | None:
        """Return tr C/(tr C + ‖mean‖²): 0 if all embeddings are equal; None if only the eigenvalues are known."""
        if self.second_moment is None:
            return None
        mean_square = self.second_moment.trace().item()
        return self.eigenvalues.sum().item() / mean_square if mean_square > 0 else 0.0


class StreamingSpectrum:
    """The spectrum of embeddings that arrive in batches, computed from the smaller of their covariance and their Gram
    matrix.

    The object stores the embeddings as long as n < D, and then only their moments: at most about D × D numbers for any
    n. With several processes, each adds its own batches, and `compute` merges them exactly.

    >>> streaming = StreamingSpectrum()
    >>> for Z in torch.eye(3, 8).split(1):
    ...     streaming.update(Z)
    >>> round(streaming.compute().effective_rank(), 6)
    2.0
    """

    def __init__(self) -> None:
        self._embeddings: list[Tensor] = []
        self._moments: Moments | None = None

    def update(self, Z: Float[Tensor, "n D"]) -> None:
        """Add a batch.

        Raises:
            UserError: Z is not floating-point (n, D), or has another D than earlier batches.
        """
        check_embeddings(Z)
        first = self._embeddings[0] if self._embeddings else Z
        known = len(self._moments.mean) if self._moments is not None else first.shape[1]
        if Z.shape[1] != known:
            differs = f"this batch has {Z.shape[1]} dimensions, but earlier ones have {known}"
            raise UserError(f"{differs}; embed all batches with one model")
        self._embeddings.append(Z.detach().clone())  # Z may be overwritten, as in a CUDA graph
        if self._moments is not None or sum(map(len, self._embeddings)) >= Z.shape[1]:
            moments = Moments.from_batches(self._embeddings)
            self._moments, self._embeddings = self._moments.merge(moments) if self._moments else moments, []

    def compute(self, *, synchronize: bool = True) -> Spectrum:
        """Return the spectrum of all embeddings so far.

        Args:
            synchronize: with several processes, return the spectrum of the embeddings of all; each must call this
                method.

        Raises:
            UserError: a process has no embeddings, or an embedding is NaN or infinite; every process raises this error.
        """
        alone, empty = not synchronize or world_size() == 1, not (self._moments or self._embeddings)
        if empty if alone else any(all_gather_object(empty)):
            raise UserError("there are no embeddings, expected at least one batch on each process; call `update` first")
        if alone and self._moments is None:
            return Spectrum.from_embeddings(torch.cat(self._embeddings))
        moments = self._moments or Moments.from_batches(self._embeddings)
        return Spectrum.from_moments(moments if alone else moments.all_reduce())


def rounding_bound(
    rounding: Float64[Tensor, " D"], variance: Float64[Tensor, " D"], mean: Float64[Tensor, " D"], *, n: int
) -> float:
    """Return the largest eigenvalue that rounding of the embeddings alone can cause in their covariance.

    Independent errors of variance s² have eigenvalues up to s²(1 + √(D/n))², the edge of Marchenko and Pastur. The
    errors of a column vary at most as much as the column: the rounding error of a constant is constant. The mean has an
    error of a few units in the last place of float64, which contributes (8 ε)² ‖mean‖² even if all embeddings are
    equal.

    >>> rounding_bound(*torch.tensor([[1e-6, 1e-6], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64), n=200)
    1.21e-06
    """
    errors = torch.minimum(rounding, variance).amax().item() if len(rounding) else 0.0
    edge = errors * (1 + (len(rounding) / max(n, 1)) ** 0.5) ** 2
    return edge + (8 * torch.finfo(mean.dtype).eps) ** 2 * mean.square().sum().item()


def descending_eigenvalues(C: Float64[Tensor, "m m"], *, n: int, noise: float) -> Float64[Tensor, " m"]:
    """Return the eigenvalues of a covariance or Gram matrix in descending order; eigenvalues that rounding can cause
    are exactly zero.

    In addition to the noise of the embeddings, the sums and the decomposition have an error of about max(n, m) ε λ₁.
    """
    check_finite(C, "the covariance of the embeddings, whose squares overflow above about 1e150,")
    descending = torch.linalg.eigvalsh(C.cpu()).flip(0)
    rounding = max(n, len(C)) * torch.finfo(C.dtype).eps * descending[0] + noise
    return torch.where(descending > rounding, descending, 0)
