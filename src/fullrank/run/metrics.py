"""Read and write the log of a run, metrics.jsonl. The logs of TensorBoard and of Weights & Biases are derived from its
rows.
"""

import importlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.errors import UserError, pick
from fullrank.files import read_json, read_jsonl, write_json, write_text
from fullrank.recipes.recipe import flatten
from fullrank.run.rows import AlarmRow, OnlineRow, Row, SpectrumRow, TrainRow, row_from_json, row_to_json

# Arguments of `wandb.init`: a selection of `ARGUMENTS`.
WandbOptions = dict[str, Any]
ARGUMENTS: dict[str, None] = dict.fromkeys(("project", "name", "entity", "group", "job_type", "tags", "notes", "mode"))


@dataclass(frozen=True)
class Metrics(Sequence[Row]):
    """The rows of metrics.jsonl, in the order of the file.

    Attributes:
        incomplete_line: Number of an incomplete last line, which is ignored (a killed process may leave one); None if
            the file is complete.

    >>> row = TrainRow(step=1, epoch=0.1, loss=2.0, terms={"variance": 2.0}, lr=0.3, images_per_second=10.0)
    >>> metrics = Metrics((row,))
    >>> metrics[-1].step, metrics.train[0].terms, metrics.to_dicts()[0]["terms/variance"]
    (1, {'variance': 2.0}, 2.0)
    """

    rows: tuple[Row, ...] = ()
    incomplete_line: int | None = None

    @classmethod
    def read(cls, path: Path) -> "Metrics":
        """Read a metrics.jsonl; a missing file has no rows.

        Raises:
            UserError: a line is not a row; the message names the line.
        """
        values, incomplete_line = read_jsonl(path)
        rows = (row_from_json(value, source=f"{path}, line {k}") for k, value in enumerate(values, start=1))
        return cls(tuple(rows), incomplete_line)

    def __getitem__(self, index: Any) -> Any:
        """Return one row, or the tuple of rows of a slice."""
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def train(self) -> list[TrainRow]:
        """The rows of training steps."""
        return [row for row in self.rows if isinstance(row, TrainRow)]

    @property
    def spectrum(self) -> list[SpectrumRow]:
        """The rows of spectrum evaluations."""
        return [row for row in self.rows if isinstance(row, SpectrumRow)]

    @property
    def online(self) -> list[OnlineRow]:
        """The scores of the online probe on all test images, or of a linear probe on `probe.labelled`."""
        return [row for row in self.rows if isinstance(row, OnlineRow)]

    @property
    def alarms(self) -> list[AlarmRow]:
        """The rows of alarms."""
        return [row for row in self.rows if isinstance(row, AlarmRow)]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return each row as a flat dict, with names such as `terms/variance` and `backbone/effective_rank`."""
        rows = (flatten(row_to_json(row), separator="/") for row in self.rows)
        return [{name: value for name, value in row.items() if value != {}} for row in rows]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one line per row."""
        import pandas  # takes a second to import

        return pandas.DataFrame(self.to_dicts())


def scalars(row: Row) -> dict[str, float]:
    """Return the numeric fields of a row by flat name, without step and epoch; those of an online score below
    `online/`; {} for an alarm.

    >>> scalars(TrainRow(step=3, epoch=0.1, loss=1.5, terms={"variance": 1.5}, lr=0.3, images_per_second=10.0))
    {'loss': 1.5, 'terms/variance': 1.5, 'lr': 0.3, 'images_per_second': 10.0}
    """
    values = flatten({} if isinstance(row, AlarmRow) else row_to_json(row), separator="/")
    prefix = "online/" if isinstance(row, OnlineRow) else ""
    return {
        prefix + name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in ("step", "epoch")
    }


def check_wandb(options: WandbOptions | bool) -> Any:
    """Return the module wandb, None with False; True stands for the default options.

    Raises:
        UserError: wandb is not installed, or an option is unknown.
    """
    if options is False:
        return None
    for name in options if isinstance(options, dict) else ():
        pick(name, ARGUMENTS, "option of wandb")
    try:
        return importlib.import_module("wandb")
    except ImportError:
        missing = "--wandb needs the package wandb, which is not installed"
        raise UserError(f"{missing}; pip install 'fullrank[wandb]'") from None


def start_wandb(path: Path, options: WandbOptions | bool, config: Mapping[str, Any]) -> Any:
    """Return the W&B run of a run directory, None with False; a resumed run continues it, in the same project and with
    the same name.

    Args:
        path: the run directory.
        options: arguments of `wandb.init`; True: the defaults, project "fullrank" and the name of the directory.
        config: the hyperparameters of the run, as JSON.
    """
    if options is False:
        return None
    file = path / "wandb" / "run.json"
    chosen = {"project": "fullrank", "name": path.resolve().name, "id": uuid.uuid4().hex[:8]}
    if file.exists():
        # Other entries of the file are ignored: untrusted `settings` could name another server, which would
        # receive the user's key.
        chosen |= {name: value for name, value in read_json(file).items() if name in (*ARGUMENTS, "id")}
    chosen |= options if isinstance(options, dict) else {}
    file.parent.mkdir(exist_ok=True)
    write_json(file, chosen)
    return check_wandb(options).init(**chosen, dir=str(path), resume="allow", config=dict(config))


class MetricsWriter:
    """Writes rows to metrics.jsonl, to TensorBoard's event files and, if asked, to W&B.

    On resume, the rows after the checkpoint are removed, and the event files are rewritten from the remaining rows.
    Therefore each step is logged exactly once.

    Args:
        path: the run directory.
        before: the rows that remain, those up to the checkpoint.
        wandb: log to Weights & Biases too; a dict gives arguments of `wandb.init`.
        config: the hyperparameters of the run, for W&B.
    """

    def __init__(
        self, path: Path, before: Sequence[Row], *, wandb: WandbOptions | bool, config: Mapping[str, Any]
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        file = path / "metrics.jsonl"
        write_text(file, "".join(json.dumps(row_to_json(row)) + "\n" for row in before))
        self._folder = path / "tensorboard"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._events = SummaryWriter(str(self._folder))
        self._wandb = start_wandb(path, wandb, config)
        self._stream = file.open("a")
        for row in before:
            self._write_events(row)

    def write(self, row: Row) -> None:
        """Append one row."""
        self._stream.write(json.dumps(row_to_json(row)) + "\n")
        self._stream.flush()
        self._write_events(row)
        if self._wandb is not None and isinstance(row, AlarmRow):
            text = f"{row.message}; {row.remedy}"
            self._wandb.log({"alarm": f"{row.alarm}: {text}"}, step=row.step)
            self._wandb.alert(title=row.alarm, text=text, level="WARN")  # W&B forwards it if the user asked for it
        elif self._wandb is not None:
            self._wandb.log(scalars(row), step=row.step)

    def flush(self) -> None:
        """Flush all rows to the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._events.flush()

    def close(self) -> None:
        """Flush and close all files."""
        self.flush()
        self._stream.close()
        self._events.close()
        for number, file in enumerate(sorted(self._folder.glob("events.*"))):
            file.rename(self._folder / f"events.out.tfevents.{number}")  # the original name contains the host name
        if self._wandb is not None:
            self._wandb.finish()

    def _write_events(self, row: Row) -> None:
        for name, value in scalars(row).items():
            self._events.add_scalar(name, value, row.step)
