"""`sweep` trains a grid of settings and seeds, and writes one table, one figure and one report."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.errors import UserError
from fullrank.models.initial_weights import named_backbone, read_start
from fullrank.recipes import RECIPES, Recipe, import_code
from fullrank.recipes.from_keywords import recipe_from_keywords
from fullrank.run.directory import as_path
from fullrank.sweep.cell import EvaluationPlan, Setting
from fullrank.sweep.engine import run_sweep
from fullrank.sweep.grid import grid_plan, seeds_of, with_marks
from fullrank.sweep.results import SweepResult, write_results
from fullrank.terminal import stderr


def sweep(
    recipe: Recipe | str | Path,
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Sequence[int] = 1,
    data: str | None = None,
    out: str | Path | None = None,
    choose: str | None = None,
    probes: Sequence[str] = ("linear", "knn"),
    transfer: Sequence[str] = (),
    parallel: int = 0,
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
        data: source of the images; it overrides the recipe.
        out: the folder; None: sweeps/NAME.
        choose: a field of the grid whose value is chosen for each combination of the others on held-out training
            images.
        probes: what is scored after training: names in `fullrank.evaluation.PROBES`.
        transfer: sources of other labelled data sets on which the same probes are scored.
        parallel: number of runs at the same time; 0: one for each GPU, or one on a CPU.
        trust: whether code that the recipe names is imported, as in `fullrank.pretrain`.
        console: where to print; None: standard error.
        **changes: fields of every run, as in `fullrank.pretrain`: `epochs=3`.

    Raises:
        UserError: something is wrong; no run was started.
        Interrupted: SIGINT, SIGTERM or SIGHUP; the runs have written checkpoints.
    """
    console = console or stderr()
    axes = {name: [to_setting(value) for value in _listed(name, values)] for name, values in grid.items()}
    originals = {name: dict(zip(axes[name], grid[name], strict=True)) for name in axes}

    def build(values: dict[str, Setting]) -> Recipe:
        fields = changes | {name: originals[name][value] for name, value in values.items()}
        init = fields.pop("init", None)
        start = None if init is None else read_start(init, backbone=named_backbone(fields))
        built = recipe_from_keywords(recipe, RECIPES, data, fields, start=start)
        built = built if data is None else replace(built, data=replace(built.data, source=data))
        return with_marks(import_code(built, trust, notify=console.print))

    evaluate = EvaluationPlan(probes=tuple(probes), transfer=tuple(transfer))
    plan = grid_plan(
        axes, build, seeds=seeds_of([seeds] if isinstance(seeds, int) else seeds), evaluate=evaluate, chosen=choose
    )
    first = plan([])[0].recipe
    folder = as_path(out, "out") if out is not None else Path("sweeps") / first.name
    rows = run_sweep(plan, folder, parallel=parallel, console=console)
    write_results(rows, folder, f"{first.name}: {', '.join(axes) or 'seeds'}")
    return SweepResult(folder, rows)


def to_setting(value: Any) -> Setting:
    """Return a value of the grid as a number or text: a list of numbers is joined by commas.

    >>> to_setting([512, 64]), to_setting(0.1)
    ('512,64', 0.1)
    """
    if isinstance(value, str | int | float):
        return value
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _listed(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"grid['{name}'] is {values!r:.60}, expected a list of values: ['{values}']")
    return values
