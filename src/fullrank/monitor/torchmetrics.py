"""The spectrum as a metric of torchmetrics."""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from fullrank.errors import UserError
from fullrank.spectrum import Moments, Spectrum, compute_metrics


class SpectrumMetric(Metric):
    """The metrics of the spectrum of embeddings by name, such as effective_rank; exact on any number of processes.

    The state is the moments (count, mean, centred scatter and others) as rows (D + 3, D) in float64. A sum over
    processes cannot merge them, so torchmetrics gathers them, and `compute` merges.

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
    rows: Tensor

    def __init__(self, dimensions: int, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("rows", torch.zeros(dimensions + 3, dimensions, dtype=torch.float64), dist_reduce_fx=None)

    def _moments(self) -> Moments:
        """Return the moments of the state; torchmetrics has stacked those of several processes."""
        D = self.rows.shape[-1]
        parts = [
            Moments(n=int(n[0]), mean=mean, rounding=rounding, scatter=torch.stack(scatter))
            for n, mean, rounding, *scatter in self.rows.view(-1, D + 3, D)
        ]
        return reduce(Moments.merge, parts)

    def update(self, Z: Float[Tensor, "n D"]) -> None:
        """Add a batch.

        Raises:
            UserError: Z is not floating-point (n, D) with the D of this metric.
        """
        new = self._moments().merge(Moments.from_embeddings(Z))
        n = torch.full_like(new.mean, new.n)
        self.rows = torch.cat([torch.stack([n, new.mean, new.rounding]), new.scatter])

    def compute(self) -> dict[str, Tensor]:
        """Return each metric of `fullrank.spectrum.METRICS`.

        Raises:
            UserError: there are no embeddings, or an embedding is NaN or infinite.
        """
        moments = self._moments()
        if not moments.n:
            raise UserError("there are no embeddings, expected at least one batch; call `update` first")
        values = compute_metrics(Spectrum.from_moments(moments))
        return {name: torch.tensor(metric.value, dtype=torch.float64) for name, metric in values.items()}
