"""Which data set a source holds: a digest of its pixels and labels, and its name if the images are known."""

import hashlib
import os
from functools import lru_cache

import numpy as np

from fullrank.images import Images, open_images
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.fingerprint import compared_indices
from fullrank.images.source_uri import absolute_source
from fullrank.recipes import DataConfig

KNOWN: dict[str, str] = {}
"""Digest → name of a public data set."""


def identify(data: DataConfig) -> tuple[str, str]:
    """Return the name and the digest of a data set.

    The digest is of the names of splits that were asked for and, for each split of the source, of the number of images, all labels, and the
    decoded pixels of a sample: files of another format with the
    same pixels are the same data set, and files with other pixels, such as a compressed copy, are another one. The name is that of a known
    digest, or else the last part of the source.

    Raises:
        UserError: the source cannot be read.

    >>> identify(DataConfig(source="digits"))[0]
    'digits'
    """
    digest = _digest(absolute_source(data.source), data)
    name = data.source if ":" in data.source else os.path.basename(os.path.normpath(data.source))
    return KNOWN.get(digest, name), digest


@lru_cache(maxsize=16)
def _digest(source: str, data: DataConfig) -> str:
    state = hashlib.sha256(f"{data.train} {data.test}\0".encode())
    if data.storage == "streaming":  # a stream has no random access
        state.update(source.encode())
        return state.hexdigest()[:12]
    for name, images in sorted(open_images(source, **data.open_options).items()):
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
