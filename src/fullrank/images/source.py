"""Images with random access: a table whose rows are files, bytes, parts of files or pixels, with labels and groups."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from fullrank.images.decode import RawImage, open_bytes
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.files import BYTES_PER_PIXEL, OutsideError, read_regular_file
from fullrank.images.reading import MAX_PIXELS

# Larger integers number the images or something else; a classifier of so many classes would fill the memory.
MAX_CLASSES = 2**16


class Piece(NamedTuple):
    """A part of a file, such as a member of a tar file."""

    file: str
    offset: int
    size: int


# What a row holds: the content of a file, its path, both (`bytes` and `path`), a part of a file, or the pixels.
Cell = bytes | str | dict[str, Any] | Piece | RawImage | None


@runtime_checkable
class Rows(Protocol):
    """The rows of a table of images."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return the name of an image, which need not be unique."""
        ...

    def cell(self, index: int) -> Cell:
        """Return what a row holds."""
        ...


class Images:
    """Random access to `n` undecoded images.

    Args:
        source: The source URI with the split: `"photos[train]"`.
        rows: The rows.
        labels: `(n,)` int64; -1 means no label. None: no image has a label.
        classes: The names of the labels; `()` if the names are unknown.
        multi_labels: `(n, K)` int8 for images with several labels: 1 has the class, 0 lacks it; a row of -1 means no
            labels; `labels` is then -1 throughout. None for a source with one label an image.
        groups: `(n,)` int64; images of one number, such as those of one patient or scene, belong together; -1 means no
            group. None: no image has a group.
        notes: What was decided when the source was opened, for the user.
        roots: Real paths of the folders that may contain the files which the rows name, the first for relative paths;
            None: any folder.
        max_pixels: Refuse an image with more pixels.
    """

    source: str = ""
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    multi_labels: np.ndarray | None = None
    labels: np.ndarray
    _groups: np.ndarray | None = None

    def __init__(
        self,
        source: str,
        rows: Rows,
        *,
        labels: np.ndarray | None = None,
        classes: tuple[str, ...] = (),
        multi_labels: np.ndarray | None = None,
        groups: np.ndarray | None = None,
        notes: tuple[str, ...] = (),
        roots: Sequence[str] | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.source, self.rows, self.classes, self.notes = source, rows, classes, notes
        self.labels = np.full(len(rows), -1, dtype=np.int64) if labels is None else labels
        self.multi_labels, self._groups, self.roots, self.max_pixels = multi_labels, groups, roots, max_pixels

    @property
    def groups(self) -> np.ndarray:
        """The group of each image, `(n,)` int64; -1 means no group, as for all images of a source without groups."""
        return np.full(len(self), -1, dtype=np.int64) if self._groups is None else self._groups

    @groups.setter
    def groups(self, groups: np.ndarray) -> None:
        self._groups = groups

    @property
    def strata(self) -> np.ndarray:
        """What a stratified choice keeps the shares of, `(n,)` int64: the labels, or the number of the set of labels;
        -1: no label.
        """
        if self.multi_labels is None or not len(self):
            return self.labels
        sets = np.unique(self.multi_labels, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return np.where(self.multi_labels[:, 0] < 0, -1, sets)

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, index: int) -> int:
        """Return the label of one image."""
        return int(self.labels[index])

    def name(self, index: int) -> str:
        """Return the file name, or `"train[17]"`."""
        return self.rows.name(int(index))

    def open(self, index: int) -> RawImage:
        """Open one image; Pillow reads the pixels only when needed.

        Raises:
            ImageDecodeError: the file is not an image, or cannot be read.
        """
        name = self.name(index)
        with convert_errors(name):
            cell = self.rows.cell(int(index))
        return open_cell(cell, name, roots=self.roots, max_pixels=self.max_pixels)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """Return the images at `indices`, in that order."""
        return Subset(self, np.asarray(indices, dtype=np.int64))


class Subset(Images):
    """Some of the images of another source."""

    def __init__(self, images: Images, indices: np.ndarray):
        self.images, self.indices = images, indices
        self.source, self.classes, self.notes = images.source, images.classes, images.notes
        self.labels, self.groups = images.labels[indices], images.groups[indices]
        self.multi_labels = None if images.multi_labels is None else images.multi_labels[indices]

    def name(self, index: int) -> str:
        """Return the name in the other source."""
        return self.images.name(int(self.indices[index]))

    def open(self, index: int) -> RawImage:
        """Open one image of the other source."""
        return self.images.open(int(self.indices[index]))


def open_cell(cell: Cell, name: str, *, roots: Sequence[str] | None = None, max_pixels: int = MAX_PIXELS) -> RawImage:
    """Open what a row of a table holds; `Images` describes the arguments.

    Raises:
        ImageDecodeError: the image is unreadable, or its file is outside `roots`.
    """
    if isinstance(cell, Image.Image | np.ndarray):
        return cell
    with convert_errors(name):
        data = _read(cell, name, BYTES_PER_PIXEL * max_pixels, roots)
    return open_bytes(data, name, max_pixels=max_pixels)


def _read(cell: Any, name: str, limit: int, roots: Sequence[str] | None) -> bytes:
    """Return the content of an image file, at most `limit` bytes."""
    if isinstance(cell, dict):
        cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
    if cell is None or cell == "":
        raise ImageDecodeError(name, "the row has no image")
    if isinstance(cell, Piece):
        return _read_piece(cell, name, limit)
    if isinstance(cell, str):
        return _read_path(cell, name, limit, roots)
    if len(cell) > limit:
        raise ImageDecodeError(name, f"the image has {len(cell)} bytes, more than data.max_pixels can need")
    return cell


def _read_path(path: str, name: str, limit: int, roots: Sequence[str] | None) -> bytes:
    try:
        return read_regular_file(os.path.join(roots[0] if roots else "", path), max_bytes=limit, below=roots)
    except FileNotFoundError as error:
        relative = f" (paths are relative to the folder of the table, {roots[0]})" if roots else ""
        raise ImageDecodeError(name, f"{error.strerror}{relative}") from error
    except OutsideError as error:
        raise ImageDecodeError(name, f"{error}; put the table into a folder that contains the images") from error


def _read_piece(piece: Piece, name: str, limit: int) -> bytes:
    if not 0 <= piece.size <= limit:  # a damaged header can have a negative size
        raise ImageDecodeError(
            name, f"the image has {piece.size} bytes, negative or more than data.max_pixels can need"
        )
    with open(piece.file, "rb") as file:
        file.seek(piece.offset)
        data = file.read(piece.size)
    if len(data) < piece.size:
        raise ImageDecodeError(name, "the tar file is truncated")
    return data


class FileRows:
    """Image files, by their paths relative to a folder."""

    def __init__(self, names: Sequence[str], root: str = "") -> None:
        # one buffer, which worker processes share; they would copy a list
        self.names, self.root = np.array([os.fsencode(name) for name in names]), root

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        """Return the path relative to the folder."""
        return os.fsdecode(self.names[index])

    def cell(self, index: int) -> str:
        """Return the path."""
        return os.path.expanduser(os.path.join(self.root, self.name(index)))


class ArrayRows:
    """Images in one array (n, H, W, C), uint8 or uint16; without names, `what` and a number."""

    def __init__(self, pixels: np.ndarray, names: Sequence[str] = (), *, what: str = "memory") -> None:
        self.pixels, self.names, self.what = pixels, names, what

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, index: int) -> str:
        """Return the given name, or `"memory[3]"`."""
        return self.names[index] if self.names else f"{self.what}[{index}]"

    def cell(self, index: int) -> np.ndarray:
        """Return the pixels."""
        return self.pixels[index]


def digits() -> Images:
    """Return the 1797 handwritten digits (8×8, grayscale) of scikit-learn; the values 0…16 are scaled to 0…255."""
    from sklearn.datasets import load_digits  # takes a second to import

    data: Any = load_digits()
    pixels = np.round(data.images * (255 / 16)).astype(np.uint8)[..., None]  # (1797, 8, 8, 1)
    classes = tuple(map(str, data.target_names))
    return Images("digits", ArrayRows(pixels, what="digits"), labels=data.target.astype(np.int64), classes=classes)
