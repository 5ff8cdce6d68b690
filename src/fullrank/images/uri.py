"""The words for a source of images: digits, a path, folder:PATH, parquet:PATH, hf:NAME."""

import difflib
import os
import re
from pathlib import Path

from fullrank.errors import UserError, suggest

SCHEMES = ("folder", "parquet", "hf")
MEMORY = "memory"  # the source of images that were given as Python objects
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+):(?P<rest>.*)", re.DOTALL)  # at least two letters: C: is a drive


def parse_uri(source: str) -> tuple[str, str]:
    """Return the scheme of a source URI and the text after the colon; a path without a scheme has the scheme `""`.

    Raises:
        UserError: the scheme is unknown, or nothing follows the colon.

    >>> parse_uri("digits"), parse_uri("hf:uoft-cs/cifar10"), parse_uri("photos/2024")
    (('digits', ''), ('hf', 'uoft-cs/cifar10'), ('', 'photos/2024'))
    """
    if source == "digits":
        return "digits", ""
    match = _SCHEME.fullmatch(source)
    if match is None or (match["scheme"] not in SCHEMES and Path(source).exists()):
        return "", source
    if match["scheme"] not in SCHEMES:
        raise UserError(
            f"unknown source '{match['scheme']}:' in '{source}'; "
            f"choose digits, a path, folder:PATH, parquet:PATH or hf:NAME{suggest(match['scheme'], SCHEMES)}"
        )
    if not match["rest"]:
        raise UserError(
            f"'{source}' lacks a path or name; write {match['scheme']}:{'NAME' if match['scheme'] == 'hf' else 'PATH'}"
        )
    return match["scheme"], match["rest"]


def check_source(source: str) -> None:
    """Check that the path of a source exists.

    Raises:
        UserError: it does not, or the source has another form.

    >>> check_source("digits")
    """
    scheme, rest = parse_uri(source)
    if scheme in ("", "folder", "parquet"):
        existing_path(rest)


def existing_path(path: str) -> Path:
    """Return the path of a source, which may begin with ~.

    Raises:
        UserError: there is no such file or folder; the message has the nearest name.
    """
    root = Path(os.path.expanduser(path))  # Path.expanduser raises if the user has no home
    if path == MEMORY and not os.path.exists(root):
        raise UserError(
            "the images were given in memory, from Python; give them again (data=…), or a folder (--data PATH)"
        )
    if not os.path.exists(root):  # returns False if a parent folder cannot be read; Path.exists would raise
        raise UserError(f"no file or folder '{path}'{nearest_name(root)}")
    return root


def nearest_name(path: Path) -> str:
    """Return the part of an error that names the existing file or folder closest to the path."""
    while not os.path.exists(path.parent):
        path = path.parent
    folder = path.parent
    try:
        matches = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    except OSError as error:
        return f"; '{folder}' cannot be read: {error.strerror}; check its permissions"
    return (
        f"; the nearest existing name is '{folder / matches[0]}'"
        if matches
        else f"; there is no '{path.name}' in '{folder.absolute()}'"
    )
