"""One cell: check it before the first run, train or go on, evaluate, and write its row."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.distributed import rank
from fullrank.errors import UserError, pick
from fullrank.evaluation import PROBES, evaluate
from fullrank.evaluation.task import why_not_scorable
from fullrank.files import write_json
from fullrank.images.train_test import Splits, train_and_test
from fullrank.recipes import DataConfig, build_method, check, check_num_images, dry_run, import_code
from fullrank.run import Run
from fullrank.run.directory import check_free, is_run
from fullrank.run.environment import PACKAGES, source_digests
from fullrank.run.pretrain import pretrain
from fullrank.run.resume import resumed_recipe
from fullrank.sweep.grid import Cell
from fullrank.sweep.row import ROW, EvaluationPlan, OnlineScore, Row, identify, read_row

# The fields of environment.json that a row keeps.
ENVIRONMENT = (*PACKAGES, "python", "platform", "hardware", "commit", "code", "processes")
FOLDER = "folder (--out of a sweep, --runs of a campaign)"


def run_cell(cell: Cell, folder: Path, *, console: Console) -> Row:
    """Train the run of a cell from where it stands, evaluate it, and return its row; what an existing row of the same
    cell has is not measured again.

    Args:
        cell: the cell.
        folder: the folder of the sweep.
        console: where to print.

    Raises:
        UserError: the folder of the cell holds another run, or a mistake that training would report.
        Interrupted: SIGINT, SIGTERM or SIGHUP; a checkpoint has been written.
    """
    path = folder / cell.name
    row = _of_cell(read_row(path), cell) or _train(cell, path, console)
    if rank() == 0:  # the first of the processes that torchrun has started
        if not row.has(cell.evaluate):
            plan = row.evaluate.union(cell.evaluate)  # another sweep has measured other probes
            row = replace(row, evaluate=plan, **_scores(cell, path, plan, console))
        write_json(path / ROW, asdict(row))
    return row


def existing_row(cell: Cell, folder: Path, stored: Row | None = None) -> Row | None:
    """Return the row of a cell, that in the folder or a stored one, with the cell's settings, if it is final and of the
    same recipe, images and code, with at least the cell's evaluation; else None.
    """
    rows = (_of_cell(row, cell) for row in (read_row(folder / cell.name), stored))
    return next((row for row in rows if row and row.has(cell.evaluate)), None)


def _of_cell(row: Row | None, cell: Cell) -> Row | None:
    """Return the row with the cell's settings, if it is final and of the same recipe, images and code."""
    if row and row.is_final and row.fingerprint == cell.recipe.fingerprint and not _difference(row, cell):
        return replace(row, cell=cell.name, settings=dict(cell.settings))
    return None


def _difference(row: Row, cell: Cell) -> str:
    """Return how a run was trained that has other images or code than a cell, or an empty text."""
    new = new_row(cell)
    if row.images != new.images:
        return f"on other images ({row.data} {row.images}) than those of {cell.recipe.data.source} ({new.images})"
    if row.code != new.code:
        return f"with another version of {', '.join(new.code)}: the source file has changed since"
    return ""


def new_row(cell: Cell, **fields: Any) -> Row:
    """Return the row of a cell before anything is measured."""
    recipe, (data, images) = cell.recipe, identify(cell.recipe.data)
    known: dict[str, Any] = {"recipe": recipe.name, "objective": recipe.objective, "seed": recipe.seed, "data": data}
    known |= {"images": images, "fingerprint": recipe.fingerprint, "code": source_digests(recipe), "status": "done"}
    nothing = replace(cell.evaluate, probes=(), transfer=())
    return Row(cell=cell.name, settings=dict(cell.settings), evaluate=nothing, **known | fields)


