"""Images with random access: a table whose rows are files, bytes, parts of files or pixels, with labels and groups."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fullrank.errors import UserError, printable
from fullrank.files import check_file
from fullrank.images.decode import ROUNDING as UNIT_ROUNDING
from fullrank.images.decode import RawImage, open_bytes
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.formats import BYTES_PER_PIXEL
from fullrank.images.reading import MAX_PIXELS

MEMORY = "memory"  # the source of images that were given as Python objects
IMAGE_KEYS = ("image", "img", "pixel_values", "pixels")
ROUNDING = 1e-3  # of 255·x in float32, far below a grey level
SINGLE = "a path, a Pillow image, an array (H, W, C) or a tensor (C, H, W)"


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
        """Return the name of an image, which need not be unique: the file name, or `"train[17]"`."""
        ...

    def cell(self, index: int) -> Cell:
        """Return what a row holds."""


@dataclass(eq=False)
class Images:
    """Random access to `n` undecoded images.

    Attributes:
        source: The source URI with the split: `"photos[train]"`.
        rows: The rows.
        labels: `(n,)` int64; -1 means no label. None: no image has a label.
        classes: The names of the labels; `()` if the names are unknown.
        multi_labels: `(n, K)` int8 for images with several labels: 1 has the class, 0 lacks it; a row of -1 means no
            labels; `labels` is then -1 throughout. None for a source with one label per image.
        groups: `(n,)` int64; images of one number, such as those of one patient or scene, belong together; -1 means no
            group. None: no image has a group.
        notes: What was decided when the source was opened, for the user.
        roots: Real paths of the folders that may contain the files which the rows name, the first for relative paths;
            None: any folder.
        max_pixels: Refuse an image with more pixels.
        places: `(n,)` the row of each image. None: the images are all rows, in their order.
    """

    source: str
    rows: Rows
    labels: np.ndarray = None  # pyright: ignore[reportAssignmentType]  # None becomes -1 for each image
    classes: tuple[str, ...] = ()
    multi_labels: np.ndarray | None = None
    groups: np.ndarray = None  # pyright: ignore[reportAssignmentType]
    notes: tuple[str, ...] = ()
    roots: tuple[str, ...] | None = None
    max_pixels: int = MAX_PIXELS
    places: np.ndarray = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        self.places = np.arange(len(self.rows)) if self.places is None else self.places
        self.labels, self.groups = (
            np.full(len(self), -1, dtype=np.int64) if given is None else given for given in (self.labels, self.groups)
        )

    def __len__(self) -> int:
        return len(self.places)

    def __str__(self) -> str:
        return self.source

    @property
    def strata(self) -> np.ndarray:
        """What a stratified choice keeps the shares of, `(n,)` int64: the labels, or the number of the set of labels;
        -1: no label.
        """
        if self.multi_labels is None or not len(self):
            return self.labels
        sets = np.unique(self.multi_labels, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return np.where(self.multi_labels[:, 0] < 0, -1, sets)

    def name(self, index: int) -> str:
        """Return the name of one image."""
        return self.rows.name(int(self.places[index]))

    def open(self, index: int) -> RawImage:
        """Open one image; Pillow reads the pixels only when needed.

        Raises:
            ImageDecodeError: the file is not an image, or cannot be read.
        """
        name, limit = self.name(index), BYTES_PER_PIXEL * self.max_pixels
        with convert_errors(name):
            data: Any = self.rows.cell(int(self.places[index]))
            if isinstance(data, Image.Image | np.ndarray):
                return data
            if isinstance(data, dict):
                data = data.get("path") if data.get("bytes") is None else data["bytes"]
            if data is None or data == "":
                raise ImageDecodeError(name, "the row has no image")
            if isinstance(data, Piece):
                data = _read_piece(data, limit)
            elif isinstance(data, str):
                data = _read_path(data, limit, self.roots)
            if len(data) > limit:
                raise ValueError(f"the image has {len(data)} bytes, more than data.max_pixels can need")
        return open_bytes(data, name, max_pixels=self.max_pixels)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """Return the images at `indices`, in that order."""
        indices = np.asarray(indices, dtype=np.int64)
        several = None if self.multi_labels is None else self.multi_labels[indices]
        chosen = {"labels": self.labels[indices], "multi_labels": several, "groups": self.groups[indices]}
        return replace(self, places=self.places[indices], **chosen)


def _read_path(path: str, limit: int, roots: tuple[str, ...] | None) -> bytes:
    """Return at most limit + 1 bytes of a regular file: another could block, have no end, or be outside `roots`."""
    path = os.path.join(roots[0] if roots else "", path)
    if roots is not None and not is_below(path, roots):
        raise ValueError("the file is outside the folder of the data set; put the table into a folder that contains it")
    check_file(Path(path))
    if roots and not os.path.exists(path):
        raise ValueError(f"No such file or directory (paths are relative to the folder of the table, {roots[0]})")
    with open(path, "rb") as file:
        return file.read(limit + 1)


def _read_piece(piece: Piece, limit: int) -> bytes:
    if not 0 <= piece.size <= limit:  # a damaged header can have a negative size
        raise ValueError(f"the image has {piece.size} bytes, negative or more than data.max_pixels can need")
    with open(piece.file, "rb") as file:
        file.seek(piece.offset)
        return file.read(piece.size)


def is_below(path: str | Path, folders: Sequence[str]) -> bool:
    """Return whether a path, after all symbolic links, is one of the folders or inside one; the folders are real
    paths.
    """
    real = os.path.join(os.path.realpath(path), "")
    return any(real.startswith(os.path.join(folder, "")) for folder in folders)


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


class ItemRows:
    """Images in a sequence: an array (n, H, W, C), a list, a data set of torch; without names, `what` and a number.

    An item is a cell, a tensor (C, H, W), (image, label), or a dict with an image.
    """

    def __init__(self, items: Any, names: Sequence[str] = (), *, what: str = MEMORY) -> None:
        self.items, self.names, self.what = items, names, what

    def __len__(self) -> int:
        return len(self.items)

    def name(self, index: int) -> str:
        """Return the given name, or `"memory[3]"`."""
        return self.names[index] if self.names else f"{self.what}[{index}]"

    def cell(self, index: int) -> Cell:
        """Return the image of an item, of which floats may become uint8 (`whole_levels`)."""
        item = self.items[index]
        if isinstance(item, dict):
            item = next((item[key] for key in IMAGE_KEYS if key in item), item)
        elif isinstance(item, tuple | list) and item:
            item = item[0]
        if isinstance(item, Tensor) and item.ndim in (2, 3):
            return to_pixels(item)
        if isinstance(item, np.ndarray) and item.ndim in (2, 3):
            return whole_levels(item) if item.dtype.kind == "f" and item.size else item
        if not isinstance(item, Image.Image | dict | bytes | None):
            raise ImageDecodeError(self.name(index), f"{describe(item)}, expected {SINGLE}")
        return item


def describe(value: Any) -> str:
    """Return what an object is, for an error."""
    if isinstance(value, np.ndarray | Tensor):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    return printable(f"{value!r:.60} ({type(value).__name__})")


def to_pixels(images: Tensor) -> np.ndarray:
    """Return images (…, C, H, W), or one image (H, W), as an array (…, H, W, C) of uint8, uint16 or float32.

    Raises:
        UserError: the type or the range is wrong.
    """
    if images.dtype not in (torch.uint8, torch.uint16) and not images.is_floating_point():
        raise UserError(f"the images have the type {images.dtype}, expected uint8, or floats in [0, 1]; convert them")
    images = images.detach().cpu()
    pixels = (images.float() if images.dtype == torch.bfloat16 else images).numpy()  # numpy has no bfloat16
    pixels = np.ascontiguousarray(np.moveaxis(pixels, -3, -1)) if pixels.ndim > 2 else pixels
    return whole_levels(pixels) if pixels.dtype.kind == "f" else pixels


def whole_levels(pixels: np.ndarray) -> np.ndarray:
    """Return floats in [0, 1] as uint8 if they are whole 255ths, else as float32.

    Raises:
        UserError: the range is wrong.
    """
    if not (pixels.min() >= 0 and pixels.max() <= 1 + UNIT_ROUNDING):  # also true for NaN
        found = f"{pixels.dtype} values from {pixels.min():.4g} to {pixels.max():.4g}"
        raise UserError(f"the images have {found}, expected [0, 1] or uint8, without normalisation")
    levels = pixels.astype(np.float64) * 255
    rounded = np.round(levels)
    return rounded.astype(np.uint8) if np.abs(levels - rounded).max() < ROUNDING else pixels.astype(np.float32)


def digits() -> Images:
    """Return the 1797 handwritten digits (8×8, grayscale) of scikit-learn; the values 0…16 are scaled to 0…255."""
    from sklearn.datasets import load_digits  # takes a second to import

    data: Any = load_digits()
    pixels = np.round(data.images * (255 / 16)).astype(np.uint8)[..., None]  # (1797, 8, 8, 1)
    classes = tuple(map(str, data.target_names))
    return Images("digits", ItemRows(pixels, what="digits"), labels=data.target.astype(np.int64), classes=classes)
