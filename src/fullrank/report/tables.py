"""The tables of a report as data: text that the templates escape, or Markup."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup, escape

from fullrank.evaluation.score import AUROC, BALANCED, FILE, LEAST_UNITS, MAIN_METRICS, MAP, TOP5, Evaluation, Score
from fullrank.report.answers import count, number, percent, unfinished_sentence
from fullrank.report.recipes import describe_differences, describe_projector, differing_entries
from fullrank.report.summary import RunSummary, look_up, short
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum import METRICS, Metric, MetricValue, Spectrum, compute_metrics
from fullrank.spectrum.metrics import BETTER, CENTRED

# With more runs, runs are rows of a table and not columns, and there are no results by class.
FEW_RUNS = 4
# With more classes, the table shows those with the lowest recalls.
MOST_CLASSES = 100


@dataclass(frozen=True)
class Table:
    """Rows below a head; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = ()


def by_row(corner: str, rows: Mapping[str, Mapping[str, str]], caption: str = "", **more: Any) -> list[Table]:
    """Return the table of cells by the names of their row and of their column, if there are rows; `more` as in `Table`.

    A column without content is left out; a cell without content is a dash.
    """
    shown = {name for cells in rows.values() for name, cell in cells.items() if cell}
    head = [name for name in dict.fromkeys(name for cells in rows.values() for name in cells) if name in shown]
    lines = [[row, *(cells.get(name) or "–" for name in head)] for row, cells in rows.items()]
    return [Table([corner, *head], lines, caption, **more)] if rows else []


def two_lines(value: str, detail: str) -> str:
    """Return a value with a detail in small letters below it."""
    return Markup("{}<br><small>{}</small>").format(value, detail) if detail else value


# What was trained


def facts(run: RunSummary) -> dict[str, str]:
    """Return what was trained, on which data, and for how long, as far as the run has recorded it."""
    names = ("objective", "backbone.name", "backbone.arguments", "data.subset", "data.validation")
    objective, backbone, arguments, subset, validation = (look_up(run.recipe, name) for name in names)
    seconds, network, data = run.environment.get("duration_seconds"), [backbone], [short(run.data)]
    network += [f"{key}={value}" for key, value in arguments.items()] if isinstance(arguments, dict) else []
    data += [f"{count(subset)} training images"] if subset and isinstance(subset, int) else []
    data += [f"{percent(validation, 0)} of them for validation"] if validation and isinstance(validation, float) else []
    known = {
        "objective": objective and str(objective),
        "backbone": backbone and ", ".join(map(str, network)),
        "projector": describe_projector(run.recipe),
        "data": ", ".join(filter(None, data)),
        "training": training_length(run),
        "duration": "" if seconds is None else str(timedelta(seconds=round(seconds))),
    }
    return {name: value for name, value in known.items() if value}


def training_length(run: RunSummary) -> str:
    """Return the steps and the epochs of the log, and how many epochs were planned if there were more; empty without
    a log.
    """
    if not run.train:
        return ""
    planned = f" of {look_up(run.recipe, 'epochs')}" if unfinished_sentence(run) else ""
    return f"{count(run.train[-1].step)} steps, {run.train[-1].epoch:.4g}{planned} epochs"


def summary(runs: Sequence[RunSummary]) -> list[Table]:
    """Return what was trained: a row for each fact and each measure of a single run, or a row for each of several."""
    known = {run.mark: facts(run) for run in runs}
    first = facts(runs[0])
    if len(runs) == 1:
        measures = {
            each.name: {"at the end": value, "better": each.better or "–", "meaning": each.meaning}
            for each in MEASURES
            if (value := each.value(runs[0]))
        }
        return [Table(["run", runs[0].label], list(first.items())), *by_row("measure", measures)]
    equal = {name: value for name, value in first.items() if all(each.get(name) == value for each in known.values())}
    rows = {mark: {name: each[name] for name in each if name not in equal} for mark, each in known.items()}
    caption = f"All runs: {'; '.join(f'{name} {value}' for name, value in equal.items())}." if equal else ""
    return by_row("run", rows, caption)


# Measures at the end of a run


def _last(name: str, form: Callable[[float], str]) -> Callable[[RunSummary], str]:
    return lambda run: "" if (value := run.last(name)) is None else form(value)


