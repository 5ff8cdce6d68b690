"""Open images by their source URI: digits, a path, folder:PATH, parquet:PATH, hf:NAME."""

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fullrank.errors import UserError, pick, suggest
from fullrank.images.folder import EXTENSIONS, open_folder, walk
from fullrank.images.labels import ALL
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import MEMORY, Images, digits

SCHEMES = ("folder", "parquet", "hf")
# Suffix of a file that holds many images → its kind.
FILES = {".csv": "csv", ".tsv": "csv", ".tar": "tar", ".parquet": "parquet", ".arrow": "arrow"}
# Kind of a source without columns → what it is, and the fields of `Reading` that it cannot use.
NO_COLUMNS = {
    "images": ("a folder of images", ("image_column", "label_column", "group_column", "split_column")),
    "tar": ("tar shards", ("image_column", "group_column", "split_column")),
}
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+):(?P<rest>.*)", re.DOTALL)  # at least two letters: C: is a drive

_opened: dict[tuple[str, Reading], dict[str, Images]] | None = None


@contextmanager
def open_once() -> Iterator[None]:
    """Read each source once inside the context: one command asks several times for the same folder."""
    global _opened
    outer, _opened = _opened, {} if _opened is None else _opened
    try:
        yield
    finally:
        _opened = outer


def open_images(
    source: str | Path | Images, reading: Reading = USUAL, *, split: str | None = None
) -> dict[str, Images]:
    """Open a source URI and return {split name: images}, or {"all": images} if there are no named splits, as for
    `Images`.

    | source URI | images |
    |---|---|
    | `digits` | scikit-learn's 1797 digits (a folder of that name is `./digits`) |
    | `PATH` | a folder of images, a Parquet file, a folder of Parquet files, or what `save_to_disk` of the `datasets`
    library wrote |
    | `PATH.csv`, `PATH.tsv` | a table of paths, relative to the folder of the table; Parquet files may have a column of
    paths too |
    | `PATH.tar`, a folder of `.tar` files | WebDataset shards; labels in `.cls` or `.json` members, or class folders
    inside |
    | `folder:PATH`, `parquet:PATH` | a folder of images; a Parquet file or a folder of Parquet files |
    | `hf:NAME`, `hf:NAME:CONFIG` | a data set of the Hugging Face hub |

    Args:
        source: The source URI, or opened images.
        reading: How to read it, such as `Reading(label_column="breed")`.
        split: Return only this split.

    Raises:
        UserError: the source or the split does not exist, or contains no images.

    >>> {split: len(images) for split, images in open_images("digits").items()}
    {'all': 1797}
    """
    if isinstance(source, Images):
        splits = {ALL: source}
    else:
        key = str(source), replace(reading, train=None, test=None)
        splits = _open(*key) if _opened is None or key not in _opened else _opened[key]
        if _opened is not None:
            _opened[key] = splits
    return dict(splits) if split is None else {split: pick(split, splits, f"split of {source}")}


def _open(source: str, reading: Reading) -> dict[str, Images]:
    scheme, rest = parse_uri(source)
    if is_remote(source):
        remedy = f"train with fullrank pretrain RECIPE --data {source} --data.storage streaming --data.num-images N"
        raise UserError(f"'{source}' can only be streamed; {remedy}; for all else give --data with a local copy")
    if scheme == "digits":
        return {ALL: digits()}
    if scheme == "hf":
        from fullrank.images.table import open_hub

        return open_hub(source, rest, reading)
    root, files, kind, notes = find_files(rest, scheme, follow_links=reading.follow_links)
    what, unused = NO_COLUMNS.get(kind, ("", ()))
    for flag in unused:  # a group column that was silently ignored would let one patient be in training and test images
        if (name := getattr(reading, flag)) is not None:
            raise UserError(f"data.{flag} is {name}, but {source} is {what}, which has no columns; leave it out")
    if kind == "images":
        return open_folder(source, root, files, reading, notes)
    if kind == "tar":
        from fullrank.images.shards import open_shards

        return open_shards(source, root, files, reading)
    from fullrank.images.table import open_tables  # imports the `datasets` library, which takes a second

    return open_tables(source, kind, root, files, reading)


class Found(NamedTuple):
    """The files of a source, relative to a root folder, and what they are: images, csv, tar, parquet, or arrow (of
    `save_to_disk`).
    """

    root: Path
    files: list[str]
    kind: str
    notes: tuple[str, ...] = ()


