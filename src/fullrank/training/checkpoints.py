"""Checkpoints: one folder per step, written under a temporary name and then renamed, so that no checkpoint is
incomplete.

Weights are safetensors. The other state for resuming (optimizer, probe) is a `torch.save` that is read with
`weights_only=True`; only the newest two checkpoints have this file. `meta.json` has the SHA-256 of both files, which is
compared at every read.
"""

import hashlib
import io
import json
import math
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fullrank.config import from_json
from fullrank.errors import UserError
from fullrank.files import FULL, check_file, parse_json, read_text, sync

WEIGHTS, STATE, META = "model.safetensors", "state.pt", "meta.json"
NUM_STATES = 2  # checkpoints with the state for resuming: two, in case the newest checkpoint is damaged
KEEP_ALL = -1
MAX_META_BYTES = 2**28  # the fingerprint has six bytes for each image in memory


@dataclass(frozen=True)
class Checkpoint:
    """One folder `checkpoints/step-00001234`. Its methods raise `UserError` if a file is missing or damaged."""

    path: Path
    step: int

    def weights(self) -> dict[str, Tensor]:
        """Read the method's parameters and buffers to the CPU."""
        self._verify(WEIGHTS)
        try:
            return load_file(self.path / WEIGHTS)
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise self._damaged(WEIGHTS, error) from error

    def meta(self) -> dict[str, Any]:
        """Read the metadata: step, fingerprints of recipe and images, the place in a stream, the machine, and the
        checksums of the other files.
        """
        try:
            meta = parse_json(read_text(self.path / META, max_bytes=MAX_META_BYTES))
        except (OSError, ValueError) as error:
            raise self._damaged(META, error) from error
        if not isinstance(meta, dict) or not isinstance(meta.get("checksums"), dict):
            raise self._damaged(META, "expected an object with the checksums of the checkpoint")
        if meta.get("step") != self.step:
            raise self._damaged(META, f"its step is {meta.get('step')!r}, expected {self.step} as in the folder's name")
        return meta

    def entry(self, kind: Any, name: str) -> Any:
        """Read an entry of the metadata, of this type."""
        try:
            return from_json(kind, self.meta().get(name), name)
        except UserError as error:
            raise self._damaged(META, error) from error

    def state(self) -> dict[str, Any]:
        """Read the other state for resuming; no code in the file is executed."""
        if not os.path.lexists(self.path / STATE):
            raise UserError(f"{self.path} has no {STATE}; resume from one of the newest two checkpoints")
        self._verify(STATE)
        try:
            state = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises many types for a damaged file
            raise self._damaged(STATE, error) from error
        if not isinstance(state, dict):
            raise self._damaged(STATE, f"got a {type(state).__name__}, expected a dict")
        return state

    def _verify(self, name: str) -> None:
        """Compare a file with its checksum."""
        expected = self.meta()["checksums"].get(name)
        try:
            check_file(self.path / name)
            with (self.path / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._damaged(name, error) from error
        if found != expected:
            raise self._damaged(name, f"its checksum differs from the one in {META}")

    def _damaged(self, name: str, reason: Exception | str) -> UserError:
        text = next(iter(str(reason).splitlines()), type(reason).__name__)
        earlier = _before(self.step, self.path.parent)
        remedy = "remove this folder to use the previous checkpoint" if earlier else "restore it, or start a new run"
        return UserError(f"checkpoint file {self.path / name} cannot be read ({text}); {remedy}")


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints under `folder`, oldest first; [] if the folder does not exist.

    Raises:
        UserError: the folder cannot be read.

    >>> list_checkpoints(Path("nowhere"))
    []
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        remedy = "restore the folder, or fix its permissions"
        raise UserError(f"cannot read the checkpoints in {folder} ({error.strerror}); {remedy}") from error
    steps = {name: int(match[1]) for name in names if (match := re.fullmatch(r"step-([0-9]{1,18})", name))}
    return [Checkpoint(folder / name, step) for name, step in sorted(steps.items(), key=lambda item: item[1])]


def save_checkpoint(
    folder: Path, step: int, *, weights: dict[str, Tensor], state: dict[str, Any], meta: dict[str, Any], keep: int = 2
) -> Checkpoint:
    """Write `folder/step-…` atomically and durably, then remove older checkpoints.

    Args:
        folder: Folder of all checkpoints; a missing folder is created.
        step: Number of steps taken. A checkpoint of the same step is replaced.
        weights: Parameters and buffers, on any device.
        state: The other state for resuming: tensors and plain Python values only.
        meta: Values that JSON can represent.
        keep: Number of checkpoints that remain, the newest ones; -1: all, of which the newest two have their state.

    Raises:
        UserError: the disk is full or not writable; the existing checkpoints are not changed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> checkpoint = save_checkpoint(folder, 7, weights={"w": torch.ones(2)}, state={"lr": 0.1}, meta={"images": 3})
    >>> checkpoint.path.name, checkpoint.weights(), checkpoint.state(), checkpoint.meta()["images"]
    ('step-00000007', {'w': tensor([1., 1.])}, {'lr': 0.1}, 3)
    """
    final, temporary, previous = (
        folder / name.format(step) for name in ("step-{:08d}", ".tmp-{:08d}", ".previous-{:08d}")
    )
    # Serialise in memory: on a full disk, torch and safetensors raise three different errors, `write_bytes` only
    # OSError.
    files = {WEIGHTS: to_safetensors(weights), STATE: _state(state)}
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[META] = (json.dumps({"step": step, **meta, "checksums": checksums}, indent=2) + "\n").encode()
    try:
        recover_checkpoints(folder)
        temporary.mkdir(parents=True)
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        for path in (*temporary.iterdir(), temporary, folder.parent):  # the parent, because `folder` may be new
            sync(path)
        if final.exists():
            os.replace(final, previous)  # os.replace cannot replace a folder that is not empty
        os.replace(temporary, final)
        sync(folder)
    except OSError as error:
        if previous.exists() and not final.exists():
            os.replace(previous, final)
        shutil.rmtree(temporary, ignore_errors=True)
        remedy = "free some space" if error.errno in FULL else "check the disk and its permissions"
        if _before(math.inf, folder):
            remedy = f"the previous checkpoint is intact; {remedy}, then continue with --resume"
        else:
            remedy = f"no checkpoint has been written yet; {remedy}, then start the run again"
        raise UserError(f"could not write the checkpoint of step {step} under {folder} ({error}); {remedy}") from error
    shutil.rmtree(previous, ignore_errors=True)
    with suppress(OSError):  # the new checkpoint is complete, so an old one that cannot be removed stops no run
        _remove_old(folder, keep)
    return Checkpoint(final, step)


def _remove_old(folder: Path, keep: int) -> None:
    found = list_checkpoints(folder)
    for older in found[:-NUM_STATES]:
        (older.path / STATE).unlink(missing_ok=True)
    for older in [] if keep == KEEP_ALL else found[:-keep]:
        removed = folder / f".removed-{older.step:08d}"  # renamed first, so that no checkpoint is ever half removed
        os.replace(older.path, removed)
        shutil.rmtree(removed, ignore_errors=True)


def recover_checkpoints(folder: Path) -> None:
    """Restore a checkpoint that a killed process was replacing, and remove the temporary folders of killed processes.

    Raises:
        UserError: `folder` is a link, so that the checkpoints may belong to another run.
    """
    if folder.is_symlink():
        target = os.readlink(folder)
        raise UserError(f"{folder} is a link to {target}, expected a folder of this run; copy the checkpoints")
    for path in folder.glob(".previous-*"):
        final = folder / path.name.replace(".previous", "step")
        if not final.exists():
            os.replace(path, final)
    for pattern in (".tmp-*", ".previous-*", ".removed-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _before(step: int | float, folder: Path) -> list[Checkpoint]:
    """Return the checkpoints before a step; none if the folder cannot be read."""
    with suppress(UserError):
        return [checkpoint for checkpoint in list_checkpoints(folder) if checkpoint.step < step]
    return []


def to_safetensors(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file. Tensors are copied, because safetensors rejects tensors that share
    memory.
    """
    copies = {key: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for key, t in tensors.items()}
    return save(copies, metadata=metadata)


def _state(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
