"""One cell: check it before the first run, train or go on, evaluate, and write its row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.distributed import rank
from fullrank.errors import UserError, pick
from fullrank.evaluation import PROBES, evaluate
from fullrank.evaluation.task import why_not_scorable
from fullrank.images.train_test import Splits, train_and_test
from fullrank.recipes import DataConfig, build_method, check, check_num_images, code_names, dry_run
from fullrank.run import Run
from fullrank.run.directory import check_free, is_run
from fullrank.run.environment import source_digests
from fullrank.run.pretrain import pretrain
from fullrank.run.resume import resumed_recipe
from fullrank.sweep.grid import Cell
from fullrank.sweep.row import OnlineScore, Row, identify, read_row, write_row

# The fields of environment.json that a row keeps.
PACKAGES = ("fullrank", "torch", "torchvision", "lightning", "timm", "numpy", "python")
ENVIRONMENT = (*PACKAGES, "platform", "hardware", "commit", "code", "processes")
FOLDER = "folder (--out of a sweep, --runs of a campaign)"


def run_cell(cell: Cell, folder: Path, *, console: Console) -> Row:
    """Train the run of a cell from where it stands, evaluate it, and return its row; an existing row of the same cell
    is taken.

    Args:
        cell: the cell.
        folder: the folder of the sweep.
        console: where to print.

    Raises:
        UserError: the folder of the cell holds another run, or a mistake that training would report.
        Interrupted: SIGINT, SIGTERM or SIGHUP; a checkpoint has been written.
    """
    path, (name, images) = folder / cell.name, identify(cell.recipe.data)
    if row := existing_row(cell, folder):
        return row
    row = read_row(path)
    if row and row.is_done and (row.fingerprint, row.images) == (cell.recipe.fingerprint, images):
        cell = replace(
            cell, evaluate=row.evaluate.union(cell.evaluate)
        )  # of another sweep, which measured other probes
        row = replace(row, evaluate=cell.evaluate, **_evaluated(Run(path), cell, name, console))
        write_row(path, row)
        return row
    row = new_row(cell, data=name, images=images)
    try:
        run = pretrain(cell.recipe, out=path, resume_or_start=True, trust=code_names(cell.recipe), console=console)
        row = replace(row, **_measured(run))
        if rank() == 0:  # of the processes that torchrun has started
            row = replace(row, **_evaluated(run, cell, name, console))
    except UserError as error:
        if not (is_run(path) and any(alarm.alarm == "not finite" for alarm in Run(path).metrics.alarms)):
            raise
        row = replace(row, status="failed", diverged=True, error=str(error), **_measured(Run(path)))
    if rank() == 0:
        write_row(path, row)
    return row


def existing_row(cell: Cell, folder: Path) -> Row | None:
    """Return the row of a cell, with the cell's settings, if it is final and of the same recipe, images and code, with
    at least the cell's evaluation; else None.
    """
    row = read_row(folder / cell.name)
    if row is None or not row.is_final or row.fingerprint != cell.recipe.fingerprint or changed_code(row, cell):
        return None
    if row.images != identify(cell.recipe.data)[1] or not (row.diverged or row.evaluate.covers(cell.evaluate)):
        return None
    return replace(row, cell=cell.name, settings=dict(cell.settings))


def changed_code(row: Row, cell: Cell) -> list[str]:
    """Return the user's functions of a cell whose source file has changed since a row was measured."""
    return [name for name, digest in source_digests(cell.recipe).items() if row.code.get(name, digest) != digest]


def new_row(cell: Cell, **fields: Any) -> Row:
    """Return the row of a cell before anything is measured."""
    recipe, code = cell.recipe, source_digests(cell.recipe)
    known: dict[str, Any] = {"recipe": recipe.name, "objective": recipe.objective, "seed": recipe.seed, "code": code}
    known |= {
        "status": "done",
        "settings": dict(cell.settings),
        "fingerprint": recipe.fingerprint,
        "evaluate": cell.evaluate,
    }
    return Row(cell=cell.name, **known | fields)


