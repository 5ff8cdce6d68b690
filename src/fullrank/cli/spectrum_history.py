"""Show the spectra of a run over training as a table, arrays, JSON or a figure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from rich.table import Table

from fullrank.report.figures import mask_rounding_errors, spread
from fullrank.report.plot_style import COLORS, subplots
from fullrank.run import SpectrumHistory
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum import Spectrum, functional, saturation

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

ROWS = 8
"""Number of steps in a table."""
INDICES = (1, 14, 64, 4, 32, 2, 8)
"""Indices of the eigenvalues in a table; a narrow table shows the first ones. Skean et al. 2024 show the 14th
eigenvalue."""
LINES = 24
"""Number of eigenvalues in a figure."""
OVERSHOOT = 2
"""If an eigenvalue was ever more than this factor times its last value, it has no saturation step."""
NAME_LENGTH = 36
"""Number of characters of a model's name that fit into a title and a legend."""


def curves(spectra: SpectrumHistory, part: str) -> dict[str, Float[np.ndarray, " T"]]:
    """Return effective rank and collapsed dimensions at each step.

    >>> eigenvalues = {"backbone": np.array([[1.0, 0.0], [2.0, 2.0]])}
    >>> curves(SpectrumHistory(steps=np.array([0, 9]), samples=np.array([50, 50]), eigenvalues=eigenvalues), "backbone")
    {'effective_rank': array([1., 2.]), 'collapsed_dimensions': array([1., 0.])}
    """
    eigenvalues = torch.from_numpy(spectra.eigenvalues[part]).double()
    collapsed = [
        int(functional.collapsed_dimensions(row, n=n))
        for row, n in zip(eigenvalues, spectra.samples.tolist(), strict=True)
    ]
    return {
        "effective_rank": functional.effective_rank(eigenvalues).numpy(),
        "collapsed_dimensions": np.array(collapsed, dtype=float),
    }


def saturation_step(spectra: SpectrumHistory, part: str, j: int) -> int | None:
    """Return the step from which the j-th eigenvalue stays at or above 95 % of its last value; or None.

    The step is defined only if the eigenvalue rose, i.e. started below 95 % of its last value and never exceeded twice
    that value.

    >>> eigenvalues = np.array([[9.0, 0.1, 1.0], [1e6, 1.2, 1.0], [9.0, 1.0, 0.0]])
    >>> spectra = SpectrumHistory(steps=np.array([0, 5, 9]), samples=np.full(3, 50), eigenvalues={"backbone": eigenvalues})
    >>> [saturation_step(spectra, "backbone", j) for j in (1, 2, 3)]
    [None, 5, None]
    """
    curve = spectra.eigenvalues[part][:, j - 1]
    at = int(saturation(torch.from_numpy(curve)))
    rose = curve[0] < 0.95 * curve[-1] and curve.max() <= OVERSHOOT * curve[-1]
    return int(spectra.steps[at]) if rose else None


