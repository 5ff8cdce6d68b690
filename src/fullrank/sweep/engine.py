"""Run the cells of a sweep: take what is done, go on where it was stopped, and let no failure of one cell end the others."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from fullrank.sweep.cell import Cell
from fullrank.sweep.row import Row
from fullrank.sweep.run_cell import run_cell
from fullrank.terminal import stderr

Plan = Callable[[Sequence[Row]], Sequence[Cell]]
"""Returns all cells that are known, given the rows of those that have ended, in the order of the cells. A later stage, such as the runs
with a chosen learning rate, returns more cells once the rows that it depends on are there."""


def run_sweep(plan: Plan, folder: Path, *, parallel: int = 0, console: Console | None = None) -> list[Row]:
    """Run all cells of a plan and return their rows, in the order of the plan, done and failed ones.

    Args:
        plan: returns all cells known so far, given the rows of the cells that have ended.
        folder: the run directory of a cell is FOLDER/CELL.
        parallel: number of cells at the same time; 0: one for each device.
        console: where to print; None: standard error.
    """
    console = console or stderr()
    rows: dict[str, Row] = {}
    while True:
        cells = plan(list(rows.values()))
        missing = [cell for cell in cells if cell.name not in rows]
        if not missing:
            return [rows[cell.name] for cell in cells]
        for cell in missing:
            rows[cell.name] = run_cell(cell, folder, console=console)
