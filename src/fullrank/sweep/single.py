"""One cell of a sweep as one job of a cluster: the list of all cells, and a run in this process.

Several jobs share the folder of the sweep; a later call without a cell collects the rows.
"""

import shlex
from pathlib import Path

from rich.console import Console

from fullrank.distributed import rank
from fullrank.errors import UserError
from fullrank.run.processes import launched_world_size
from fullrank.sweep.checks import check_cells
from fullrank.sweep.engine import Plan, collect_rows, existing_row, find_cell, known_cells
from fullrank.sweep.folder import cell_lock, create_folder
from fullrank.sweep.progress import describe
from fullrank.sweep.run_cell import run_cell


def run_single_cell(plan: Plan, folder: Path, which: str, console: Console) -> None:
    """Run one cell, or say that it is done or has diverged: divergence is a result, as in a call that runs all cells.

    Under torchrun or srun, every process trains, and the first one evaluates and writes the row.

    Args:
        plan: the plan of the sweep.
        folder: its folder.
        which: the number of a cell, counted from 0, or its name.
        console: where to print.

    Raises:
        UserError: there is no such cell, another process runs it, or something is wrong with it.
        Interrupted: SIGINT, SIGTERM or SIGHUP; the same command goes on.
    """
    cells, _ = known_cells(plan, folder, {})
    cell = find_cell(cells, which)
    row = existing_row(cell, folder)
    if row is None:
        check_cells([cell], folder)
        create_folder(folder)
        if launched_world_size() > 1:  # the lock of the run directory serves all processes
            row = run_cell(cell, folder, console=console)
        else:
            with cell_lock(folder, cell.name, wait=0.5) as acquired:
                if not acquired:
                    raise UserError(
                        f"cell {cell.name} is being run by another process; wait for it, or run another cell (--list)"
                    )
                row = run_cell(cell, folder, console=console)
    if rank() == 0:
        console.print(f"{cell.name}: {describe(row)}")


def list_cells(plan: Plan, folder: Path, command: str) -> None:
    """Print the cells, each with its number, state, and the command that runs it, separated by tabs.

    The states are done, diverged, unfinished (running, stopped or failed: there is a run directory without a row) and
    to run.
    """
    rows, cells = collect_rows(plan, folder)
    states = {row.cell: "diverged" if row.diverged else row.status for row in rows}
    for number, cell in enumerate(cells):
        missing = "unfinished" if (folder / cell.name).is_dir() else "to run"
        print(f"{number}\t{states.get(cell.name, missing)}\t{command} --cell {shlex.quote(cell.name)}")
