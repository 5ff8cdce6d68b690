"""Run the cells of a sweep: take what is done, go on where it was stopped, and let no failure of one cell end the
others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.sweep.cell import Cell
from fullrank.sweep.checks import check_cells, check_names
from fullrank.sweep.dataset import identify
from fullrank.sweep.estimate import estimate
from fullrank.sweep.executor import run_cells, slots_for
from fullrank.sweep.folder import create_folder
from fullrank.sweep.progress import SweepProgress, describe
from fullrank.sweep.row import Row, answers, read_row
from fullrank.sweep.run_cell import new_row
from fullrank.sweep.worker import Outcome
from fullrank.terminal import stderr

Plan = Callable[[Sequence[Row]], Sequence[Cell]]
"""Returns all cells that are known, given the rows of those that have ended, in the order of the cells. A later stage,
such as the runs with a chosen learning rate, returns more cells once the rows that it depends on are there. It never
takes a cell back."""


def run_sweep(plan: Plan, folder: Path, *, parallel: int = 0, console: Console | None = None) -> list[Row]:
    """Run all cells of a plan and return their rows, in the order of the plan, done and failed ones.

    A cell that is done is taken from its row, a run that was stopped goes on, and a cell that failed is tried once in
    each call. Several
    callers may share a folder: each cell is run by one of them. The output of a cell's process is in
    FOLDER/logs/CELL.log.

    Args:
        plan: returns all cells known so far, given the rows of the cells that have ended.
        folder: the run directory of a cell is FOLDER/CELL.
        parallel: number of cells at the same time; 0: one for each GPU, or one at a time on a CPU. On a CPU they share
            the cores.
        console: where to print; None: standard error.

    Returns:
        The rows; those with `status` "failed" say why in `error`.

    Raises:
        UserError: something is wrong with a cell; nothing was run.
        Interrupted: SIGINT, SIGTERM or SIGHUP; the runs have written checkpoints, and the same call goes on.
    """
    console = console or stderr()
    rows: dict[str, Row] = {}
    while True:
        cells, missing = known_cells(plan, folder, rows)
        check_names(cells)
        check_cells(missing, folder)
        if not missing:
            return [rows[cell.name] for cell in cells]
        create_folder(folder)
        slots = slots_for(missing, parallel)
        expected = estimate(missing, rows, {cell.name: cell for cell in cells}, slots)
        for line in expected.lines(len(cells), slots):
            console.print(line)
        progress = SweepProgress(
            console, total=len(cells), done=len(cells) - len(missing), expected=expected.seconds, slots=len(slots)
        )

        def on_end(cell: Cell, outcome: Outcome, progress: SweepProgress = progress) -> None:
            if outcome.status == "interrupted":
                return
            row = read_row(folder / cell.name) if outcome.status == "done" else None
            rows[cell.name] = row or failed_row(cell, outcome.message or "its process wrote no row")
            progress.end(cell, rows[cell.name])

        try:
            with progress:
                run_cells(
                    missing,
                    folder,
                    slots,
                    on_start=progress.start,
                    on_wait=progress.wait,
                    on_end=on_end,
                    is_done=lambda cell: existing_row(cell, folder) is not None,
                )
            sort_rows(rows, cells)  # the cells have ended in any order
        except Interrupted as stop:
            done = sum(row.is_final for row in rows.values())
            raise Interrupted(
                stop.signum,
                f"stopped: {done} of {len(cells)} cells are done, the others go on with the same command ({folder})",
            ) from None


def known_cells(plan: Plan, folder: Path, rows: dict[str, Row]) -> tuple[list[Cell], list[Cell]]:
    """Return all cells that a plan knows, and those without a row; add the rows in the folder to `rows`, in the order
    of the cells.
    """
    while True:
        cells = list(plan(list(rows.values())))
        found = {
            cell.name: row
            for cell in cells
            if cell.name not in rows and (row := existing_row(cell, folder)) is not None
        }
        rows |= found
        sort_rows(rows, cells)
        if not found:
            return cells, [cell for cell in cells if cell.name not in rows]


def sort_rows(rows: dict[str, Row], cells: Sequence[Cell]) -> None:
    """Bring rows into the order of the cells, in which a plan takes them: the first of two equal scores is that of the
    first cell.
    """
    ordered = {cell.name: rows[cell.name] for cell in cells if cell.name in rows}
    rows.clear()
    rows |= ordered


def existing_row(cell: Cell, folder: Path) -> Row | None:
    """Return the row of a cell if it is final and of the cell's recipe, images and evaluation, with the cell's
    settings.
    """
    row = read_row(folder / cell.name)
    if (
        row is None
        or row.fingerprint != cell.recipe.fingerprint
        or not answers(row, cell, identify(cell.recipe.data)[1])
    ):
        return None
    return replace(row, cell=cell.name, settings=dict(cell.settings))


def failed_row(cell: Cell, reason: str) -> Row:
    """Return the row of a cell that failed."""
    return replace(new_row(cell), status="failed", error=reason)


def collect_rows(plan: Plan, folder: Path) -> tuple[list[Row], list[Cell]]:
    """Return the rows that exist, without running anything, and all cells that are known."""
    rows: dict[str, Row] = {}
    cells, _ = known_cells(plan, folder, rows)
    return list(rows.values()), cells


def require_success(rows: Sequence[Row], command: str) -> None:
    """Raise an error if cells have failed for another reason than divergence.

    Raises:
        ProcessFailed: with the reason of each.
    """
    failed = [row for row in rows if not row.is_final]
    if failed:
        error = ProcessFailed(f"{len(failed)} of {len(rows)} cells failed; the same call tries them again: {command}")
        error.add_note("\n".join(f"  {row.cell} {describe(row)}" for row in failed))
        raise error


def find_cell(cells: Sequence[Cell], which: str) -> Cell:
    """Return the cell with a number, counted from 0, or a name.

    Raises:
        UserError: there is none.
    """
    names: Mapping[str, Cell] = {cell.name: cell for cell in cells}
    if which in names:
        return names[which]
    if which.isdecimal() and int(which) < len(cells):
        return cells[int(which)]
    from fullrank.errors import suggest

    raise UserError(
        f"--cell {which} is neither a number from 0 to {len(cells) - 1} nor the name of a cell{suggest(which, list(names))}; see --list"
    )