def table(spectra: SpectrumHistory, part: str, *, title: str, width: int = 120) -> Table:
    """Return a table of effective rank, collapsed dimensions and eigenvalues at some steps, with the `saturation_step`
    of each eigenvalue.

    `width` (in characters) limits the number of eigenvalues.
    """
    D = spectra.eigenvalues[part].shape[1]
    indices = [j for j in INDICES if j <= D]
    shown = sorted(
        indices[: max(1, (width - 36) // 11)]
    )  # 36 characters for the first three columns, 11 per eigenvalue
    rank, collapsed = curves(spectra, part).values()
    values = spectra.eigenvalues[part][:, [j - 1 for j in shown]]
    result = Table(title=title, title_justify="left")
    for column in ("step", "eff. rank", "collapsed", *(f"λ{j}" for j in shown)):
        result.add_column(column, justify="right", no_wrap=True)
    for t in spread(len(values), ROWS):
        result.add_row(
            f"{spectra.steps[t]:,}", f"{rank[t]:.3g}", f"{collapsed[t]:.0f}", *(f"{value:.3g}" for value in values[t])
        )
    result.add_section()
    steps = (saturation_step(spectra, part, j) for j in shown)
    result.add_row("95 % at", "", "", *("–" if step is None else f"{step:,}" for step in steps))
    return result


def to_arrays(spectra: SpectrumHistory) -> dict[str, np.ndarray]:
    """Return steps, samples and the eigenvalues of each location, as arrays of an .npz file."""
    eigenvalues = {f"{part}_over_training": values for part, values in spectra.eigenvalues.items()}
    return {"steps": spectra.steps, "samples": spectra.samples, **eigenvalues}


def to_json(spectra: SpectrumHistory) -> dict[str, Any]:
    """Return steps, samples and the metrics of each location over training, as JSON."""
    parts = {
        part: {name: curve.tolist() for name, curve in curves(spectra, part).items()} for part in spectra.eigenvalues
    }
    return {"steps": spectra.steps.tolist(), "samples": spectra.samples.tolist(), **parts}


def draw(models: Sequence[tuple[str, Mapping[str, Spectrum], SpectrumHistory | None]]) -> "matplotlib.figure.Figure":
    """Draw a column for each location: eigenvalues and effective rank over training, and the measured eigenvalues.

    Args:
        models: for each model its name, its measured spectra by location, and its spectra over training.
    """
    parts = [part for part in LOCATIONS if any(part in spectra for _, spectra, _ in models)]
    named = [
        (_shorten(name), spectra, history, colour)
        for (name, spectra, history), colour in zip(models, COLORS, strict=False)
    ]
    runs = [(name, history, colour) for name, _, history, colour in named if history]
    heights = len(runs) + bool(runs) + 1
    figure, axes = subplots(heights, len(parts), width=4.5 * len(parts), height=2.6 * heights)
    for column, part in zip(axes.T, parts, strict=True):
        for ax, (name, history, _) in zip(column, runs, strict=False):
            if part in history.eigenvalues:
                _plot_eigenvalues(ax, history, part)
                ax.set_title(f"{name}\neigenvalues, {part}")
        if runs:
            _plot_effective_ranks(column[-2], runs, part)
        now = column[-1]
        for name, spectra, _, colour in named:
            if part in spectra:
                lambdas = mask_rounding_errors(spectra[part].eigenvalues.numpy())
                now.loglog(np.arange(1, len(lambdas) + 1), lambdas, color=colour, label=name)
                now.set_xlabel(f"index of the eigenvalue (centred; {spectra[part].n:,} images)")
        now.set_title(f"eigenvalues, {part}, now")
        now.legend()
    return figure


def _plot_eigenvalues(ax: "Axes", spectra: SpectrumHistory, part: str) -> None:
    """Plot some eigenvalues over training, larger eigenvalues in darker colours, and the `saturation_step` of the 14th
    as a dotted line.
    """
    from matplotlib import colormaps

    positive = mask_rounding_errors(spectra.eigenvalues[part].astype(float))
    nonzero = max(1, int(np.isfinite(positive).sum(1).max()))
    shown = np.unique(np.geomspace(1, nonzero, min(nonzero, LINES)).round().astype(int))
    for k, j in enumerate(shown):
        labelled = {"label": f"λ$_{{{j}}}$"} if k in (0, len(shown) - 1) else {}
        ax.semilogy(
            spectra.steps, positive[:, j - 1], color=colormaps["viridis"](0.9 * k / max(1, len(shown) - 1)), **labelled
        )
    k = min(14, nonzero)
    step = saturation_step(spectra, part, k)
    if step is not None:
        ax.axvline(step, color="black", linestyle=":", linewidth=0.8)
    ax.set_xlabel("step" if step is None else f"step (dotted: λ$_{{{k}}}$ saturates)")
    ax.legend()


def _plot_effective_ranks(ax: "Axes", runs: Sequence[tuple[str, SpectrumHistory, str]], part: str) -> None:
    """Plot the effective rank of every run over training."""
    for name, history, colour in runs:
        if part in history.eigenvalues:
            ax.plot(history.steps, curves(history, part)["effective_rank"], color=colour, label=name)
    ax.set(title=f"effective rank, {part}", xlabel="step", ylim=(0, None))
    ax.legend()


def _shorten(name: str) -> str:
    """Return the end of a long name."""
    return name if len(name) <= NAME_LENGTH else f"…{name[1 - NAME_LENGTH :]}"
