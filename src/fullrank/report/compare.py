"""Several runs side by side: what tells them apart, and how each of them ended."""

from collections.abc import Sequence
from html import escape

from fullrank.report.differ import telling
from fullrank.report.measured import WARNING_MARK, cell, last_metrics, sample_notes
from fullrank.report.read import PARTS, Record
from fullrank.report.summary import NOT_MEASURED, last_accuracy
from fullrank.report.tables import named, score_cell, table

COMPARED = ("effective_rank", "collapsed_dimensions")
"""The metrics of each part that are compared."""


def comparison(runs: Sequence[Record]) -> str:
    """A row a run: where its recipe differs, rank and dead dimensions of both parts, its accuracies; empty for a single run."""
    if len(runs) < 2:
        return ""
    found = [{part: last_metrics(run, part) for part in PARTS} for run in runs]
    words = telling([run.recipe for run in runs])
    columns = {"what differs": ["" if run.label.endswith(said) else escape(said) for run, said in zip(runs, words, strict=True)]}
    for metric in COMPARED:
        for part in PARTS:
            columns[f"{metric.replace('_', ' ')}, {part}"] = [cell(read[part][metric]) if metric in read[part] else "–" for read in found]
    columns["online accuracy"] = [last_accuracy(run) for run in runs]
    for probe in dict.fromkeys(score["probe"] for run in runs for score in _scores(run)):
        columns[probe] = ["".join(score_cell(score) for score in _scores(run) if score["probe"] == probe) or "–" for run in runs]
    kept = {name: cells for name, cells in columns.items() if any(text not in ("", "–", NOT_MEASURED) for text in cells)}
    rows = [[named(i, run), *(cells[i] for cells in kept.values())] for i, run in enumerate(runs)]
    marked = sample_notes(read[part][metric] for read in found for part in PARTS for metric in COMPARED if metric in read[part])
    return table(["run", *kept], rows, caption=_caption(marked), stacks=True, wide=True) + marked


def _caption(marked: str) -> str:
    said = "How the runs ended: their last spectra, and accuracies of the backbone. The spectra are laid over each other below."
    if not marked:
        return said
    from fullrank.spectrum import METRICS

    biases = " and ".join(f"{METRICS[key].name} {METRICS[key].small_sample_bias}" for key in COMPARED)
    return f"{said} {WARNING_MARK}: with so few samples {biases}."


def _scores(run: Record) -> list[dict]:
    """The scores of the backbone itself, without those of its baselines."""
    return [score for score in (run.evaluation or {}).get("scores", []) if score["features"] == "backbone"]
