"""Replace a run by a new one: the old run is kept aside until the new run has a checkpoint, and returns if the new run
fails before.

The old files are in the subfolder `.replaced`. `recipe.json` is the last file that is set aside and the first that
returns: therefore a `.replaced` without it is an interrupted move, whose files belong back in the run directory.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fullrank.errors import UserError
from fullrank.files import DRAFT
from fullrank.models.runs import INITIAL
from fullrank.training import list_checkpoints
from fullrank.training.checkpoints import recover_checkpoints

RUN_SUBDIRECTORIES = ("checkpoints", "tensorboard", "wandb")
RUN_FILES = (
    *("environment.json", "metrics.jsonl", "spectrum.npz", "views.png", "decode_errors.jsonl"),
    *("evaluation.json", "neighbours.json", "report.html", "row.json", INITIAL),
)
RECIPE = "recipe.json"
ASIDE, DISCARDED = ".replaced", ".discarded"


def is_run(path: Path) -> bool:
    """Return whether the folder contains a run, which may be set aside."""
    return os.path.exists(path / RECIPE) or os.path.exists(path / ASIDE / RECIPE)


def is_leftover(name: str) -> bool:
    """Return whether a name is that of a lock, or of a temporary file or folder that a killed process has left in a run
    directory.
    """
    drafts = tuple(f".{file}." for file in (*RUN_FILES, RECIPE))
    return name in (".lock", ASIDE, DISCARDED) or (name.startswith(drafts) and name.endswith(DRAFT))


def set_aside(path: Path) -> None:
    """Move the files of the run in `path` aside, and no other files."""
    recover(path)
    if (path / ASIDE).exists():  # a new run that failed without a checkpoint; the run before it is aside already
        _remove_files(path)
        return
    if (path / RECIPE).exists():
        (path / ASIDE).mkdir()
        _move(path, path / ASIDE, (*RUN_SUBDIRECTORIES, *RUN_FILES, RECIPE))


def recover(path: Path) -> None:
    """Complete what a killed process has left unfinished in a run directory; the caller holds the lock.

    Raises:
        UserError: `.replaced` is a symbolic link, as in a stranger's folder: the files of another folder would be
            moved.
    """
    aside = path / ASIDE
    if aside.is_symlink():
        raise UserError(f"{aside} is a symbolic link, expected a folder that fullrank wrote; remove the link")
    recover_checkpoints(path / "checkpoints")
    for draft in path.glob(f".*{DRAFT}"):
        if is_leftover(draft.name):
            draft.unlink(missing_ok=True)
    if aside.exists() and not ((aside / RECIPE).exists() and (path / RECIPE).exists()):
        _return(path)
    elif list_checkpoints(path / "checkpoints"):
        discard(path)


def discard(path: Path) -> None:
    """Remove the old run for good; called after each checkpoint of the new run."""
    if (path / ASIDE).exists():
        shutil.rmtree(path / DISCARDED, ignore_errors=True)
        os.replace(path / ASIDE, path / DISCARDED)  # at once, so that no half of a run can return
    shutil.rmtree(path / DISCARDED, ignore_errors=True)


@contextmanager
def restored_on_failure(path: Path) -> Iterator[None]:
    """If an exception ends the context before the new run has a checkpoint, bring the old run back, if there was one.

    Raises:
        UserError: the error of the context, with the fact that the old run is restored.
    """
    try:
        yield
    except BaseException as error:
        if not (path / ASIDE).exists() or list_checkpoints(path / "checkpoints"):
            raise
        _remove_files(path)
        _return(path)
        restored = f"the run that was in {path} is restored"
        if isinstance(error, UserError):
            raise UserError(f"{error}; {restored}") from error
        error.add_note(restored)
        raise


def _return(path: Path) -> None:
    _move(path / ASIDE, path, (RECIPE, *RUN_SUBDIRECTORIES, *RUN_FILES))
    (path / ASIDE).rmdir()


def _move(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if os.path.lexists(source / name):
            os.replace(source / name, target / name)


def _remove_files(path: Path) -> None:
    """Remove the files of a run, recipe.json last, because it marks the folder as a run."""
    for folder in RUN_SUBDIRECTORIES:
        shutil.rmtree(path / folder, ignore_errors=True)
    for file in (*RUN_FILES, RECIPE):
        (path / file).unlink(missing_ok=True)