def _online_accuracy(run: RunSummary) -> str:
    rows = [row for row in run.spectrum if row.probe_accuracy is not None]
    if not rows:
        return ""
    detail = f"{count(rows[-1].probe_images or 0)} images, majority class {percent(rows[-1].probe_majority)}"
    return two_lines(percent(rows[-1].probe_accuracy), detail)


def _score(probe: str, run: RunSummary) -> str:
    if not run.online or run.online[-1].probe != probe:
        return ""
    first, last = run.online[0], run.online[-1]
    detail = f"epoch {last.epoch:g}, {count(last.images)} images"
    detail += f", top 5 {percent(last.top5)}" if last.top5 is not None else ""
    detail += f", {percent(first.accuracy)} before the first step" if last.step and not first.step else ""
    return two_lines(percent(last.accuracy), detail)


def _effective_rank(location: str, run: RunSummary) -> str:
    m = run.last_metrics(location)
    return two_lines(f"{m.effective_rank:.1f} of {count(m.dimensions)}", f"{count(m.samples)} images") if m else ""


def _collapsed(run: RunSummary) -> str:
    metrics = run.last_metrics("backbone")  # healthy projectors have some too
    return count(metrics.collapsed_dimensions) if metrics and metrics.collapsed_dimensions else ""


class Measure(NamedTuple):
    """A number that a run logs at its end.

    Attributes:
        better: `higher`, `lower` or nothing.
        value: The last value as text; empty if the run has none.
        same: Entries of the recipe that two runs must have in common to be compared by this measure.
    """

    name: str
    better: str
    value: Callable[[RunSummary], str]
    meaning: str
    same: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """The name with a sign for what is better."""
        return f"{self.name} {({'higher': '↑', 'lower': '↓'}).get(self.better, '')}".strip()


IMAGES = ("data.source", "data.reading.train", "views", "custom_transforms")
AGREEING = (*IMAGES, "objective")  # the agreement of the views does not order objectives
TEST = ("data.source", "data.reading.train", "data.reading.test", "data.validation")
LOSS = (*TEST, "objective", "hyper", "method", "method_builder", "batch_size", "projector")
HELD_OUT = "the objective on views of held-out images"
AGREEMENT = "share of the variance of the representations that is between images, not between views of one image"
RANK = "number of directions in use; it finds collapse, but a higher rank does not mean better features"
# fmt: off
MEASURES = (
    Measure("agreement of the views", "higher", _last("intraclass_correlation", percent), AGREEMENT, AGREEING),
    Measure("held-out loss", "lower", _last("held_out_loss", "{:.4g}".format), HELD_OUT, IMAGES + LOSS),
    Measure("online accuracy", "higher", _online_accuracy, "a classifier that is trained beside, on labels", TEST),
    Measure("online accuracy, test images", "higher", partial(_score, "online"), "after --probe.epochs", TEST),
    Measure("linear probe during training", "higher", partial(_score, "linear"), "on --labelled", ("probe.labelled",)),
    *(Measure(f"effective rank, {location}", "", partial(_effective_rank, location), RANK) for location in LOCATIONS),
    Measure("collapsed dimensions, backbone", "lower", _collapsed, "dimensions of which nothing is left"),
)
# fmt: on


def comparison(runs: Sequence[RunSummary]) -> list[Table]:
    """Return a row for each of several runs: differences of its recipe, measures at the end, scores of its backbone.

    A measure has no column if the recipes of the runs differ in a setting that it depends on.
    """
    if len(runs) < 2:
        return []
    rows, left_out = {}, ""
    for run, text in zip(runs, describe_differences([run.recipe for run in runs]), strict=True):
        rows[run.mark] = {"difference": "" if run.label.endswith(text) else text, "training": training_length(run)}
    for measure in MEASURES:
        measured = [run for run in runs if measure.value(run)]
        entries = [key for key in measure.same if len({json.dumps(look_up(run.recipe, key)) for run in measured}) > 1]
        if entries:
            left_out += f" No {measure.name}: it depends on settings that differ ({', '.join(entries)})."
        else:
            for run in runs:
                rows[run.mark][measure.head] = measure.value(run)
    for run in runs:
        for evaluation, score in ((each, score) for each in run.evaluations for score in each.scores):
            if score.features == "backbone" and score.metric in MAIN_METRICS:
                rows[run.mark][f"{score.name}, {evaluation.data} ↑"] = score_text(score)[0]
    caption = "At the end of each run. ↑: higher is better, ↓: lower is better. "
    caption += "A higher effective rank does not mean better features."
    if len({look_up(run.recipe, "seed") for run in runs}) > 1:
        caption += " Without a test split, runs of different seeds hold out different images."
    return by_row("run", rows, caption + left_out)


