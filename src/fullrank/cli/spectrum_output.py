"""What `fullrank spectrum` prints and writes: metrics, leading eigenvalues, and the spectra over training."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fullrank.cli import spectrum_history
from fullrank.errors import UserError
from fullrank.run import Run, SpectrumHistory
from fullrank.spectrum import METRICS, Spectrum, compute_metrics
from fullrank.spectrum.metrics import SAMPLES_PER_DIMENSION
from fullrank.terminal import stderr

LEADING = 10
"""Number of eigenvalues in the table."""
LETTERS = "AB"
"""Short names of two models in the table."""


@dataclass(frozen=True)
class ModelSpectra:
    """The spectra of one model."""

    name: str
    spectra: dict[str, Spectrum]
    """The spectra of the given images by location, "backbone" and "projector"."""
    history: SpectrumHistory | None = None
    """The spectra over training if the model is a run directory."""


def load_history(model: str) -> SpectrumHistory | None:
    """Return the spectra of a run over training, or None if the model is not a run; print a warning if the file cannot
    be read.
    """
    if not Path(model).is_dir():
        return None
    try:
        return Run(Path(model)).spectra
    except UserError as error:
        stderr().print(f"the spectra over training are not shown: {error}", style="yellow")
        return None


def labelled(models: Sequence[ModelSpectra]) -> dict[str, Spectrum]:
    """Return the spectra by column label: the location, with the letter of the model if there are two."""
    letters = [f"{letter} " for letter in LETTERS] if len(models) > 1 else [""]
    return {
        f"{letter}{part}": spectrum
        for letter, model in zip(letters, models, strict=True)
        for part, spectrum in model.spectra.items()
    }


def sample_warning(spectra: Sequence[Spectrum]) -> str:
    """Return a warning that there are too few images, with the bias of each metric; empty if there are enough.

    All spectra must be measured on the same images.

    >>> import torch
    >>> sample_warning([Spectrum.from_eigenvalues(torch.ones(2), n=19)])[:78]
    '19 images are too few for 2 dimensions (expected 20): too low: effective rank,'
    >>> sample_warning([Spectrum.from_eigenvalues(torch.ones(2), n=20)])
    ''
    """
    dimensions: set[int] = set()
    biased: dict[str, dict[str, None]] = {}  # names of metrics by bias, in the order of the table
    for spectrum in spectra:
        for key, metric in compute_metrics(spectrum).items():
            if metric.warning:
                dimensions.add(spectrum.D)
                biased.setdefault(METRICS[key].small_sample_bias, {})[METRICS[key].name] = None
    if not dimensions:
        return ""
    needed = " and ".join(f"{D:,} dimensions (expected {SAMPLES_PER_DIMENSION * D:,})" for D in sorted(dimensions))
    biases = "; ".join(f"{bias}: {', '.join(names)}" for bias, names in biased.items())
    return f"{spectra[0].n:,} images are too few for {needed}: {biases}"


def show(models: Sequence[ModelSpectra], console: Console) -> None:
    """Print metrics and leading eigenvalues and, for a single run, the spectra over training."""
    if len(models) > 1:
        for letter, model in zip(LETTERS, models, strict=True):
            console.print(f"{letter}: {model.name}", soft_wrap=True, markup=False, highlight=False)
    console.print(metrics_table(labelled(models)))
    if len(models) > 1 and any(model.history for model in models):
        console.print("over training: fullrank spectrum RUN, without --against", highlight=False)
    elif history := models[0].history:
        for part in history.eigenvalues:
            console.print(
                spectrum_history.table(
                    history, part, title=f"{models[0].name}: {part} over training", width=console.width
                )
            )


def metrics_table(spectra: dict[str, Spectrum]) -> Table:
    """Return a table of metrics and leading eigenvalues for the terminal."""
    table = Table("")
    for label in spectra:
        table.add_column(label, no_wrap=True)
    table.add_column("better", no_wrap=True)
    values = [compute_metrics(spectrum) for spectrum in spectra.values()]
    for key, metric in METRICS.items():
        table.add_row(
            metric.name, *(f"{metrics[key].value:,.4g}" for metrics in values), metric.better.replace("none", "–")
        )
    table.add_row("dimensions", *(str(spectrum.D) for spectrum in spectra.values()))
    table.add_section()
    for j in range(min(LEADING, max(spectrum.D for spectrum in spectra.values()))):
        table.add_row(
            f"λ{j + 1}", *(f"{spectrum.eigenvalues[j]:.4g}" if j < spectrum.D else "" for spectrum in spectra.values())
        )
    return table


def write_npz(path: Path, models: Sequence[ModelSpectra]) -> None:
    """Write the eigenvalues and the history of each location; arrays of a second model begin with `against_`."""
    arrays = {}
    for prefix, model in zip(("", "against_"), models, strict=False):
        model_arrays = {name: spectrum.eigenvalues.numpy() for name, spectrum in model.spectra.items()}
        model_arrays |= spectrum_history.to_arrays(model.history) if model.history else {}
        arrays |= {f"{prefix}{name}": values for name, values in model_arrays.items()}
    with path.open("wb") as file:  # given a path, numpy would append .npz
        np.savez(file, **arrays)


def write_json(path: Path, models: Sequence[ModelSpectra]) -> None:
    """Write metrics and eigenvalues; a metric that is not finite becomes null, because JSON has no infinity."""
    first, *against = map(to_json, models)
    path.write_text(json.dumps(first | ({"against": against[0]} if against else {}), indent=2) + "\n")


def to_json(model: ModelSpectra) -> dict[str, Any]:
    """Return metrics, conventions, warnings and eigenvalues of each location, and the history."""
    parts: dict[str, Any] = {"model": model.name}
    for part, spectrum in model.spectra.items():
        metrics = compute_metrics(spectrum)
        parts[part] = {
            key: metric.value if math.isfinite(metric.value) else None for key, metric in metrics.items()
        } | {
            "dimensions": spectrum.D,
            "samples": spectrum.n,
            "conventions": {key: metric.convention for key, metric in metrics.items()},
            "warnings": {key: metric.warning for key, metric in metrics.items() if metric.warning},
            "eigenvalues": spectrum.eigenvalues.tolist(),
        }
    return parts | ({"training": spectrum_history.to_json(model.history)} if model.history else {})


def write_png(path: Path, models: Sequence[ModelSpectra]) -> None:
    """Draw the measured spectra and the spectra over training."""
    from matplotlib import rc_context

    from fullrank.report.plot_style import MATPLOTLIB_STYLE

    with rc_context(MATPLOTLIB_STYLE):
        figure = spectrum_history.draw([(model.name, model.spectra, model.history) for model in models])
        figure.savefig(path, format="png")


WRITERS = {".npz": write_npz, ".json": write_json, ".png": write_png}
"""Suffix of a file → the function that writes it."""
