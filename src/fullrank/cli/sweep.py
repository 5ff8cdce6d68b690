"""`fullrank sweep`: train a grid of settings and seeds; one table, one figure and one report."""

import io
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fullrank.arguments import check_source
from fullrank.cli.flags import check_arguments, parse
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.pretrain_recipe import read_arguments
from fullrank.cli.sweep_arguments import SweepArguments, SweepOptions, split_arguments
from fullrank.errors import UserError, pick
from fullrank.recipes import Recipe
from fullrank.recipes import with_devices
from fullrank.sweep.cell import EvaluationPlan, Setting
from fullrank.sweep.grid import Axes, combinations, grid_plan, seeds_of, with_marks
from fullrank.terminal import stderr

if TYPE_CHECKING:
    from rich.console import Console

    from fullrank.sweep import Plan, Row

NO_PROBES = ("none",)

USAGE = """usage: fullrank sweep RECIPE | SOURCE [flags of fullrank pretrain, each with one or several values] [options]

Train every combination of the flags' values with every seed, evaluate each network, and write one table, one figure and one report.
The same command goes on where it was stopped. A failed run does not end the others; the next call tries it again.

  fullrank sweep digits --objective frossl vicreg --seeds 3                 six runs, compared over their seeds
  fullrank sweep digits --optimizer.lr 1e-3 3e-3 --projector.widths 512,64 1024,64
                                                                            a value with several numbers is joined by commas
  fullrank sweep digits --objective frossl vicreg --optimizer.lr 1e-3 3e-3 --choose optimizer.lr --seeds 3
                                                                            the learning rate is chosen on held-out training images
  fullrank sweep digits --objective my_module:my_loss frossl --data photos  your own function, your own images
  fullrank sweep digits --objective frossl vicreg --list                    the command of each run, for a cluster

"""


def run(arguments: Sequence[str]) -> None:
    """Parse and run, or list the cells, or run one cell."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        parse(SweepOptions, ["--help"], command="sweep RECIPE")
        return
    check_arguments(arguments, command="sweep")
    if arguments[0].startswith("-"):
        raise UserError(
            f"the first argument must be a recipe or a path, got {arguments[0]}; for example: fullrank sweep digits --seeds 3"
        )
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        parse(SweepOptions, ["--help"], command="sweep RECIPE")
        return
    console = stderr()
    split = split_arguments(arguments[1:])
    options = parse(SweepOptions, split.own, command="sweep")
    for source in options.transfer:
        check_source(source)
    plan, name = read_plan(arguments[0], split, options, console)
    with heavy_imports():
        from fullrank.evaluation import PROBES
        from fullrank.sweep.single import list_cells, run_single_cell
    for probe in () if options.probes == NO_PROBES else options.probes:
        pick(probe, PROBES, "probe")
    folder = options.out or Path("sweeps") / name
    command = shlex.join(["fullrank", "sweep", *_without(arguments, "--list", "--cell")])
    if options.list:
        list_cells(plan, folder, command)
        return
    if options.cell is not None:
        run_single_cell(plan, folder, options.cell, console)
        return
    from fullrank.sweep import require_success, run_sweep

    console.print(f"{describe_grid(split.axes, seeds_of(options.seeds), options.choose)} in {folder}")
    rows = run_sweep(plan, folder, parallel=options.parallel, console=console)
    print_results(rows, folder, name, console)
    require_success(rows, command)


def read_plan(recipe: str, split: SweepArguments, options: SweepOptions, console: "Console") -> "tuple[Plan, str]":
    """Return the plan of the grid and the name of the recipe; what follows from the flags is printed once.

    Raises:
        UserError: a flag or a value is wrong.
    """
    from rich.console import Console

    lines: dict[str, None] = {}

    def build(values: dict[str, Setting]) -> Recipe:
        file = io.StringIO()
        quiet = Console(file=file, markup=False, emoji=False, highlight=False, soft_wrap=True, width=400)
        try:
            built, pretrain_options = read_arguments([recipe, *split.flags(values)], quiet)
        except UserError as error:
            if not (unknown := re.search(r"unrecognized options: --hyper\.(\w+)", str(error))):
                raise
            objective = f"the objective {values['objective']}" if "objective" in values else "the objective"
            raise UserError(
                f"{objective} has no hyperparameter {unknown[1]}, but --hyper.{unknown[1]} is given to every run; leave the flag out, "
                "or give the objectives that have it a sweep of their own"
            ) from error
        lines.update(dict.fromkeys(file.getvalue().splitlines()))
        if pretrain_options.devices is not None:
            built = with_devices(built, pretrain_options.devices)
        check_source(built.data.source)
        return with_marks(built)

    probes = () if options.probes == NO_PROBES else options.probes
    evaluate = EvaluationPlan(probes=probes, transfer=options.transfer)
    plan = grid_plan(split.axes, build, seeds=seeds_of(options.seeds), evaluate=evaluate, chosen=options.choose)
    for line in lines:
        console.print(line)
    return plan, plan([])[0].recipe.name


def describe_grid(axes: Axes, seeds: Sequence[int], chosen: str | None = None) -> str:
    """Return the values of a grid and the number of its runs.

    >>> describe_grid({"objective": ["frossl", "vicreg"]}, [0, 1])
    'grid: objective frossl | vicreg × seed 0 1: 2 × 2 runs'
    >>> describe_grid({"objective": ["frossl", "vicreg"], "optimizer.lr": [0.1, 0.2, 0.3]}, [0, 1], "optimizer.lr")
    'grid: objective frossl | vicreg × optimizer.lr 0.1 | 0.2 | 0.3 × seed 0 1: 6 runs for the choice, then 2 × 2 runs'
    """
    values = [f"{name} {' | '.join(map(str, each))}" for name, each in axes.items()]
    combos = len(combinations(axes))
    runs = f"{combos} × {len(seeds)} runs"
    if chosen is not None:
        runs = f"{combos} runs for the choice, then {combos // len(axes[chosen])} × {len(seeds)} runs"
    return f"grid: {' × '.join([*values, 'seed ' + ' '.join(map(str, seeds))])}: {runs}"


def print_results(rows: "Sequence[Row]", folder: Path, name: str, console: "Console") -> None:
    """Write the files of the result, and print the table."""
    from rich.console import Console

    from fullrank.sweep.results import MOST_REPORTED, finished_runs, write_results
    from fullrank.sweep.tables import print_table

    if not any(row.is_done for row in rows):
        return
    paths = write_results(rows, folder, f"sweep of {name}")
    print_table(rows, f"sweep of {name}: mean ± standard deviation (number of seeds)", Console())
    console.print(f"written: {', '.join(map(str, paths))}")
    if (runs := len(finished_runs(rows, folder))) > MOST_REPORTED:
        console.print(
            f"report.html compares the first {MOST_REPORTED} of {runs} runs; the tables and the figure have all"
        )


def _without(arguments: Sequence[str], *flags: str) -> list[str]:
    """Return the arguments without some flags and their values."""
    kept, skipping = [], False
    for argument in arguments:
        if argument.startswith("--"):
            skipping = argument.partition("=")[0] in flags
        if not skipping:
            kept.append(argument)
    return kept
