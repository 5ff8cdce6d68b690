"""Images that are given as Python objects: arrays, lists of paths, data sets of torch and of `datasets`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fullrank.arguments import MEMORY
from fullrank.errors import UserError, printable
from fullrank.images.decode import open_bytes
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.files import BYTES_PER_PIXEL, read_regular_file
from fullrank.images.load import MemoryImages
from fullrank.images.reading import MAX_PIXELS, Reading
from fullrank.images.source import MAX_CLASSES, Images, RawImage
from fullrank.images.source_uri import open_images

EXPECTED = (
    "expected a folder or another source URI, a list of paths, a uint8 tensor or array (n, C, H, W), one of floats in [0, 1], "
    "a data set of torch or of the datasets library, or Images"
)
IMAGE_KEYS = ("image", "img", "pixel_values", "pixels")
LABEL_KEYS = ("label", "labels", "fine_label")


def as_images(data: Any, *, max_pixels: int = MAX_PIXELS) -> Images:
    """Return images that are given as a Python object.

    | data | images |
    |---|---|
    | `Images` | unchanged |
    | `str`, `Path` | the only split of a source URI, see `open_images` |
    | list of paths | the files |
    | `MemoryImages` | its images, labels and classes |
    | tensor or array (n, C, H, W) | uint8, or floats in [0, 1], which become round(255·x); an array may be uint16 |
    | data set of torch, list of images | items are images or (image, label): a Pillow image, an array (H, W, C) or a
    tensor (C, H, W) |
    | `datasets.Dataset` | its image column and its label column |
    | tuple (images, labels) | any of these with one integer or one class name for each image; -1 or None means no label
    |
    | tuple (images, labels (n, K)) | several labels an image: 1 where an image has a class, 0 elsewhere; a row of -1
    means no labels |

    Args:
        data: The images.
        max_pixels: Refuse an image file with more pixels.

    Raises:
        UserError: the object has another type, shape or range.

    >>> images = as_images(torch.zeros(5, 3, 8, 6))
    >>> len(images), images.open(0).shape
    (5, (8, 6, 3))
    """
    if isinstance(data, Images):
        return data
    if isinstance(data, str | Path):
        splits = open_images(data, Reading(max_pixels=max_pixels))
        if len(splits) > 1:
            raise UserError(
                f"'{data}' has the splits {', '.join(splits)}, expected one; choose with open_images('{data}')[SPLIT]"
            )
        return next(iter(splits.values()))
    if isinstance(data, MemoryImages):
        pixels = data.pixels.permute(0, 2, 3, 1).cpu().numpy()
        images = ArrayImages(pixels, data.labels.cpu().numpy(), data.names, data.classes)
        images.groups = data.groups.cpu().numpy()
        images.multi_labels = None if data.multi_labels is None else data.multi_labels.cpu().numpy()
        return images
    if isinstance(data, Tensor | np.ndarray):
        return ArrayImages(_to_pixels(data))
    hub = sys.modules.get("datasets")  # if nobody has imported `datasets`, `data` is none of its data sets
    if hub and isinstance(data, hub.Dataset):
        from fullrank.images.table import table_splits

        return table_splits(MEMORY, {"all": data}, roots=None, reading=Reading(max_pixels=max_pixels))["all"]
    if hub and isinstance(data, hub.DatasetDict):
        raise UserError(
            f"data is a DatasetDict with the splits {', '.join(data)}, expected one split; give data['{next(iter(data), '')}']"
        )
    if (
        isinstance(data, tuple)
        and len(data) == 2
        and _are_labels(data[1])
        and not isinstance(data[0], str | Image.Image)
    ):
        return _with_labels(as_images(data[0], max_pixels=max_pixels), data[1])
    if isinstance(data, list | tuple) and data and isinstance(data[0], str | Path):
        for path in data:
            if not isinstance(path, str | Path):
                raise UserError(f"data is a list of paths that contains {_describe(path)}, expected only paths")
        return FileImages(data, max_pixels=max_pixels)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, dict | bytes):
        return DatasetImages(data)
    raise UserError(f"data is {_describe(data)}; {EXPECTED}")


def _are_labels(values: Any) -> bool:
    """Return whether the second of two objects is a list of labels, not an image."""
    if isinstance(values, Tensor | np.ndarray):
        return values.ndim in (1, 2)
    return isinstance(values, list | tuple) and all(
        value is None or isinstance(value, str | int | float | np.number) for value in values
    )


def _with_labels(images: Images, values: Any) -> Images:
    """Return images with the given labels: class numbers, or the names of classes, which are sorted.

    Raises:
        UserError: there is not one label for each image, or a label is neither a class number nor a name.
    """
    if isinstance(values, Tensor | np.ndarray) and values.ndim == 2:
        return _with_multi_labels(images, values)
    labels = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    if len(labels) != len(images):
        raise UserError(
            f"data has {len(images)} images and {len(labels)} labels, expected one label for each image (-1 or None: no label)"
        )
    given = [label for label in labels if label is not None]
    images = images.subset(range(len(images)))  # the labels of the caller's object do not change
    if given and all(isinstance(label, str) for label in given):
        classes = sorted(set(given))
        number = {name: k for k, name in enumerate(classes)}
        images.labels, images.classes = (
            np.array([number.get(label, -1) for label in labels], dtype=np.int64),
            tuple(map(printable, classes)),
        )
    elif all(isinstance(label, int | np.integer) and -1 <= label < MAX_CLASSES for label in given):
        images.labels = np.array([-1 if label is None else label for label in labels], dtype=np.int64)
        images.classes = images.classes if images.labels.max() < len(images.classes) else ()
    else:
        wrong = next(
            label for label in given if not isinstance(label, int | np.integer) or not -1 <= label < MAX_CLASSES
        )
        raise UserError(
            f"data has the label {wrong!r:.60}, expected class numbers from 0 to {MAX_CLASSES - 1}, -1 for none, or only names"
        )
    images.notes = ()
    return images


def _with_multi_labels(images: Images, values: Tensor | np.ndarray) -> Images:
    """Return images with several labels each.

    Raises:
        UserError: there is not one row for each image, or a row has other values than 0 and 1, or -1 throughout.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if len(array) != len(images) or not array.shape[1]:
        raise UserError(
            f"data has {len(images)} images and labels of shape {array.shape}, expected ({len(images)}, number of classes)"
        )
    given = array.dtype.kind in "biuf" and ((array == 0) | (array == 1)).all(1) | (array == -1).all(1)
    if not np.all(given):
        raise UserError(
            "data has labels (n, K) with other values, expected 1 (has the class) or 0, or a row of -1 (no labels)"
        )
    images = images.subset(range(len(images)))
    images.labels = np.full(len(images), -1, dtype=np.int64)
    images.multi_labels = array.astype(np.int8)
    images.classes = images.classes if len(images.classes) == array.shape[1] else ()
    images.notes = ()
    return images


