"""The result of a sweep: the table with one line for each combination of settings, the figure, and their files."""

import io
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fullrank.evaluation.paired import paired_by_seed
from fullrank.files import write_text
from fullrank.plot_style import COLORS, label_ends, plot_band, save_figure, styled, subplots
from fullrank.report import write_report
from fullrank.run.directory import is_run
from fullrank.sweep.grid import CHOICE, CHOSEN, STAGE, edge_of_grid
from fullrank.sweep.row import Row, Setting, require_same_images

if TYPE_CHECKING:
    import matplotlib.figure

MAX_WIDTH = 1000  # of a table that is not printed to a terminal
# The report compares at most this many runs; a page of more runs is too large to open.
MOST_REPORTED = 60
# The numbers of a run that are not accuracies, and how a table prints them.
FORMATS: dict[str, dict[str, Any]] = {"effective rank": {}, "seconds": {"digits": 0}, "CPU seconds": {"digits": 0}}
Combination = tuple[tuple[str, Setting], ...]


@dataclass(frozen=True)
class SweepResult:
    """The rows of a sweep and its folder; rich prints the table.

    Attributes:
        rows: The rows of all cells, also of those that failed and of those that only served a choice.

    Raises:
        UserError: the rows are of several data sets.
    """

    folder: Path
    rows: list[Row]

    def __post_init__(self) -> None:
        require_same_images(row for row in self.rows if row.is_done)

    @property
    def final(self) -> list[Row]:
        """The rows of the result that are done."""
        return [row for row in final_rows(self.rows) if row.is_done]

    @property
    def title(self) -> str:
        """The recipe, and the settings in which the cells differ."""
        return f"{self.rows[0].recipe}: {', '.join(settings_of(final_rows(self.rows))) or 'seeds'}"

    def markdown(self) -> str:
        """Return the table as Markdown."""
        return to_markdown(result_columns(self.rows))

    def __rich_console__(self, *_: Any) -> Iterator[Any]:
        yield Text(f"{self.title}, mean ± standard deviation (number of seeds)", "bold")
        yield to_table(result_columns(self.rows))

    def write(self) -> list[Path]:
        """Write rows.jsonl, table.md, table.csv, accuracy (.svg, .pdf, .png) and report.html, and return the paths of
        those that were written.

        Raises:
            UserError: a file cannot be written.
        """
        choice = choice_columns(self.rows)
        chosen = f"\nThe choice, on held-out training images:\n\n{to_markdown(choice)}\n" if choice else ""
        texts = {
            "rows.jsonl": "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in self.rows),
            "table.md": f"{self.title}\n\n{self.markdown()}\n{chosen}",
            "table.csv": csv_table(self.rows),
        }
        for name, text in texts.items():
            write_text(self.folder / name, text)
        paths = [self.folder / name for name in texts]
        if figure := accuracy_figure(self.rows, self.title):
            paths += save_figure(figure, self.folder / "accuracy")
        if runs := [run for row in self.final if is_run(run := self.folder / row.cell)]:
            paths.append(write_report(runs[:MOST_REPORTED], self.folder / "report.html"))
        return paths


def final_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the result, without those of the choice of a setting."""
    return [row for row in rows if row.settings.get(STAGE) != CHOICE]


def settings_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the settings of any row."""
    return list(dict.fromkeys(name for row in rows for name in row.settings))


def numbers_of(row: Row) -> dict[str, float]:
    """Return the numbers of a run by name, none of a run that failed: accuracies, as shares, and those of `FORMATS`."""
    if not row.is_done:
        return {}
    found = {"online": row.online[-1].accuracy if row.online else None}
    for data, scores in sorted(row.scores.items(), key=lambda item: item[0] != row.data):
        found |= {probe if data == row.data else f"{probe} on {data}": share for probe, share in scores.items()}
    found |= {"effective rank": row.effective_rank.get("backbone")}
    found |= {"seconds": row.seconds or None, "CPU seconds": row.cpu_seconds or None}
    return {name: value for name, value in found.items() if value is not None}


