"""Images that are given as Python objects: arrays, lists of paths, data sets of torch and of `datasets`; and the few
images that a user gives to a model.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fullrank.errors import UserError, printable
from fullrank.images.decode import RawImage
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.labels import read_labels
from fullrank.images.load import MemoryImages
from fullrank.images.reading import MAX_PIXELS, Reading
from fullrank.images.source import MAX_CLASSES, ArrayRows, FileRows, Images
from fullrank.images.source_uri import open_images
from fullrank.images.uri import MEMORY

IMAGE_KEYS = ("image", "img", "pixel_values", "pixels")
SOURCES = (
    "expected a folder or another source URI, a list of paths, a uint8 tensor or array (n, C, H, W), one of floats in "
    "[0, 1], a data set of torch or of the datasets library, or Images"
)


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
    reading = Reading(max_pixels=max_pixels)
    if isinstance(data, str | Path):
        splits = open_images(data, reading)
        if len(splits) > 1:
            raise UserError(
                f"'{data}' has the splits {', '.join(splits)}; choose one with open_images('{data}')[SPLIT]"
            )
        return next(iter(splits.values()))
    if isinstance(data, MemoryImages):
        rows = ArrayRows(data.pixels.permute(0, 2, 3, 1).cpu().numpy(), data.names)
        several = None if data.multi_labels is None else data.multi_labels.cpu().numpy()
        labels, groups = data.labels.cpu().numpy(), data.groups.cpu().numpy()
        return Images(MEMORY, rows, labels=labels, classes=data.classes, multi_labels=several, groups=groups)
    if isinstance(data, Tensor | np.ndarray):
        return Images(MEMORY, ArrayRows(_to_pixels(data)))
    hub = sys.modules.get("datasets")  # if nobody has imported `datasets`, `data` is none of its data sets
    if hub and isinstance(data, hub.Dataset):
        from fullrank.images.table import table_splits

        return table_splits(MEMORY, {"all": data}, roots=None, reading=reading)["all"]
    if (
        isinstance(data, tuple)
        and len(data) == 2
        and _are_labels(data[1])
        and not isinstance(data[0], str | Image.Image)
    ):
        return _with_labels(as_images(data[0], max_pixels=max_pixels), data[1])
    if isinstance(data, list | tuple) and data and all(isinstance(path, str | Path) for path in data):
        return Images(MEMORY, FileRows([os.fspath(path) for path in data]), max_pixels=max_pixels)
    is_sequence = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not is_sequence or isinstance(data, dict | bytes) or not len(data) or isinstance(data[0], str | Path):
        raise UserError(f"data is {describe(data)}; {SOURCES}")
    labels = _find_labels(data)
    notes = () if labels is not None else ("no labels, because the data set has no targets with one integer per image",)
    classes = tuple(map(str, getattr(data, "classes", ())))
    return Images(MEMORY, ObjectRows(data), labels=labels, classes=classes, notes=notes)


def _are_labels(values: Any) -> bool:
    """Return whether the second of two objects is a list of labels, not an image."""
    if isinstance(values, Tensor | np.ndarray):
        return values.ndim in (1, 2)
    kinds = str | int | float | np.number | None
    return isinstance(values, list | tuple) and all(isinstance(value, kinds) for value in values)


def _with_labels(images: Images, values: Any) -> Images:
    """Return images with the given labels: class numbers, or names of classes, or a matrix (n, K) of several labels.

    Raises:
        UserError: there is not one label or row for each image, or a label is neither a class number nor a name, or a
            row has other values than 0 and 1, or -1 throughout.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if len(array) != len(images):
        raise UserError(
            f"data has {len(images)} images and {len(array)} labels, expected one label for each (-1 or None: no label)"
        )
    images = images.subset(range(len(images)))  # the labels of the caller's object do not change
    images.notes = ()
    if isinstance(array, np.ndarray) and array.ndim == 2:
        rows = ((array == 0) | (array == 1)).all(1) | (array == -1).all(1)
        if not (array.shape[1] and array.dtype.kind in "biuf" and rows.all()):
            raise UserError("data has labels (n, K) with other values, expected 1 (has the class), 0, or a row of -1")
        images.labels, images.multi_labels = np.full(len(images), -1, dtype=np.int64), array.astype(np.int8)
        images.classes = images.classes if len(images.classes) == array.shape[1] else ()
        return images
    labels = array.tolist() if isinstance(array, np.ndarray) else list(array)
    labels = [int(label) if isinstance(label, np.integer) else label for label in labels]
    wrong = [
        label
        for label in labels
        if isinstance(label, float | bool | np.number) or (isinstance(label, int) and label < -1)
    ]
    if wrong or len({type(label) for label in labels if label is not None}) > 1:
        shown = repr([*wrong, *(label for label in labels if isinstance(label, str))][0])[:60]
        raise UserError(f"data has the label {shown}, expected class numbers, -1 for none, or only names of classes")
    found = read_labels({"all": labels}, "the list of labels", names=images.classes, requested=True)["all"]
    named = int(found.labels.max(initial=-1)) < len(found.classes)
    images.labels, images.classes = found.labels, found.classes if named else ()
    return images