# Alarms and metrics


def alarms(runs: Sequence[RunSummary]) -> list[Table]:
    """Return the alarms of all runs with their remedies."""
    head, rows = ["step", "epoch", "run", "alarm", "observation", "remedy"], []
    for run in runs:
        for alarm in run.alarms:
            observed = alarm.message.removeprefix(f"{alarm.alarm}, ")
            row = [count(alarm.step), f"{alarm.epoch:.4g}", run.mark, alarm.alarm, observed]
            rows.append([*row, mark_flags(alarm.remedy)])
    return [Table(head, rows, "The step of each alarm is marked by ▼ in the figures over the steps.")] if rows else []


def mark_flags(text: str) -> Markup:
    """Return text with its command line flags as code, which is not broken at a hyphen."""
    return Markup(re.sub(r"--[\w.-]+(\{[\w.,-]+\})?(?<!\.)", r'<code class="flag">\g<0></code>', str(escape(text))))


def last_metrics(run: RunSummary, location: str) -> dict[str, MetricValue]:
    """Return the metrics of the last spectrum; empty without one, or if its number of images is unknown."""
    if run.spectra is None or location not in run.spectra.eigenvalues or not run.spectra.samples[-1]:
        return {}
    eigenvalues = run.spectra.eigenvalues[location][-1]
    if not np.isfinite(eigenvalues).all():
        return {}
    return compute_metrics(Spectrum.from_eigenvalues(torch.from_numpy(eigenvalues), n=int(run.spectra.samples[-1])))


def metrics(runs: Sequence[RunSummary]) -> list[Table]:
    """Return the metrics of the last spectra: a column for each location of one run, or a table for each location with
    a column for each of several runs.
    """
    subjects = {
        location: {run.label: found for run in runs if (found := last_metrics(run, location))} for location in LOCATIONS
    }
    if len(runs) == 1:
        subjects = {"run": {location: found for location, of in subjects.items() for found in of.values()}}
    return [table for subject, columns in subjects.items() for table in _metrics(columns, subject)]


def _metrics(columns: dict[str, dict[str, MetricValue]], subject: str) -> list[Table]:
    rows = {
        two_lines(METRICS[key].name, _formula(METRICS[key])): {
            **{name: _value(values[key]) for name, values in columns.items()},
            "healthier": METRICS[key].better.replace("none", "–"),
            "†: bias with few samples": METRICS[key].small_sample_bias,
        }
        for key in next(iter(columns.values()), ())
    }
    values = (value for found in columns.values() for value in found.values())
    warnings = dict.fromkeys(f"† {value.warning.rpartition(': ')[2]}" for value in values if value.warning)
    caption = f"The last spectra of the {subject}. λ: {CENTRED}. Healthier: {BETTER}."
    return by_row(f"metric of the {subject}", rows, caption, notes=list(warnings))


def _formula(metric: Metric) -> Markup:
    convention = "" if metric.convention == CENTRED else f"; {metric.convention}"
    return Markup(re.sub(r"_(\w)", r"<sub>\1</sub>", str(escape(metric.formula + convention))))


def _value(metric: MetricValue) -> str:
    mark = Markup('{}<abbr title="{}">†</abbr>').format(number(metric.value), metric.warning)
    return mark if metric.warning else number(metric.value)


# Scores. Scores on different images never share a column.


SHOWN_METRICS = (*MAIN_METRICS, TOP5)
GUESSES = {"equal scores": "Equal scores: for every image.", "majority class": "Majority class: always predicting it."}


