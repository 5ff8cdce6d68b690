"""A run directory read once into plain data: what is there, and in words what is not."""

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from PIL import Image, UnidentifiedImageError

from fullrank.errors import UserError
from fullrank.run import SpectrumHistory

PARTS = ("backbone", "projector")
"""The two places at which a spectrum is taken, as the files name them."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one run directory says."""

    label: str
    """How the page calls the run: the name of its directory."""
    recipe: dict[str, Any]
    environment: dict[str, Any]
    train: tuple[dict[str, Any], ...]
    """The lines of `metrics.jsonl` of kind `train`, by step; of a step that a resumed run logged twice, the later one."""
    spectrum_rows: tuple[dict[str, Any], ...]
    warnings: tuple[dict[str, Any], ...]
    spectra: SpectrumHistory | None
    evaluation: dict[str, Any] | None
    views: bytes | None
    decode_errors: int
    """How many files could not be read as images."""
    notes: tuple[str, ...]
    """What is missing or damaged, a sentence each."""

    def series(self, kind: str, *keys: str) -> tuple[list[int], list[float | None]]:
        """Steps and values of one number, without the lines of `kind` that do not have it; null and what is not finite become None.

        >>> lines = ({"step": 5, "terms": {"invariance": 0.5}}, {"step": 6})
        >>> nothing = dict(spectrum_rows=(), warnings=(), spectra=None, evaluation=None, views=None, decode_errors=0, notes=())
        >>> Record(label="run", recipe={}, environment={}, train=lines, **nothing).series("train", "terms", "invariance")
        ([5], [0.5])
        """
        steps, values = [], []
        for line in {"train": self.train, "spectrum": self.spectrum_rows}[kind]:
            holder = look_up(line, *keys[:-1])
            if isinstance(holder, dict) and keys[-1] in holder:
                value = holder[keys[-1]]
                steps.append(line["step"])
                values.append(float(value) if isinstance(value, int | float) and math.isfinite(value) else None)
        return steps, values


def look_up(tree: Any, *keys: str) -> Any:
    """The value at a path of keys, None where the path ends early.

    >>> look_up({"data": {"source": "digits"}}, "data", "source"), look_up({"data": None}, "data", "source")
    ('digits', None)
    """
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def read_run(path: Path) -> Record:
    """Read a run directory; `recipe.json` makes it one, every other file may be missing and is then named in `notes`.

    Args:
        path: The directory that `fullrank pretrain` wrote.

    Raises:
        UserError: not a run directory, or a file of it that is not what its name says (with file and line).

    >>> read_run(Path("no-such-run"))
    Traceback (most recent call last):
    fullrank.errors.UserError: 'no-such-run' is not a run directory: it holds no recipe.json; give the one that `fullrank pretrain` wrote
    """
    if not (path / "recipe.json").is_file():
        raise UserError(f"'{path}' is not a run directory: it holds no recipe.json; give the one that `fullrank pretrain` wrote")
    notes: list[str] = []
    lines = _metrics(path / "metrics.jsonl", notes)
    return Record(
        label=path.resolve().name,
        recipe=_decode((path / "recipe.json").read_text(encoding="utf-8", errors="replace"), path / "recipe.json"),
        environment=_object(path / "environment.json", notes, "versions, hardware and duration are not known") or {},
        train=_by_step(lines, "train"),
        spectrum_rows=_by_step(lines, "spectrum"),
        warnings=_by_step(lines, "alarm"),
        spectra=_spectra(path / "spectrum.npz", notes),
        evaluation=_object(path / "evaluation.json", notes, "fullrank evaluate has not scored this run"),
        views=_picture(path / "views.png", notes),
        decode_errors=_count_lines(path / "decode_errors.jsonl"),
        notes=tuple(notes),
    )


def _decode(text: str, path: Path, *, line: int = 1) -> dict[str, Any]:
    """One JSON object, whose text begins at `line` of the file."""
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {line + error.lineno - 1}: expected JSON ({error.msg}); repair or remove it") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}, line {line}: received a JSON {type(tree).__name__}, expected an object; repair or remove it")
    return tree


def _object(path: Path, notes: list[str], consequence: str) -> dict[str, Any] | None:
    if path.is_file():
        return _decode(path.read_text(encoding="utf-8", errors="replace"), path)
    notes.append(f"{path.name} is missing: {consequence}.")
    return None


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        notes.append(f"{path.name} is missing: there are no curves over training.")
        return []
    texts = [(i, text) for i, text in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1) if text.strip()]
    lines = []
    for i, text in texts:
        try:
            line = _decode(text, path, line=i)
        except UserError:
            if i < texts[-1][0]:
                raise
            notes.append(f"The last line of {path.name} (line {i}) is cut off, as when a run is killed while it writes; it is left out.")
            break
        if not isinstance(line.get("step"), int) or "kind" not in line:
            raise UserError(f"{path}, line {i}: expected an object with an integer 'step' and a 'kind'; repair or remove the line")
        lines.append(line)
    return lines


def _by_step(lines: list[dict[str, Any]], kind: str) -> tuple[dict[str, Any], ...]:
    """The lines of one kind by step; a resumed run logs again what lay after its checkpoint, and the later line counts."""
    latest = {(line["step"], line.get("message")): line for line in lines if line["kind"] == kind}
    return tuple(sorted(latest.values(), key=lambda line: line["step"]))


def _spectra(path: Path, notes: list[str]) -> SpectrumHistory | None:
    if not path.is_file():
        notes.append(f"{path.name} is missing: the spectrum cannot be drawn.")
        return None
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in ("steps", "samples", *PARTS) if name in file}
    except (BadZipFile, ValueError, TypeError, OSError, EOFError):
        notes.append(f"{path.name} cannot be read: the spectrum cannot be drawn.")
        return None
    steps = arrays.get("steps", np.zeros(0))
    samples = arrays.get("samples", np.zeros(len(steps)))
    eigenvalues = {part: arrays[part].astype(np.float64) for part in PARTS if part in arrays}
    if not len(steps) or not eigenvalues:
        notes.append(f"{path.name} holds no spectra yet.")
        return None
    if any(len(array) != len(steps) for array in (samples, *eigenvalues.values())):
        notes.append(f"{path.name} holds another number of spectra than of steps: the spectrum cannot be drawn.")
        return None
    return SpectrumHistory(steps=steps.astype(np.int64), samples=samples.astype(np.int64), eigenvalues=eigenvalues)


def _picture(path: Path, notes: list[str]) -> bytes | None:
    try:
        picture = path.read_bytes()
        Image.open(io.BytesIO(picture)).load()
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: the images and their views cannot be shown.")
    except (UnidentifiedImageError, OSError):
        notes.append(f"{path.name} cannot be read: the images and their views cannot be shown.")
    else:
        return picture
    return None


def _count_lines(path: Path) -> int:
    return sum(1 for line in path.read_bytes().split(b"\n") if line.strip()) if path.is_file() else 0