def _measured(run: Run) -> dict[str, Any]:
    """Return the fields of a row that the run directory holds."""
    metrics, environment, checkpoints = run.metrics, run.environment, run.checkpoints
    last = max(metrics.train, key=lambda row: row.step, default=None)
    spectrum = metrics.spectrum[-1] if metrics.spectrum else None
    return {
        "steps": last.step if last else 0,
        "epochs": last.epoch if last else 0.0,
        "seconds": float(environment.get("duration_seconds", 0.0)),
        "cpu_seconds": float(environment.get("cpu_seconds", 0.0)),
        "online": tuple(OnlineScore(epoch=x.epoch, accuracy=x.accuracy, top5=x.top5) for x in metrics.online),
        "effective_rank": {x: getattr(spectrum, x).effective_rank for x in ("backbone", "projector") if spectrum},
        "train_images": checkpoints[-1].meta().get("images", 0) if checkpoints else 0,
        "environment": {key: environment[key] for key in ENVIRONMENT if key in environment},
    }


def _evaluated(run: Run, cell: Cell, name: str, console: Console) -> dict[str, Any]:
    """Score the probes of the cell's plan on its own data set and on the others, and return the fields of the row."""
    scores, test_images = {}, 0
    subset = 0 if cell.evaluate.all_images else cell.recipe.data.subset
    for source in (None, *cell.evaluate.transfer) if cell.evaluate.probes else ():
        data = None if source is None else DataConfig(source=source)
        if data:
            data = replace(data, subset=min(subset, len(split(data).train)))
        options: dict[str, Any] = {"probes": cell.evaluate.probes, "baselines": False, "train_subset": bool(subset)}
        evaluation = evaluate(run.path, data, **options, notify=console.print)
        found = [s for s in evaluation.scores if s.features == "backbone" and s.metric == "accuracy"]
        named = {s.name if s.probe == "fractions" else s.probe: s.value for s in found}
        scores[identify(data)[0] if data else name] = named
        test_images = test_images or evaluation.test_images
    return {"scores": scores, "test_images": test_images}


def split(data: DataConfig) -> Splits:
    """Return the training and test images of a data set, which are opened once in a sweep."""
    return train_and_test(data.source, data.reading, validation=data.validation, subset=data.subset)


def check_cells(cells: Sequence[Cell], folder: Path) -> None:
    """Check every cell: its recipe, images, labels and probes, and that its folder is free or holds its run. Nothing is
    written.

    Raises:
        UserError: something is wrong; the message names the cell if it is only one of several.
    """
    built = []
    for cell in cells:
        try:
            _check_evaluation(cell)
            # cells that differ only in what cannot make a recipe invalid once its fields are valid are built once
            usual = {"optimizer": type(cell.recipe.optimizer)(), "schedule": type(cell.recipe.schedule)()}
            recipe = replace(cell.recipe, seed=0, epochs=1, **usual)
            if recipe not in built:
                built.append(recipe)
                check(recipe)
                dry_run(build_method(recipe), recipe)
                if recipe.data.storage != "streaming":
                    check_num_images(recipe, len(split(recipe.data).train))
            _check_folder(cell, folder)
        except UserError as error:
            raise UserError(f"{error} (cell {cell.name})" if len(cells) > 1 else str(error)) from error


def _check_evaluation(cell: Cell) -> None:
    """Check the probes and the data sets on which a cell is evaluated."""
    plan, sources = cell.evaluate, dict[str, str]()
    for probe in plan.probes:
        pick(probe, PROBES, "probe")
    for data in (cell.recipe.data, *(DataConfig(source=source) for source in plan.transfer)) if plan.probes else ():
        if reason := why_not_scorable((splits := split(data)).train, splits.test):
            raise UserError(f"the runs cannot be evaluated: {reason}; to train only, give --probes none")
        name = identify(data)[0]
        if name in sources:
            raise UserError(f"{sources[name]} and {data.source} are both called '{name}' in a row; leave one out")
        sources[name] = data.source


def _check_folder(cell: Cell, folder: Path) -> None:
    """Check that the run directory of a cell is free, or holds a run of the same recipe, images and code."""
    path, (name, images) = folder / cell.name, identify(cell.recipe.data)
    if not is_run(path):
        check_free(path, option=FOLDER)
        return
    try:
        resumed_recipe(path, cell.recipe)
    except UserError as error:
        raise UserError(f"{error}; give another {FOLDER}") from error
    row, wrong = read_row(path), ""
    if row is not None and row.images != images:
        wrong = f"on other images ({row.data} {row.images}) than those of {cell.recipe.data.source} ({name} {images})"
    elif row is not None and (changed := changed_code(row, cell)):
        wrong = f"with another version of {', '.join(changed)}: the source file has changed since"
    if wrong:
        raise UserError(f"{path} was trained {wrong}; give another {FOLDER}")
