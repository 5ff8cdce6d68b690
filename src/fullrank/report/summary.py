"""What a report shows of one run: the content of its directory, with a note for each missing or damaged file."""

import io
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup
from PIL import Image

from fullrank.config import from_json
from fullrank.errors import UserError
from fullrank.evaluation.score import Evaluation
from fullrank.files import check_file
from fullrank.models import check_run
from fullrank.plot_style import COLORS
from fullrank.report.neighbour_rows import NEIGHBOURS, NeighbourRows
from fullrank.run import Metrics, Run, SpectrumHistory, read_json
from fullrank.run.rows import AlarmRow, OnlineRow, Row, SpectrumMetrics, SpectrumRow, TrainRow

MAX_PICTURE_BYTES = 2**26
# The border before the label of a run; it changes where the dash of the run's line changes.
BORDERS = ("solid", "double", "dotted", "groove")

AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The content of one run directory that a report shows.

    Attributes:
        label: The name of the run on the page: the name of its directory.
        number: The place of the run among those of the page, which decides its colour.
        folder: The directory as it was given, for commands.
        views: The picture of a few images and their views, a PNG.
        unreadable: Number of files that could not be read as images.
        file_notes: One sentence for each file that is missing or damaged.
    """

    label: str
    number: int = 0
    folder: str = "RUN"
    recipe: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    train: Sequence[TrainRow] = ()
    spectrum: Sequence[SpectrumRow] = ()
    online: Sequence[OnlineRow] = ()
    alarms: Sequence[AlarmRow] = ()
    spectra: SpectrumHistory | None = None
    evaluations: Sequence[Evaluation] = ()
    views: bytes | None = None
    neighbours: NeighbourRows | None = None
    unreadable: int = 0
    file_notes: Sequence[str] = ()

    @property
    def mark(self) -> str:
        """The label with a border in the colour of the run."""
        color, border = COLORS[self.number % len(COLORS)], BORDERS[self.number // len(COLORS) % len(BORDERS)]
        mark = Markup('<span class="run" style="border-color:{};border-left-style:{}">{}</span>')
        return mark.format(color, border, self.label)

    @property
    def last_step(self) -> int:
        """The last step of the log, 0 without a log."""
        return max((rows[-1].step for rows in (self.train, self.spectrum, self.alarms) if rows), default=0)

    @property
    def data(self) -> str:
        """The source of the images, empty if the recipe does not name it."""
        return str(look_up(self.recipe, "data.source") or "")

    def last(self, name: str) -> float | None:
        """Return the last value of a field of the spectrum rows, None without one."""
        values = series(self.spectrum, lambda row: getattr(row, name))[1]
        return float(values[-1]) if len(values) else None

    def last_metrics(self, location: str) -> SpectrumMetrics | None:
        """Return the logged metrics of the last spectrum at a location, None without one."""
        return self.spectrum[-1].full_metrics(location) if self.spectrum else None

    def evaluations_by_relevance(self) -> list[Evaluation]:
        """Return the evaluations on the data of the training, then the others, each with the most test images first;
        of equally many, the newest.
        """

        def is_other(evaluation: Evaluation) -> bool:  # `photos[test]` and `photos (held out)` are of the source photos
            rest = evaluation.data.removeprefix(self.data)
            return not self.data or rest == evaluation.data or rest[:1] not in ("", "[", " ", ",")

        return sorted(reversed(self.evaluations), key=lambda each: (is_other(each), -each.test_images))


def series(rows: Sequence[AnyRow], value: Callable[[AnyRow], float | None]) -> tuple[list[int], np.ndarray]:
    """Return the steps and the values of a quantity, without the rows that lack it.

    >>> row = TrainRow(step=5, epoch=0.5, loss=2.0, terms={}, lr=0.1, images_per_second=100.0)
    >>> series([row], lambda row: row.loss), series([row], lambda row: row.effective_rank)
    (([5], array([2.])), ([], array([], dtype=float64)))
    """
    points = [(row.step, y) for row in rows if (y := value(row)) is not None]
    return [step for step, _ in points], np.array([y for _, y in points], dtype=float)


def short(source: str) -> str:
    """Return a source of images with the name of its folder instead of an absolute path.

    >>> short("folder:/data/my photos/new[test]"), short("hf:owner/name"), short("digits (held out)")
    ('folder:new[test]', 'hf:owner/name', 'digits (held out)')
    """
    return re.sub(r"(?:^|(?<=:))/(?!/)[^\n:(\[]*/(?=[^/\s])", "", source)


def look_up(tree: Any, name: str) -> Any:
    """Return the value at a dotted name, None if there is none.

    >>> look_up({"data": {"source": "digits"}}, "data.source"), look_up({"data": None}, "data.source")
    ('digits', None)
    """
    for key in name.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def read_run_summary(path: Path) -> RunSummary:
    """Read a run directory. Only `recipe.json` and a sound `metrics.jsonl` are needed.

    Raises:
        UserError: `path` is not a run directory, or its recipe or its log is damaged.

    >>> read_run_summary(Path("no-such-run"))
    Traceback (most recent call last):
    fullrank.errors.UserError: 'no-such-run' is not a run directory, it has no recipe.json; give ...
    """
    check_run(path)
    run, notes = Run(path), []

    def read(name: str, load: Callable[[], Any], consequence: str) -> Any:
        """Return what `load` reads from a file; note if the file is missing, damaged or empty."""
        problem, value = "is missing", None
        if (path / name).exists():
            problem = "is empty"
            try:
                value = load()
            except UserError:
                problem = "cannot be read"
        if not value and consequence:
            notes.append(f"{name} {problem}: {consequence}.")
        return value

    metrics = Metrics.read(path / "metrics.jsonl")
    read("metrics.jsonl", lambda: metrics, "there are no curves over training")
    environment = read("environment.json", lambda: run.environment, "versions and duration are unknown") or {}
    of_pretrain = not environment.get("monitored")
    if metrics.incomplete_line is not None:
        notes.append(f"metrics.jsonl: line {metrics.incomplete_line} is incomplete, as a killed run leaves it.")
    unreadable, neighbours = path / "decode_errors.jsonl", None
    if (path / NEIGHBOURS).exists():
        neighbours = read(
            NEIGHBOURS,
            lambda: from_json(NeighbourRows, read_json(path / NEIGHBOURS), NEIGHBOURS),
            "no neighbours are shown",
        )
    return RunSummary(
        label=path.resolve().name,
        folder=shlex.quote(str(path)),
        recipe=read_json(path / "recipe.json"),  # as JSON: a report names what it shows, and runs no code of a recipe
        environment=environment,
        train=metrics.train,
        spectrum=metrics.spectrum,
        online=metrics.online,
        alarms=metrics.alarms,
        spectra=read("spectrum.npz", lambda: run.spectra, "there is no spectrum figure"),
        evaluations=read("evaluation.json", lambda: run.evaluations, "the run was not evaluated" * of_pretrain) or (),
        views=read("views.png", lambda: _read_png(path / "views.png"), "no images are shown" * of_pretrain),
        neighbours=neighbours,
        unreadable=unreadable.read_bytes().count(b"\n") if unreadable.is_file() else 0,
        file_notes=tuple(notes),
    )


def _read_png(path: Path) -> bytes:
    try:
        check_file(path)
        with path.open("rb") as file:
            picture = file.read(MAX_PICTURE_BYTES)
        Image.open(io.BytesIO(picture), formats=("PNG",)).load()  # of other formats, Pillow runs Ghostscript for EPS
    except Exception as error:  # Pillow raises errors of many kinds
        raise UserError(f"{path} cannot be read ({error})") from error
    return picture
