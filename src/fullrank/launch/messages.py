"""What a parent and the processes that it started tell each other: the task, where the run is, and how each of them ended."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """What the processes are to do, and what they take over from the program that started them."""

    recipe: dict[str, Any]
    out: str | None
    resume: bool
    overwrite: bool
    wandb: bool
    quiet: bool
    argv: list[str]
    """The command that environment.json tells."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended, in its own words."""

    kind: Literal["done", "refused", "stopped", "failed"]
    """By its end, a UserError, an Interrupted, or our own bug."""
    message: str = ""
    """Of the error; the traceback of a bug."""
    signum: int = 0
    """Of the signal that stopped it."""


class Mailbox:
    """The folder through which a parent and its workers hear of each other.

    Args:
        folder: it exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def give(self, task: Task) -> None:
        """Leave the task."""
        (self.folder / "task.json").write_text(json.dumps(asdict(task)))

    def task(self) -> Task:
        """Take the task up."""
        return Task(**json.loads((self.folder / "task.json").read_text()))

    def announce(self, run: Path) -> None:
        """Say where the run is, as soon as it is somewhere."""
        self._write("run", str(run))

    def run(self) -> Path | None:
        """Return where the run is, if it is anywhere yet."""
        return Path(path.read_text()) if (path := self.folder / "run").exists() else None

    def report(self, rank: int, outcome: Outcome) -> None:
        """Say how this process ended."""
        self._write(f"{rank}.json", json.dumps(asdict(outcome)))

    def outcomes(self, count: int) -> dict[int, Outcome]:
        """Return what the processes reported, by rank, in the order in which they did."""
        found = [(path.stat().st_mtime_ns, rank, path) for rank in range(count) if (path := self.folder / f"{rank}.json").exists()]
        return {rank: Outcome(**json.loads(path.read_text())) for _, rank, path in sorted(found)}

    def _write(self, name: str, text: str) -> None:
        """Write whole or not at all: a process may be killed at any time."""
        draft = self.folder / f".{name}"
        draft.write_text(text)
        draft.replace(self.folder / name)