def names_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the numbers that at least one row has, accuracies first."""
    names = dict.fromkeys(name for row in rows for name in numbers_of(row))
    return sorted(names, key=lambda name: name in FORMATS)


def compared_name(names: Sequence[str]) -> str | None:
    """Return the accuracy by which combinations are compared: a linear probe on all labels, else another probe, else
    the online classifier.

    >>> compared_name(["online", "fractions 1 %", "linear on MNIST", "linear", "seconds"])
    'linear'
    """
    accuracies = [name for name in names if name not in FORMATS]
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
    scores = {combination: found for combination, found in scores.items() if found}
    if len(scores) < 2:
        return {}
    images = min((row.test_images for rows in groups.values() for row in rows if row.test_images), default=0)
    best = max(scores, key=lambda combination: round(statistics.fmean(scores[combination].values()), 7))
    texts = {best: "best"}
    for combination, found in scores.items():
        gap = paired_by_seed(found, scores[best], step=100 / images if images else 0.0)
        if combination != best and gap is not None:
            verdict = {None: "not significant", False: "worse", True: "better"}[gap.exceeds(0.0)]
            interval = "" if gap.sd is None else f" ± {gap.half_width:.1f}"
            texts[combination] = f"{verdict} ({round(gap.mean, 7) + 0.0:+.1f}{interval})"
    return texts


def result_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns of the table of a sweep by their titles; a line is a combination of settings."""
    rows = final_rows(rows)
    groups, names = group_rows(rows), names_of(rows)
    columns = {name: [str(dict(combination).get(name, "")) for combination in groups] for name in settings_of(rows)}
    for name in names:
        values = [[numbers_of(row)[name] for row in found if name in numbers_of(row)] for found in groups.values()]
        form = FORMATS.get(name, {"scale": 100.0})
        columns[name if name in FORMATS else f"{name} %"] = [mean_sd(numbers, **form) for numbers in values]
    if score := compared_name(names):
        compared = comparisons(groups, score)
        columns[f"{score} against the best"] = [compared.get(combination, "") for combination in groups]
    failures = [Counter(row.state for row in found if not row.is_done) for found in groups.values()]
    columns["failed runs"] = ["; ".join(f"{n} {state}" for state, n in sorted(count.items())) for count in failures]
    return columns


def choice_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns of the runs on which a setting was chosen, with the choices; none without such runs."""
    tried = [row for row in rows if row.settings.get(STAGE) == CHOICE]
    if not tried:
        return {}
    chosen, compared = str(tried[0].settings[CHOSEN]), [row.settings for row in final_rows(rows)]
    plain = [{name: value for name, value in row.settings.items() if name not in (STAGE, CHOSEN)} for row in tried]
    columns = result_columns([replace(row, settings=values) for row, values in zip(tried, plain, strict=True)])
    edges = [edge_of_grid(values[chosen], [each[chosen] for each in plain]) for values in plain]
    marks = [", the ".join(filter(None, ("yes", edge))) for edge in edges]
    return columns | {"chosen": [mark if each in compared else "" for each, mark in zip(plain, marks, strict=True)]}


def to_table(columns: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with the lines of Markdown, without the columns that have no text; a terminal folds long cells."""
    filled = {title: texts for title, texts in columns.items() if any(texts)}
    table = Table(*(Column(Text(title), overflow="fold") for title in filled), box=box.MARKDOWN)
    for line in zip(*filled.values(), strict=True):
        table.add_row(*(Text(cell.replace("|", "\\|")) for cell in line))
    return table


def to_markdown(columns: Mapping[str, Sequence[str]]) -> str:
    r"""Return a table as Markdown, in which nothing is folded.

    >>> print(to_markdown({"objective": ["frossl", "a|b"], "seconds": ["2", "3"], "failed runs": ["", ""]}))
    | objective | seconds |
    |-----------|---------|
    | frossl    | 2       |
    | a\|b      | 3       |
    """
    file = io.StringIO()
    Console(file=file, width=MAX_WIDTH).print(to_table(columns))
    return file.getvalue().strip()


def csv_table(rows: Sequence[Row]) -> str:
    """Return one line for each run, with its settings, seed and all of its numbers."""
    import pandas  # takes a second to import

    settings = [name for name in settings_of(rows) if name != CHOSEN]
    names = ["cell", *settings, "seed", "status", *names_of(rows), "error"]
    lines = []
    for row in rows:
        own = {"cell": row.cell, "seed": row.seed, "status": row.state, "error": row.error}
        lines.append(row.settings | own | {name: f"{value:.6g}" for name, value in numbers_of(row).items()})
    return pandas.DataFrame(lines, columns=names, dtype=object).to_csv(index=False)


@styled
def accuracy_figure(rows: Sequence[Row], title: str) -> "matplotlib.figure.Figure | None":
    """Return the figure of the accuracy of the online classifier over the epochs, or None if no run has any. A band is
    ± the standard deviation over the seeds.
    """
    rows = [row for row in final_rows(rows) if row.is_done and row.online]
    if not rows:
        return None
    groups = group_rows(rows)
    figure, axes = subplots(width=7.5, height=4.2)
    ax = axes[0, 0]
    for i, (combination, found) in enumerate(groups.items()):
        scores = [{score.epoch: 100 * score.accuracy for score in row.online} for row in found]
        epochs = sorted(set.intersection(*map(set, scores)))
        values = np.array([[each[epoch] for epoch in epochs] for each in scores])
        style = {"color": COLORS[i % len(COLORS)], "linestyle": ("-", "--", ":", "-.")[i // len(COLORS) % 4]}
        label = ", ".join(str(value) for _, value in combination) or rows[0].recipe
        plot_band(ax, epochs, values, **style, marker="o", markersize=2.5, label=label)
    most = max(map(len, groups.values()))
    spread = f", mean ± sd of {most} seeds" if most > 1 else ""
    ax.set(xlabel="epoch", ylabel="accuracy of the online classifier (%)", title=f"{title}{spread}")
    ax.xaxis.get_major_locator().set_params(integer=True)
    label_ends(ax)
    return figure
