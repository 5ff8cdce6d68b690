"""The content of a run directory that a report shows, with notes on files that are missing or damaged."""

import io
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from fullrank.errors import UserError
from fullrank.evaluation.result import Evaluation
from fullrank.images import ImageDecodeError
from fullrank.images.decode_errors import convert_errors
from fullrank.images.files import read_regular_file
from fullrank.models import check_run
from fullrank.run import Metrics, Run, SpectrumHistory, read_json
from fullrank.run.alarm_messages import alarm_message, alarm_remedy
from fullrank.run.neighbour_rows import FILE, NeighbourRows
from fullrank.run.rows import AlarmRow, OnlineRow, Row, SpectrumMetrics, SpectrumRow, TrainRow

MAX_PICTURE_BYTES = 2**26

AnyRow = TypeVar("AnyRow", bound=Row)
Series = tuple[list[int], list[float | None]]
"""The steps and the values of one quantity over training; None for values that are not finite."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The content of one run directory that a report shows."""

    label: str
    """The name of the run on the page: the name of its directory."""
    folder: str = "RUN"
    """The directory as it was given, for commands."""
    recipe: dict[str, Any]
    environment: dict[str, Any]
    train: Sequence[TrainRow] = ()
    spectrum: Sequence[SpectrumRow] = ()
    online: Sequence[OnlineRow] = ()
    alarms: Sequence[AlarmRow] = ()
    spectra: SpectrumHistory | None = None
    evaluations: tuple[Evaluation, ...] = ()
    views: bytes | None = None
    neighbours: NeighbourRows | None = None
    """Test images and their nearest neighbours."""
    last_checkpoint: int | None = None
    """The step of the newest checkpoint."""
    decode_errors: int = 0
    """Number of files that could not be read as images."""
    file_notes: tuple[str, ...] = ()
    """One sentence for each file that is missing or damaged."""

    def logged_metrics(self, location: str) -> SpectrumMetrics | None:
        """Return the logged metrics of the last spectrum at a location, None if there is none."""
        return getattr(self.spectrum[-1], location) if self.spectrum else None


def series(rows: Sequence[AnyRow], value: Callable[[AnyRow], float | None]) -> Series:
    """Return steps and values of one quantity over rows, without the rows that lack the quantity.

    >>> row = TrainRow(step=5, epoch=0.5, loss=float("inf"), terms={}, lr=0.1, images_per_second=100.0)
    >>> series([row], lambda row: row.loss), series([row], lambda row: row.effective_rank)
    (([5], [None]), ([], []))
    """
    points = [(row.step, y) for row in rows if (y := value(row)) is not None]
    return [step for step, _ in points], [float(y) if isfinite(y) else None for _, y in points]


def look_up(tree: Any, *keys: str) -> Any:
    """Return the value at a path of keys, None if there is none.

    >>> look_up({"data": {"source": "digits"}}, "data", "source"), look_up({"data": None}, "data", "source")
    ('digits', None)
    """
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def read_run_summary(path: Path) -> RunSummary:
    """Read a run directory; files other than `recipe.json` may be missing, and derived files may be damaged.

    Args:
        path: A run directory of `fullrank pretrain`.

    Raises:
        UserError: `path` is not a run directory, or its recipe or its log is damaged.

    >>> read_run_summary(Path("no-such-run"))
    Traceback (most recent call last):
    fullrank.errors.UserError: 'no-such-run' is not a run directory, it has no recipe.json; give the directory of a `fullrank pretrain` run
    """
    check_run(path)
    run, notes = Run(path), []

    def read(name: str, attribute: str, consequence: str) -> Any:
        """Return an attribute of the run; return None and add a note if its file is missing, damaged or empty."""
        value, problem = None, "is empty" if (path / name).exists() else "is missing"
        try:
            value = getattr(run, attribute) if (path / name).exists() else None
        except UserError:
            problem = "cannot be read"
        if not value:
            notes.append(f"{name} {problem}: {consequence}.")
        return value

    metrics = Metrics.read(path / "metrics.jsonl")
    _check_alarms(path / "metrics.jsonl", metrics.alarms)
    if not metrics:
        state = "is empty" if (path / "metrics.jsonl").exists() else "is missing"
        notes.append(f"metrics.jsonl {state}: there are no curves over training.")
    spectra = read("spectrum.npz", "spectra", "there is no spectrum figure")
    if metrics.incomplete_line is not None:
        notes.append(
            f"The last line of metrics.jsonl (line {metrics.incomplete_line}) is incomplete and was skipped; killed runs leave such lines."
        )
    recipe = read_json(path / "recipe.json")  # as JSON, so that recipes of older versions can be shown too
    checkpoints = [checkpoint.step for checkpoint in run.checkpoints]
    notes += _gaps(metrics, spectra, log_every=recipe.get("log_every"), checkpoints=checkpoints)
    return RunSummary(
        label=path.resolve().name,
        folder=shlex.quote(str(path)),
        recipe=recipe,
        environment=read("environment.json", "environment", "versions, hardware and duration are unknown") or {},
        train=metrics.train,
        spectrum=metrics.spectrum,
        online=metrics.online,
        alarms=metrics.alarms,
        spectra=spectra,
        evaluations=read("evaluation.json", "evaluations", "the run was not evaluated (fullrank evaluate)") or (),
        neighbours=_read_neighbours(path / FILE, notes),
        views=_read_picture(path / "views.png", notes),
        last_checkpoint=checkpoints[-1] if checkpoints else None,
        decode_errors=_count_lines(path / "decode_errors.jsonl"),
        file_notes=tuple(notes),
    )


