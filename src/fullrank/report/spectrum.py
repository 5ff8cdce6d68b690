"""The spectrum figure and its slider: each position shows one spectrum of each run, at the same fraction of its
training.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.report.figures import (
    Figure,
    escape_label,
    figure_layout,
    line_trace,
    log_range,
    panel_title,
    round_significant,
    spread_indices,
)
from fullrank.report.number_format import format_count
from fullrank.report.plot_style import LOG_AXIS, PANEL_GAP, PANEL_HEIGHT
from fullrank.report.run_summary import RunSummary
from fullrank.run.spectrum_history import LOCATIONS, SpectrumHistory

# Limits that keep the page small: positions of the slider, eigenvalues of one spectrum, eigenvalues of all runs
# together.
MAX_POSITIONS = 60
MAX_EIGENVALUES = 1024
MAX_NUMBERS = 60_000


def match_spectra(runs: Sequence[RunSummary]) -> list[dict[int, int]]:
    """Return for each position of the slider: index of the run -> index of the spectrum that it shows.

    For one run, the positions are its spectra, at most 60 of them. Several runs are matched by the fraction of training
    that is done: the positions are the spectra of the run with the most spectra, and every other run shows the spectrum
    with the nearest fraction.
    """
    fractions = {i: spectra.steps / max(1, spectra.steps[-1]) for i, spectra in _spectra(runs).items()}
    longest = max(fractions.values(), key=len, default=[])
    return [
        {i: int(np.abs(fraction - longest[k]).argmin()) for i, fraction in fractions.items()}
        for k in spread_indices(len(longest), MAX_POSITIONS)
    ]


def slider_positions(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return the positions of the slider for the page: the caption of each, and the step of each run by its index."""
    spectra = _spectra(runs)
    captions = {i: _captions(runs[i], history, with_label=len(runs) > 1) for i, history in spectra.items()}
    return [
        {
            "caption": "\n".join(captions[i][k] for i, k in matched.items()),
            "steps": {i: int(spectra[i].steps[k]) for i, k in matched.items()},
        }
        for matched in match_spectra(runs)
    ]


def _captions(run: RunSummary, spectra: SpectrumHistory, *, with_label: bool) -> list[str]:
    """Return a line of text for each spectrum of a run: its step, its number of images and its effective ranks."""
    rows = {row.step: row for row in run.spectrum}
    lines = []
    for step, n in zip(spectra.steps.tolist(), spectra.samples.tolist(), strict=True):
        images = f" ({format_count(n)} held-out images)" if n else ""
        ranks = (
            [f"{location} {getattr(rows[step], location).effective_rank:.1f}" for location in LOCATIONS]
            if step in rows
            else []
        )
        rank_text = f", effective rank: {', '.join(ranks)}" if ranks else ""
        lines.append(f"{f'{run.label}: ' if with_label else ''}step {format_count(step)}{images}{rank_text}")
    return lines


def spectrum_figure(runs: Sequence[RunSummary], location: str) -> Figure | None:
    """Return the eigenvalues at one location against their index, on a logarithmic axis; None if no run has this
    spectrum.

    `data` contains the last spectrum of each run and, faint, its first one. `frames` contains for each position of the
    slider the spectra that replace the last ones. `layout.meta.ranges` contains the axis range for eigenvalues, and for
    eigenvalues divided by the largest.
    """
    shown = {i: spectra for i, spectra in _spectra(runs).items() if location in spectra.eigenvalues}
    if not shown:
        return None
    positions = match_spectra(runs)
    at_most = min(MAX_EIGENVALUES, MAX_NUMBERS // (len(LOCATIONS) * len(positions) * len(runs)))
    indices = {i: spread_indices(spectra.eigenvalues[location].shape[1], at_most) for i, spectra in shown.items()}
    # A negative eigenvalue of a covariance is a rounding error.
    tables = {i: np.maximum(spectra.eigenvalues[location][:, indices[i]], 0.0) for i, spectra in shown.items()}

    def trace(i: int, k: int, *, faint: bool = False) -> dict[str, Any]:
        hover = {"hovertemplate": f"λ<sub>%{{x}}</sub> = %{{y:.3~g}}<extra>{escape_label(runs[i].label)}</extra>"}
        points = {
            "x": [j + 1 for j in indices[i]],
            "y": _rounded(tables[i][k]),
            "meta": {"run": runs[i].label, "quantity": "eigenvalue"},
        }
        return line_trace(i, runs[i].label, faint=faint) | points | ({"hoverinfo": "skip"} if faint else hover)

    return {
        "data": [*(trace(i, -1) for i in shown), *(trace(i, 0, faint=True) for i in shown)],
        "layout": _layout(location, list(tables.values()), runs=len(runs)),
        "frames": [
            [
                {"step": int(spectra.steps[matched[i]]), "y": _rounded(tables[i][matched[i]])}
                for i, spectra in shown.items()
            ]
            for matched in positions
        ],
    }


def _spectra(runs: Sequence[RunSummary]) -> dict[int, SpectrumHistory]:
    return {i: run.spectra for i, run in enumerate(runs) if run.spectra}


def _rounded(eigenvalues: Float[np.ndarray, " k"]) -> list[float | None]:
    return [round_significant(value) for value in eigenvalues.tolist()]


def _layout(location: str, tables: list[Float[np.ndarray, "_ _"]], *, runs: int) -> dict[str, Any]:
    height = 2 * PANEL_HEIGHT + PANEL_GAP
    top = 1 - PANEL_GAP / height
    ranges = [log_range(tables), log_range([table / np.where(table[:, :1] > 0, table[:, :1], 1.0) for table in tables])]
    return figure_layout(height, runs=runs) | {
        "xaxis": {"title": {"text": "index of the eigenvalue"}, "unifiedhovertitle": {"text": "eigenvalue %{x}"}},
        "yaxis": LOG_AXIS | {"dtick": ceil((ranges[0][1] - ranges[0][0]) / 7), "domain": [0, top]},
        "annotations": [panel_title(f"eigenvalues, {location}", top)],
        "meta": {"location": location, "ranges": ranges},
    }
