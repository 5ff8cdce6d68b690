"""What `fullrank choose` shows: tables for the terminal, and a page with the spectra side by side."""

import json
from html import escape
from math import floor, isfinite, log10
from pathlib import Path

import numpy as np
from rich.markup import escape as escape_markup
from rich.table import Column, Table

from fullrank.arguments import CHOICE_SUFFIXES
from fullrank.errors import printable
from fullrank.evaluation.choosing import MEASURES, Choice
from fullrank.evaluation.choosing.labelled import Agreement
from fullrank.evaluation.choosing.result import LIMITS
from fullrank.files import atomic_write, check_suffix
from fullrank.models.model_card import public_name
from fullrank.report.document import figure_block, html_document, html_table, label_html
from fullrank.report.figures import (
    Figure,
    escape_label,
    figure_layout,
    line_trace,
    mask_rounding_errors,
    round_significant,
    spread_indices,
)
from fullrank.report.plot_style import LOG_AXIS, PANEL_GAP, PANEL_HEIGHT

POINTS = 300
"""Maximum number of eigenvalues of a curve."""
CAPTION = (
    "Eigenvalues of the covariance of the features, divided by their sum: the share of the variance in each direction. A curve that ends "
    "early has few directions; a curve that is higher at the end spreads the variance. Neither makes features better by itself."
)


def write_choice(choice: Choice, out: Path | str, *, overwrite: bool = False) -> Path:
    """Write a page (.html), all numbers (.json) or a table (.csv), and return the path.

    Raises:
        UserError: the suffix is another one, the file exists, or it cannot be written.
    """
    writers = {
        ".html": lambda: render(choice),
        ".json": lambda: json.dumps(choice.to_dict(), indent=2) + "\n",
        ".csv": choice.to_csv,
    }
    text = writers[check_suffix(out, CHOICE_SUFFIXES)]()
    with atomic_write(Path(out), overwrite=overwrite) as draft:
        draft.write_text(text, "utf-8", errors="backslashreplace")
    return Path(out)


def head(key: str) -> str:
    """Return the name of a measure with the sign of what is better."""
    return f"{MEASURES[key].name} {'↑' if MEASURES[key].sign > 0 else '↓'}"


def rank_text(rank: tuple[int, int]) -> str:
    """Return a rank, or the range of the ranks that a model can have.

    >>> rank_text((1, 1)), rank_text((2, 4))
    ('1', '2–4')
    """
    low, high = rank
    return f"{low}" if low == high else f"{low}–{high}"


def interval_text(value: float, interval: tuple[float, float]) -> str:
    """Return a value with its interval, all with as many decimals as three digits of the value need.

    >>> interval_text(0.1234, (0.1, 0.15)), interval_text(47.38, (44.0, 51.0))
    ('0.123 [0.100, 0.150]', '47.4 [44.0, 51.0]')
    """
    digits = 2 - floor(log10(abs(value))) if value and isfinite(value) else 2
    low, high = (f"{end:.{min(max(digits, 0), 6)}f}" for end in interval)
    return f"{value:.3g} [{low}, {high}]"


def summary_tables(choice: Choice) -> list[Table]:
    """Return the tables of the terminal, a model a row: the decisive measure with its interval, the other measures, and
    accuracies.
    """
    key, names = choice.decisive, [escape_markup(printable(name)) for name in choice.short_names]
    title = f"{choice.images:,} images of {printable(public_name(choice.source))}, without labels"
    table = Table("rank", Column("model", overflow="fold"), title=title, title_justify="left")
    for column in ("dimensions", f"{head(key)}\n[95 % interval]"):
        table.add_column(column, justify="right")
    others = [name for name in MEASURES if name != key]
    further = Table(Column("model", overflow="fold"), title="Other measures, which do not decide", title_justify="left")
    for name in others:
        further.add_column(head(name), justify="right")
    ranks = choice.ranks(key)
    for i in choice.order(key):
        candidate = choice.candidates[i]
        decisive = interval_text(candidate.values[key], candidate.interval(key))
        table.add_row(rank_text(ranks[i]), names[i], str(candidate.dimensions), escape_markup(decisive))
        further.add_row(names[i], *(f"{candidate.values[name]:.3g}" for name in others))
    if choice.labelled is None:
        return [table, further]
    found = choice.labelled
    checked = Table(
        title=f"{found.test_images:,} labelled test images of {printable(public_name(found.data))}",
        title_justify="left",
    )
    checked.add_column("model", overflow="fold")
    for column in found.right:
        checked.add_column(column, justify="right")
    intervals = {probe: found.intervals(probe) for probe in found.right}
    for i in np.argsort(-found.accuracies(next(iter(found.right))), kind="stable"):
        cells = [_percent(float(found.accuracies(probe)[i]), intervals[probe][i]) for probe in found.right]
        checked.add_row(names[i], *cells)
    return [table, further, checked]


def _percent(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]"


def _percent_html(value: float, interval: tuple[float, float]) -> str:
    """Return an accuracy with its interval on a second line."""
    low, high = (f"{100 * end:.1f}" for end in interval)
    return f"{value:.1%}<br><small>{low} to {high}</small>"