def _train(cell: Cell, path: Path, console: Console) -> Row:
    """Train the run of a cell, or go on with it, and return its row without scores."""
    outcome: dict[str, Any] = {}
    try:
        pretrain(import_code(cell.recipe, trust=True), out=path, resume=True, console=console)
    except UserError as error:
        if not has_diverged(path):
            raise
        outcome = {"status": "failed", "diverged": True, "error": str(error)}
    run = Run(path)
    metrics, environment, checkpoints = run.metrics, run.environment, run.checkpoints
    last = max(metrics.train, key=lambda row: row.step, default=None)
    spectrum = metrics.spectrum[-1] if metrics.spectrum else None
    return new_row(
        cell,
        steps=last.step if last else 0,
        epochs=last.epoch if last else 0.0,
        seconds=float(environment.get("duration_seconds", 0.0)),
        cpu_seconds=float(environment.get("cpu_seconds", 0.0)),
        online=tuple(OnlineScore(epoch=x.epoch, accuracy=x.accuracy, top5=x.top5) for x in metrics.online),
        effective_rank={x: spectrum.full_metrics(x).effective_rank for x in ("backbone", "projector") if spectrum},
        train_images=checkpoints[-1].meta().get("images", 0) if checkpoints else 0,
        environment={key: environment[key] for key in ENVIRONMENT if key in environment},
        **outcome,
    )


def has_diverged(path: Path) -> bool:
    """Return whether a run ended because its loss, weights or embeddings were not finite."""
    return is_run(path) and any(alarm.alarm == "not finite" for alarm in Run(path).metrics.alarms)


def _scores(cell: Cell, path: Path, plan: EvaluationPlan, console: Console) -> dict[str, Any]:
    """Score the probes on the run's own data set and on the others, and return the fields of the row."""
    own, scores, test_images = cell.recipe.data, {}, 0
    subset = 0 if plan.all_images else own.subset
    for data in plan.data_sets(own):
        other = replace(data, subset=min(subset, len(split(data).train)), subset_seed=own.subset_seed)
        other = None if data is own else other
        options: dict[str, Any] = {"probes": plan.probes, "baselines": False, "train_subset": bool(subset)}
        evaluation = evaluate(path, other, **options, notify=console.print)
        found = [s for s in evaluation.scores if s.features == "backbone" and s.metric == "accuracy"]
        scores[identify(data)[0]] = {s.name if s.probe == "fractions" else s.probe: s.value for s in found}
        test_images = test_images or evaluation.test_images
    return {"scores": scores, "test_images": test_images}


def split(data: DataConfig, seed: int = 0) -> Splits:
    """Return the training and test images of a data set, which are opened once in a sweep."""
    options = {"validation": data.validation, "subset": data.subset, "subset_seed": data.subset_seed}
    return train_and_test(data.source, data.reading, seed=seed, **options)


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
            check_folder(cell, folder / cell.name)
        except UserError as error:
            raise UserError(f"{error} (run {cell.name})" if len(cells) > 1 else str(error)) from error


def _check_evaluation(cell: Cell) -> None:
    """Check the probes and the data sets on which a cell is evaluated."""
    plan, names = cell.evaluate, list[str]()
    for probe in plan.probes:
        pick(probe, PROBES, "probe")
    for data in plan.data_sets(cell.recipe.data):
        if reason := why_not_scorable((splits := split(data)).train, splits.test):
            raise UserError(f"the runs cannot be evaluated: {reason}; to train only, give --probes none")
        if (name := identify(data)[0]) in names:
            raise UserError(f"two data sets are both called '{name}' in a row; leave out {data.source}")
        names.append(name)


def check_folder(cell: Cell, path: Path) -> None:
    """Check that the run directory of a cell is free, or holds a run of the same recipe, images and code.

    Raises:
        UserError: it holds something else.
    """
    if not is_run(path):
        check_free(path, option=FOLDER)
        return
    try:
        resumed_recipe(path, cell.recipe)
    except UserError as error:
        raise UserError(f"{error}; give another {FOLDER}") from error
    if (row := read_row(path)) and (difference := _difference(row, cell)):
        raise UserError(f"{path} was trained {difference}; give another {FOLDER}")
