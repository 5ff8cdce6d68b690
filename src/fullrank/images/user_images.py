"""The few images that a user gives to a model: paths, Pillow images, arrays and tensors, one or many."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode import RawImage, open_bytes
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.files import BYTES_PER_PIXEL, read_regular_file
from fullrank.images.load import MemoryImages
from fullrank.images.memory import describe, to_numpy
from fullrank.images.preprocess import Preprocess
from fullrank.images.reading import MAX_PIXELS
from fullrank.images.source import Images

ROUNDING = 1e-3  # of 255·x in float32, far below a grey level
SINGLE = "a path, a Pillow image, an array (H, W, C), a tensor (C, H, W), or several of these"


def split_images(images: Any) -> Sequence[Any]:
    """Return single images of a sequence, a batch, a source, or one image alone.

    Raises:
        UserError: there is no image, or the argument is no image.

    >>> import torch
    >>> len(split_images(np.zeros((8, 8, 3), np.uint8))), len(split_images(torch.zeros(5, 3, 8, 8)))
    (1, 5)
    """
    if isinstance(images, str | os.PathLike | Image.Image):
        return [images]
    if isinstance(images, np.ndarray | Tensor):
        found = [images] if images.ndim in (2, 3) else list(images) if images.ndim == 4 else None
    elif isinstance(images, MemoryImages):
        found = list(images.pixels)
    elif isinstance(images, Images):
        return _Opened(images)
    else:
        found = list(images) if isinstance(images, Iterable) and not isinstance(images, bytes | dict) else None
    if not found:
        raise UserError(f"images is {'empty' if found == [] else describe(images)}, expected {SINGLE}")
    return found


def read_pixels(image: Any, preprocess: Preprocess, *, number: int = 0) -> Tensor:
    """Return the preprocessed pixels (C, S, S) of one image, uint8 or floats in [0, 1].

    Raises:
        UserError: the image cannot be read; the message has its name, or its number.
    """
    name = os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"
    try:
        return preprocess.pixels(_open(image, str(name), preprocess.channels), name=str(name))
    except ImageDecodeError as error:
        raise _unreadable(error) from error


def _unreadable(error: ImageDecodeError) -> UserError:
    return UserError(f"'{error.name}' cannot be read: {error.reason}; leave out or repair this image")


def _open(image: Any, name: str, channels: int) -> RawImage:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | os.PathLike):
        return _read_file(Path(os.fsdecode(image)))
    if not isinstance(image, np.ndarray | Tensor):
        raise UserError(f"{name} is {describe(image)}, expected {SINGLE}")
    usual, shape, is_tensor = {1, 3, channels}, tuple(image.shape), isinstance(image, Tensor)
    if len(shape) == 3 and shape[0 if is_tensor else 2] not in usual and shape[2 if is_tensor else 0] in usual:
        expected = "(C, H, W); use .permute(2, 0, 1)" if is_tensor else "(H, W, C); use .transpose(1, 2, 0)"
        raise UserError(f"{name} is {describe(image)}, expected {expected}")
    pixels = to_numpy(image)
    pixels = pixels.transpose(1, 2, 0) if is_tensor and pixels.ndim == 3 else pixels
    if pixels.dtype.kind != "f" or not pixels.size:
        return pixels
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # also true for NaN
        found = f"{pixels.dtype} values from {pixels.min():.4g} to {pixels.max():.4g}"
        raise UserError(f"{name} has {found}, expected [0, 1] or uint8, before any normalisation, which the model does")
    levels = pixels.astype(np.float64) * 255
    rounded = np.round(levels)
    return rounded.astype(np.uint8) if np.abs(levels - rounded).max() < ROUNDING else pixels.astype(np.float32)


def _read_file(path: Path) -> RawImage:
    try:
        return open_bytes(read_regular_file(path, max_bytes=BYTES_PER_PIXEL * MAX_PIXELS), str(path))
    except FileNotFoundError:
        raise UserError(f"no file '{path}', expected {SINGLE}") from None
    except (OSError, ValueError) as error:  # ValueError: a folder, a FIFO, or a NUL character
        if isinstance(error, UserError):
            raise
        raise UserError(f"'{path!s}' cannot be read: {getattr(error, 'strerror', None) or error}") from error


class _Opened(Sequence):
    """The images of a source, opened when they are needed."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return [self._open(i) for i in range(len(self))[index]] if isinstance(index, slice) else self._open(index)

    def __iter__(self) -> Iterator[Any]:
        return map(self._open, range(len(self)))

    def _open(self, index: int) -> RawImage:
        try:
            return self.images.open(index)
        except ImageDecodeError as error:
            raise _unreadable(error) from error