def _describe(data: Any) -> str:
    return repr(data) if data is None or isinstance(data, int | float | bool) else f"of type {type(data).__name__}"


class ArrayImages(Images):
    """Images in one array (n, H, W, C), uint8 or uint16."""

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray | None = None,
        names: Sequence[str] = (),
        classes: tuple[str, ...] = (),
    ):
        _check_number(len(pixels))
        self.source, self.pixels, self.names, self.classes = MEMORY, pixels, names, classes
        self.labels = np.full(len(pixels), -1, dtype=np.int64) if labels is None else labels

    def name(self, index: int) -> str:
        return self.names[index] if self.names else f"{MEMORY}[{index}]"

    def open(self, index: int) -> RawImage:
        return self.pixels[index]


class FileImages(Images):
    """Image files, given by their paths."""

    def __init__(self, paths: Sequence[str | Path], *, max_pixels: int = MAX_PIXELS):
        _check_number(len(paths))
        self.source, self.paths, self.classes, self.max_pixels = (
            MEMORY,
            [os.fspath(path) for path in paths],
            (),
            max_pixels,
        )
        self.labels = np.full(len(paths), -1, dtype=np.int64)

    def name(self, index: int) -> str:
        return self.paths[index]

    def open(self, index: int) -> RawImage:
        path = self.paths[index]
        with convert_errors(path):
            data = read_regular_file(os.path.expanduser(path), max_bytes=BYTES_PER_PIXEL * self.max_pixels)
        return open_bytes(data, path, max_pixels=self.max_pixels)


