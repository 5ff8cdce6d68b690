"""The spectrum over training: a slider whose positions show one spectrum of each run, at the same share of its training."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from fullrank.report.figures import GAP, PANEL, Figure, layout, line, log_range, plain, significant, thin, title
from fullrank.report.read import PARTS, Record
from fullrank.report.summary import count
from fullrank.run import SpectrumHistory

# What keeps the page small: positions of the slider, eigenvalues of a spectrum, and eigenvalues of all runs together.
POSITIONS = 60
EIGENVALUES = 1024
NUMBERS = 100_000

Place = dict[int, int]
"""Which spectrum is shown of each run: index of the run -> index of its spectrum."""


def positions(runs: Sequence[Record]) -> list[Place]:
    """The positions of the slider.

    One run steps through its own spectra, at most 60 of them. Several runs step together by the share of their training that is done:
    the one with the most spectra leads, and every other one shows the spectrum whose share is nearest.
    """
    shares = {i: run.spectra.steps / max(1, run.spectra.steps[-1]) for i, run in enumerate(runs) if run.spectra}
    if not shares:
        return []
    leader = max(shares.values(), key=len)
    return [{i: int(np.abs(share - leader[k]).argmin()) for i, share in shares.items()} for k in thin(len(leader), POSITIONS)]


def captions(runs: Sequence[Record]) -> list[str]:
    """What the slider says at each of its positions: a line a run, with its step and the effective ranks measured there."""
    said = [_caption(run, named=len(runs) > 1) if run.spectra else [] for run in runs]
    return ["\n".join(said[i][k] for i, k in place.items()) for place in positions(runs)]


def stops(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """The positions of the slider as the page needs them: what each says, and the step of each run, by its index."""
    steps = [{i: int(_spectra(runs[i]).steps[k]) for i, k in place.items()} for place in positions(runs)]
    return [{"said": said, "steps": at} for said, at in zip(captions(runs), steps, strict=True)]


def _caption(run: Record, *, named: bool) -> list[str]:
    """The line of a run for each of its spectra."""
    spectra = _spectra(run)
    logged = {part: dict(zip(*run.series("spectrum", part, "effective_rank"), strict=True)) for part in PARTS}
    lines = []
    for step, n in zip(spectra.steps.tolist(), spectra.samples.tolist(), strict=True):
        ranks = ", ".join(f"{part} {rank:.1f}" for part in PARTS if (rank := logged[part].get(step)) is not None)
        images = f" ({count(n)} held-out images)" if n else ""
        lines.append(f"{f'{run.label}: ' if named else ''}step {count(step)}{images}" + (f", effective rank: {ranks}" if ranks else ""))
    return lines


def spectrum(runs: Sequence[Record], part: str) -> Figure | None:
    """Eigenvalues of one part against their index, on a logarithmic axis; None where no run has this spectrum.

    `data` holds the last spectrum of each run and, faint, its first one, which stays; `frames` has for each position of the slider the
    spectra that replace the former. `layout.meta.ranges` are the ranges of the axis for the eigenvalues as they are, and divided by the
    largest of their spectrum.
    """
    shown = {i: run for i, run in enumerate(runs) if run.spectra and part in run.spectra.eigenvalues}
    if not shown:
        return None
    places = positions(runs)
    most = min(EIGENVALUES, NUMBERS // (len(PARTS) * len(places) * len(runs)))
    kept = {i: thin(_spectra(run).eigenvalues[part].shape[1], most) for i, run in shown.items()}
    # A covariance has no eigenvalue below zero but by rounding.
    tables = {i: np.maximum(_spectra(run).eigenvalues[part][:, kept[i]], 0.0) for i, run in shown.items()}
    frames = [[_state(_spectra(run), tables[i], place[i]) for i, run in shown.items()] for place in places]
    hover = {i: {"hovertemplate": f"λ<sub>%{{x}}</sub> = %{{y:.3~g}}<extra>{plain(run.label)}</extra>"} for i, run in shown.items()}
    last = [_trace(i, run, kept[i], tables[i][-1]) | hover[i] for i, run in shown.items()]
    first = [_trace(i, run, kept[i], tables[i][0], faint=True) | {"hoverinfo": "skip"} for i, run in shown.items()]
    return {"data": [*last, *first], "layout": _axes(part, list(tables.values()), runs=len(runs)), "frames": frames}


def _spectra(run: Record) -> SpectrumHistory:
    assert run.spectra is not None
    return run.spectra


def _state(spectra: SpectrumHistory, table: Float[np.ndarray, "T k"], k: int) -> dict[str, Any]:
    return {"step": int(spectra.steps[k]), "y": [significant(value) for value in table[k].tolist()]}


def _trace(i: int, run: Record, kept: list[int], row: Float[np.ndarray, " k"], *, faint: bool = False) -> dict[str, Any]:
    points = {"x": [k + 1 for k in kept], "y": [significant(value) for value in row.tolist()]}
    return line(i, run.label, faint=faint) | points | {"meta": {"run": run.label, "quantity": "eigenvalue"}}


def _axes(part: str, tables: list[Float[np.ndarray, "_ _"]], *, runs: int) -> dict[str, Any]:
    height = 2 * PANEL + GAP
    top = 1 - GAP / height
    ranges = [log_range(tables), log_range([table / np.where(table[:, :1] > 0, table[:, :1], 1.0) for table in tables])]
    ticks = ceil((ranges[0][1] - ranges[0][0]) / 7)
    return layout(height, runs=runs) | {
        "xaxis": {"title": {"text": "index of the eigenvalue"}, "unifiedhovertitle": {"text": "eigenvalue %{x}"}},
        "yaxis": {"type": "log", "exponentformat": "power", "dtick": ticks, "tickfont": {"size": 10}, "domain": [0, top]},
        "annotations": [title(f"eigenvalues, {part}", top)],
        "meta": {"part": part, "ranges": ranges},
    }
