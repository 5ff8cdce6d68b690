"""The tables of a report as data: text that the templates escape, or Markup."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup, escape

from fullrank.evaluation.score import AUROC, BALANCED, MAIN_METRICS, TOP5, Evaluation, Score
from fullrank.report.answers import count, guessing, number, percent, unfinished_sentence
from fullrank.report.plot_style import COLORS
from fullrank.report.recipes import describe_differences, describe_projector, differing_entries
from fullrank.report.summary import RunSummary, look_up
from fullrank.run.alarm_messages import alarm_message, alarm_remedy
from fullrank.run.spectrum_history import LOCATIONS
from fullrank.spectrum import METRICS, Metric, MetricValue, Spectrum, compute_metrics
from fullrank.spectrum.metrics import BETTER, CENTRED

# With more runs, runs are rows of a table and not columns, and there are no results by class.
FEW_RUNS = 4
# With more classes, the table shows those with the lowest recalls.
MOST_CLASSES = 100
# The border before the label of a run; it changes where the dash of the run's line changes.
BORDERS = ("solid", "double", "dotted", "groove")
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Table:
    """Rows below a head; the first column names the row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = ()

    def transposed(self) -> "Table":
        """Return the table with rows and columns exchanged."""
        columns = list(zip(*self.rows, strict=True))
        rows = [[name, *cells] for name, cells in zip(self.head[1:], columns[1:], strict=True)]
        return replace(self, head=[self.head[0], *columns[0]], rows=rows)


def two_lines(value: str, detail: str) -> str:
    """Return a value with a detail in small letters below it."""
    return Markup("{}<br><small>{}</small>").format(value, detail) if detail else value


def run_label(i: int, label: str) -> Markup:
    """Return the label of the i-th run, with a border in the run's colour."""
    style = f"border-color:{COLORS[i % len(COLORS)]};border-left-style:{BORDERS[i // len(COLORS) % len(BORDERS)]}"
    return Markup('<span class="run" style="{}">{}</span>').format(style, label)


def labels(runs: Sequence[RunSummary]) -> list[Markup]:
    """Return the label of each run."""
    return [run_label(i, run.label) for i, run in enumerate(runs)]


# What was trained


def facts(run: RunSummary) -> dict[str, str]:
    """Return what was trained, on which data, and for how long."""

    def entry(name: str) -> Any:
        return look_up(run.recipe, name)

    seconds, arguments = run.environment.get("duration_seconds"), entry("backbone.arguments")
    network = [entry("backbone.name") or NOT_RECORDED]
    network += [f"{key}={value}" for key, value in arguments.items()] if isinstance(arguments, dict) else []
    data = [run.data or NOT_RECORDED]
    data += [f"{count(n)} training images"] if isinstance(n := entry("data.subset"), int) and n else []
    data += (
        [f"{percent(p, 0)} of them for validation"] if isinstance(p := entry("data.validation"), float) and p else []
    )
    return {
        "objective": str(entry("objective") or NOT_RECORDED),
        "backbone": ", ".join(map(str, network)),
        "projector": describe_projector(run.recipe) or NOT_RECORDED,
        "data": ", ".join(data),
        "training": training_length(run),
        "duration": NOT_RECORDED if seconds is None else str(timedelta(seconds=round(seconds))),
    }


def training_length(run: RunSummary) -> str:
    """Return the steps and the epochs of the log, and how many epochs were planned if there were more."""
    if not run.train:
        return NOT_RECORDED
    planned = f" of {look_up(run.recipe, 'epochs')}" if unfinished_sentence(run) else ""
    return f"{count(run.train[-1].step)} steps, {run.train[-1].epoch:.4g}{planned} epochs"


