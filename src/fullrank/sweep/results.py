"""The files of a sweep's result: rows, table, figure and the report of its runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fullrank.files import atomic_write
from fullrank.run.directory import is_run
from fullrank.sweep.cell import Setting
from fullrank.sweep.choice import choose, edge_of_grid
from fullrank.sweep.curves import accuracy_figure
from fullrank.sweep.grid import CHOICE, CHOSEN, STAGE
from fullrank.sweep.row import Row
from fullrank.sweep.tables import csv_table, final_rows, format_markdown, markdown_table

MOST_REPORTED = 60
"""The report compares at most this many runs; a page of more runs is too large to open."""


@dataclass(frozen=True)
class SweepResult:
    """The rows of a sweep and its folder."""

    folder: Path
    rows: list[Row]
    """The rows of all cells, also of those that failed and of those that only served a choice."""

    @property
    def final(self) -> list[Row]:
        """The rows of the result that are done."""
        return [row for row in final_rows(self.rows) if row.is_done]

    @property
    def failed(self) -> list[Row]:
        """The rows of the cells that failed, and that the next call tries again."""
        return [row for row in self.rows if not row.is_final]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        return markdown_table(self.rows)


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
    from fullrank.report import write_report

    paths = [folder / name for name in ("rows.jsonl", "table.md", "table.csv")]
    lines = "".join(json.dumps(row.to_json(), ensure_ascii=False) + "\n" for row in rows)
    for path, text in zip(
        paths, (lines, f"{title}\n\n{markdown_table(rows)}\n{choices_text(rows)}", csv_table(rows)), strict=True
    ):
        with atomic_write(path, overwrite=True) as draft:
            draft.write_text(text, encoding="utf-8")
    figure = accuracy_figure(rows, title)
    for suffix in () if figure is None else ("svg", "png"):
        assert figure is not None, "the figure exists"
        paths.append(folder / f"accuracy.{suffix}")
        with atomic_write(paths[-1], overwrite=True) as draft:
            figure.savefig(
                draft, format=suffix, bbox_inches="tight", metadata={"Date": None} if suffix == "svg" else None
            )
    if runs := finished_runs(rows, folder):
        paths.append(write_report(runs[:MOST_REPORTED], folder / "report.html"))
    return paths


def finished_runs(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Return the run directories of the result, in the order of the cells; the report compares the first
    `MOST_REPORTED`.
    """
    return [folder / row.cell for row in final_rows(rows) if row.is_done and is_run(folder / row.cell)]


def choices_text(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the runs on which a setting was chosen, with each choice, or an empty string."""
    found = [row for row in rows if row.settings.get(STAGE) == CHOICE]
    if not found:
        return ""
    chosen, probe = found[0].settings[CHOSEN], found[0].evaluate.probes[0]
    names = [name for name in found[0].settings if name not in (STAGE, CHOSEN)]
    others = [name for name in names if name != chosen]
    best = choose(found, chosen, others, lambda row: row.score(probe))
    tried: dict[tuple[Setting, ...], list[Setting]] = {}
    for row in found:
        tried.setdefault(tuple(row.settings[name] for name in others), []).append(row.settings[chosen])
    lines = []
    for row in found:
        group, value, score = tuple(row.settings[name] for name in others), row.settings[chosen], row.score(probe)
        text = "diverged" if row.diverged else "failed" if score is None else f"{100 * score:.1f}"
        edge = edge_of_grid(value, tried[group])
        mark = "" if group not in best or best[group] != value else f"yes, the {edge}" if edge else "yes"
        lines.append([*(str(row.settings[name]) for name in names), text, mark])
    table = format_markdown([*names, f"{probe} % on validation images", "chosen"], lines)
    return f"\nThe choice, with seed {found[0].seed}, on held-out training images:\n\n{table}\n"
