"""The result of a sweep: the table with one line for each combination of settings, the figure, and their files."""

import csv
import io
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.files import atomic_write, write_text
from fullrank.report import write_report
from fullrank.report.plot_style import COLORS, subplots
from fullrank.run.directory import is_run
from fullrank.sweep.grid import CHOICE, CHOSEN, STAGE, edge_of_grid, made_choices, others_of
from fullrank.sweep.paired import paired_by_seed
from fullrank.sweep.row import Row, Setting, require_same_images

if TYPE_CHECKING:
    import matplotlib.figure

MAX_WIDTH = 1000  # of a table that is not printed to a terminal
# The report compares at most this many runs; a page of more runs is too large to open.
MOST_REPORTED = 60
# The numbers of a run that are no accuracies, and how a table prints them.
FORMATS: dict[str, dict[str, Any]] = {"effective rank": {}, "seconds": {"digits": 0}, "CPU seconds": {"digits": 0}}
OTHERS = tuple(FORMATS)
Combination = tuple[tuple[str, Setting], ...]


def final_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the result, without those of the choice of a setting."""
    return [row for row in rows if row.settings.get(STAGE) != CHOICE]


def numbers_of(row: Row) -> dict[str, float]:
    """Return the numbers of a run by name, none of a run that failed: accuracies, as shares, and `OTHERS`."""
    if not row.is_done:
        return {}
    found = {"online": row.last_online}
    for data, scores in sorted(row.scores.items(), key=lambda item: item[0] != row.data):
        found |= {probe if data == row.data else f"{probe} on {data}": share for probe, share in scores.items()}
    found |= {"effective rank": row.effective_rank.get("backbone")}
    found |= {"seconds": row.seconds or None, "CPU seconds": row.cpu_seconds or None}
    return {name: value for name, value in found.items() if value is not None}


def names_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the numbers that at least one row has, accuracies first."""
    names = dict.fromkeys(name for row in rows for name in numbers_of(row))
    return [*(name for name in names if name not in OTHERS), *(name for name in OTHERS if name in names)]


def compared_name(names: Sequence[str]) -> str | None:
    """Return the accuracy by which combinations are compared: a linear probe on all labels, else another probe, else
    the online classifier.

    >>> compared_name(["online", "fractions 1 %", "linear on MNIST", "linear", "seconds"])
    'linear'
    """
    accuracies = [name for name in names if name not in OTHERS]
    linear = ("linear", "linear-sgd", "linear-imagenet")
    return min(accuracies, key=lambda name: (name not in linear, name == "online"), default=None)


def group_rows(rows: Sequence[Row]) -> dict[Combination, list[Row]]:
    """Return the rows by their settings."""
    groups: dict[Combination, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.settings.items()), []).append(row)
    return groups


def mean_sd(values: Sequence[float], *, scale: float = 1.0, digits: int = 1) -> str:
    """Return mean ± standard deviation (n) as text.

    >>> mean_sd([0.5, 0.6], scale=100.0), mean_sd([0.5], scale=100.0), mean_sd([])
    ('55.0 ± 7.1 (2)', '50.0 (1)', '')
    """
    if not values:
        return ""
    sd = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):.{digits}f}{sd} ({len(values)})"


def comparisons(groups: Mapping[Combination, Sequence[Row]], name: str) -> dict[Combination, str]:
    """Return for each combination what its paired difference to the best combination says, by the 95 % interval over
    common seeds, in percent.

    Of several combinations with the best mean, the first is the best.
    """
    scores = {
        combination: {row.seed: 100 * numbers_of(row)[name] for row in rows if name in numbers_of(row)}
        for combination, rows in groups.items()
    }
    means = {combination: round(statistics.fmean(found.values()), 7) for combination, found in scores.items() if found}
    if len(means) < 2:
        return {}
    images = min((row.test_images for rows in groups.values() for row in rows if row.test_images), default=0)
    best = max(means, key=lambda combination: means[combination])
    texts = {best: "best"}
    for combination in means:
        gap = paired_by_seed(scores[combination], scores[best], step=100 / images if images else 0.0)
        if combination != best and gap is not None:
            verdict = {None: "undecidable", False: "worse", True: "better"}[gap.is_positive()]
            interval = "" if gap.sd is None else f" ± {gap.half_width:.1f}"
            texts[combination] = f"{verdict} ({round(gap.mean, 7) + 0.0:+.1f}{interval})"
    return texts


def table_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the lines of the table.

    Raises:
        UserError: the rows are of several data sets.
    """
    rows = final_rows(rows)
    require_same_images(row for row in rows if row.is_done)
    groups, names = group_rows(rows), names_of(rows)
    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    score = compared_name(names)
    compared = comparisons(groups, score) if score else {}
    lines = []
    for combination, found in groups.items():
        numbers = [numbers_of(row) for row in found]
        failures = Counter(_status(row) for row in found if not row.is_done)
        notes = [compared.get(combination, ""), *(f"{count} {what}" for what, count in sorted(failures.items()))]
        columns = [[number[name] for number in numbers if name in number] for name in names]
        formats = [FORMATS.get(name, {"scale": 100.0}) for name in names]
        means = [mean_sd(values, **form) for values, form in zip(columns, formats, strict=True)]
        lines.append(
            [*(str(found[0].settings.get(name, "")) for name in settings), *means, "; ".join(filter(None, notes))]
        )
    titles = [name if name in OTHERS else f"{name} %" for name in names]
    last = f"{score} against the best" if compared else "failed runs"
    if not any(line[-1] for line in lines):
        last, lines = None, [line[:-1] for line in lines]
    return [*settings, *titles, *([last] if last else [])], lines


def print_table(rows: Sequence[Row], title: str, console: Console) -> None:
    """Print the table: in a narrow terminal long cells are folded; nothing is cut. Files and pipes get wide lines."""
    titles, lines = table_cells(rows)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in titles:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    (console if console.is_terminal else Console(file=console.file, width=MAX_WIDTH)).print(table)


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the table as Markdown.

    >>> own = {"settings": {"objective": "frossl"}, "seconds": 2.0}
    >>> print(markdown_table([Row(cell="a", recipe="digits", objective="frossl", seed=0, status="done", **own)]))
    | objective | seconds |
    |---|---|
    | frossl | 2 (1) |
    """
    return format_markdown(*table_cells(rows))


