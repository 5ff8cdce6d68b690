"""WebDataset shards: tar files of images, with labels in members of the same key or in class folders. Nothing is ever
unpacked.
"""

import json
import os
import posixpath
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fullrank.errors import UserError, exception_line, explain_errors, pick, printable
from fullrank.files import check_file
from fullrank.images.folder import EXTENSIONS, common_folder
from fullrank.images.labels import Labelled, by_split, folder_labels, read_labels, split_of_file, splits_of_folders
from fullrank.images.reading import Reading
from fullrank.images.source import Images, Piece

# Extension of a member with a class number or a class name, as WebDataset writes it.
CLS = "cls"
# Keys of the object of a `.json` member that are labels, the first that exists.
JSON_KEYS = ("label", "labels", "class", "cls", "class_name", "category", "target")
LARGEST = 256 * 2**20  # bytes of the images of one key in a stream
DELAYS = (1.0, 5.0, 30.0)  # seconds before a file of a stream that broke off is opened again
MAX_BYTES = {CLS: 256, "json": 2**20}


class TarRows:
    """Members of tar files, read at their place in the file.

    Args:
        files: the tar files.
        places: (n, 3) for each image the number of its tar file, its first byte, and its number of bytes.
        names: the names of the images.
    """

    def __init__(self, files: Sequence[str], places: np.ndarray, names: Sequence[str]) -> None:
        self.files, self.places = tuple(files), places
        self.names = np.array([os.fsencode(name) for name in names])  # one buffer, which worker processes share

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        """Return the shard and the name of the member."""
        return f"{os.path.basename(self.files[self.places[index, 0]])}/{os.fsdecode(self.names[index])}"

    def cell(self, index: int) -> Piece:
        """Return the place of the image."""
        shard, offset, size = self.places[index].tolist()
        return Piece(self.files[shard], offset, size)


def open_shards(source: str, root: Path, files: Sequence[str], reading: Reading) -> dict[str, Images]:
    """Return the images of each split of tar files, by the split in their names (`train-000000.tar`) or the top folders
    inside them, with labels if there are any.

    The key of a member is its name up to the first dot of the last part, so `a/01.jpg` has its label in `a/01.cls` (a
    class number, or the name of a class) or in the object of `a/01.json`. The first of these gives the labels of all
    splits: `.cls` members, the first of `JSON_KEYS` that a `.json` member has, and class folders inside the tar files
    by the rules of a folder (`folder_labels`). Links, devices and other members that are not files are ignored.

    Args:
        source: The source URI.
        root: The folder of the tar files.
        files: The tar files, relative to `root`.
        reading: How to read them; `label_column` is the key of `.json` members, or `cls` for the `.cls` members.

    Raises:
        UserError: a file cannot be read, there are no images, or no image has the requested label.
    """
    paths = [str(root / file) for file in files]
    members = [member for shard, path in enumerate(paths) for member in _index(shard, path)]
    if not members:
        raise UserError(f"the tar files of {source} contain no images ({' '.join(sorted(EXTENSIONS))})")
    clean = [posixpath.normpath(member.name).lstrip("/") for member in members]
    common = common_folder(clean)
    splits, inside = splits_of_folders([name.removeprefix(common) for name in clean])
    of_shards = [split_of_file(file) for file in files]
    if any(of_shards):
        splits, inside = [of_shards[member.place[0]] for member in members], [n.removeprefix(common) for n in clean]
    found = _labels(source, members, reading) or folder_labels(inside, splits, reading.labels)
    if reading.labels == "folders" and not found.classes:
        raise UserError(f"data.labels is folders, but the tar files of {source} have no class folders; give auto")
    places = np.array([member.place for member in members], dtype=np.int64)
    rows = TarRows(paths, places, [member.name for member in members])
    images = Images(source, rows, **vars(found), max_pixels=reading.max_pixels)
    return by_split(images, source, splits)


def stream_shards(files: Sequence[str], opener: Callable[[str], Any], reading: Reading) -> Any:
    """Return the images of tar files, and the integers that label them, as a stream of the `datasets` library.

    The members of one key follow each other, as WebDataset writes them. The labels are those of `reading.label_column`,
    or the first integer of the first image: its `.cls` member, or one of `JSON_KEYS`. Texts are no labels.

    Args:
        files: The tar files.
        opener: Opens one of them for reading.
        reading: How to read them.

    Raises:
        UserError: the first file cannot be read, or has no images or not the requested label.
    """
    from datasets import Features, Image, IterableDataset, Value

    _, labels = next(_retried(files[0], opener), (None, None))
    if labels is None:
        raise UserError(f"the tar file '{files[0]}' contains no images ({' '.join(sorted(EXTENSIONS))})")
    key = next((key for key in (CLS, *JSON_KEYS) if isinstance(labels.get(key), int)), None)
    if reading.label_column is not None:
        key = pick(reading.label_column, dict.fromkeys(labels, reading.label_column), f"label of '{files[0]}'")
    column = reading.label_column or "label"
    features = Features({"image": Image(decode=False)} | ({column: Value("int64")} if key else {}))
    options = {"files": list(files), "opener": opener, "key": key, "column": column}
    return IterableDataset.from_generator(_stream, features, gen_kwargs=options)


