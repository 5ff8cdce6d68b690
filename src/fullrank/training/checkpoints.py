"""Checkpoints: a folder a step, written beside its name and then renamed, so that there is never half a one.

Weights are safetensors. What resuming needs besides (optimizer, probe) is a `torch.save` that is read with `weights_only=True`;
only the newest two checkpoints keep it.
"""

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fullrank.errors import UserError

WEIGHTS, STATE, META = "model.safetensors", "state.pt", "meta.json"


@dataclass(frozen=True)
class Checkpoint:
    """One folder `checkpoints/step-00001234`."""

    path: Path
    step: int

    def weights(self) -> dict[str, Tensor]:
        """Read the weights. Raises UserError where the file is corrupted."""
        try:
            return load_file(self.path / WEIGHTS)
        except (SafetensorError, OSError, ValueError) as error:
            raise _corrupted(self.path / WEIGHTS, error) from error

    def meta(self) -> dict[str, Any]:
        """Read what belongs to the weights: step, recipe's fingerprint."""
        try:
            return json.loads((self.path / META).read_text())
        except (OSError, ValueError) as error:
            raise _corrupted(self.path / META, error) from error

    def state(self) -> dict[str, Any]:
        """Read what resuming needs besides the weights."""
        try:
            return torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise UserError(f"{self.path} cannot be resumed: it has no {STATE}; only a run's newest two checkpoints keep one") from None
        except Exception as error:      # torch.load answers a corrupted file with a dozen types
            raise _corrupted(self.path / STATE, error) from error


def _corrupted(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"checkpoint file {path} cannot be read ({reason}); remove its folder to fall back on the checkpoint before it")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints under `folder`, oldest first."""
    found = [Checkpoint(path, int(path.name.removeprefix("step-"))) for path in folder.glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def save_checkpoint(folder: Path, step: int, *, weights: dict[str, Tensor], state: dict[str, Any], meta: dict[str, Any]) -> Checkpoint:
    """Write `folder/step-…` atomically and durably, then drop the resume state of all but the newest two.

    Raises:
        UserError: the disk is full or not writable; the checkpoints before this one are untouched.
    """
    final = folder / f"step-{step:08d}"
    draft = folder / f".draft-{step:08d}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, draft / WEIGHTS)
        torch.save(state, draft / STATE)
        (draft / META).write_text(json.dumps({"step": step, **meta}, indent=2) + "\n")
        for file in draft.iterdir():
            _sync(file)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(draft, final)
        _sync(folder)
    except (OSError, SafetensorError, RuntimeError) as error:      # torch.save reports a full disk as a RuntimeError
        shutil.rmtree(draft, ignore_errors=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space" in str(error)
        remedy = "free some space" if full else "check the disk and its permissions"
        raise UserError(
            f"could not write the checkpoint of step {step} under {folder} ({error}); {remedy}, then continue with --resume: "
            "the checkpoint before it is whole"
        ) from error
    for older in list_checkpoints(folder)[:-2]:      # the one before the newest stays resumable, should the newest be damaged
        (older.path / STATE).unlink(missing_ok=True)
    return Checkpoint(final, step)


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk, so that a power cut cannot leave a renamed but empty checkpoint."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
