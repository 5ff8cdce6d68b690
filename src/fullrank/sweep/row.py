"""The result of one cell: a small JSON object, `row.json` in the run directory, from which tables and figures are
drawn.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fullrank.errors import UserError
from fullrank.files import atomic_write, parse_json, read_text
from fullrank.structure import Count, JsonObject, structure
from fullrank.sweep.cell import Cell, EvaluationPlan

ROW = "row.json"


@dataclass(frozen=True)
class OnlineScore:
    """Accuracy of the online classifier on the whole test split after an epoch."""

    epoch: float
    accuracy: float
    top5: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one cell.

    >>> Row(cell="a", recipe="digits", objective="frossl", seed=0, status="done").is_done
    True
    """

    cell: str
    """Name of the cell and of its run directory."""
    settings: JsonObject = field(default_factory=dict)
    """The values in which the cells of the sweep differ."""
    recipe: str
    """Name of the recipe."""
    objective: str
    seed: Count
    status: Literal["done", "failed"]
    error: str = ""
    """Why the cell failed, in one line."""
    diverged: bool = False
    """The run failed because its loss, weights or embeddings were not finite: a result, which training again would give
    again."""
    steps: Count = 0
    epochs: float = 0.0
    seconds: float = 0.0
    """Duration of the training loop, also over several calls; without the evaluation after training."""
    cpu_seconds: float = 0.0
    """CPU time of the training loop, summed over the threads of its first process. Other jobs on the machine change it
    less than `seconds`; it does not hold the time of a GPU. 0: not known.
    """
    online: tuple[OnlineScore, ...] = ()
    """Scores of the online classifier after the epochs of `probe.epochs`."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Name of a data set → name of a probe as in `EvaluationPlan` → accuracy in [0, 1]. `data` is the run's own data
    set."""
    effective_rank: dict[str, float] = field(default_factory=dict)
    """Effective rank on held-out images after training: "backbone" and "projector"."""
    data: str = ""
    """Name of the data set."""
    images: str = ""
    """Digest of the images of the data set. Rows with another digest are not comparable."""
    train_images: Count = 0
    """Number of images that the network was trained on."""
    test_images: Count = 0
    """Number of images that the probes were scored on; validation images if `data.validation` holds some out."""
    fingerprint: str = ""
    """`Recipe.fingerprint` of the recipe that was asked for."""
    code: dict[str, str] = field(default_factory=dict)
    """Name of a function of the user → digest of its source file. Rows of another version of the function are not
    comparable."""
    evaluate: EvaluationPlan = field(default_factory=EvaluationPlan)
    environment: JsonObject = field(default_factory=dict)
    """Hardware, versions, commit."""

    @property
    def is_done(self) -> bool:
        """Whether the run has ended and was evaluated."""
        return self.status == "done"

    @property
    def is_final(self) -> bool:
        """Whether another attempt would give the same result."""
        return self.is_done or self.diverged

    @property
    def last_online(self) -> float | None:
        """The last accuracy of the online classifier, None if it was not scored."""
        return self.online[-1].accuracy if self.online else None

    def score(self, probe: str, data: str = "") -> float | None:
        """Return the accuracy of a probe on a data set, by default the run's own; None if it was not measured."""
        return self.scores.get(data or self.data, {}).get(probe)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, value: Any, *, source: str = "row") -> "Row":
        """Build a row from the result of `to_json`.

        Raises:
            UserError: a field is missing, unknown or of the wrong type.

        >>> row = Row(cell="a", recipe="digits", objective="frossl", seed=0, status="done", online=(OnlineScore(1.0, 0.5),))
        >>> Row.from_json(row.to_json()) == row
        True
        """
        return structure(value, cls, source)


def read_row(run: Path) -> Row | None:
    """Return the row of a run directory, or None if it has none.

    Raises:
        UserError: the file is damaged.
    """
    path = run / ROW
    if not path.exists():
        return None
    try:
        return Row.from_json(parse_json(read_text(path)), source=str(path))
    except (OSError, ValueError) as error:  # UserError is a ValueError
        raise UserError(f"{path} is damaged ({error}); remove it, and the next call measures it again") from error


def write_row(run: Path, row: Row) -> None:
    """Write the row of a run directory, atomically."""
    with atomic_write(run / ROW, overwrite=True) as draft:
        draft.write_text(json.dumps(row.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def changed_code(row: Row, cell: Cell) -> list[str]:
    """Return the user's functions of a cell whose source file has changed since a row was measured."""
    from fullrank.run.environment import source_digests  # imported here: slow

    return [name for name, digest in source_digests(cell.recipe).items() if row.code.get(name, digest) != digest]


def answers(row: Row | None, cell: Cell, images: str) -> bool:
    """Return whether a row is the final result of a cell: of the same recipe, images and code, and with at least its
    evaluation.

    Args:
        row: a row, or None.
        cell: the cell.
        images: digest of the cell's images now.
    """
    if row is None or not row.is_final or (row.fingerprint, row.images) != (cell.recipe.fingerprint, images):
        return False
    if changed_code(row, cell):
        return False
    return row.diverged or row.evaluate.covers(cell.evaluate)


def require_same_images(rows: Iterable[Row], what: str = "the table") -> None:
    """Check that all rows were measured on the same data set, by its images, not by its name.

    Raises:
        UserError: they were not.
    """
    names: dict[str, str] = {}
    for row in rows:
        names.setdefault(row.images, row.data)
    if len(names) > 1:
        found = ", ".join(f"{name} ({digest})" for digest, name in names.items())
        raise UserError(
            f"{what} would mix the data sets {found}, whose images differ; keep the runs of each in a folder of their own"
        )
