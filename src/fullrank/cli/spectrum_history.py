"""Spectra over training: what a run's spectrum.npz says, as a table, as numbers and as a drawing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from rich.table import Table

from fullrank.report.figures import COLOURS, above_rounding, thin
from fullrank.report.read import PARTS
from fullrank.run import SpectrumHistory
from fullrank.spectrum import Spectrum, measures, saturation

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

ROWS = 8
"""Steps of a table."""
INDICES = (1, 14, 64, 4, 32, 2, 8)
"""Eigenvalues of a table, those first that a narrow one keeps; the 14th is the one that Skean et al. 2024 follow."""
LINES = 24
"""Eigenvalues of a drawing."""
OVERSHOOT = 2
"""A curve that was more than this many times its last value has fallen to it, whatever it did before."""
NAME = 36
"""How many characters of a model's name fit above a drawing, and into its legend."""


def curves(spectra: SpectrumHistory, part: str) -> dict[str, Float[np.ndarray, " T"]]:
    """Return effective rank and dead dimensions at each step.

    >>> eigenvalues = {"backbone": np.array([[1.0, 0.0], [2.0, 2.0]])}
    >>> curves(SpectrumHistory(steps=np.array([0, 9]), samples=np.array([50, 50]), eigenvalues=eigenvalues), "backbone")
    {'effective rank': array([1., 2.]), 'dead dimensions': array([1., 0.])}
    """
    eigenvalues = torch.from_numpy(spectra.eigenvalues[part]).double()
    dead = [int(measures.collapsed_dimensions(row, n=n)) for row, n in zip(eigenvalues, spectra.samples.tolist(), strict=True)]
    return {"effective rank": measures.effective_rank(eigenvalues).numpy(), "dead dimensions": np.array(dead, dtype=float)}


def reached(spectra: SpectrumHistory, part: str, j: int) -> int | None:
    """Return the step at which the j-th eigenvalue reached 95 % of its last value for good; None where it did not rise to that value.

    It rose where it began below those 95 % and was never more than twice its last value: of one that dropped, or is zero, the step
    would say nothing.

    >>> rose_fell_died = np.array([[9.0, 0.1, 1.0], [1e6, 1.2, 1.0], [9.0, 1.0, 0.0]])
    >>> found = SpectrumHistory(steps=np.array([0, 5, 9]), samples=np.full(3, 50), eigenvalues={"backbone": rose_fell_died})
    >>> [reached(found, "backbone", j) for j in (1, 2, 3)]
    [None, 5, None]
    """
    curve = spectra.eigenvalues[part][:, j - 1]
    at = int(saturation(torch.from_numpy(curve)))
    rose = curve[0] < 0.95 * curve[-1] and curve.max() <= OVERSHOOT * curve[-1]
    return int(spectra.steps[at]) if rose else None


