"""The table of a sweep: one line for each combination of settings, with mean and standard deviation over the seeds."""

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fullrank.sweep.cell import Setting
from fullrank.sweep.grid import CHOICE, CHOSEN, STAGE
from fullrank.sweep.paired import paired_difference
from fullrank.sweep.row import Row, require_same_images

LINEAR = ("linear", "linear-sgd", "linear-imagenet")
"""The linear probes on all labels."""

LESS_IMPORTANT = ("seconds", "CPU seconds", "effective rank")
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
    own = [(row.data, probe) for row in rows for probe in row.scores.get(row.data, {})]
    other = [(data, probe) for row in rows for data, found in row.scores.items() if data != row.data for probe in found]
    columns = [Column("online %", lambda row: row.last_online)]
    for data, probe in dict.fromkeys(own):
        columns.append(Column(f"{probe} %", lambda row, data=data, probe=probe: row.score(probe, data)))
    for data, probe in dict.fromkeys(other):
        columns.append(Column(f"{probe} on {data} %", lambda row, data=data, probe=probe: row.score(probe, data)))
    columns.append(Column("effective rank", lambda row: row.effective_rank.get("backbone"), 1.0))
    columns.append(Column("seconds", lambda row: row.seconds or None, 1.0, 0))
    columns.append(Column("CPU seconds", lambda row: row.cpu_seconds or None, 1.0, 0))
    return [column for column in columns if any(column.value(row) is not None for row in rows)]


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
        seeds = sorted(set(scores[best]) & set(scores[combination]))
        if combination == best or not seeds:
            continue
        gap = paired_difference(
            [scores[combination][seed] for seed in seeds], [scores[best][seed] for seed in seeds], step=step
        )
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
    score = score_column(columns)
    compared = (
        comparisons({c: [row for row in found if row.is_done] for c, found in groups.items()}, score) if score else {}
    )
    titles = [*(names or ["run"]), *(column.title for column in columns)]
    titles += [f"{score.title.removesuffix(' %')} against the best"] if compared and score else []
    lines = []
    for combination, found in groups.items():
        settings = dict(combination)
        line = [str(settings.get(name, "")) for name in names] or ["all"]
        ended = [row for row in found if row.is_done]
        line += [
            mean_sd([v for row in ended if (v := c.value(row)) is not None], scale=c.scale, digits=c.digits)
            for c in columns
        ]
        diverged, failed = sum(row.diverged for row in found), sum(not row.is_final for row in found)
        notes = [f"{count} {what}" for count, what in ((diverged, "diverged"), (failed, "failed")) if count]
        if compared:
            line.append("; ".join([*([compared[combination]] if combination in compared else []), *notes]))
        elif notes:
            line[0] += f" ({', '.join(notes)})"
        lines.append(line)
    return titles, lines


def score_column(columns: Sequence[Column]) -> Column | None:
    """Return the accuracy by which combinations are compared: a linear probe on all labels, else another probe, else
    the online classifier.

    >>> titles = ("online %", "fractions 1 %", "linear on MNIST %", "linear %", "seconds")
    >>> found = score_column([Column(title, lambda row: None) for title in titles])
    >>> found and found.title
    'linear %'
    """
    accuracies = [column for column in columns if column.title.endswith("%")]
    order = sorted(
        accuracies,
        key=lambda column: (column.title.removesuffix(" %") not in LINEAR, column.title.startswith("online")),
    )
    return order[0] if order else None


def print_table(rows: Sequence[Row], title: str, console: Console) -> None:
    """Print the table without cutting a cell. A narrow terminal gets it without the columns `LESS_IMPORTANT`; files and
    pipes get all.
    """
    titles, lines = table_cells(rows)
    dropped: list[str] = []
    for name in ("", *(name for name in LESS_IMPORTANT if name in titles)):
        dropped += [name]
        kept = [i for i, each in enumerate(titles) if each not in dropped]
        table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for i in kept:
            table.add_column(titles[i], no_wrap=True)
        for line in lines:
            table.add_row(*(Text(line[i]) for i in kept))
        width = Measurement.get(console, console.options.update(max_width=1000), table).maximum
        if width <= console.width or not console.is_terminal:
            break
    Console(file=console.file, width=max(width, console.width), force_terminal=console.is_terminal).print(table)


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the table as Markdown.

    >>> row = Row(cell="a", recipe="digits", objective="frossl", seed=0, status="done", settings={"objective": "frossl"}, seconds=2.0)
    >>> print(markdown_table([row]))
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
    require_same_images([row for row in rows if row.is_done])
    columns = columns_of([row for row in rows if row.is_done])
    names = list(dict.fromkeys(name for row in rows for name in row.settings if name != CHOSEN))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["cell", *names, "seed", "status", *(column.title.removesuffix(" %") for column in columns), "error"]
    )
    for row in rows:
        values = [column.value(row) if row.is_done else None for column in columns]
        settings = [row.settings.get(name, "") for name in names]
        status = "diverged" if row.diverged else row.status
        writer.writerow(
            [
                row.cell,
                *settings,
                row.seed,
                status,
                *("" if value is None else f"{value:.6g}" for value in values),
                row.error,
            ]
        )
    return file.getvalue()
