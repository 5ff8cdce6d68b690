"""WebDataset shards: tar files of images, with labels in members of the same key or in class folders. Nothing is ever
unpacked.
"""

import json
import os
import posixpath
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fullrank.errors import UserError, pick, printable
from fullrank.images.files import check_regular
from fullrank.images.folder import EXTENSIONS, common_folder, inside_splits
from fullrank.images.labels import Labelled, folder_labels, read_labels, top_folder
from fullrank.images.reading import Reading
from fullrank.images.source import Images, Piece
from fullrank.images.splits import by_split, named_source, split_of_file, splits_of_folders

# Extension of a member with a class number or a class name, as WebDataset writes it.
CLS = "cls"
# Keys of the object of a `.json` member that are labels, the first that exists.
JSON_KEYS = ("label", "labels", "class", "cls", "class_name", "category", "target")
MAX_BYTES = {CLS: 256, "json": 2**20}


class TarRows:
    """Members of tar files, read at their place in the file.

    Args:
        files: the tar files.
        places: (n, 3) for each image the number of its tar file, its first byte, and its number of bytes.
        names: (n,) the names of the images, as bytes.
    """

    def __init__(self, files: Sequence[str], places: np.ndarray, names: np.ndarray) -> None:
        self.files, self.places, self.names = tuple(files), places, names

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
    by the rules of a folder (`folder_labels`). Links, devices and other members that are no files are ignored.

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
    places = np.array([place for place, _, _ in members], dtype=np.int64)
    names = np.array([os.fsencode(name) for _, name, _ in members])
    clean = [posixpath.normpath(name).lstrip("/") for _, name, _ in members]
    common = common_folder(clean)
    clean = [name.removeprefix(common) for name in clean]
    split_of_shard = [split_of_file(file.removesuffix(Path(file).suffix)) for file in files]
    if any(split_of_shard):
        rows = by_split([split_of_shard[shard] for shard in places[:, 0]])
        inside = {split: [clean[k] for k in indices] for split, indices in rows.items()}
    else:
        rows = by_split(splits_of_folders([top_folder(name) for name in clean]))
        inside = inside_splits({split: [clean[k] for k in indices] for split, indices in rows.items()})
    given = {split: [members[k][2] for k in indices] for split, indices in rows.items()}
    found = _labels(source, given, inside, reading)
    return {
        split: Images(
            named_source(source, split),
            TarRows(paths, places[indices], names[indices]),
            labels=found[split].labels,
            classes=found[split].classes,
            notes=found[split].notes,
            max_pixels=reading.max_pixels,
        )
        for split, indices in rows.items()
    }


def _index(shard: int, path: str) -> list[tuple[tuple[int, int, int], str, dict[str, Any]]]:
    """Return the place, the name and the labels (`cls` or the key of the JSON object → label) of each image."""
    images: list[tuple[tuple[int, int, int], str, str]] = []
    labels: dict[str, dict[str, Any]] = {}
    try:
        check_regular(os.stat(path))
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                folder, slash, base = member.name.rpartition("/")
                key, _, extension = base.partition(".")
                key, extension = folder + slash + key, extension.lower()
                if not member.isreg() or member.issparse() or base.startswith("."):
                    continue
                if member.size <= MAX_BYTES.get(extension, -1):
                    data = (tar.extractfile(member) or file).read(member.size)
                    known = labels.get(key, {})
                    cls = {CLS: _as_label(data.decode().strip())} if extension == CLS else {}
                    labels[key] = known | cls if cls else _json_labels(data) | known
                elif os.path.splitext(base)[1].lower() in EXTENSIONS:
                    images.append(((shard, member.offset_data, member.size), member.name, key))
                tar.members = []  # pyright: ignore[reportAttributeAccessIssue]  # tarfile keeps all
    except (OSError, tarfile.TarError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or f"{error}"
        remedy = "give complete, uncompressed tar files (unpack .tar.gz first)"
        raise UserError(f"cannot read the tar file '{path}': {printable(reason)}; {remedy}") from error
    return [(place, name, labels.get(key, {})) for place, name, key in images]


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
    return {
        key: value if isinstance(value, int) else _as_label(value)
        for key, value in items
        if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, str) and 0 < len(value) < 256)
    }


def _labels(
    source: str, given: dict[str, list[dict[str, Any]]], inside: dict[str, list[str]], reading: Reading
) -> dict[str, Labelled]:
    """Return the labels of the images of all splits, from the members or from the class folders."""
    known, requested = {key for part in given.values() for own in part for key in own}, reading.label_column
    if requested is not None and reading.labels == "auto":
        pick(requested, dict.fromkeys(sorted(known)), f"label of the members of {source}")
    key = requested or next((key for key in (CLS, *JSON_KEYS) if key in known), None)
    if reading.labels != "auto" or key is None:
        found = folder_labels(inside, reading.labels)
        if reading.labels == "folders" and not any(part.classes for part in found.values()):
            raise UserError(f"data.labels is folders, but the tar files of {source} have no class folders; give auto")
        return found
    what = "the .cls member" if key == CLS else f"the value of '{printable(key)}' in the .json member"
    values = {split: [own.get(key) for own in part] for split, part in given.items()}
    return read_labels(values, what, requested=requested is not None, sure=key == CLS)
