"""The spectrum as a metric of torchmetrics."""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from fullrank.spectrum import Moments, Spectrum, compute_metrics


class SpectrumMetric(Metric):
    """The metrics of the spectrum of embeddings by name, such as effective_rank; exact on any number of processes.

    The state is count, mean and centred scatter (D, D) in float64. A sum over processes cannot merge them, so
    torchmetrics gathers them, and `compute` merges.

    Args:
        dimensions: D.
        options: keywords of `torchmetrics.Metric`.

    >>> metric = SpectrumMetric(3)
    >>> metric.update(torch.eye(3)), metric.update(-torch.eye(3))
    (None, None)
    >>> round(metric.compute()["effective_rank"].item(), 6)
    3.0
    """

    full_state_update = True  # otherwise torchmetrics would add the states of a batch
    n: Tensor
    mean: Tensor
    scatter: Tensor
    rounding: Tensor

    def __init__(self, dimensions: int, **options: Any) -> None:
        super().__init__(**options)
        self.dimensions = dimensions
        for name, shape in (
            ("n", ()),
            ("mean", (dimensions,)),
            ("scatter", (dimensions,) * 2),
            ("rounding", (dimensions,)),
        ):
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx=None)

    def _moments(self) -> Moments:
        """Return the moments of the state; torchmetrics has stacked those of several processes."""
        D = self.dimensions
        parts = zip(
            self.n.view(-1), self.mean.view(-1, D), self.scatter.view(-1, D, D), self.rounding.view(-1, D), strict=True
        )
        return reduce(Moments.merge, (Moments(n=int(n), mean=m, scatter=s, rounding=r) for n, m, s, r in parts))

    def update(self, Z: Float[Tensor, "n D"]) -> None:
        """Add a batch.

        Raises:
            UserError: Z is not floating-point (n, D) with the D of this metric.
        """
        moments = self._moments().merge(Moments.from_embeddings(Z))
        self.n = self.n.new_tensor(moments.n)
        self.mean, self.scatter, self.rounding = moments.mean, moments.scatter, moments.rounding

    def compute(self) -> dict[str, Tensor]:
        """Return each metric of `fullrank.spectrum.METRICS`.

        Raises:
            UserError: there are no embeddings, or an embedding is NaN or infinite.
        """
        values = compute_metrics(Spectrum.from_moments(self._moments()))
        return {name: torch.tensor(metric.value, dtype=torch.float64) for name, metric in values.items()}