def _check_alarms(path: Path, alarms: Sequence[AlarmRow]) -> None:
    """Check that each alarm has the details of which its message consists.

    Raises:
        UserError: an alarm has not.
    """
    for alarm in alarms:
        try:
            alarm_message(alarm)
            alarm_remedy(alarm)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{path}: the alarm of step {alarm.step} is damaged ({reason}); fix or remove the line"
            ) from error


def _gaps(
    metrics: Metrics, spectra: SpectrumHistory | None, *, log_every: Any, checkpoints: Sequence[int]
) -> list[str]:
    """Return one sentence for each part of the training that the log or the spectra do not cover.

    Every run evaluates its spectrum at step 0 and logs every `log_every` steps, so rows that are missing there were
    removed.
    """
    notes, steps = [], [row.step for row in metrics]
    interval = log_every if isinstance(log_every, int) else 0
    lost = "were lost, for example because the file was emptied"
    if steps and min(steps) > interval:
        notes.append(f"There are no metrics before step {min(steps)}: earlier rows of metrics.jsonl {lost}.")
    if (
        steps and checkpoints and max(checkpoints) - max(steps) >= max(interval, 1)
    ):  # a stopped run has no row at its last step
        notes.append(
            f"There are no metrics after step {max(steps)}, but a checkpoint of step {max(checkpoints)}: rows of metrics.jsonl {lost}."
        )
    if spectra is not None:
        logged = {row.step for row in metrics.spectrum}
        missing = sorted(logged - set(spectra.steps.tolist()))
        if missing:
            span = f"step {missing[0]}" if len(missing) == 1 else f"steps {missing[0]} to {missing[-1]}"
            notes.append(f"spectrum.npz lacks {len(missing)} of {len(logged)} spectra ({span}): they {lost}.")
        elif not logged and spectra.steps[0] > 0:
            notes.append(
                f"There are no spectra before step {spectra.steps[0]}: earlier spectra of spectrum.npz {lost}."
            )
    return notes


def _read_picture(path: Path, notes: list[str]) -> bytes | None:
    try:
        with convert_errors(path.name):
            picture = read_regular_file(path, max_bytes=MAX_PICTURE_BYTES)
            Image.open(
                io.BytesIO(picture), formats=("PNG",)
            ).load()  # of other formats, Pillow would run Ghostscript for EPS
    except ImageDecodeError:
        problem = "cannot be read" if os.path.lexists(path) else "is missing"
        notes.append(f"{path.name} {problem}: the images and their views are not shown.")
        return None
    return picture


def _read_neighbours(path: Path, notes: list[str]) -> NeighbourRows | None:
    """Return the content of neighbours.json, None without the file, which only `fullrank evaluate` writes."""
    try:
        return NeighbourRows.read(path) if path.exists() else None
    except UserError:
        notes.append(f"{path.name} cannot be read: the nearest neighbours are not shown.")
        return None


def _count_lines(path: Path) -> int:
    return sum(1 for line in path.read_bytes().split(b"\n") if line.strip()) if path.is_file() else 0