def _stream(
    files: Sequence[str], opener: Callable[[str], Any], key: str | None, column: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `stream_shards`; `datasets` gives each process some of the files."""
    for file in files:
        for images, labels in _retried(file, opener):
            label = labels.get(key) if key else None
            known = {column: label if isinstance(label, int) else None} if key else {}
            yield from ({"image": image} | known for image in images)


def _retried(file: str, opener: Callable[[str], Any]) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Yield the images and the labels of each key; a file that breaks off is opened again after some seconds."""
    given = 0
    for delay in (*DELAYS, None):
        try:
            with opener(file) as opened, tarfile.open(fileobj=opened, mode="r|") as tar:
                for sample in islice(_samples(tar, file), given, None):
                    given += 1
                    yield sample
            return
        except UserError:
            raise
        except Exception as error:  # of the library of a protocol, whose errors have any type
            if delay is None or opener is open_local:
                remedy = "give complete, uncompressed tar files, or check the network; then go on with --resume"
                raise UserError(f"cannot read the tar file '{file}': {exception_line(error)}; {remedy}") from error
            time.sleep(delay)


def _samples(tar: tarfile.TarFile, file: str) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    for key, members in groupby(_files(tar), key=lambda member: member[0]):
        images, labels, size = [], {}, 0
        for _, extension, member in members:
            size += member.size
            if size > LARGEST:
                remedy = "expected one image for each name up to its first dot; name the members 0001.jpg, 0002.jpg …"
                raise UserError(f"the images '{printable(key)}' of '{file}' have more than {LARGEST} bytes; {remedy}")
            content = tar.extractfile(member)
            data = content.read(member.size) if content else b""
            if extension in MAX_BYTES:
                labels |= _member_labels(extension, data) | labels
            else:
                images.append({"bytes": data, "path": member.name})
        if images:
            yield images, labels


def open_local(file: str) -> Any:
    """Open a file of this machine for reading.

    Raises:
        UserError: it is a device or a pipe.
    """
    check_file(Path(file))
    return open(file, "rb")


class _Member(NamedTuple):
    """An image: shard, offset and size, its name, and its labels (`cls` or the key of the JSON object → label)."""

    place: tuple[int, int, int]
    name: str
    labels: dict[str, Any]


def _index(shard: int, path: str) -> list[_Member]:
    images: list[_Member] = []
    labels: dict[str, dict[str, Any]] = {}
    remedy = "give complete, uncompressed tar files (unpack .tar.gz first)"
    with explain_errors(f"cannot read the tar file '{path}'", remedy):
        check_file(Path(path))
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for key, extension, member in _files(tar):
                known = labels.setdefault(key, {})
                if extension in MAX_BYTES:
                    known |= _member_labels(extension, (tar.extractfile(member) or file).read(member.size)) | known
                else:
                    images.append(_Member((shard, member.offset_data, member.size), member.name, known))
    return images


def _files(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yield the key, the extension and the member of each image and of each file of labels."""
    for member in tar:
        folder, slash, base = member.name.rpartition("/")
        key, _, extension = base.partition(".")
        if member.isreg() and not member.issparse() and not base.startswith("."):
            is_image = os.path.splitext(base)[1].lower() in EXTENSIONS
            if is_image or member.size <= MAX_BYTES.get(extension.lower(), -1):
                yield folder + slash + key, "" if is_image else extension.lower(), member
        tar.members = []  # pyright: ignore[reportAttributeAccessIssue]  # tarfile keeps all


def _member_labels(extension: str, data: bytes) -> dict[str, int | str]:
    return {CLS: _as_label(data.decode().strip())} if extension == CLS else _json_labels(data)


def _as_label(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(text) < 19 else text


def _json_labels(data: bytes) -> dict[str, int | str]:
    """Return the values of a JSON object that can be labels, integers and short texts; {} for what is no JSON
    object.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    items = values.items() if isinstance(values, dict) else ()
    numbers = {key: value for key, value in items if type(value) is int}  # not True
    return numbers | {key: _as_label(text) for key, text in items if isinstance(text, str) and 0 < len(text) < 256}


def _labels(source: str, members: Sequence[_Member], reading: Reading) -> Labelled | None:
    """Return the labels in the members, None if there are none or others are asked for."""
    known = {key for member in members for key in member.labels}
    key = reading.label_column or next((key for key in (CLS, *JSON_KEYS) if key in known), None)
    if reading.labels != "auto" or key is None:
        return None
    pick(key, dict.fromkeys(sorted(known)), f"label of the members of {source}")
    what = "the .cls member" if key == CLS else f"the value of '{printable(key)}' in the .json member"
    values = [member.labels.get(key) for member in members]
    return read_labels(values, what, requested=reading.label_column is not None, sure=key == CLS)
