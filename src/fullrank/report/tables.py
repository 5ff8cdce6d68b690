"""Tables and lists of the page: every text that comes from a run is escaped here, once."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fullrank.report.alarms import happened
from fullrank.report.differ import differing
from fullrank.report.figures import COLOURS
from fullrank.report.read import Record, look_up
from fullrank.report.summary import cautions, count, facts, outcome, percent, verdict

BARS = ("solid", "double", "dotted", "groove")
"""How the bar before the name of a run is drawn, from one round of colours to the next, as its line has other dashes."""


def summary_table(runs: Sequence[Record]) -> str:
    """A row a run: what was trained; of a single run also how it ended, which for several `compare` says."""
    told = [facts(run) | (outcome(run) if len(runs) == 1 else {}) for run in runs]
    rows = [[named(i, run), *map(escape, told[i].values())] for i, run in enumerate(runs)]
    ended = "; accuracy and effective rank as last measured" if len(runs) == 1 else ""
    return table(["run", *told[0]], rows, caption=f"Each run in a row{ended}.", stacks=True, wide=True)


def verdicts(runs: Sequence[Record]) -> str:
    """A line a run: its name, where there are several, and its verdict; the colour only repeats what the words say."""
    lines = []
    for i, run in enumerate(runs):
        said = verdict(run)
        name = f"{named(i, run)}: " if len(runs) > 1 else ""
        lines.append(f'<p class="verdict {said.level}">{name}{escape(said.text)}</p>')
    return "\n".join(lines)


def evaluation_table(runs: Sequence[Record]) -> str:
    """Probes down, features across, each cell mean ± standard deviation; empty where nothing was evaluated."""
    scores = [(i, run, score) for i, run in enumerate(runs) if run.evaluation for score in run.evaluation.get("scores", [])]
    if not scores:
        return ""
    probes = dict.fromkeys(score["probe"] for _, _, score in scores)
    features = dict.fromkeys(score["features"] for _, _, score in scores)
    cells = {(score["probe"], i, score["features"]): score_cell(score) for i, _, score in scores}
    rows = [
        [escape(probe), *([named(i, run)] if len(runs) > 1 else []), *(cells.get((probe, i, name), "–") for name in features)]
        for probe in probes
        for i, run in enumerate(runs)
        if any((probe, i, name) in cells for name in features)
    ]
    head = ["probe", *(["run"] if len(runs) > 1 else []), *features]
    return table(
        head,
        rows,
        caption="Accuracy on the test images: mean ± standard deviation over n repetitions where there are several.",
        stacks=True,
    )


def score_cell(score: Mapping[str, Any]) -> str:
    """An accuracy with its standard deviation, and over how many repetitions, where there are several."""
    mean = percent(score["accuracy"])
    if score.get("sd") is not None:
        mean = mean.replace("%", f"± {100 * score['sd']:.1f} %").replace(" ", "\N{NO-BREAK SPACE}")
    repeated = f" <small>n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{count(score['n'])}</small>" if score.get("n", 1) > 1 else ""
    return mean + repeated


def differences(runs: Sequence[Record]) -> str:
    """The entries in which the recipes differ, a column a run; empty for one run and for equal recipes."""
    rows = [
        [f"<code>{escape(key)}</code>", *(f"<code>{escape(value or '–')}</code>" for value in values)]
        for key, values in differing([run.recipe for run in runs]).items()
    ]
    return table(["entry", *(run.label for run in runs)], rows, caption="Where the recipes differ.") if rows else ""


def warnings(runs: Sequence[Record]) -> str:
    """The alarms of all runs with their remedies; empty where there is no log that could hold one."""
    if not any(run.train or run.spectrum_rows for run in runs):
        return ""
    raised = [(i, run, warning) for i, run in enumerate(runs) for warning in run.warnings]
    if not raised:
        return "<p>No alarm was raised.</p>"
    columns = {
        "step": [count(warning["step"]) for *_, warning in raised],
        "epoch": [f"{warning['epoch']:.4g}" if "epoch" in warning else "" for *_, warning in raised],
        "run": [named(i, run) if len(runs) > 1 else "" for i, run, _ in raised],
        "alarm": [escape(str(warning.get("alarm", ""))) for *_, warning in raised],
        "what happened": [escape(happened(warning)) for *_, warning in raised],
        "what to do": [_with_flags(str(warning.get("remedy", ""))) for *_, warning in raised],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    caption = "Each alarm with the step at which it was raised; ▼ on the axes of time."
    return table(list(kept), zip(*kept.values(), strict=True), caption=caption, stacks=True)


def _with_flags(text: str) -> str:
    """Text as HTML, its flags as code, which does not break at their dashes."""
    return re.sub(r"--[\w.-]+(\{[\w.,-]+\})?(?<!\.)", r'<code class="flag">\g<0></code>', escape(text))


def limits(runs: Sequence[Record]) -> str:
    """What is missing, damaged or uncertain, of all runs."""
    return _shared(runs, [(i, text) for i, run in enumerate(runs) for text in cautions(run)])


def statements(runs: Sequence[Record]) -> str:
    """Which images were scored, and what was left out, in the words of the evaluation."""
    said = []
    for i, run in enumerate(runs):
        sizes = [f"{count(n)} {name}" for name in ("train", "test") if (n := look_up(run.evaluation, f"{name}_images")) is not None]
        said += [(i, f"{' and '.join(sizes)} images.")] if sizes else []
        said += [(i, str(statement))] if (statement := look_up(run.evaluation, "statement")) else []
        said += [(i, f"Left out: {text}") for text in look_up(run.evaluation, "left_out") or []]
    return _shared(runs, said)


def _shared(runs: Sequence[Record], said: Iterable[tuple[int, str]]) -> str:
    """A list of sentences, each once, after the runs of which it is true; those that are true of all name none."""
    true_of: dict[str, list[int]] = {}
    for i, text in said:
        true_of.setdefault(text, []).append(i)
    subjects = {text: "" if len(of) == len(runs) else ", ".join(named(i, runs[i]) for i in of) + ": " for text, of in true_of.items()}
    lines = "".join(f"<li>{subject}{escape(text)}</li>" for text, subject in subjects.items())
    return f'<ul class="limits">{lines}</ul>' if lines else ""


def folded(title: str, tree: Any) -> str:
    """Pretty JSON behind a line that opens it."""
    text = json.dumps(tree, indent=2, ensure_ascii=False)
    return f'<details><summary>{escape(title)}</summary><pre tabindex="0">{escape(text)}</pre></details>'


def named(i: int, run: Record) -> str:
    """The label of a run after a bar of its colour."""
    look = f"border-color:{COLOURS[i % len(COLOURS)]};border-left-style:{BARS[i // len(COLOURS) % len(BARS)]}"
    return f'<span class="run" style="{look}">{escape(run.label)}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, stacks: bool = False, wide: bool = False) -> str:
    """An HTML table whose first column names the row; `head` is text, cells are HTML.

    If it `stacks`, its rows are cards on a phone; if it is `wide`, it goes beyond the text where the window does.
    """
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row" data-label="{escape(head[0])}">{row[0]}</th>'
        + "".join(f'<td data-label="{escape(name)}"><div>{cell}</div></td>' for name, cell in zip(head[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    kind = ' class="stacks"' if stacks else ""
    place = "scroll wide" if wide else "scroll"
    inner = f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="{place}"><table{kind}>{inner}</table></div>'
