"""Checkpoints: one folder per step, written under a temporary name and then renamed, so that no checkpoint is incomplete.

Weights are safetensors. The other state for resuming (optimizer, probe) is a `torch.save` that is read with `weights_only=True`;
only the newest two checkpoints have this file.
"""

import errno
import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fullrank.errors import UserError
from fullrank.reading import parse_json, read_text

WEIGHTS, STATE, META = "model.safetensors", "state.pt", "meta.json"


@dataclass(frozen=True)
class Checkpoint:
    """One folder `checkpoints/step-00001234`. Its methods raise `UserError` if a file is missing or corrupted."""

    path: Path
    step: int

    def weights(self) -> dict[str, Tensor]:
        """Read the method's parameters and buffers to the CPU."""
        try:
            return load_file(self.path / WEIGHTS)
        except (SafetensorError, OSError, ValueError) as error:
            raise _corrupted(self.path / WEIGHTS, error) from error

    def meta(self) -> dict[str, Any]:
        """Read the metadata: step, fingerprint of the recipe, number of images."""
        try:
            return dict(parse_json(read_text(self.path / META)))
        except (OSError, ValueError, TypeError) as error:
            raise _corrupted(self.path / META, error) from error

    def state(self) -> dict[str, Any]:
        """Read the other state for resuming; no code in the file is executed."""
        try:
            return torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {STATE}, so it cannot be resumed; resume from one of the newest two checkpoints") from None
        except Exception as error:  # torch.load raises many types for a corrupted file
            raise _corrupted(self.path / STATE, error) from error


def _corrupted(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"checkpoint file {path} cannot be read ({reason}); remove this folder to use the previous checkpoint")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints under `folder`, oldest first; [] if the folder does not exist.

    >>> list_checkpoints(Path("nowhere"))
    []
    """
    found = [Checkpoint(path, int(path.name.removeprefix("step-"))) for path in folder.glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def save_checkpoint(folder: Path, step: int, *, weights: dict[str, Tensor], state: dict[str, Any], meta: dict[str, Any]) -> Checkpoint:
    """Write `folder/step-…` atomically and durably, then delete `state.pt` of all but the newest two checkpoints.

    Args:
        folder: Folder of all checkpoints; a missing folder is created.
        step: Number of steps taken. A checkpoint of the same step is replaced.
        weights: Parameters and buffers, on any device.
        state: The other state for resuming: tensors and plain Python values only.
        meta: Values that JSON can represent.

    Raises:
        UserError: the disk is full or not writable; the existing checkpoints are not changed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> checkpoint = save_checkpoint(folder, 7, weights={"w": torch.ones(2)}, state={"lr": 0.1}, meta={})
    >>> checkpoint.path.name, checkpoint.weights(), checkpoint.state(), checkpoint.meta()
    ('step-00000007', {'w': tensor([1., 1.])}, {'lr': 0.1}, {'step': 7})
    """
    final, temporary, previous = (folder / name.format(step) for name in ("step-{:08d}", ".tmp-{:08d}", ".previous-{:08d}"))
    # Serialise in memory: on a full disk, torch and safetensors raise three different errors, `write_bytes` only OSError.
    files = {WEIGHTS: to_safetensors(weights), STATE: _state(state), META: (json.dumps({"step": step, **meta}, indent=2) + "\n").encode()}
    try:
        for leftover in (temporary, previous):  # a killed process may leave these folders
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        if final.exists():
            os.replace(final, previous)  # os.replace cannot replace a folder that is not empty
        os.replace(temporary, final)
        _sync(folder)
    except OSError as error:
        if previous.exists() and not final.exists():
            os.replace(previous, final)
        shutil.rmtree(temporary, ignore_errors=True)
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the disk and its permissions"
        raise UserError(
            f"could not write the checkpoint of step {step} under {folder} ({error}); the previous checkpoint is intact; "
            f"{remedy}, then continue with --resume"
        ) from error
    shutil.rmtree(previous, ignore_errors=True)
    for older in list_checkpoints(folder)[:-2]:  # two, in case the newest checkpoint is damaged
        (older.path / STATE).unlink(missing_ok=True)
    return Checkpoint(final, step)


def to_safetensors(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file. Tensors are copied, because safetensors rejects tensors that share memory."""
    copies = {name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, t in tensors.items()}
    return save(copies, metadata=metadata)


def _state(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk, so that a power failure cannot leave a renamed but empty checkpoint."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
