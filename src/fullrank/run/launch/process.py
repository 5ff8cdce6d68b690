"""One of several processes of a run: `python -m fullrank.run.launch.process FOLDER`, started by
`fullrank.run.launch.launcher`.

This module imports torch only inside `main`, after it has set the signal handlers, because the import takes seconds.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

STOP_TIMEOUT = 300.0
"""Seconds in which the processes of a run finish their step and write a checkpoint after a signal; after this time they
are killed."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """The arguments of `train_on_rank` for the processes of a run."""

    recipe: dict[str, Any]
    """The recipe as JSON."""
    out: str | None
    """The run directory; None: the next free `runs/NAME`."""
    resume: bool
    overwrite: bool
    hours: float | None = None
    trust: list[str] = field(default_factory=list)
    """The names of the functions that the processes may import."""
    wandb: bool | dict[str, Any]
    quiet: bool
    """Whether the processes print nothing."""
    argv: list[str]
    """The command of the parent, for environment.json."""


@dataclass(frozen=True)
class ProcessResult:
    """How one process ended."""

    status: Literal["succeeded", "user error", "interrupted", "failed"]
    """The process ended without an error, by a `UserError`, by `Interrupted`, or by any other exception."""
    message: str = ""
    """The message of the error; for a failure, the traceback."""
    signum: int = 0
    """The number of the signal that interrupted the process."""


class ProcessFiles:
    """The files through which the parent and its processes communicate. Each file is written atomically.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_spec(self, spec: ProcessSpec) -> None:
        """Write the spec for the processes."""
        self._write("spec.json", json.dumps(asdict(spec)))

    def read_spec(self) -> ProcessSpec:
        """Return the spec."""
        return ProcessSpec(**json.loads((self.folder / "spec.json").read_text()))

    def write_run_path(self, path: Path) -> None:
        """Write the path of the run; the first process calls this method as soon as the path is known."""
        self._write("run", str(path))

    def read_run_path(self) -> Path | None:
        """Return the path of the run, or None if the path is not known yet."""
        return Path(os.fsdecode(path.read_bytes())) if (path := self.folder / "run").exists() else None

    def write_result(self, rank: int, result: ProcessResult) -> None:
        """Write the result of one process."""
        self._write(f"{rank}.json", json.dumps(asdict(result)))

    def read_results(self, count: int) -> dict[int, ProcessResult]:
        """Return the results that exist, by rank, in the order in which they were written."""
        found = [
            (path.stat().st_mtime_ns, rank, path)
            for rank in range(count)
            if (path := self.folder / f"{rank}.json").exists()
        ]
        return {rank: ProcessResult(**json.loads(path.read_text())) for _, rank, path in sorted(found)}

    def _write(self, name: str, text: str) -> None:
        draft = self.folder / f".{name}"
        with suppress(FileNotFoundError):  # the parent was killed, and the folder is removed
            draft.write_bytes(os.fsencode(text))
            draft.replace(self.folder / name)


def main(folder: Path) -> int:
    """Train as one process of several and write the result to `folder`.

    Returns:
        The exit status: 0 if the other processes may end by themselves.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback if the process is stopped during the imports
    threading.Thread(target=stop_with_parent, args=[folder], daemon=True).start()

    from rich.console import Console

    from fullrank.errors import Interrupted, UserError
    from fullrank.recipes import from_dict
    from fullrank.run.pretrain import train_on_rank
    from fullrank.terminal import lasting_streams, stderr

    files, rank = ProcessFiles(folder), int(os.environ["RANK"])
    with lasting_streams():
        console = stderr()
        try:
            spec = files.read_spec()
            sys.argv = spec.argv
            console = Console(quiet=True) if spec.quiet else console
            train_on_rank(
                from_dict(spec.recipe),
                Path(spec.out) if spec.out else None,
                resume=spec.resume,
                overwrite=spec.overwrite,
                hours=spec.hours,
                trust=spec.trust,
                wandb=spec.wandb,
                console=console,
                on_path=files.write_run_path,
            )
            result, status = ProcessResult("succeeded"), 0
        except UserError as error:
            result, status = ProcessResult("user error", str(error)), 2
        except Interrupted as stop:
            result, status = ProcessResult("interrupted", str(stop), stop.signum), 0
        except BaseException:
            result, status = ProcessResult("failed", traceback.format_exc()), 1
        files.write_result(rank, result)
        if not folder.exists() and result.message:  # the parent, which would print the message, has been killed
            console.print(f"fullrank: {result.message.splitlines()[-1]}")
    return status


def stop_with_parent(folder: Path) -> None:
    """Wait until the parent has ended, then remove its folder and send SIGTERM to this process, which saves a
    checkpoint.

    The parent never writes to this process's standard input, so reading ends only when the parent ends. If this process
    does not stop in time, for example because it waits for a process that is stopped, it is killed.
    """
    os.read(sys.stdin.fileno(), 1)
    shutil.rmtree(folder, ignore_errors=True)  # exists only if the parent was killed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
