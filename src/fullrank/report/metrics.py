"""The metrics of each run's last spectrum, with their conventions and warnings."""

import re
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import torch

from fullrank.report.document import html_table, split_table
from fullrank.report.number_format import number
from fullrank.report.run_summary import RunSummary
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum import METRICS, MetricValue, Spectrum, compute_metrics
from fullrank.spectrum.metrics import BETTER, CENTRED

FEW_RUNS = 4
"""With more runs, runs are rows of a table and not columns."""
WARNING_MARK = "†"
"""The mark of a value that has a warning."""


def last_metrics(run: RunSummary, location: str) -> dict[str, MetricValue]:
    """Return the metrics that depend only on the last spectrum; empty if there is no spectrum or its number of images
    is unknown.

    >>> from fullrank.run import SpectrumHistory
    >>> spectra = SpectrumHistory(steps=np.array([9]), samples=np.array([50]), eigenvalues={"backbone": np.array([[2.0, 2.0]])})
    >>> run = RunSummary(label="run", recipe={}, environment={}, spectra=spectra)
    >>> round(last_metrics(run, "backbone")["effective_rank"].value, 6), last_metrics(run, "projector")
    (2.0, {})
    """
    spectra = run.spectra
    if spectra is None or location not in spectra.eigenvalues or not spectra.samples[-1]:
        return {}
    eigenvalues = spectra.eigenvalues[location][-1]
    if not np.isfinite(eigenvalues).all():
        return {}
    return compute_metrics(Spectrum.from_eigenvalues(torch.from_numpy(eigenvalues), n=int(spectra.samples[-1])))


def metrics_table(runs: Sequence[RunSummary]) -> str:
    """Return a table of metrics as HTML, with a column for each location of one run, or for each of several runs; empty
    without spectra.
    """
    by_location = {
        location: {run.label: metrics for run in runs if (metrics := last_metrics(run, location))}
        for location in LOCATIONS
    }
    if len(runs) == 1:
        by_location = {
            "run": {location: metrics for location in LOCATIONS for metrics in by_location[location].values()}
        }
    build = _table if len(runs) <= FEW_RUNS else _table_of_many
    return "".join(build(columns, subject=location) for location, columns in by_location.items() if columns)


def _table(columns: dict[str, dict[str, MetricValue]], *, subject: str) -> str:
    rows = []
    for key in next(iter(columns.values())):
        metric = METRICS[key]
        convention = "" if metric.convention == CENTRED else f"; {metric.convention}"
        name = f"{escape(metric.name)}<br><small>{_formula(metric.formula + convention)}</small>"
        better, bias = (
            f"<small>{escape(text)}</small>" for text in (metric.better.replace("none", "–"), metric.small_sample_bias)
        )
        rows.append([name, *(cell(values[key]) for values in columns.values()), better, bias])
    notes = footnotes(value for values in columns.values() for value in values.values())
    head = [f"metric of the {subject}", *columns, "healthier", f"{WARNING_MARK}: bias with few samples"]
    caption = f"The last spectra of the {subject}. λ: {CENTRED}. Healthier: {BETTER}."
    return html_table(head, rows, caption=caption, stacks=True, wide=len(columns) > 2) + notes


def _table_of_many(columns: dict[str, dict[str, MetricValue]], *, subject: str) -> str:
    """Return the metrics with a row for each run, and their formulas below."""
    keys = list(next(iter(columns.values())))
    rows = [[escape(label), *(cell(values[key]) for key in keys)] for label, values in columns.items()]
    notes = footnotes(value for values in columns.values() for value in values.values())
    caption = f"The last spectra of the {subject}. λ: {CENTRED}. Healthier: {BETTER}."
    metrics = [METRICS[key] for key in keys]
    better = [metric.better.replace("none", "–") for metric in metrics]
    formulas = [
        f"<li>{escape(metric.name)}: {_formula(metric.formula)}; healthier: {escape(text)}</li>"
        for metric, text in zip(metrics, better, strict=True)
    ]
    legend = f'<ul class="notes">{"".join(formulas)}</ul>'
    return (
        split_table([f"{subject} of the run", *(METRICS[key].name for key in keys)], rows, caption=caption)
        + legend
        + notes
    )


def _formula(text: str) -> str:
    """Return a formula as HTML with subscripts.

    >>> _formula("λ_j ≤ 10⁻⁶ λ₁")
    'λ<sub>j</sub> ≤ 10⁻⁶ λ₁'
    """
    return re.sub(r"_(\w)", r"<sub>\1</sub>", escape(text))


def cell(metric: MetricValue) -> str:
    r"""Return a value as HTML, with a mark if it has a warning.

    >>> from fullrank.spectrum import MetricValue
    >>> cell(MetricValue(28007.1, "")), cell(MetricValue(45.25, "", "too low"))
    ('28\u202f007', '45.2<abbr title="too low">†</abbr>')
    """
    mark = f'<abbr title="{escape(metric.warning)}">{WARNING_MARK}</abbr>' if metric.warning else ""
    return number(metric.value) + mark


def footnotes(metrics: Iterable[MetricValue]) -> str:
    """Return the warnings as HTML, one footnote per number of samples; empty without warnings."""
    texts = dict.fromkeys(metric.warning.rpartition(": ")[2] for metric in metrics if metric.warning)
    return (
        f'<ul class="notes">{"".join(f"<li>{WARNING_MARK} {escape(text)}</li>" for text in texts)}</ul>'
        if texts
        else ""
    )
