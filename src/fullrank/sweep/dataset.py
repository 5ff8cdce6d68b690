"""Which data set a source holds: a digest of its pixels and labels, and its name if the images are known."""

import hashlib
import os
from functools import lru_cache

import numpy as np

from fullrank.images import Images, Reading, open_images, train_and_test
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.fingerprint import compared_indices
from fullrank.images.source_uri import absolute_source
from fullrank.recipes import DataConfig

KNOWN = {"d062551f7a77": "CIFAR-10", "5aa324e8509d": "MNIST"}
"""Digest → name of a public data set, whole and without loss, in its original order, with the splits train and test."""


def identify(data: DataConfig) -> tuple[str, str]:
    """Return the name and the digest of a data set.

    The digest is of the names of splits that were asked for and, for each split of the source, of the number of images,
    all labels, and the
    decoded pixels of a sample: files of another format with the
    same pixels are the same data set, and files with other pixels, such as a compressed copy, are another one. The name
    is that of a known digest, or else the last part of the source.

    Raises:
        UserError: the source cannot be read.

    >>> identify(DataConfig(source="digits"))[0]
    'digits'
    """
    digest = _digest(absolute_source(data.source), data.reading, data.storage == "streaming")
    name = data.source if ":" in data.source else os.path.basename(os.path.normpath(data.source))
    return KNOWN.get(digest, name), digest


@lru_cache(maxsize=16)
def _digest(source: str, reading: Reading, streaming: bool) -> str:
    state = hashlib.sha256(f"{reading.train} {reading.test}\0".encode())
    if streaming:  # a stream has no random access
        state.update(source.encode())
        return state.hexdigest()[:12]
    for name, images in sorted(open_images(source, reading).items()):
        state.update(f"{name} {len(images)}\0".encode())
        state.update(np.asarray(images.labels, dtype=np.int64).tobytes())
        for index in compared_indices(len(images)):
            state.update(_pixels(images, index))
    return state.hexdigest()[:12]


def _pixels(images: Images, index: int) -> bytes:
    try:
        pixels = np.asarray(images.open(index))
    except (ImageDecodeError, OSError, ValueError):
        return b"unreadable"
    return f"{pixels.shape} {pixels.dtype}\0".encode() + np.ascontiguousarray(pixels).tobytes()


def count_training_images(data: DataConfig) -> int:
    """Return how many images an epoch has, up to the rounding of a held-out fifth.

    Raises:
        UserError: there are fewer images than `data.subset`, or the source cannot be read.

    >>> count_training_images(DataConfig(source="digits")), count_training_images(DataConfig(source="digits", subset=500))
    (1438, 500)
    """
    return data.num_images if data.storage == "streaming" else _count(reading(data))


@lru_cache(maxsize=64)
def _count(data: DataConfig) -> int:
    return len(train_and_test(data.source, data.reading, validation=data.validation, subset=data.subset).train)


def reading(data: DataConfig) -> DataConfig:
    """Return a config with only the fields that say which images a source holds and which of them are used, as a key of
    a cache.
    """
    fields = ("source", "reading", "subset", "validation")
    return DataConfig(**{name: getattr(data, name) for name in fields})
