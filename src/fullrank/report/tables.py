"""The tables and lists of a report. All text of a run is escaped here or in `document`."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from fullrank.report.document import html_table, label_html, split_table
from fullrank.report.measures import MEASURES, Measure, differing_conditions
from fullrank.report.metrics import FEW_RUNS, WARNING_MARK, cell, footnotes, last_metrics
from fullrank.report.number_format import format_count
from fullrank.report.recipe_differences import describe_differences, differing_entries
from fullrank.report.run_summary import RunSummary
from fullrank.report.scores import evaluation_notes
from fullrank.report.text import list_notes, run_facts, training_length
from fullrank.run.alarm_messages import alarm_message, alarm_remedy
from fullrank.spectrum import METRICS


def summary_table(runs: Sequence[RunSummary]) -> str:
    """Return what was trained: a row for each fact of a single run, or a row for each of several runs."""
    facts = [run_facts(run) for run in runs]
    if len(runs) == 1:
        rows = [[escape(name), escape(value)] for name, value in facts[0].items()]
        return html_table(["run", runs[0].label], rows, caption="") + measures_table(runs[0])
    equal = {name: value for name, value in facts[0].items() if all(fact[name] == value for fact in facts)}
    differing = [name for name in facts[0] if name not in equal]
    rows = [[label_html(i, run.label), *(escape(facts[i][name]) for name in differing)] for i, run in enumerate(runs)]
    caption = f"All runs: {'; '.join(f'{name} {value}' for name, value in equal.items())}." if equal else ""
    return split_table(["run", *differing], rows, caption=caption)


def measures_table(run: RunSummary) -> str:
    """Return a row for each measure at the end of the run: value, what is better, and meaning; empty if the run has
    none.
    """
    rows = [
        [
            escape(measure.name),
            _measure_cell(measure, run),
            measure.better.replace("none", "–"),
            escape(measure.meaning),
        ]
        for measure in MEASURES
        if measure.value(run)
    ]
    return html_table(["measure", "at the end", "better", "meaning"], rows, caption="", stacks=True) if rows else ""


def _measure_cell(measure: Measure, run: RunSummary) -> str:
    detail = escape(measure.detail(run)).replace(", ", "<br>")
    return (escape(measure.value(run)) or "–") + (f"<br><small>{detail}</small>" if detail else "")


def comparison_table(runs: Sequence[RunSummary]) -> str:
    """Return a table with a row per run: differences of its recipe, measures at the end; empty for a single run.

    A measure has no column if the recipes of the runs differ in a setting that it depends on.
    """
    if len(runs) < 2:
        return ""
    descriptions = describe_differences([run.recipe for run in runs])
    columns = {
        "difference": [
            "" if run.label.endswith(text) else escape(text) for run, text in zip(runs, descriptions, strict=True)
        ]
    }
    columns["training"] = [training_length(run) for run in runs]
    left_out = {measure.name: entries for measure in MEASURES if (entries := differing_conditions(measure, runs))}
    columns |= {
        measure.head: [_measure_cell(measure, run) for run in runs]
        for measure in MEASURES
        if measure.name not in left_out
    }
    values = [
        last_metrics(run, "backbone").get("collapsed_dimensions") for run in runs
    ]  # healthy projectors have some too
    columns["collapsed dimensions, backbone ↓"] = [cell(value) if value else "–" for value in values]
    shown = {name: cells for name, cells in columns.items() if any(text not in ("", "–") for text in cells)}
    rows = [[label_html(i, run.label), *(cells[i] for cells in shown.values())] for i, run in enumerate(runs)]
    caption = "At the end of each run. ↑: higher is better, ↓: lower is better. "
    caption += "A higher effective rank does not mean better features. "
    caption += " ".join(
        f"No {name}: it depends on settings that differ ({', '.join(entries)})." for name, entries in left_out.items()
    )
    warnings = footnotes(value for value in values if value)
    if warnings:
        caption += f" {WARNING_MARK}: biased by the small number of samples ({METRICS['collapsed_dimensions'].small_sample_bias})."
    return split_table(["run", *shown], rows, caption=caption.strip()) + warnings


def evaluation_list(runs: Sequence[RunSummary]) -> str:
    """Return a list of the images that were used and of the scores that were not computed."""
    return _html_list(runs, [(i, text) for i, run in enumerate(runs) for text in evaluation_notes(run)])


def recipe_table(runs: Sequence[RunSummary]) -> str:
    """Return the entries in which the recipes differ: in rows for a few runs, in columns for many; empty for one run
    and equal recipes.
    """
    entries = differing_entries([run.recipe for run in runs])
    if not entries:
        return ""
    caption = "Entries in which the recipes differ."
    cells = [[f"<code>{escape(value or '–')}</code>" for value in values] for values in entries.values()]
    if len(runs) <= FEW_RUNS:
        rows = [[f"<code>{escape(key)}</code>", *row] for key, row in zip(entries, cells, strict=True)]
        return html_table(["entry", *(run.label for run in runs)], rows, caption=caption, wide=True)
    rows = [[label_html(i, run.label), *(row[i] for row in cells)] for i, run in enumerate(runs)]
    return split_table(["run", *entries], rows, caption=caption)


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
    """Return a list of sentences without repetitions; a sentence that is not about all runs begins with the labels of
    its runs.
    """
    runs_of: dict[str, list[int]] = {}
    for i, text in notes:
        runs_of.setdefault(text, []).append(i)
    items = []
    for text, indices in runs_of.items():
        labels = "" if len(indices) == len(runs) else ", ".join(label_html(i, runs[i].label) for i in indices) + ": "
        items.append(f"<li>{labels}{escape(text)}</li>")
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""
