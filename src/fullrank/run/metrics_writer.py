"""The log of a run: metrics.jsonl is the truth, TensorBoard's and W&B's are derived from its rows."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.run.directory import read_rows, write_text


class Log:
    """Rows go to `metrics.jsonl`, to TensorBoard's event files and, when asked, to W&B.

    On resume, rows of steps after the checkpoint are dropped and the event files are written anew from the rows that are left:
    no step stands twice, and none is missing.

    Args:
        path: the run directory.
        after: number of steps already taken; rows beyond are dropped.
        wandb: log to Weights & Biases too (`pip install wandb`).
        name: what W&B calls the run.
    """

    def __init__(self, path: Path, *, after: int = 0, wandb: bool = False, name: str = "run") -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self._file = path / "metrics.jsonl"
        kept = [row for row in read_rows(self._file) if row["step"] <= after]
        write_text(self._file, "".join(json.dumps(row) + "\n" for row in kept))
        self._folder = path / "tensorboard"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._events = SummaryWriter(str(self._folder))
        self._wandb = start_wandb(path, name) if wandb else None
        self._stream = self._file.open("a")
        for row in kept:
            self._to_tensorboard(row)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; it needs a "step"."""
        self._stream.write(json.dumps(row) + "\n")
        self._stream.flush()
        self._to_tensorboard(row)
        if self._wandb is not None:
            self._wandb.log(dict(scalars(row)), step=row["step"])

    def flush(self) -> None:
        """Push everything written so far to the disk: done before each checkpoint."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._events.flush()

    def close(self) -> None:
        """Flush and close all files."""
        self.flush()
        self._stream.close()
        self._events.close()
        for number, file in enumerate(sorted(self._folder.glob("events.*"))):
            file.rename(self._folder / f"events.out.tfevents.{number}")  # TensorBoard's own name carries the host's
        if self._wandb is not None:
            self._wandb.finish()

    def _to_tensorboard(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row):
            self._events.add_scalar(name, value, row["step"])


def scalars(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row, those of nested objects under `outer/inner`; the step itself is no scalar.

    >>> dict(scalars({"step": 3, "loss": 1.5, "terms": {"variance": 1.0}}))
    {'loss': 1.5, 'terms/variance': 1.0}
    """
    for name, value in row.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in ("step", "epoch"):
            yield prefix + name, float(value)


def start_wandb(path: Path, name: str) -> Any:
    """Start a W&B run that writes below the run directory, or continue the one that was started there.

    Raises:
        UserError: wandb is not installed.
    """
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("--wandb needs the package wandb, which is not installed; pip install 'fullrank[wandb]'") from None
    identity = path / "wandb" / "id"  # of this run directory alone: runs of one name are different runs
    if not identity.exists():
        identity.parent.mkdir(exist_ok=True)
        identity.write_text(uuid.uuid4().hex[:8])
    return wandb.init(project="fullrank", name=name, dir=str(path), resume="allow", id=identity.read_text())
