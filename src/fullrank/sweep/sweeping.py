"""`sweep` trains a grid of settings and seeds, and writes one table, one figure and one report; `run_sweep` runs any
list of cells. The same call goes on where it was stopped.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.errors import Interrupted, ProcessFailed, UserError, suggest
from fullrank.images.source_uri import open_once
from fullrank.models.initial_weights import resolve_with_init
from fullrank.recipes import Recipe, import_code
from fullrank.run.directory import as_path
from fullrank.run.terminal import stderr
from fullrank.sweep.cell import check_cells, check_folder, existing_row, new_row
from fullrank.sweep.grid import Cell, EvaluationPlan, Plan, grid_plan, seeds_of, with_marks
from fullrank.sweep.jobs import Jobs, run_cells
from fullrank.sweep.row import Row, digest, read_row
from fullrank.sweep.table import MOST_REPORTED, SweepResult


def sweep(
    recipe: Recipe | str | Path,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    choose: str | None = None,
    evaluate: EvaluationPlan = EvaluationPlan(),  # noqa: B008  frozen
    jobs: Jobs = Jobs(),  # noqa: B008  frozen
    only: str | None = None,
    trust: bool | Collection[str] = False,
    console: Console | None = None,
    **changes: Any,
) -> SweepResult:
    """Train every combination of the grid's values with every seed, evaluate each network, and write table, figure and
    report.

    The same call goes on where it was stopped, and takes what is done. A cell that failed does not end the others.

    Args:
        recipe: a `Recipe`, the name of one, a recipe.json or a source of images, as in `fullrank.pretrain`.
        grid: name of a field → its values: `{"objective": ["frossl", "vicreg"], "optimizer.lr": [1e-3, 3e-3]}`.
        seeds: the number of seeds, or the seeds.
        out: the folder; None: sweeps/NAME.
        choose: a field of the grid whose value is chosen for each combination of the others on held-out training
            images.
        evaluate: the probes after training, and other labelled data sets on which they are scored too.
        jobs: where the runs are started, and how many at the same time.
        only: run the known cell with this name or number, counted from 0, and no other, and write no table.
        trust: whether code that the recipe names (package.module:function) is imported, which runs its modules: True,
            or the names that you trust.
        console: where to print; None: standard error.
        **changes: fields of every run, as in `fullrank.pretrain`: `data="photos"`, `epochs=3`.

    Raises:
        UserError: something is wrong; no run was started.
        Interrupted: SIGINT, SIGTERM or SIGHUP; the runs have written checkpoints.
    """
    console = console or stderr()
    options = {"seeds": seeds, "out": out, "choose": choose, "evaluate": evaluate, "trust": trust, "console": console}
    plan, folder = sweep_plan(recipe, grid, changes, **options)
    result = SweepResult(folder, run_sweep(plan, folder, jobs, only=only, console=console))
    if only is None:
        console.print(f"written: {', '.join(map(str, result.write()))}")
        if len(result.final) > MOST_REPORTED:
            found = f"the first {MOST_REPORTED} of {len(result.final)} runs"
            console.print(f"report.html compares {found}; the tables have all")
    return result


def sweep_plan(
    recipe: Recipe | str | Path,
    grid: Mapping[str, Sequence[Any]],
    changes: Mapping[str, Any],
    *,
    seeds: int | Sequence[int],
    out: str | Path | None,
    choose: str | None,
    evaluate: EvaluationPlan,
    trust: bool | Collection[str],
    console: Console,
) -> tuple[Plan, Path]:
    """Return the plan of a sweep and its folder; the arguments are those of `sweep`.

    Raises:
        UserError: a value is wrong.
    """
    lines = dict[str, None]()  # the same lines of all cells are printed once

    def build(values: dict[str, Any]) -> Recipe:
        built = resolve_with_init(recipe, {**changes, **values}, notify=lines.setdefault)
        return with_marks(import_code(built, trust, notify=lines.setdefault))

    plan = grid_plan(grid, build, seeds=seeds_of(seeds), evaluate=evaluate, chosen=choose)
    for line in lines:
        console.print(line)
    return plan, Path("sweeps") / plan([])[0].recipe.name if out is None else as_path(out, "out")


@open_once()
def run_sweep(
    plan: Plan,
    folder: Path,
    jobs: Jobs = Jobs(),  # noqa: B008  frozen
    *,
    only: str | None = None,
    stored: Sequence[Row] = (),
    console: Console | None = None,
) -> list[Row]:
    """Run all cells of a plan and return their rows, in the order of the plan, done and failed ones.

    A cell that is done is taken from its row, a run that was stopped goes on, and a cell that failed is tried once in
    each call. A cell whose run another process has locked counts as failed. The output of the jobs is in
    FOLDER/logs.

    Args:
        plan: returns all cells known so far, given the rows of the cells that have ended.
        folder: the run directory of a cell is FOLDER/CELL.
        jobs: where the cells run, and how many at the same time.
        only: run the known cell with this name or number, counted from 0, and no other.
        stored: rows of earlier runs whose folders are gone, of any version of the library; those of the same recipe,
            images and code of the user count as done.
        console: where to print; None: standard error.

    Returns:
        The rows; those with `status` "failed" say why in `error`.

    Raises:
        UserError: something is wrong with a cell; nothing was run.
        Interrupted: SIGINT, SIGTERM or SIGHUP; the same call goes on.
    """
    console, rows = console or stderr(), dict[str, Row]()
    digest.cache_clear()  # images may have changed since the last sweep of this process
    while True:
        found, cells = collect_rows(plan, folder, rows.values(), stored)
        rows = {row.cell: row for row in found}
        cells = cells if only is None else [_find_cell(cells, only)]
        missing = [cell for cell in cells if cell.name not in rows]
        if len({cell.name.casefold() for cell in cells}) < len(cells):
            raise UserError("two runs have the same name, expected a name of its own for each; rename one")
        if not missing:
            return [rows[cell.name] for cell in cells]
        check_cells(missing, folder)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        left = f"{len(missing)} of {len(cells)} runs to train"
        console.print(f"{folder}: {left}; the output of each is in {folder / 'logs'}")
        try:
            for cell, reason in run_cells(missing, folder, jobs):
                row = None if reason else read_row(folder / cell.name)
                rows[cell.name] = row or new_row(cell, status="failed", error=reason or "its job wrote no row")
                ended = sum(each.name in rows for each in cells)
                console.print(f"[{ended}/{len(cells)}] {cell.name}: {rows[cell.name].summary()}")
        except Interrupted as stop:
            final = sum(rows[cell.name].is_final for cell in cells if cell.name in rows)
            done = f"{final} of {len(cells)} runs are done"
            remedy = f"the others go on with the same command ({folder})"
            raise Interrupted(stop.signum, f"{stop}: {done}, {remedy}") from None


def collect_rows(
    plan: Plan, folder: Path, rows: Iterable[Row] = (), stored: Sequence[Row] = ()
) -> tuple[list[Row], list[Cell]]:
    """Return the given rows, those in the folder and those stored, and all cells that are known then; nothing is run.

    The plan gets the rows in the order of the cells: the first of two equal scores is that of the first cell.
    """
    known, elsewhere = ({row.cell: row for row in each} for each in (rows, stored))
    while True:
        cells = list(plan(list(known.values())))
        found = [known.get(cell.name) or existing_row(cell, folder, elsewhere.get(cell.name)) for cell in cells]
        before, known = list(known), {row.cell: row for row in found if row}
        if list(known) == before:
            return list(known.values()), cells


def list_cells(plan: Plan, folder: Path, command: str, stored: Sequence[Row] = ()) -> None:
    """Print the cells, each with its number, state, and the command that runs it, separated by tabs.

    The states are done, diverged, unfinished (running, stopped or failed: there is a run directory without a row),
    occupied (the folder holds another recipe, other images or something else) and to run. `stored` are rows as in
    `run_sweep`.
    """
    rows, cells = collect_rows(plan, folder, stored=stored)
    states = {row.cell: row.state for row in rows}
    for number, cell in enumerate(cells):
        state = states.get(cell.name) or ("unfinished" if (folder / cell.name).is_dir() else "to run")
        try:
            if cell.name not in states:
                check_folder(cell, folder / cell.name)
        except UserError:
            state = "occupied"
        print(f"{number}\t{state}\t{command} --cell {shlex.quote(cell.name)}")


def require_success(rows: Sequence[Row], command: str) -> None:
    """Raise an error if cells have failed for another reason than divergence.

    Raises:
        ProcessFailed: with the reason of each.
    """
    failed = [row for row in rows if not row.is_final]
    if failed:
        error = ProcessFailed(f"{len(failed)} of {len(rows)} runs failed; the same call tries them again: {command}")
        error.add_note("\n".join(f"  {row.cell} {row.summary()}" for row in failed))
        raise error


def _find_cell(cells: Sequence[Cell], which: str) -> Cell:
    """Return the cell with a number, counted from 0, or a name.

    Raises:
        UserError: there is none.
    """
    names = {cell.name: cell for cell in cells} | {str(number): cell for number, cell in enumerate(cells)}
    if which not in names:
        hint = suggest(which, [cell.name for cell in cells])
        raise UserError(f"--cell {which} is neither a number from 0 to {len(cells) - 1} nor the name of a run{hint}")
    return names[which]