def describe(value: Any) -> str:
    """Return what an object is, for an error."""
    if isinstance(value, np.ndarray | Tensor):
        return f"{'an array' if isinstance(value, np.ndarray) else 'a tensor'} of shape {tuple(value.shape)}"
    return (
        repr(value)
        if isinstance(value, int | float | None)
        else f"{printable(f'{value!r:.60}')} ({type(value).__name__})"
    )


class ObjectRows:
    """A data set with random access, such as torch's: `dataset[i]` is an image, (image, label) or a dict with an
    image.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def name(self, index: int) -> str:
        """Return `"memory[3]"`."""
        return f"{MEMORY}[{index}]"

    def cell(self, index: int) -> RawImage:
        """Return the pixels."""
        item = self.dataset[index]
        if isinstance(item, dict):
            item = next((item[key] for key in IMAGE_KEYS if key in item), None)
        elif isinstance(item, tuple | list) and item:
            item = item[0]
        if isinstance(item, Tensor) and item.ndim == 3:
            return _to_pixels(item[None])[0]
        if isinstance(item, Image.Image | np.ndarray):
            return item
        expected = "a Pillow image, an array (H, W, C) or a tensor (C, H, W)"
        raise ImageDecodeError(self.name(index), f"{describe(item)}, expected {expected}")


def _to_pixels(data: Tensor | np.ndarray) -> np.ndarray:
    """Return images (n, C, H, W) as uint8 or uint16 (n, H, W, C).

    Raises:
        UserError: the shape, the type or the range is wrong.
    """
    shape = tuple(data.shape)
    if len(shape) != 4 or 0 in shape:
        raise UserError(f"data has shape {shape}, expected (n, C, H, W), at least one image; {SOURCES}")
    if shape[1] > 4 >= shape[3]:
        order = "permute(0, 3, 1, 2)" if isinstance(data, Tensor) else "transpose(0, 3, 1, 2)"
        raise UserError(f"data has shape {shape}, expected (n, C, H, W); give data.{order}")
    pixels = to_numpy(data)
    if pixels.dtype.kind == "f":
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # also true for NaN
            found = f"from {pixels.min():.3g} to {pixels.max():.3g}"
            raise UserError(
                f"data has values {found}, expected floats in [0, 1] or uint8; give it without normalisation"
            )
        pixels = np.round(pixels * 255).astype(np.uint8)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise UserError(f"data has the type {pixels.dtype}, expected uint8, or floats in [0, 1]; convert it")
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


def to_numpy(data: Tensor | np.ndarray) -> np.ndarray:
    """Return the array of a tensor of any type and device."""
    if isinstance(data, np.ndarray):
        return data
    data = data.detach().cpu()
    return (data.float() if data.is_floating_point() else data).numpy()  # numpy has no bfloat16


def _find_labels(dataset: Any) -> np.ndarray | None:
    """Return the labels that a data set has as an attribute, without opening its images."""
    if isinstance(dataset, torch.utils.data.Subset):
        labels = _find_labels(dataset.dataset)
        return None if labels is None else labels[np.asarray(dataset.indices, dtype=np.int64)]
    tensors = getattr(dataset, "tensors", ())
    for candidate in (getattr(dataset, "targets", None), getattr(dataset, "labels", None), *tensors[1:2]):
        try:
            labels = np.asarray(candidate)
            if labels.shape == (len(dataset),) and labels.dtype.kind in "iu" and labels.max() < MAX_CLASSES:
                return labels.astype(np.int64).clip(min=-1)
        except (TypeError, ValueError, RuntimeError):
            continue
    return None
