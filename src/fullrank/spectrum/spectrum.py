"""The eigenvalues of the centred covariance of embeddings, with one method a measure."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from fullrank.errors import UserError
from fullrank.spectrum import measures
from fullrank.spectrum.moments import Moments, float64


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Eigenvalues λ₁ ≥ … ≥ λ_D ≥ 0 of the covariance Σ_i (z_i − mean)(z_i − mean)ᵀ / n of n embeddings; divided by n, not by n − 1.

    The measures are those of `fullrank.spectrum.measures`, as Python numbers.

    >>> Z = torch.tensor([[1.0, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]])
    >>> spectrum = Spectrum.from_embeddings(Z)
    >>> spectrum.eigenvalues
    tensor([1., 1., 0.], dtype=torch.float64)
    >>> spectrum.effective_rank(), spectrum.dead_dimensions()
    (2.0, 1)
    """

    eigenvalues: Float64[Tensor, " D"]
    """In descending order, on the CPU."""
    n: int
    """How many embeddings they were measured on."""

    @classmethod
    def from_embeddings(cls, Z: Float[Tensor, "n D"]) -> "Spectrum":
        """Spectrum of n embeddings, from the smaller of their covariance (D, D) and their Gram matrix (n, n).

        Raises:
            UserError: an embedding is NaN or infinite.
        """
        n, D = Z.shape
        Z = float64(Z)
        mean = Z.mean(0)
        A = Z - mean
        nonzero = _eigenvalues((A.mT @ A if n >= D else A @ A.mT) / n, n=n, mean=mean)
        return cls(eigenvalues=pad(nonzero, (0, D - len(nonzero))), n=n)

    @classmethod
    def from_moments(cls, moments: Moments) -> "Spectrum":
        """Spectrum of the embeddings that the moments were taken of.

        Raises:
            UserError: an embedding was NaN or infinite.
        """
        return cls(eigenvalues=_eigenvalues(moments.covariance, n=moments.n, mean=moments.mean), n=moments.n)

    @classmethod
    def from_eigenvalues(cls, eigenvalues: Float[Tensor, " D"], *, n: int) -> "Spectrum":
        """Spectrum of known eigenvalues, in any order; negative ones, which can only be rounding, become zero."""
        return cls(eigenvalues=float64(eigenvalues).cpu().clamp_min(0).sort(descending=True).values, n=n)

    @property
    def D(self) -> int:
        """How many dimensions the embeddings have."""
        return len(self.eigenvalues)

    def enough_samples(self) -> bool:
        """Whether n ≥ 10 D; with fewer samples the spectrum looks steeper, and every rank lower, than it is."""
        return self.n >= 10 * self.D

    def effective_rank(self) -> float:
        """Effective rank exp H(√λ/Σ√λ) (Roy and Vetterli 2007)."""
        return measures.effective_rank(self.eigenvalues).item()

    def entropy(self) -> float:
        """Shannon entropy of λ/Σλ, in nats."""
        return measures.entropy(self.eigenvalues).item()

    def renyi(self, alpha: float = 2.0) -> float:
        """Rényi entropy of λ/Σλ of order alpha, in nats."""
        return measures.renyi(self.eigenvalues, alpha=alpha).item()

    def participation_ratio(self) -> float:
        """Participation ratio (Σλ)²/Σλ²."""
        return measures.participation_ratio(self.eigenvalues).item()

    def stable_rank(self) -> float:
        """Stable rank Σλ/λ₁."""
        return measures.stable_rank(self.eigenvalues).item()

    def condition_number(self, k: int | None = None) -> float:
        """Condition number λ₁/λ_k, with k = D by default."""
        return measures.condition_number(self.eigenvalues, k=k).item()

    def dead_dimensions(self, tolerance: float = 1e-6) -> int:
        """How many of the observable min(D, n − 1) eigenvalues are at most tolerance · λ₁."""
        return int(measures.dead_dimensions(self.eigenvalues, n=self.n, tolerance=tolerance))


def _eigenvalues(C: Float64[Tensor, "m m"], *, n: int, mean: Float64[Tensor, " D"]) -> Float64[Tensor, " m"]:
    """Eigenvalues of a covariance or Gram matrix, in descending order; what cannot be told from rounding is exactly zero.

    Rounding has two sources. The sums and the decomposition are off by about max(n, m) ε λ₁. The mean is off by a few units in the
    last place, which leaves (8 ε)² ‖mean‖² even where all embeddings are equal.
    """
    if not C.isfinite().all():
        raise UserError("received NaN or infinite embeddings, expected finite ones; if training diverged, lower the learning rate")
    descending = torch.linalg.eigvalsh(C).flip(0).cpu()
    eps = torch.finfo(C.dtype).eps
    rounding = max(n, len(C)) * eps * descending[0] + (8 * eps) ** 2 * mean.cpu().square().sum()
    return torch.where(descending > rounding, descending, 0)