def scores(runs: Sequence[RunSummary]) -> list[Table]:
    """Return a table of scores for each data set: probes (of each run) in rows, feature sets in columns."""
    tables = []
    for data in dict.fromkeys(found.data for run in runs for found in run.evaluations if found.scores):
        found = {i: each for i, run in enumerate(runs) for each in run.evaluations if each.data == data}
        guess = next(iter(found.values())).guess
        shown = [(i, score) for i, each in found.items() for score in each.scores if score.metric in SHOWN_METRICS]
        features = dict.fromkeys(score.features for _, score in shown)
        probes = [*dict.fromkeys(score.name for _, score in shown)]
        rows: dict[str, dict[str, str]] = {}
        for i, score in sorted(shown, key=lambda each: (probes.index(each[1].name), each[0])):
            label = Markup("{}<br>{}").format(score.name, runs[i].mark) if len(runs) > 1 else score.name
            cells = rows.setdefault(label, dict.fromkeys(features, "") | {guess: percent(found[i].chance)})
            cells[score.features] = two_lines(*score_text(score))
        caption = (
            f"Scores on {short(data) or 'the test images'}: accuracy, if nothing else is named; higher is better. "
        )
        caption += "±: standard deviation over n repetitions. Small: 95 % interval, bootstrap over the test images or "
        caption += f"their groups. {GUESSES[guess]}"
        tables += by_row("probe, run" if len(runs) > 1 else "probe", rows, caption)
    return tables


def score_text(score: Score) -> tuple[str, str]:
    """Return a score, with its standard deviation and number of repetitions if it has them, and its interval."""
    factor, digits, unit = (1, 3, "") if score.metric == AUROC else (100, 1, "\N{NO-BREAK SPACE}%")
    value, sd, low, high = (
        "" if x is None else f"{factor * x:.{digits}f}" for x in (score.value, score.sd, score.low, score.high)
    )
    text = value + (f" ± {sd}" if sd else "") + unit + (f" (n = {score.n})" if score.n > 1 else "")
    return text.replace(" ", "\N{NO-BREAK SPACE}"), f"{low} to {high}" if low and high else ""


def by_class(runs: Sequence[RunSummary]) -> list[tuple[Markup, Table, Score]]:
    """Return the results by class of each run and data set, with the score that has the confusion; nothing for many
    runs.
    """
    found = []
    for run in runs if len(runs) <= FEW_RUNS else ():
        for evaluation in run.evaluations_by_relevance():
            main = evaluation.main
            if main is not None and main.per_class:
                heading = Markup("{}, " if len(runs) > 1 else "").format(run.mark) + (
                    short(evaluation.data) or "test images"
                )
                found += [(heading, table, main) for table in _class_table(evaluation, main)]
    return found


def _class_table(evaluation: Evaluation, main: Score) -> list[Table]:
    """Return the results by class of the main probe, and of the networks that were trained with the labels; without the
    classes with too few test images.
    """
    shown = [name for name in main.per_class if main.positives.get(name, 0) >= LEAST_UNITS]
    lowest = set(sorted(shown, key=lambda name: main.per_class[name])[:MOST_CLASSES])
    kind = "average precision" if main.metric == MAP else "recall"
    rows: dict[str, dict[str, str]] = {BALANCED: {}, AUROC: {}}
    for score in evaluation.scores:
        same = (score.probe, score.settings) == (main.probe, main.settings)
        if not same and score.probe not in ("supervised", "finetune"):
            continue
        column = score.features if same or score.probe != "finetune" else f"{score.features}, fine-tuned"
        if score.metric in rows:
            rows[score.metric][column] = two_lines(*score_text(score))
        for name, value in score.per_class.items():
            if name in lowest:
                n = f"n = {score.positives.get(name, 0)}"
                rows.setdefault(f"{kind}, {name}", {})[column] = two_lines(percent(value), n)
    caption = f"Results by class of {main.name}. Recall: share of the test images of a class that are classified "
    caption += f"correctly, for classes with at least {LEAST_UNITS} of them. Balanced accuracy: the mean over all "
    caption += "classes. AUROC: mean over the classes, one against the others. Small: 95 % intervals."
    if len(lowest) < len(main.per_class):
        caption += f" The {len(lowest)} of {len(main.per_class)} classes with the lowest values; the rest: {FILE}."
    return by_row("", {row: cells for row, cells in rows.items() if cells}, caption)


def recipe(runs: Sequence[RunSummary]) -> list[Table]:
    """Return the entries in which the recipes differ: in rows for a few runs, in columns for many."""
    code, rows = Markup("<code>{}</code>").format, {}
    for entry, values in differing_entries([run.recipe for run in runs]).items():
        for run, value in zip(runs, values, strict=True):
            row, column = (run.mark, code(entry)) if len(runs) > FEW_RUNS else (code(entry), run.mark)
            rows.setdefault(row, {})[column] = code(value or "–")
    return by_row("entry", rows, "Entries in which the recipes differ.")
