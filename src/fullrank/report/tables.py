"""The tables and lists of a report. All text of a run is escaped here or in `document`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

from fullrank.evaluation.result import ProbeScore
from fullrank.monitoring.alarm_messages import alarm_message, alarm_remedy
from fullrank.report.document import html_table, label_html
from fullrank.report.metrics import WARNING_MARK, cell, footnotes, last_metrics
from fullrank.report.recipe_differences import describe_differences, differing_entries
from fullrank.report.run_summary import RunSummary
from fullrank.report.text import (
    NOT_MEASURED,
    format_count,
    format_percent,
    judge_run,
    last_accuracy,
    last_measurements,
    list_notes,
    run_facts,
)
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum import METRICS

COMPARED_METRICS = ("effective_rank", "collapsed_dimensions")
"""The metrics of each location in the comparison."""


def summary_table(runs: Sequence[RunSummary]) -> str:
    """Return a table with a row per run: what was trained and, for a single run, the last metrics (see `comparison_table`)."""
    facts = [run_facts(run) | (last_measurements(run) if len(runs) == 1 else {}) for run in runs]
    rows = [[label_html(i, run.label), *map(escape, facts[i].values())] for i, run in enumerate(runs)]
    caption = (
        "Recipe and length of each run." if len(runs) > 1 else "Recipe, length, last online accuracy and last effective rank of the run."
    )
    return html_table(["run", *facts[0]], rows, caption=caption, stacks=True, wide=True)


def comparison_table(runs: Sequence[RunSummary]) -> str:
    """Return a table with a row per run: the differences of its recipe, its last metrics and accuracies; empty for a single run."""
    if len(runs) < 2:
        return ""
    metrics = [{location: last_metrics(run, location) for location in LOCATIONS} for run in runs]
    descriptions = describe_differences([run.recipe for run in runs])
    columns = {"difference": ["" if run.label.endswith(text) else escape(text) for run, text in zip(runs, descriptions, strict=True)]}
    values = {
        f"{METRICS[name].name}, {location}": [run_metrics[location].get(name) for run_metrics in metrics]
        for name in COMPARED_METRICS
        for location in LOCATIONS
    }
    columns |= {name: [cell(value) if value else "–" for value in column] for name, column in values.items()}
    columns["online accuracy"] = [last_accuracy(run) for run in runs]
    scores = [[score for score in _scores(run) if score.features == "backbone"] for run in runs]
    for probe in dict.fromkeys(score.probe for run_scores in scores for score in run_scores):
        columns[probe] = ["".join(_score_cell(score) for score in run_scores if score.probe == probe) or "–" for run_scores in scores]
    shown = {name: cells for name, cells in columns.items() if any(text not in ("", "–", NOT_MEASURED) for text in cells)}
    rows = [[label_html(i, run.label), *(cells[i] for cells in shown.values())] for i, run in enumerate(runs)]
    warnings = footnotes(value for column in values.values() for value in column if value)
    caption = "Metrics of the last spectrum, and accuracies of the backbone."
    if warnings:
        biases = ", ".join(f"{METRICS[name].name}: {METRICS[name].small_sample_bias}" for name in COMPARED_METRICS)
        caption += f" {WARNING_MARK}: biased by the small number of samples ({biases})."
    return html_table(["run", *shown], rows, caption=caption, stacks=True, wide=True) + warnings


def verdict_paragraphs(runs: Sequence[RunSummary]) -> str:
    """Return one paragraph per run: its label, if there are several runs, and its verdict, which the colour repeats."""
    lines = []
    for i, run in enumerate(runs):
        verdict = judge_run(run)
        label = f"{label_html(i, run.label)}: " if len(runs) > 1 else ""
        lines.append(f'<p class="verdict {verdict.level}">{label}{escape(verdict.text)}</p>')
    return "\n".join(lines)


def evaluation_table(runs: Sequence[RunSummary]) -> str:
    """Return a table of accuracies, probes in rows and feature sets in columns; empty if no run was evaluated."""
    cells = {(score.probe, i, score.features): _score_cell(score) for i, run in enumerate(runs) for score in _scores(run)}
    if not cells:
        return ""
    features = dict.fromkeys(name for *_, name in cells)
    rows = [
        [
            escape(probe),
            *([label_html(i, runs[i].label)] if len(runs) > 1 else []),
            *(cells.get((probe, i, name), "–") for name in features),
        ]
        for probe in dict.fromkeys(probe for probe, *_ in cells)
        for i in sorted({i for name, i, _ in cells if name == probe})
    ]
    head = ["probe", *(["run"] if len(runs) > 1 else []), *features]
    return html_table(head, rows, caption="Accuracy on the test images: mean ± standard deviation over n repetitions.", stacks=True)


def _scores(run: RunSummary) -> tuple[ProbeScore, ...]:
    """Return all scores of a run; with several data sets, the name of a probe ends with its data set."""
    if len(run.evaluations) < 2:
        return tuple(score for evaluation in run.evaluations for score in evaluation.scores)
    return tuple(replace(score, probe=f"{score.probe}, {evaluation.data}") for evaluation in run.evaluations for score in evaluation.scores)


def _score_cell(score: ProbeScore) -> str:
    """Return an accuracy with its standard deviation and its number of repetitions, if it has them."""
    mean = format_percent(score.accuracy)
    if score.sd is not None:
        mean = mean.replace("%", f"± {100 * score.sd:.1f} %").replace(" ", "\N{NO-BREAK SPACE}")
    return mean + (f" <small>n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{format_count(score.n)}</small>" if score.n > 1 else "")


def evaluation_notes(runs: Sequence[RunSummary]) -> str:
    """Return a list of the images that were used and of the scores that were not computed."""
    notes = []
    for i, run in enumerate(runs):
        for evaluation in run.evaluations:
            notes += [(i, f"{format_count(evaluation.train_images)} train and {format_count(evaluation.test_images)} test images.")]
            notes += [(i, text) for text in (evaluation.statement, *(f"Not computed: {text}" for text in evaluation.left_out)) if text]
    return _html_list(runs, notes)


def recipe_table(runs: Sequence[RunSummary]) -> str:
    """Return the entries in which the recipes differ, one column for each run; empty for one run and for equal recipes."""
    rows = [
        [f"<code>{escape(key)}</code>", *(f"<code>{escape(value or '–')}</code>" for value in values)]
        for key, values in differing_entries([run.recipe for run in runs]).items()
    ]
    return html_table(["entry", *(run.label for run in runs)], rows, caption="Entries in which the recipes differ.") if rows else ""


def alarm_table(runs: Sequence[RunSummary]) -> str:
    """Return the alarms of all runs with their remedies; empty if no run has a log."""
    if not any(run.train or run.spectrum for run in runs):
        return ""
    alarms = [(i, run, alarm) for i, run in enumerate(runs) for alarm in run.alarms]
    if not alarms:
        return "<p>No alarm was raised.</p>"
    columns = {
        "step": [format_count(alarm.step) for *_, alarm in alarms],
        "epoch": [f"{alarm.epoch:.4g}" for *_, alarm in alarms],
        "run": [label_html(i, run.label) if len(runs) > 1 else "" for i, run, _ in alarms],
        "alarm": [escape(alarm.alarm) for *_, alarm in alarms],
        "observation": [escape(alarm_message(alarm).removeprefix(f"{alarm.alarm}, ")) for *_, alarm in alarms],
        "remedy": [_mark_flags(alarm_remedy(alarm)) for *_, alarm in alarms],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    caption = "The step of each alarm is marked by ▼ in the figures over the steps."
    return html_table(list(shown), zip(*shown.values(), strict=True), caption=caption, stacks=True)


def _mark_flags(text: str) -> str:
    """Return text as HTML with its command line flags as code, which is not broken at a hyphen."""
    return re.sub(r"--[\w.-]+(\{[\w.,-]+\})?(?<!\.)", r'<code class="flag">\g<0></code>', escape(text))


def notes_list(runs: Sequence[RunSummary]) -> str:
    """Return a list of what is missing, damaged or uncertain in each run."""
    return _html_list(runs, [(i, text) for i, run in enumerate(runs) for text in list_notes(run)])


def _html_list(runs: Sequence[RunSummary], notes: Iterable[tuple[int, str]]) -> str:
    """Return a list of sentences without repetitions; a sentence that is not about all runs begins with the labels of its runs."""
    runs_of: dict[str, list[int]] = {}
    for i, text in notes:
        runs_of.setdefault(text, []).append(i)
    items = []
    for text, indices in runs_of.items():
        labels = "" if len(indices) == len(runs) else ", ".join(label_html(i, runs[i].label) for i in indices) + ": "
        items.append(f"<li>{labels}{escape(text)}</li>")
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""
