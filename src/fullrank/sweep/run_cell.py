"""Run one cell in this process: train or go on, evaluate, and write the row."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fullrank.distributed import rank
from fullrank.errors import UserError
from fullrank.evaluation.judging import evaluate
from fullrank.evaluation.names import flag_name
from fullrank.recipes import DataConfig, code_names
from fullrank.run import Run
from fullrank.run.environment import source_digests
from fullrank.run.pretrain import pretrain
from fullrank.run.directory import is_run
from fullrank.sweep.cell import Cell
from fullrank.sweep.dataset import count_training_images, identify
from fullrank.sweep.row import OnlineScore, Row, answers, read_row, write_row

PACKAGES = ("fullrank", "torch", "torchvision", "lightning", "timm", "numpy", "python")
ENVIRONMENT = (*PACKAGES, "platform", "hardware", "commit", "code", "processes")
"""The fields of environment.json that a row keeps."""


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
    path = folder / cell.name
    name, images = identify(cell.recipe.data)
    row = read_row(path)
    if row is not None and answers(row, cell, images):
        return row
    if row is not None and row.is_done and (row.fingerprint, row.images) == (cell.recipe.fingerprint, images):
        cell = replace(cell, evaluate=row.evaluate.joined(cell.evaluate))  # another sweep has measured something else
        row = replace(row, evaluate=cell.evaluate, **evaluated(Run(path), cell, name, console))
        write_row(path, row)
        return row
    try:
        run = pretrain(cell.recipe, out=path, resume_or_start=True, trust=code_names(cell.recipe), console=console)
    except UserError as error:
        if not (is_run(path) and has_diverged(Run(path))):
            raise
        row = replace(
            new_row(cell, name, images), status="failed", diverged=True, error=str(error), **measured(Run(path))
        )
    else:
        row = replace(new_row(cell, name, images), **measured(run))
        if rank() == 0:  # of the processes that a launcher has started
            row = replace(row, **evaluated(run, cell, name, console))
    if rank() == 0:
        write_row(path, row)
    return row


def new_row(cell: Cell, data: str = "", images: str = "") -> Row:
    """Return the row of a cell before anything is measured."""
    return Row(
        cell=cell.name,
        settings=dict(cell.settings),
        recipe=cell.recipe.name,
        objective=cell.recipe.objective,
        seed=cell.recipe.seed,
        status="done",
        data=data,
        images=images,
        fingerprint=cell.recipe.fingerprint,
        code=source_digests(cell.recipe),
        evaluate=cell.evaluate,
    )


def measured(run: Run) -> dict:
    """Return the fields of a row that the run directory holds."""
    metrics, environment = run.metrics, run.environment
    last = max(metrics.train, key=lambda row: row.step, default=None)
    spectrum = metrics.spectrum[-1] if metrics.spectrum else None
    ranks = {name: getattr(spectrum, name).effective_rank for name in ("backbone", "projector")} if spectrum else {}
    checkpoints = run.checkpoints
    return {
        "steps": last.step if last else 0,
        "epochs": last.epoch if last else 0.0,
        "seconds": float(environment.get("duration_seconds", 0.0)),
        "cpu_seconds": float(environment.get("cpu_seconds", 0.0)),
        "online": tuple(OnlineScore(row.epoch, row.accuracy, row.top5) for row in metrics.online),
        "effective_rank": {name: value for name, value in ranks.items() if value is not None},
        "train_images": checkpoints[-1].meta().get("images", 0) if checkpoints else 0,
        "environment": {key: environment[key] for key in ENVIRONMENT if key in environment},
    }


def evaluated(run: Run, cell: Cell, name: str, console: Console) -> dict:
    """Score the probes of the cell's plan on its own data set and on the others, and return the fields of the row."""
    if not cell.evaluate.probes:
        return {}
    scores, test_images = {}, 0
    subset = 0 if cell.evaluate.all_images else cell.recipe.data.subset
    for source in (None, *cell.evaluate.transfer):
        other = (
            None
            if source is None
            else DataConfig(source=source, subset=min(subset, count_training_images(DataConfig(source=source))))
        )
        options: dict[str, Any] = {"probes": cell.evaluate.probes, "baselines": False, "train_subset": bool(subset)}
        evaluation = evaluate(run.path, other, **options, notify=console.print)
        data = name if other is None else identify(other)[0]
        found = {score.probe: score.accuracy for score in evaluation.scores if score.features == "backbone"}
        scores[data] = {flag_name(probe): accuracy for probe, accuracy in found.items()}
        test_images = test_images or evaluation.test_images
    return {"scores": scores, "test_images": test_images}


def has_diverged(run: Run) -> bool:
    """Return whether an alarm of a run says that its loss, weights or embeddings were not finite."""
    return any(alarm.alarm == "not finite" for alarm in run.metrics.alarms)