def render(choice: Choice) -> str:
    """Return the page as text. It needs no network and no other file, and shows no image."""
    figure = spectra_figure(choice)
    level = "healthy" if choice.chosen else "unknown"
    verdicts = f'<p class="verdict {level}">{escape(choice.verdict)}</p>'
    verdicts += "".join(f'<p class="verdict warning">{escape(remark)}</p>' for remark in choice.remarks)
    if choice.skipped:
        more = f" and {len(choice.skipped) - 5:,} more" if len(choice.skipped) > 5 else ""
        skipped = f"{len(choice.skipped):,} images cannot be read: {', '.join(choice.skipped[:5])}{more}."
        verdicts += f'<p class="verdict warning">{escape(skipped)}</p>'
    sections = {
        "Measures without labels": _measures(choice),
        "With labels": _labelled(choice),
        "Spectra": figure_block("spectra", figure, CAPTION),
        "What these measures cannot say": f'<ul class="notes">{"".join(f"<li>{escape(limit)}</li>" for limit in LIMITS)}</ul>',
    }
    title = f"{len(choice.candidates)} models on {choice.images:,} images of {public_name(choice.source)}"
    return html_document(title=title, verdicts=verdicts, sections=sections, figures={"spectra": figure})


def _measures(choice: Choice) -> str:
    names, ranks, rows = choice.short_names, {key: choice.ranks(key) for key in MEASURES}, []
    for i in choice.order(choice.decisive):
        candidate = choice.candidates[i]
        values = [escape(interval_text(candidate.values[key], candidate.interval(key))) for key in MEASURES]
        cells = [
            f"{value}<br><small>rank {rank_text(ranks[key][i])}</small>"
            for key, value in zip(MEASURES, values, strict=True)
        ]
        rows.append([label_html(i, names[i]), f"{candidate.dimensions:,}", f"{candidate.size} px", *cells])
    caption = (
        f"The models in the order of the {MEASURES[choice.decisive].name}, which decides. ↑: higher is better, ↓: lower is better. "
        "Brackets: 95% interval over the images. A range of ranks: the interval of a difference contains 0, so models are not told apart."
    )
    meanings = "".join(f"<li>{escape(measure.name)}: {escape(measure.meaning)}.</li>" for measure in MEASURES.values())
    table = html_table(["model", "D", "input", *map(head, MEASURES)], rows, caption=caption, stacks=True, wide=True)
    return f'{table}<ul class="notes">{meanings}</ul>'


def _labelled(choice: Choice) -> str:
    found = choice.labelled
    if found is None:
        return ""
    intervals = {probe: found.intervals(probe) for probe in found.right}
    names, order = choice.short_names, np.argsort(-found.accuracies(next(iter(found.right))), kind="stable")
    rows = [
        [
            label_html(int(i), names[i]),
            *(_percent_html(float(found.accuracies(probe)[i]), intervals[probe][i]) for probe in found.right),
        ]
        for i in order
    ]
    agreements = []
    for key in MEASURES:
        cells = [found.agreement(choice, key, probe) for probe in found.right]
        agreements.append([escape(head(key)), *map(_agreement_text, cells)])
    caption = (
        f"Accuracy on {found.test_images:,} test images; {found.statement}. Small: 95% intervals over the test images."
    )
    accuracy = html_table(["model", *found.right], rows, caption=caption)
    caption = "Kendall's τ between the order of a measure and that of the accuracy, with a 95% interval over the images; Spearman's ρ."
    return (
        f'<p class="notes">{escape(found.verdict(choice))}</p>'
        + accuracy
        + html_table(["measure", *found.right], agreements, caption=caption, stacks=True)
    )


def _agreement_text(found: Agreement) -> str:
    rho = f", ρ {found.rho:.2f}" if np.isfinite(found.rho) else ""  # not for equal values
    return f"{found.tau:.2f} [{found.interval[0]:.2f}, {found.interval[1]:.2f}]{rho}"


def spectra_figure(choice: Choice) -> Figure:
    """Return the spectra of all models in one figure, divided by their sums, over the index."""
    traces = []
    for i, (name, candidate) in enumerate(zip(choice.short_names, choice.candidates, strict=True)):
        eigenvalues = candidate.spectrum.eigenvalues.clamp_min(0).numpy()
        shares = mask_rounding_errors(eigenvalues / max(float(eigenvalues.sum()), 1e-300))
        index = spread_indices(len(shares), POINTS)
        points = {"x": [j + 1 for j in index], "y": [round_significant(float(shares[j])) for j in index]}
        hover = {"hovertemplate": f"%{{y:.3~g}}<extra>{escape_label(name)}</extra>"}
        traces.append(
            line_trace(i, name) | points | hover | {"meta": {"run": name, "quantity": "share of the variance"}}
        )
    layout = figure_layout(2 * PANEL_HEIGHT + PANEL_GAP, runs=len(traces)) | {
        "xaxis": {
            "type": "log",
            "title": {"text": "index of the eigenvalue"},
            "unifiedhovertitle": {"text": "eigenvalue %{x}"},
        },
        "yaxis": LOG_AXIS | {"title": {"text": "share of the variance"}},
    }
    layout["margin"] = layout["margin"] | {"l": 70}
    return {"data": traces, "layout": layout}
