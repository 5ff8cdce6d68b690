"""The result of a sweep: the table with one line for each combination of settings, the figure, and their files."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.files import atomic_write, write_text
from fullrank.report import write_report
from fullrank.report.plot_style import COLORS, subplots
from fullrank.run.directory import is_run
from fullrank.sweep.grid import CHOICE, CHOSEN, STAGE, choose, edge_of_grid
from fullrank.sweep.paired import paired_by_seed
from fullrank.sweep.row import Row, Setting, require_same_images

if TYPE_CHECKING:
    import matplotlib.figure

MAX_WIDTH = 1000  # of a table that is not printed to a terminal
# The report compares at most this many runs; a page of more runs is too large to open.
MOST_REPORTED = 60
Combination = tuple[tuple[str, Setting], ...]


@dataclass(frozen=True)
class Column:
    """A quantity of a row."""

    title: str
    value: Callable[[Row], float | None]
    scale: float = 100.0
    digits: int = 1


def final_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the result, without those of the choice of a setting."""
    return [row for row in rows if row.settings.get(STAGE) != CHOICE]


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Return the quantities that at least one row has, accuracies first."""
    found = dict.fromkeys((data, probe) for row in rows for data, scores in row.scores.items() for probe in scores)
    own = {row.data for row in rows}
    columns = [Column("online %", lambda row: row.last_online)]
    for data, probe in sorted(found, key=lambda pair: pair[0] not in own):
        title = f"{probe} %" if data in own else f"{probe} on {data} %"
        columns.append(Column(title, lambda row, data=data, probe=probe: row.score(probe, data)))
    columns.append(Column("effective rank", lambda row: row.effective_rank.get("backbone"), 1.0))
    columns.append(Column("seconds", lambda row: row.seconds or None, 1.0, 0))
    columns.append(Column("CPU seconds", lambda row: row.cpu_seconds or None, 1.0, 0))
    return [column for column in columns if any(column.value(row) is not None for row in rows)]


def score_column(columns: Sequence[Column]) -> Column | None:
    """Return the accuracy by which combinations are compared: a linear probe on all labels, else another probe, else
    the online classifier.

    >>> titles = ("online %", "fractions 1 %", "linear on MNIST %", "linear %", "seconds")
    >>> found = score_column([Column(title, lambda row: None) for title in titles])
    >>> found and found.title
    'linear %'
    """
    accuracies = [column for column in columns if column.title.endswith("%")]
    linear = {f"{name} %" for name in ("linear", "linear-sgd", "linear-imagenet")}
    return min(accuracies, key=lambda c: (c.title not in linear, c.title == "online %"), default=None)


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


def comparisons(groups: Mapping[Combination, Sequence[Row]], column: Column) -> dict[Combination, str]:
    """Return for each combination what its paired difference to the best combination says, by the 95 % interval over
    common seeds.

    Of several combinations with the best mean, the first is the best.
    """
    scores = {
        combination: {row.seed: value for row in rows if (value := column.value(row)) is not None}
        for combination, rows in groups.items()
    }
    means = {combination: round(statistics.fmean(found.values()), 9) for combination, found in scores.items() if found}
    if len(means) < 2:
        return {}
    images = min((row.test_images for rows in groups.values() for row in rows if row.test_images), default=0)
    step = 1 / images if images and column.scale == 100.0 else 0.0
    best = max(means, key=lambda combination: means[combination])
    texts = {best: "best"}
    for combination in means:
        gap = paired_by_seed(scores[combination], scores[best], step=step)
        if combination == best or gap is None:
            continue
        verdict = {None: "undecidable", False: "worse", True: "better"}[gap.is_positive()]
        interval = "" if gap.sd is None else f" ± {column.scale * gap.half_width:.{column.digits}f}"
        texts[combination] = f"{verdict} ({column.scale * round(gap.mean, 9) + 0.0:+.{column.digits}f}{interval})"
    return texts


def table_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the lines of the table.

    Raises:
        UserError: the rows are of several data sets.
    """
    rows = final_rows(rows)
    done = [row for row in rows if row.is_done]
    require_same_images(done)
    groups, columns = group_rows(rows), columns_of(done)
    names = list(dict.fromkeys(name for combination in groups for name, _ in combination))
    ended = {combination: [row for row in found if row.is_done] for combination, found in groups.items()}
    score = score_column(columns)
    compared = comparisons(ended, score) if score else {}
    titles = [*(names or ["run"]), *(column.title for column in columns)]
    titles += [f"{score.title.removesuffix(' %')} against the best"] if compared and score else []
    lines = []
    for combination, found in groups.items():
        line = [str(dict(combination).get(name, "")) for name in names] or ["all"]
        for column in columns:
            values = [value for row in ended[combination] if (value := column.value(row)) is not None]
            line.append(mean_sd(values, scale=column.scale, digits=column.digits))
        diverged, failed = sum(row.diverged for row in found), sum(not row.is_final for row in found)
        notes = [f"{count} {what}" for count, what in ((diverged, "diverged"), (failed, "failed")) if count]
        if compared:
            line.append("; ".join(filter(None, [compared.get(combination, ""), *notes])))
        elif notes:
            line[0] += f" ({', '.join(notes)})"
        lines.append(line)
    return titles, lines


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
    done = [row for row in rows if row.is_done]
    require_same_images(done)
    columns, file = columns_of(done), io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row.settings if name != CHOSEN))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["cell", *names, "seed", "status", *(c.title.removesuffix(" %") for c in columns), "error"])
    for row in rows:
        values = [column.value(row) if row.is_done else None for column in columns]
        numbers = ["" if value is None else f"{value:.6g}" for value in values]
        settings = [row.settings.get(name, "") for name in names]
        writer.writerow([row.cell, *settings, row.seed, _status(row), *numbers, row.error])
    return file.getvalue()


def _status(row: Row) -> str:
    return "diverged" if row.diverged else row.status


def choices_text(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the runs on which a setting was chosen, with each choice, or an empty string."""
    found = [row for row in rows if row.settings.get(STAGE) == CHOICE]
    if not found:
        return ""
    chosen, probe = str(found[0].settings[CHOSEN]), found[0].evaluate.probes[0]
    names = [name for name in found[0].settings if name not in (STAGE, CHOSEN)]
    others = [name for name in names if name != chosen]
    best = choose(found, chosen, others, lambda row: row.score(probe))
    lines = []
    for row in found:
        group, value, score = tuple(row.settings[name] for name in others), row.settings[chosen], row.score(probe)
        tried = [each.settings[chosen] for each in found if all(each.settings[n] == row.settings[n] for n in others)]
        yes = ", the ".join(filter(None, ("yes", edge_of_grid(value, tried)))) if best.get(group) == value else ""
        text = _status(row) if score is None or row.diverged else f"{100 * score:.1f}"
        lines.append([*(str(row.settings[name]) for name in names), text, yes])
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
    most = max(len(found) for found in groups.values())
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
        for suffix in ("svg", "png"):
            paths.append(folder / f"accuracy.{suffix}")
            metadata = {"Date": None} if suffix == "svg" else None
            with atomic_write(paths[-1], overwrite=True) as draft:
                figure.savefig(draft, format=suffix, bbox_inches="tight", metadata=metadata)
    runs = [folder / row.cell for row in final_rows(rows) if row.is_done and is_run(folder / row.cell)]
    if runs:
        paths.append(write_report(runs[:MOST_REPORTED], folder / "report.html"))
    return paths