def format_markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; a bar in a cell does not end it."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in [titles, *lines]]
    head, *body = [f"| {' | '.join(line)} |" for line in escaped]
    return "\n".join([head, "|" + "---|" * len(titles), *body])


def csv_table(rows: Sequence[Row]) -> str:
    """Return one line for each run, with its settings, seed and all of its numbers."""
    require_same_images(row for row in rows if row.is_done)
    settings = dict.fromkeys(name for row in rows for name in row.settings if name != CHOSEN)
    file = io.StringIO()
    names = ["cell", *settings, "seed", "status", *names_of(rows), "error"]
    writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        own = {"cell": row.cell, "seed": row.seed, "status": _status(row), "error": row.error}
        numbers = {name: f"{value:.6g}" for name, value in numbers_of(row).items()}
        writer.writerow(row.settings | own | numbers)
    return file.getvalue()


def _status(row: Row) -> str:
    return "diverged" if row.diverged else row.status


def choices_text(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the runs on which a setting was chosen, with each choice, or an empty string."""
    found = [row for row in rows if row.settings.get(STAGE) == CHOICE]
    if not found:
        return ""
    best, chosen, probe = made_choices(found), str(found[0].settings[CHOSEN]), found[0].evaluate.probes[0]
    names, tried = (
        [name for name in found[0].settings if name not in (STAGE, CHOSEN)],
        {r.settings[chosen] for r in found},
    )
    lines = []
    for row in found:
        value, score = row.settings[chosen], row.score(probe)
        text = _status(row) if score is None or row.diverged else f"{100 * score:.1f}"
        edge = edge_of_grid(value, tried)
        mark = f"yes, the {edge}" if edge else "yes"
        is_best = best.get(others_of(row.settings, chosen)) == value
        lines.append([*(str(row.settings[name]) for name in names), text, mark if is_best else ""])
    table = format_markdown([*names, f"{probe} % on validation images", "chosen"], lines)
    return f"\nThe choice, with seed {found[0].seed}, on held-out training images:\n\n{table}\n"


def accuracy_figure(rows: Sequence[Row], title: str = "") -> "matplotlib.figure.Figure | None":
    """Return the figure of the accuracy of the online classifier over the epochs, or None if no run has any. A band is
    ± the standard deviation over the seeds.

    Raises:
        UserError: the rows are of several data sets.
    """
    rows = [row for row in final_rows(rows) if row.is_done and row.online]
    if not rows:
        return None
    require_same_images(rows, "the figure")
    groups = group_rows(rows)
    figure, axes = subplots(width=7.5, height=4.2)
    ax = axes[0, 0]
    for i, (combination, found) in enumerate(groups.items()):
        scores = [{score.epoch: 100 * score.accuracy for score in row.online} for row in found]
        epochs = sorted(set.intersection(*map(set, scores)))
        values = np.array([[each[epoch] for epoch in epochs] for each in scores])
        mean, sd = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(epochs))
        color, style = COLORS[i % len(COLORS)], ("-", "--", ":", "-.")[i // len(COLORS) % 4]
        label = ", ".join(str(value) for _, value in combination) or rows[0].recipe
        ax.plot(epochs, mean, color=color, linestyle=style, marker="o", markersize=2.5, label=label)
        ax.fill_between(epochs, mean - sd, mean + sd, color=color, alpha=0.12, lw=0)
    most = max(map(len, groups.values()))
    spread = f", mean ± sd of {most} seeds" if most > 1 else ""
    ax.set(xlabel="epoch", ylabel="accuracy of the online classifier (%)", title=f"{title}{spread}" if title else "")
    ax.xaxis.get_major_locator().set_params(integer=True)
    names = ", ".join(name for name, _ in next(iter(groups)))
    ax.legend(title=names or None, title_fontsize=8, ncols=1 + (len(groups) > 12), fontsize=7 if len(groups) > 8 else 8)
    return figure


def write_results(rows: Sequence[Row], folder: Path, title: str) -> list[Path]:
    """Write rows.jsonl, table.md, table.csv, accuracy.svg and .png, and report.html, and return the paths of those that
    were written.

    Args:
        rows: the rows of a sweep, done or failed.
        folder: the folder of the sweep.
        title: title of the figure.

    Raises:
        UserError: the rows are of several data sets, or a file cannot be written.
    """
    texts = {
        "rows.jsonl": "".join(json.dumps(row.to_json(), ensure_ascii=False) + "\n" for row in rows),
        "table.md": f"{title}\n\n{markdown_table(rows)}\n{choices_text(rows)}",
        "table.csv": csv_table(rows),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    paths = [folder / name for name in texts]
    if figure := accuracy_figure(rows, title):
        for suffix, metadata in (("svg", {"Date": None}), ("png", None)):
            paths.append(folder / f"accuracy.{suffix}")
            with atomic_write(paths[-1], overwrite=True) as draft:
                figure.savefig(draft, format=suffix, bbox_inches="tight", metadata=metadata)
    runs = [folder / row.cell for row in final_rows(rows) if row.is_done and is_run(folder / row.cell)]
    if runs:
        paths.append(write_report(runs[:MOST_REPORTED], folder / "report.html"))
    return paths