def find_files(path: str, scheme: str = "", *, follow_links: bool = False) -> Found:
    """Return the files of a path; among the files below a folder, images count before tables.

    Raises:
        UserError: there is no such file or folder, or it holds nothing that the scheme allows.
    """
    root = existing_path(path)
    wanted = {"folder": ("images",), "parquet": ("parquet",)}.get(scheme, ("images", "parquet", "arrow", "tar"))
    if not root.is_dir():
        kind = FILES.get(root.suffix.lower())
        if kind is None or kind == "arrow" or (scheme and kind not in wanted):
            sources = "a folder of images or .parquet files, a .parquet file, a table of paths (.csv, .tsv), .tar files"
            raise UserError(f"'{path}' is a file of another kind; give {sources} (unpack other archives first)")
        return Found(root.parent, [root.name], kind)
    files, links_out = walk(root, EXTENSIONS | {".parquet", ".arrow", ".tar"}, follow_links=follow_links)
    links = f"{links_out} symbolic links lead out of the folder and are not followed (--data.follow-links)"
    notes = (links,) if links_out else ()
    by_kind: dict[str, list[str]] = {}
    for file in files:
        by_kind.setdefault(FILES.get(os.path.splitext(file)[1].lower(), "images"), []).append(file)
    kind = next((each for each in wanted if each in by_kind), None)
    if kind is None:
        expected = {"folder": "images", "parquet": ".parquet files"}.get(scheme, "images or .parquet files")
        empty = "contains no" if any(root.iterdir()) else "is empty: it contains no"
        note = "; ".join(("", *notes))
        raise UserError(f"folder '{path}' {empty} {expected} ({' '.join(sorted(EXTENSIONS))}); give another{note}")
    if not scheme and {"images", "parquet"} <= by_kind.keys():
        raise UserError(f"'{path}' contains images and Parquet files; choose with folder:{path} or parquet:{path}")
    return Found(root, by_kind[kind], kind, notes)


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
    if is_remote(source):
        return match["scheme"], match["rest"]
    if match["scheme"] not in SCHEMES or not match["rest"]:
        sources = "digits, a path, folder:PATH, parquet:PATH or hf:NAME"
        raise UserError(f"unknown source '{source}'; choose {sources}{suggest(match['scheme'], SCHEMES)}")
    return match["scheme"], match["rest"]


def is_remote(source: str) -> bool:
    """Return whether a source is an address such as s3://bucket/shards, which is not below the current folder.

    >>> is_remote("https://host/train-0.tar"), is_remote("folder:photos"), is_remote("hf://owner")
    (True, False, False)
    """
    scheme, slashes, rest = source.partition("://")
    return bool(slashes and rest) and scheme.isalnum() and scheme not in SCHEMES


def absolute_source(source: str) -> str:
    """Return a source URI with its path made absolute if the path exists, else unchanged.

    >>> absolute_source("hf:uoft-cs/cifar10"), absolute_source("digits")
    ('hf:uoft-cs/cifar10', 'digits')
    """
    scheme, rest = parse_uri(source)
    path = os.path.expanduser(rest)
    if source == MEMORY or scheme not in ("", "folder", "parquet") or not os.path.exists(path):
        return source
    # `link/..` need not be the folder that contains the link
    absolute, plain = str(Path(path).absolute()), os.path.abspath(path)
    absolute = plain if os.path.exists(plain) and os.path.samefile(plain, absolute) else absolute
    return f"{scheme}:{absolute}" if scheme else absolute


def existing_path(path: str) -> Path:
    """Return the path of a source, which may begin with ~.

    Raises:
        UserError: there is no such file or folder; the message has the nearest name.
    """
    root = Path(os.path.expanduser(path))  # Path.expanduser raises if the user has no home
    if os.path.exists(root):  # returns False if a parent folder cannot be read; Path.exists would raise
        return root
    if path == MEMORY:
        raise UserError("the images were given in memory, from Python; give them again (data=…), or a folder")
    missing = next(each for each in (root, *root.parents) if os.path.exists(each.parent))
    nearest = f"there is no '{missing.name}' in '{missing.parent.absolute()}'"
    with suppress(OSError):
        for name in difflib.get_close_matches(missing.name, os.listdir(missing.parent), n=1):
            nearest = f"the nearest existing name is '{missing.parent / name}'"
    raise UserError(f"no file or folder '{path}'; {nearest}")
