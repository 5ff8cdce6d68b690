"""Everything that can be wrong with the cells of a sweep, found before the first run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fullrank.arguments import check_source
from fullrank.errors import UserError, pick
from fullrank.evaluation import PROBES
from fullrank.evaluation.scorable import why_not_scorable
from fullrank.images import train_and_test
from fullrank.recipes import (
    DataConfig,
    Recipe,
    build_method,
    check,
    check_num_images,
    code_names,
    dry_run,
    import_code,
    to_dict,
)
from fullrank.run.directory import validate_output_dir
from fullrank.run.directory import is_run
from fullrank.run.resume import resumed_recipe
from fullrank.sweep.cell import Cell
from fullrank.sweep.dataset import count_training_images, identify, reading
from fullrank.sweep.folder import FOLDER
from fullrank.sweep.row import changed_code, read_row


def check_cells(cells: Sequence[Cell], folder: Path) -> None:
    """Check every cell: its recipe, images, labels and probes, and that its folder is free or holds its run. Nothing is
    written.

    Raises:
        UserError: something is wrong; the message names the cell if it is only one of several.
    """
    for cell in cells:
        try:
            check_evaluation(cell)
            _check_recipe(json.dumps(to_dict(without_numbers(cell.recipe))))
            check_num_images(cell.recipe, count_training_images(cell.recipe.data))
            check_folder(cell, folder)
        except UserError as error:
            raise UserError(f"{error} (cell {cell.name})" if len(cells) > 1 else str(error)) from error


def check_names(cells: Sequence[Cell]) -> None:
    """Check that no two cells have the same name, also on a system that ignores case.

    Raises:
        UserError: two have.
    """
    names: set[str] = set()
    for cell in cells:
        if cell.name.casefold() in names:
            raise UserError(f"two cells are called '{cell.name}', expected a name of its own for each; rename one")
        names.add(cell.name.casefold())


def without_numbers(recipe: Recipe) -> Recipe:
    """Return the recipe without what cannot make it invalid once its fields are valid: cells that differ only in these
    are checked once.
    """
    return replace(
        recipe, name="recipe", seed=0, epochs=1, optimizer=type(recipe.optimizer)(), schedule=type(recipe.schedule)()
    )


@lru_cache(maxsize=4096)
def _check_recipe(values: str) -> None:
    from fullrank.recipes import from_dict

    recipe = from_dict(json.loads(values))
    recipe = import_code(
        recipe, code_names(recipe)
    )  # the code was imported when the recipe was made; a recipe of JSON names it only
    check(recipe)
    dry_run(build_method(recipe), recipe)


def check_evaluation(cell: Cell) -> None:
    """Check the probes and the data sets on which a cell is evaluated.

    Raises:
        UserError: a probe is unknown, a source does not exist, its images have no labels, or two data sets have the
            same name.
    """
    for probe in cell.evaluate.probes:
        pick(probe, PROBES, "probe")
    for source in cell.evaluate.transfer:
        check_source(source)
    if cell.evaluate.probes:
        sources: dict[str, str] = {}
        for data in (cell.recipe.data, *(DataConfig(source=source) for source in cell.evaluate.transfer)):
            if reason := _why_not_scorable(reading(data)):
                raise UserError(
                    f"the runs cannot be evaluated: {reason}; fullrank sweep also trains without evaluation: --probes none"
                )
            name, _ = identify(data)
            if name in sources:
                raise UserError(
                    f"{sources[name]} and {data.source} are both called '{name}' in a row; leave one out, or rename its folder"
                )
            sources[name] = data.source


@lru_cache(maxsize=64)
def _why_not_scorable(data: DataConfig) -> str:
    splits = train_and_test(data.source, data.reading)
    return why_not_scorable(splits.train, splits.test)


def check_folder(cell: Cell, folder: Path) -> None:
    """Check that the run directory of a cell is free, or holds a run of the same recipe, images and code.

    Raises:
        UserError: it holds another run, or other files.
    """
    path = folder / cell.name
    if not is_run(path):
        validate_output_dir(path, option=FOLDER)
        return
    resumed_recipe(path, cell.recipe, remedy=f"repeat the call that made it, or give another {FOLDER}")
    row, (name, images) = read_row(path), identify(cell.recipe.data)
    if row is not None and row.images != images:
        raise UserError(
            f"{path} was trained on other images ({row.data} {row.images}) than those of {cell.recipe.data.source} ({name} {images}); "
            f"give another {FOLDER}, one for each data set"
        )
    if row is not None and (changed := changed_code(row, cell)):
        raise UserError(
            f"{path} was trained with another version of {', '.join(changed)}: the source file has changed since, and runs of two versions "
            f"cannot be compared; give another {FOLDER}, or bring the old version back"
        )