def summary(runs: Sequence[RunSummary]) -> list[Table]:
    """Return what was trained: a row for each fact and each measure of a single run, or a row for each of several."""
    known = [facts(run) for run in runs]
    if len(runs) == 1:
        values = [(measure, measure.value(runs[0])) for measure in MEASURES]
        rows = [[measure.name, value, measure.better or "–", measure.meaning] for measure, value in values if value]
        tables = [Table(["run", runs[0].label], list(known[0].items()))]
        return tables + ([Table(["measure", "at the end", "better", "meaning"], rows)] if rows else [])
    equal = {name: value for name, value in known[0].items() if all(fact[name] == value for fact in known)}
    differing = [name for name in known[0] if name not in equal]
    rows = [[label, *(fact[name] for name in differing)] for label, fact in zip(labels(runs), known, strict=True)]
    caption = f"All runs: {'; '.join(f'{name} {value}' for name, value in equal.items())}." if equal else ""
    return [Table(["run", *differing], rows, caption)]


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
    metrics = run.last_metrics(location)
    return f"{metrics.effective_rank:.1f} of {count(metrics.dimensions)}" if metrics else ""


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
TEST = ("data.source", "data.reading.train", "data.reading.test", "data.validation")
LOSS = (*TEST, "objective", "hyper", "method", "method_builder", "batch_size", "projector")
HELD_OUT = "the objective on views of held-out images"
AGREEMENT = "share of the variance of the representations that is between images, not between views of one image"
RANK = "number of directions in use; it finds collapse, but a higher rank does not mean better features"
# fmt: off
MEASURES = (
    Measure("agreement of the views", "higher", _last("intraclass_correlation", percent), AGREEMENT, IMAGES),
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
    differences = describe_differences([run.recipe for run in runs])
    pairs, left_out = zip(runs, differences, strict=True), ""
    columns = {"difference": ["" if run.label.endswith(text) else text for run, text in pairs]}
    columns["training"] = [training_length(run) for run in runs]
    for measure in MEASURES:
        values = [measure.value(run) for run in runs]
        measured = [run.recipe for run, value in zip(runs, values, strict=True) if value]
        entries = [name for name in measure.same if len({json.dumps(look_up(recipe, name)) for recipe in measured}) > 1]
        if entries:
            left_out += f" No {measure.name}: it depends on settings that differ ({', '.join(entries)})."
        else:
            columns[measure.head] = values
    for i, run in enumerate(runs):
        for evaluation in run.evaluations:
            for score in evaluation.scores:
                if score.features == "backbone" and score.metric in MAIN_METRICS:
                    head = f"{score.name}, {evaluation.data} ↑"
                    columns.setdefault(head, [""] * len(runs))[i] = score_text(score)[0]
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    rows = [[label, *(cells[i] or "–" for cells in shown.values())] for i, label in enumerate(labels(runs))]
    caption = "At the end of each run. ↑: higher is better, ↓: lower is better. "
    caption += "A higher effective rank does not mean better features."
    return [Table(["run", *shown], rows, caption + left_out)]


# Alarms and metrics


def alarms(runs: Sequence[RunSummary]) -> list[Table]:
    """Return the alarms of all runs with their remedies."""
    head, rows = ["step", "epoch", "run", "alarm", "observation", "remedy"], []
    for label, run in zip(labels(runs), runs, strict=True):
        for alarm in run.alarms:
            observed = alarm_message(alarm).removeprefix(f"{alarm.alarm}, ")
            row = [count(alarm.step), f"{alarm.epoch:.4g}", label, alarm.alarm, observed]
            rows.append([*row, mark_flags(alarm_remedy(alarm))])
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
    if len(runs) == 1:
        columns = {location: found for location in LOCATIONS if (found := last_metrics(runs[0], location))}
        return [_metrics(columns, "run")] if columns else []
    by_location = {
        location: {run.label: found for run in runs if (found := last_metrics(run, location))} for location in LOCATIONS
    }
    return [_metrics(columns, location) for location, columns in by_location.items() if columns]


def _metrics(columns: dict[str, dict[str, MetricValue]], subject: str) -> Table:
    rows = [
        [
            two_lines(METRICS[key].name, _formula(METRICS[key])),
            *(_value(values[key]) for values in columns.values()),
            METRICS[key].better.replace("none", "–"),
            METRICS[key].small_sample_bias,
        ]
        for key in next(iter(columns.values()))
    ]
    warnings = dict.fromkeys(
        value.warning.rpartition(": ")[2] for found in columns.values() for value in found.values() if value.warning
    )
    head = [f"metric of the {subject}", *columns, "healthier", "†: bias with few samples"]
    caption = f"The last spectra of the {subject}. λ: {CENTRED}. Healthier: {BETTER}."
    return Table(head, rows, caption, [f"† {warning}" for warning in warnings])


def _formula(metric: Metric) -> Markup:
    convention = "" if metric.convention == CENTRED else f"; {metric.convention}"
    return Markup(re.sub(r"_(\w)", r"<sub>\1</sub>", str(escape(metric.formula + convention))))


def _value(metric: MetricValue) -> str:
    mark = Markup('{}<abbr title="{}">†</abbr>').format(number(metric.value), metric.warning)
    return mark if metric.warning else number(metric.value)


# Scores. Scores on different images never share a column.


GUESSES = {"equal scores": "Equal scores: for every image.", "majority class": "Majority class: always predicting it."}


def scores(runs: Sequence[RunSummary]) -> list[Table]:
    """Return a table of scores for each data set: probes (of each run) in rows, feature sets in columns."""
    tables = []
    for data in dict.fromkeys(found.data for run in runs for found in run.evaluations if found.scores):
        found = {i: each for i, run in enumerate(runs) for each in run.evaluations if each.data == data}
        rows: dict[str, dict[int, dict[str, str]]] = {}
        for i, evaluation in found.items():
            for score in (score for score in evaluation.scores if score.metric in (*MAIN_METRICS, TOP5)):
                rows.setdefault(score.name, {}).setdefault(i, {})[score.features] = two_lines(*score_text(score))
        features = dict.fromkeys(name for of in rows.values() for cells in of.values() for name in cells)
        guess = guessing(next(iter(found.values())))
        lines = [
            [
                Markup("{}<br>{}").format(probe, run_label(i, runs[i].label)) if len(runs) > 1 else probe,
                *(cells.get(name, "–") for name in features),
                percent(found[i].chance),
            ]
            for probe, of in rows.items()
            for i, cells in sorted(of.items())
        ]
        caption = f"Scores on {data or 'the test images'}: accuracy, if nothing else is named; higher is better. "
        caption += "±: standard deviation over n repetitions. Small: 95 % interval, bootstrap over the test images or "
        caption += f"their groups. {GUESSES[guess]}"
        tables.append(Table(["probe, run" if len(runs) > 1 else "probe", *features, guess], lines, caption))
    return tables


def score_text(score: Score) -> tuple[str, str]:
    """Return a score, with its standard deviation and number of repetitions if it has them, and its interval."""
    factor, digits, unit = (1, 3, "") if score.metric == AUROC else (100, 1, "\N{NO-BREAK SPACE}%")
    value, sd, low, high = (
        "" if x is None else f"{factor * x:.{digits}f}" for x in (score.value, score.sd, score.low, score.high)
    )
    text = value + (f" ± {sd}" if sd else "") + unit + (f" (n = {score.n})" if score.n > 1 else "")
    return text.replace(" ", "\N{NO-BREAK SPACE}"), f"{low} to {high}" if low and high else ""


class ByClass(NamedTuple):
    """The results by class of one evaluation.

    Attributes:
        confusion: Number of test images by true class (row) and predicted class (column) for the backbone; may be
            empty.
    """

    heading: Markup
    table: Table
    classes: list[str]
    confusion: Sequence[Sequence[int]]


def by_class(runs: Sequence[RunSummary]) -> list[ByClass]:
    """Return the results by class of each run and data set; nothing for many runs."""
    found = []
    for label, run in zip(labels(runs), runs, strict=True) if len(runs) <= FEW_RUNS else ():
        for evaluation in run.evaluations_by_relevance():
            main = evaluation.main
            if main is not None and main.per_class:
                before = Markup("{}, ").format(label) if len(runs) > 1 else Markup()
                heading = before + (evaluation.data or "test images")
                found.append(ByClass(heading, _class_table(evaluation, main), list(main.per_class), main.confusion))
    return found


def _class_table(evaluation: Evaluation, main: Score) -> Table:
    """Return the results by class of the main probe, and of the networks that were trained with the labels."""
    columns: dict[str, dict[str, str]] = {}
    names = sorted(main.per_class, key=lambda name: main.per_class[name])[:MOST_CLASSES]
    names = [name for name in main.per_class if name in set(names)]
    for score in evaluation.scores:
        if (score.probe, score.settings) == (main.probe, main.settings) or score.probe in ("supervised", "finetune"):
            head = f"{score.features}, fine-tuned" if score.probe == "finetune" else score.features
            cells = columns.setdefault(head, {})
            if score.metric in (BALANCED, AUROC):
                cells[score.metric] = two_lines(*score_text(score))
            for name in names if score.metric in MAIN_METRICS else ():
                cells[name] = percent(score.per_class.get(name))
    heads = {BALANCED: BALANCED, AUROC: AUROC}
    for name in names:
        several = f"average precision, {name} (n = {main.positives[name]})" if main.positives else ""
        heads[name] = several or f"recall, {name}"
    rows = [[head, *(cells.get(name, "–") for cells in columns.values())] for name, head in heads.items()]
    caption = f"Results by class of {main.name}. Recall: share of the test images of a class that are classified "
    caption += "correctly. Balanced accuracy: their mean. AUROC: mean over the classes, one against the others. "
    caption += "Small: 95 % intervals."
    if len(names) < len(main.per_class):
        caption += (
            f" The {len(names)} of {len(main.per_class)} classes with the lowest values; evaluation.json has all."
        )
    return Table(["", *columns], [row for row in rows if any(cell != "–" for cell in row[1:])], caption)


def recipe(runs: Sequence[RunSummary]) -> list[Table]:
    """Return the entries in which the recipes differ: in rows for a few runs, in columns for many."""
    entries = differing_entries([run.recipe for run in runs])
    rows = [
        [Markup("<code>{}</code>").format(text or "–") for text in (key, *values)] for key, values in entries.items()
    ]
    table = Table(["entry", *labels(runs)], rows, "Entries in which the recipes differ.")
    return [table.transposed() if len(runs) > FEW_RUNS else table] if rows else []
