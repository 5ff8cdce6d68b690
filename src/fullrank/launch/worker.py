"""One process of a run on several: `python -m fullrank.launch.worker FOLDER`, started by `fullrank.launch.launcher`.

This module imports torch only inside `main`, after signals are set up, because the import takes seconds.
"""

import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What the processes of a run have to do."""

    recipe: dict[str, Any]
    """The recipe as JSON."""
    out: str | None
    """The run directory; None: the next free `runs/NAME`."""
    resume: bool
    overwrite: bool
    wandb: bool
    quiet: bool
    """Whether the processes print nothing."""
    argv: list[str]
    """The command of the parent, for environment.json."""


@dataclass(frozen=True)
class WorkerResult:
    """How one process ended."""

    status: Literal["succeeded", "user error", "interrupted", "failed"]
    """Without an error, by a `UserError`, by `Interrupted`, or by any other exception."""
    message: str = ""
    """The message of the error; for a failure, the traceback."""
    signum: int = 0
    """The number of the signal that interrupted the process."""


class WorkerFiles:
    """The files in one folder by which the parent and its worker processes communicate. Each is written atomically.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_spec(self, spec: WorkerSpec) -> None:
        """Write the spec for the workers."""
        self._write("spec.json", json.dumps(asdict(spec)))

    def read_spec(self) -> WorkerSpec:
        """Return the spec."""
        return WorkerSpec(**json.loads((self.folder / "spec.json").read_text()))

    def write_run_path(self, path: Path) -> None:
        """Write the path of the run; the first worker does, as soon as it is known."""
        self._write("run", str(path))

    def read_run_path(self) -> Path | None:
        """Return the path of the run, or None if it is not known yet."""
        return Path(path.read_text()) if (path := self.folder / "run").exists() else None

    def write_result(self, rank: int, result: WorkerResult) -> None:
        """Write the result of one worker."""
        self._write(f"{rank}.json", json.dumps(asdict(result)))

    def read_results(self, count: int) -> dict[int, WorkerResult]:
        """Return the results that exist, by rank, in the order in which they were written."""
        found = [(path.stat().st_mtime_ns, rank, path) for rank in range(count) if (path := self.folder / f"{rank}.json").exists()]
        return {rank: WorkerResult(**json.loads(path.read_text())) for _, rank, path in sorted(found)}

    def _write(self, name: str, text: str) -> None:
        draft = self.folder / f".{name}"
        draft.write_text(text)
        draft.replace(self.folder / name)


def main(folder: Path) -> int:
    """Train as one process of several and write the result to `folder`.

    Returns:
        The exit status: 0 if the other processes may end by themselves.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a worker that is stopped during the imports leaves no traceback
    threading.Thread(target=stop_with_parent, daemon=True).start()

    from rich.console import Console

    from fullrank.errors import Interrupted, UserError
    from fullrank.pretraining import train_on_rank
    from fullrank.recipes import from_dict
    from fullrank.terminal import stderr

    files, rank = WorkerFiles(folder), int(os.environ["RANK"])
    try:
        spec = files.read_spec()
        sys.argv = spec.argv
        train_on_rank(
            from_dict(spec.recipe),
            Path(spec.out) if spec.out else None,
            resume=spec.resume,
            overwrite=spec.overwrite,
            wandb=spec.wandb,
            console=Console(quiet=True) if spec.quiet else stderr(),
            on_path=files.write_run_path,
        )
        result, status = WorkerResult("succeeded"), 0
    except UserError as error:
        result, status = WorkerResult("user error", str(error)), 2
    except Interrupted as stop:
        result, status = WorkerResult("interrupted", str(stop), stop.signum), 0
    except BaseException:
        result, status = WorkerResult("failed", traceback.format_exc()), 1
    files.write_result(rank, result)
    return status


def stop_with_parent() -> None:
    """Send SIGTERM to this process, which then saves a checkpoint, when the parent has ended.

    The parent holds the other end of standard input and never writes to it.
    """
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
