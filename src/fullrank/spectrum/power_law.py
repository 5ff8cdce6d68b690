"""α-ReQ: the decay of eigenvalues, as the exponent of a power law."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.errors import UserError
from fullrank.spectrum.functional import check_eigenvalues
from fullrank.spectrum.moments import to_float64


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """The fit λ_j ∝ j^−α over j = first … last.

    Attributes:
        alpha: Minus the slope of log λ_j on log j; infinite if the eigenvalues after λ_first are zero, 0 if λ_first is
            zero or the last eigenvalue.
        r2: Share of the weighted variance of log λ_j that the line explains; well below 1 if the spectrum is not a
            power law.
        first: First index of the fit.
        last: Last index of the fit.
    """

    alpha: float
    r2: float
    first: int
    last: int


def power_law(eigenvalues: Float[Tensor, " D"], *, first: int = 1, last: int | None = None) -> PowerLaw:
    """Fit log λ_j = c − α log j by least squares with weights 1/j, over the positive eigenvalues j = first … last.

    With weights 1/j, every octave of j has the same total weight; with equal weights, the last octave would count as
    much as all others.

    Args:
        eigenvalues: λ in descending order.
        first: index of the first eigenvalue of the fit, counted from 1.
        last: largest index of the fit; by default the index of the last positive eigenvalue. The last eigenvalues of a
            finite sample decay faster than the true eigenvalues: n samples resolve about n/10 eigenvalues.

    Raises:
        UserError: `first` is not between 1 and D, `last` is not above `first`, or the eigenvalues are not finite, ≥ 0
            and descending.

    Source: Agrawal et al. 2022, α-ReQ: Assessing Representation Quality by Measuring Eigenspectrum Decay; the weights
    as Stringer et al. 2019. Interpreting α requires the range and R², so the result contains both. The authors' code
    fits j = 3 … 99 of the backbone's spectrum, and 5 … 79 of the projector's during training; `first=3, last=99` gives
    the published range.

    >>> fit = power_law(torch.tensor([8.0, 2.0, 8 / 9, 0.5]))
    >>> round(fit.alpha, 6), round(fit.r2, 6), fit.first, fit.last
    (2.0, 1.0, 1, 4)
    """
    check_eigenvalues(eigenvalues)
    if eigenvalues.ndim != 1:
        shape = tuple(eigenvalues.shape)
        raise UserError(f"eigenvalues has the shape {shape}, expected (D,); fit one spectrum at a time")
    D = len(eigenvalues)
    if not 1 <= first <= D:
        raise UserError(f"first is {first}, but there are only {D} eigenvalues; choose first from 1 to {D}")
    if last is not None and last <= first:
        raise UserError(f"last is {last}, but first is {first}; choose last above first")
    positive = int((eigenvalues > 0).sum())
    end = min(positive, D if last is None else last)
    if end <= first:
        return PowerLaw(alpha=torch.inf if positive == first < D else 0.0, r2=1.0, first=first, last=first)
    j = torch.arange(first, end + 1, dtype=torch.float64)
    x, y, weights = j.log(), to_float64(eigenvalues[first - 1 : end]).cpu().log(), 1 / j / (1 / j).sum()
    x, y = x - weights @ x, y - weights @ y
    slope = weights @ (x * y) / (weights @ x.square())
    residual, total = weights @ (y - slope * x).square(), weights @ y.square()
    flat = total.sqrt() <= 1e-9  # the eigenvalues are equal up to rounding, so a horizontal line fits exactly
    return PowerLaw(alpha=-slope.item(), r2=1.0 if flat else (1 - residual / total).item(), first=first, last=end)
