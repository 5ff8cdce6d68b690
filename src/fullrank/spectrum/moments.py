"""Mean and centred scatter of embeddings that arrive in batches or from several processes; merging is exact."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fullrank.distributed import all_reduce_sum, world_size
from fullrank.errors import UserError
from fullrank.spectrum.functional import check_floats


def to_float64(Z: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Return Z in float64, detached, on the same device (from MPS, which has no float64, on the CPU).

    >>> to_float64(torch.ones(2, requires_grad=True))
    tensor([1., 1.], dtype=torch.float64)
    """
    return (Z.detach().cpu() if Z.device.type == "mps" else Z.detach()).double()


def check_embeddings(Z: Tensor) -> None:
    """Check that Z is a floating-point tensor (n, D): torch would treat views (V, n, D) as V covariances.

    Raises:
        UserError: Z is not a floating-point tensor (n, D) with D > 0.

    >>> check_embeddings(torch.ones(2, 5, 3))
    Traceback (most recent call last):
    fullrank.errors.UserError: Z is torch.float32 of shape (2, 5, 3), expected a floating-point tensor (n, D), one view
    """
    check_floats(Z, "Z", "tensor (n, D), one view", lambda Z: Z.ndim == 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Count, mean and scatter Σ_i (z_i − mean)(z_i − mean)ᵀ of n embeddings, in float64 and without gradient.

    The scatter is centred: Σ z zᵀ − n mean meanᵀ would lose the small eigenvalues of embeddings far from the origin.

    Attributes:
        n: Number of embeddings.
        mean: Mean of the embeddings; zero if n = 0.
        scatter: Centred scatter (D, D); covariance times n.
        rounding: Σ_i (ε z_ij)²/12: the contribution of rounding to the input dtype (spacing at most ε|z|) to the sum of
            squares per column.

    >>> a, b = torch.randn(30, 4), torch.randn(20, 4)
    >>> expected = Moments.from_embeddings(torch.cat([a, b]))
    >>> merged = Moments.from_embeddings(a).merge(Moments.from_embeddings(b))
    >>> merged.n, torch.allclose(merged.scatter, expected.scatter)
    (50, True)
    """

    n: int
    mean: Float64[Tensor, " D"]
    scatter: Float64[Tensor, "D D"]
    rounding: Float64[Tensor, " D"]

    @classmethod
    def from_embeddings(cls, Z: Float[Tensor, "n D"]) -> "Moments":
        """Return the moments of a batch, computed in two passes.

        Raises:
            UserError: Z is not floating-point (n, D).
        """
        check_embeddings(Z)
        n, eps = len(Z), torch.finfo(Z.dtype).eps
        Z = to_float64(Z)
        mean = Z.sum(0) / max(n, 1)
        A = Z - mean
        return cls(n=n, mean=mean, scatter=A.mT @ A, rounding=Z.square().sum(0) * eps**2 / 12)

    @classmethod
    def from_batches(cls, batches: Iterable[Float[Tensor, "_n D"]]) -> "Moments":
        """Return the moments of a stream of at least one batch.

        Raises:
            UserError: there is no batch, or a batch is not floating-point (n, D).
        """
        rest = map(cls.from_embeddings, batches)
        if (first := next(rest, None)) is None:
            raise UserError("batches is empty, expected at least one batch; an iterator yields its batches only once")
        return reduce(Moments.merge, rest, first)

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both sets of embeddings together.

        With δ = mean_b − mean_a and n = n_a + n_b: mean = mean_a + δ n_b/n, scatter = scatter_a + scatter_b + δδᵀ n_a
        n_b/n (Chan, Golub and LeVeque 1983, Algorithms for Computing the Sample Variance, eq. 2.1).

        Raises:
            UserError: the numbers of dimensions differ.
        """
        if len(self.mean) != len(other.mean):
            dimensions = f"{len(self.mean)} and {len(other.mean)} dimensions"
            raise UserError(f"moments of {dimensions} cannot be merged; embed all batches with one model")
        n = self.n + other.n
        delta = other.mean - self.mean
        share = other.n / max(n, 1)
        return Moments(
            n=n,
            mean=self.mean + share * delta,
            scatter=self.scatter + other.scatter + self.n * share * torch.outer(delta, delta),
            rounding=self.rounding + other.rounding,
        )

    def all_reduce(self) -> "Moments":
        """Return, on each process, the moments of the embeddings of all processes; without a process group, return
        these moments.

        The formula merges many sets at once: scatter = Σ_p scatter_p + n_p (mean_p − mean)(mean_p − mean)ᵀ. The counts
        n_p may differ.
        """
        if world_size() == 1:
            return self
        n = all_reduce_sum(torch.full_like(self.mean[:1], self.n))
        mean = all_reduce_sum(self.n * self.mean) / n.clamp_min(1)
        delta = self.mean - mean
        scatter = all_reduce_sum(self.scatter + self.n * torch.outer(delta, delta))
        return Moments(n=int(n), mean=mean, scatter=scatter, rounding=all_reduce_sum(self.rounding))

    @property
    def covariance(self) -> Float64[Tensor, "D D"]:
        """Covariance Σ_i (z_i − mean)(z_i − mean)ᵀ / n: divided by n, not by n − 1; zero if n = 0."""
        return self.scatter / max(self.n, 1)

    @property
    def second_moment(self) -> Float64[Tensor, "D D"]:
        """Uncentred second moment Σ_i z_i z_iᵀ / n."""
        return self.covariance + torch.outer(self.mean, self.mean)

    @property
    def standard_deviation(self) -> Float64[Tensor, " D"]:
        """Standard deviation of each dimension, divided by n.

        A constant dimension has standard deviation 0. Embeddings can also collapse without a constant dimension, if all
        dimensions vary together.

        >>> Moments.from_embeddings(torch.tensor([[1.0, 5.0], [-1.0, 5.0]])).standard_deviation
        tensor([1., 0.], dtype=torch.float64)
        """
        return self.covariance.diagonal().sqrt()
