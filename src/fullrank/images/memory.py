"""Images that are given as Python objects: arrays, paths, Pillow images, data sets of torch and of `datasets`; as the
images of a run, or as the few images that a user gives to a model.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fullrank.errors import UserError
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.labels import MAX_CLASSES, Labelled, read_labels, unlabelled
from fullrank.images.load import MemoryImages
from fullrank.images.preprocess import Preprocess
from fullrank.images.reading import MAX_PIXELS, Reading
from fullrank.images.source import MEMORY, SINGLE, FileRows, Images, ItemRows, describe, to_pixels
from fullrank.images.source_uri import open_images

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
    | tensor or array (n, C, H, W) | uint8 or uint16, or floats in [0, 1], which become uint8 if they are whole 255ths |
    | data set of torch, list of images | items are images or (image, label): a Pillow image, an array (H, W, C) or a
    tensor (C, H, W) |
    | `datasets.Dataset` | its image column and its label column |
    | tuple (images, labels) | any of these with one integer or one class name for each image; -1 or None means no label
    |
    | tuple (images, labels (n, K)) | several labels per image: 1 where an image has a class, 0 elsewhere; a row of -1
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
            raise UserError(f"'{data}' has the splits {', '.join(splits)}; choose one with open_images(…)[SPLIT]")
        return next(iter(splits.values()))
    if isinstance(data, MemoryImages):
        rows = ItemRows(data.pixels.permute(0, 2, 3, 1).cpu().numpy(), data.names)
        several = None if data.multi_labels is None else data.multi_labels.cpu().numpy()
        return Images(MEMORY, rows, data.labels.cpu().numpy(), data.classes, several, data.groups.cpu().numpy())
    if isinstance(data, Tensor | np.ndarray):
        shape = tuple(data.shape)
        if len(shape) != 4 or 0 in shape or shape[1] > 4 >= shape[3]:
            raise UserError(f"data has shape {shape}, expected (n, C, H, W), at least one image; {SOURCES}")
        if isinstance(data, np.ndarray):  # in the byte order of this machine
            data = torch.from_numpy(np.ascontiguousarray(data, dtype=data.dtype.newbyteorder("=")))
        return Images(MEMORY, ItemRows(to_pixels(data)))
    hub = sys.modules.get("datasets")  # if nobody has imported `datasets`, `data` is none of its data sets
    if hub and isinstance(data, hub.Dataset):
        from fullrank.images.table import table_splits

        return table_splits(MEMORY, {"all": data}, roots=None, reading=reading)["all"]
    pair = isinstance(data, tuple) and len(data) == 2
    if pair and _are_labels(data[1]) and not isinstance(data[0], str | Image.Image):
        return _with_labels(as_images(data[0], max_pixels=max_pixels), data[1])
    if isinstance(data, list | tuple) and data and all(isinstance(path, str | Path) for path in data):
        return Images(MEMORY, FileRows([os.fspath(path) for path in data]), max_pixels=max_pixels)
    is_sequence = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not is_sequence or isinstance(data, dict | bytes) or not len(data) or isinstance(data[0], str | Path):
        raise UserError(f"data is {describe(data)}; {SOURCES}")
    labels = _find_labels(data)
    found = unlabelled(len(data), "no labels, because the data set has no targets with one integer per image")
    if labels is not None:
        found = Labelled(labels, tuple(map(str, getattr(data, "classes", ()))))
    return Images(MEMORY, ItemRows(data), **vars(found))


def given_images(images: Any) -> Images:
    """Return the images that a user gives to a model: a sequence, a batch, a source, or one image alone.

    Raises:
        UserError: there is no image, or the argument is no image.

    >>> len(given_images(np.zeros((8, 8, 3), np.uint8))), len(given_images(torch.zeros(5, 3, 8, 8)))
    (1, 5)
    """
    if isinstance(images, Images | MemoryImages):
        return as_images(images)
    found: Any = images
    if isinstance(images, str | os.PathLike | Image.Image):
        found = [images]
    elif isinstance(images, np.ndarray | Tensor):
        found = {2: [images], 3: [images], 4: images}.get(images.ndim)
    elif isinstance(images, dict | bytes) or not isinstance(images, Iterable):
        found = None
    if found is None or not len(found := list(found)):
        raise UserError(f"images is {'empty' if found == [] else describe(images)}, expected {SINGLE}, or several")
    if all(isinstance(item, str | os.PathLike) for item in found):
        return Images("images", FileRows([os.fspath(path) for path in found]))
    return Images("images", ItemRows(found, what="image"))


def read_pixels(images: Images, index: int, preprocess: Preprocess) -> Tensor:
    """Return the preprocessed pixels (C, S, S) of one image, uint8 or floats in [0, 1].

    Raises:
        UserError: the image cannot be read; the message has its name.
    """
    try:
        return preprocess.pixels(images.open(index), name=images.name(index))
    except ImageDecodeError as error:
        message = f"'{error.name}' cannot be read: {error.reason}; leave out or repair this image"
        raise UserError(message) from error


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
        raise UserError(f"data has {len(images)} images and {len(array)} labels, expected one each (None: no label)")
    if isinstance(array, np.ndarray) and array.ndim == 2:
        rows = ((array == 0) | (array == 1)).all(1) | (array == -1).all(1)
        if not (array.shape[1] and array.dtype.kind in "biuf" and rows.all()):
            raise UserError("data has labels (n, K) with other values, expected 1 (has the class), 0, or a row of -1")
        classes = images.classes if len(images.classes) == array.shape[1] else ()
        labels = np.full(len(images), -1, dtype=np.int64)
        return replace(images, labels=labels, multi_labels=array.astype(np.int8), classes=classes, notes=())
    labels = [label.item() if isinstance(label, np.number) else label for label in array]
    kinds = {type(label) for label in labels if label is not None}
    if not (kinds <= {int} or kinds == {str}) or any(isinstance(label, int) and label < -1 for label in labels):
        kind = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(f"data has labels of type {kind}, expected class numbers, -1 for none, or only class names")
    found = read_labels(labels, "the list of labels", names=images.classes, requested=True)
    named = int(found.labels.max(initial=-1)) < len(found.classes)
    return replace(images, labels=found.labels, classes=found.classes if named else (), multi_labels=None, notes=())


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