def table(spectra: SpectrumHistory, part: str, *, title: str, width: int = 120) -> Table:
    """Lay some steps out: effective rank, dead dimensions, eigenvalues; and when each of these reached 95 % of its last value (`reached`).

    As many eigenvalues are shown as fit into `width` characters.
    """
    D = spectra.eigenvalues[part].shape[1]
    indices = [j for j in INDICES if j <= D]
    shown = sorted(indices[: max(1, (width - 32) // 11)])  # 32: step, effective rank and dead dimensions; 11: an eigenvalue
    rank, dead = curves(spectra, part).values()
    values = spectra.eigenvalues[part][:, [j - 1 for j in shown]]
    found = Table(title=title, title_justify="left")
    for column in ("step", "eff. rank", "dead", *(f"λ{j}" for j in shown)):
        found.add_column(column, justify="right", no_wrap=True)
    for t in thin(len(values), ROWS):
        found.add_row(f"{spectra.steps[t]:,}", f"{rank[t]:.3g}", f"{dead[t]:.0f}", *(f"{value:.3g}" for value in values[t]))
    found.add_section()
    steps = (reached(spectra, part, j) for j in shown)
    found.add_row("95 % at", "", "", *("–" if step is None else f"{step:,}" for step in steps))
    return found


def arrays_of(spectra: SpectrumHistory) -> dict[str, np.ndarray]:
    """Return steps, samples and the eigenvalues of each part over training, as .npz holds them."""
    of_parts = {f"{part}_over_training": values for part, values in spectra.eigenvalues.items()}
    return {"steps": spectra.steps, "samples": spectra.samples, **of_parts}


def hyperparameters(spectra: SpectrumHistory) -> dict[str, Any]:
    """Return steps, and the curves of each part, as JSON holds them."""
    parts = {part: {name: curve.tolist() for name, curve in curves(spectra, part).items()} for part in spectra.eigenvalues}
    return {"steps": spectra.steps.tolist(), "samples": spectra.samples.tolist(), **parts}


def draw(models: Sequence[tuple[str, Mapping[str, Spectrum], SpectrumHistory | None]]) -> "matplotlib.figure.Figure":
    """Draw a column a part: eigenvalues over the steps of each run, effective rank of all, and the eigenvalues of every model as it is.

    Args:
        models: name, spectra now by part, and spectra over training.
    """
    from fullrank.reproduce.plot_style import subplots

    parts = [part for part in PARTS if any(part in spectra for _, spectra, _ in models)]
    named = [(_short(name), spectra, over, colour) for (name, spectra, over), colour in zip(models, COLOURS, strict=False)]
    trained = [(name, over, colour) for name, _, over, colour in named if over]
    heights = len(trained) + bool(trained) + 1
    figure, axes = subplots(heights, len(parts), width=4.5 * len(parts), height=2.6 * heights)
    for column, part in zip(axes.T, parts, strict=True):
        for ax, (name, over, _) in zip(column, trained, strict=False):
            if part in over.eigenvalues:
                _eigenvalues(ax, over, part)
                ax.set_title(f"{name}\neigenvalues, {part}")
        if trained:
            _effective_ranks(column[-2], trained, part)
        now = column[-1]
        for name, spectra, _, colour in named:
            if part in spectra:
                lambdas = above_rounding(spectra[part].eigenvalues.numpy())
                now.loglog(np.arange(1, len(lambdas) + 1), lambdas, color=colour, label=name)
                now.set_xlabel(f"index of the eigenvalue (centred; {spectra[part].n:,} images)")
        now.set_title(f"eigenvalues, {part}, now")
        now.legend()
    return figure


def _eigenvalues(ax: "Axes", spectra: SpectrumHistory, part: str) -> None:
    """Some eigenvalues over the steps, the larger the darker; dotted where the 14th has risen to 95 % of its last value for good."""
    from matplotlib import colormaps

    positive = above_rounding(spectra.eigenvalues[part].astype(float))
    living = max(1, int(np.isfinite(positive).sum(1).max()))
    shown = np.unique(np.geomspace(1, living, min(living, LINES)).round().astype(int))
    for k, j in enumerate(shown):
        labelled = {"label": f"λ$_{{{j}}}$"} if k in (0, len(shown) - 1) else {}
        ax.semilogy(spectra.steps, positive[:, j - 1], color=colormaps["viridis"](0.9 * k / max(1, len(shown) - 1)), **labelled)
    k = min(14, living)
    step = reached(spectra, part, k)
    if step is not None:
        ax.axvline(step, color="black", linestyle=":", linewidth=0.8)
    ax.set_xlabel("step" if step is None else f"step (dotted: λ$_{{{k}}}$ reaches 95 % for good)")
    ax.legend()


def _effective_ranks(ax: "Axes", trained: Sequence[tuple[str, SpectrumHistory, str]], part: str) -> None:
    """Effective rank of every run over its steps, in the colour that it has in the other axes."""
    for name, over, colour in trained:
        if part in over.eigenvalues:
            ax.plot(over.steps, curves(over, part)["effective rank"], color=colour, label=name)
    ax.set(title=f"effective rank, {part}", xlabel="step", ylim=(0, None))
    ax.legend()


def _short(name: str) -> str:
    """The end of a long name, which tells it from others, so that it fits."""
    return name if len(name) <= NAME else f"…{name[1 - NAME :]}"