class DatasetImages(Images):
    """A data set with random access, such as torch's: `dataset[i]` is an image, (image, label) or a dict with an
    image.
    """

    def __init__(self, dataset: Any):
        self.source, self.dataset = MEMORY, dataset
        self.classes = tuple(map(str, getattr(dataset, "classes", ())))
        _check_number(len(dataset))
        labels = _find_labels(dataset)
        self.labels = np.full(len(dataset), -1, dtype=np.int64) if labels is None else labels
        if labels is None:
            self.notes = (
                "no labels, because the data set has no attribute targets or labels with one integer per image",
            )

    def name(self, index: int) -> str:
        return f"{MEMORY}[{index}]"

    def open(self, index: int) -> RawImage:
        with convert_errors(self.name(index)):
            item = self.dataset[index]
            if isinstance(item, dict):
                item = next((item[key] for key in IMAGE_KEYS if key in item), None)
            elif isinstance(item, tuple | list) and item:
                item = item[0]
            if isinstance(item, Tensor):
                if item.ndim != 3:
                    raise ImageDecodeError(
                        self.name(index), f"the tensor has shape {tuple(item.shape)}, expected (C, H, W)"
                    )
                return _to_pixels(item[None])[0]
            if isinstance(item, Image.Image | np.ndarray):
                return item
            raise ImageDecodeError(
                self.name(index),
                f"{_describe(item)}, expected a Pillow image, an array (H, W, C) or a tensor (C, H, W)",
            )


def _check_number(n: int) -> None:
    if not n:
        raise UserError(f"data has no images; {EXPECTED}")


def _to_pixels(data: Tensor | np.ndarray) -> np.ndarray:
    """Return images (n, C, H, W) as uint8 or uint16 (n, H, W, C).

    Raises:
        UserError: the shape, the type or the range is wrong.
    """
    shape = tuple(data.shape)
    if len(shape) != 4 or 0 in shape[1:]:
        remedy = (
            "add the dimension of the images with data[None]" if len(shape) == 3 else "give all images in one tensor"
        )
        raise UserError(f"data has shape {shape}, expected (n, C, H, W); {remedy}")
    if shape[1] > 4 >= shape[3]:
        order = "permute(0, 3, 1, 2)" if isinstance(data, Tensor) else "transpose(0, 3, 1, 2)"
        raise UserError(f"data has shape {shape}, expected (n, C, H, W); give data.{order}")
    pixels = data.detach().cpu() if isinstance(data, Tensor) else data
    if isinstance(pixels, Tensor):
        pixels = (pixels.float() if pixels.is_floating_point() else pixels).numpy()
    if pixels.dtype.kind == "f":
        if not (np.isfinite(pixels).all() and pixels.min(initial=0) >= 0 and pixels.max(initial=0) <= 1):
            found = (
                f"from {np.nanmin(pixels):.3g} to {np.nanmax(pixels):.3g}"
                if np.isfinite(pixels).all()
                else "that are not finite"
            )
            raise UserError(
                f"data has values {found}, expected floats in [0, 1] or uint8; give the images without normalisation"
            )
        pixels = np.round(pixels * 255).astype(np.uint8)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise UserError(
            f"data has the type {pixels.dtype}, expected uint8, or floats in [0, 1]; convert it, e.g. data.astype('uint8')"
        )
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


def _find_labels(dataset: Any) -> np.ndarray | None:
    """Return the labels that a data set has as an attribute, without opening its images."""
    if isinstance(dataset, torch.utils.data.Subset):
        labels = _find_labels(dataset.dataset)
        return None if labels is None else labels[np.asarray(dataset.indices, dtype=np.int64)]
    tensors = getattr(dataset, "tensors", ())
    candidates = [
        getattr(dataset, "targets", None),
        getattr(dataset, "labels", None),
        tensors[1] if len(tensors) > 1 else None,
    ]
    for candidate in candidates:
        try:
            labels = np.asarray(candidate)
            if labels.shape == (len(dataset),) and labels.dtype.kind in "iu" and labels.max() < MAX_CLASSES:
                return labels.astype(np.int64).clip(min=-1)
        except (TypeError, ValueError, RuntimeError):
            continue
    return None
