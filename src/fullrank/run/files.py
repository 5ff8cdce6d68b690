"""Read and write the JSON files of a run."""

import json
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.files import atomic_write, parse_json, read_text

MAX_LOG_BYTES = 2**30


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that contains one JSON object.

    Raises:
        UserError: the file is missing or damaged.
    """
    problem, remedy = f"{path} cannot be read", "restore it, or start a new run"
    try:
        return _parse_object(read_text(path), problem, remedy)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{problem} ({error}); {remedy}") from error


def read_jsonl(path: Path) -> tuple[list[dict[str, Any]], int | None]:
    """Read a file that contains one JSON object per line; a process that is killed may leave an incomplete last line.

    Returns:
        The objects of all complete lines (an empty list for a missing file), and the number of an incomplete last line
        or None.

    Raises:
        UserError: the file cannot be read, or any other line is not a JSON object.
    """
    try:
        *lines, last = read_text(path, max_bytes=MAX_LOG_BYTES, errors="replace").split("\n")
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); restore it, or fix its permissions"
        ) from error
    objects = [
        _parse_object(line, f"{path}, line {n}: not a JSON object", "fix or remove the line")
        for n, line in enumerate(lines, start=1)
    ]
    try:
        return [*objects, *([_parse_object(last, "", "")] if last else [])], None
    except UserError:
        return objects, len(lines) + 1


def _parse_object(text: str, problem: str, remedy: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise UserError(f"{problem} ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise UserError(f"{problem} (got a {type(value).__name__}, expected an object); {remedy}")
    return value


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_text(path, "the whole text")
    >>> [(file.name, file.read_text()) for file in path.parent.iterdir()]
    [('note.txt', 'the whole text')]
    """
    with atomic_write(path, overwrite=True) as draft:
        draft.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")
