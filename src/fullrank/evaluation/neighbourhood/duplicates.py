"""Near-duplicates: neighbours of the model whose pixels are correlated. The model proposes the pairs, the pixels
decide.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float32, Int64, Real, UInt8
from torch import Tensor

from fullrank.images.pixel_values import to_8_bits, to_16_bits

SIDE = 16
"""Side of the thumbnails that are compared, in pixels."""


class Duplicate(NamedTuple):
    """A pair of near-duplicates."""

    first: int
    second: int
    """Rows of the two images, `first` < `second`."""
    correlation: float
    """Pearson correlation of the pixels of the thumbnails."""
    equal: bool
    """Whether all pixels that the network receives are equal."""


def thumbnails(pixels: Real[Tensor, "n C S S"]) -> UInt8[np.ndarray, "n d"]:
    """Return the images averaged over squares, at most `SIDE` × `SIDE` pixels, as rows."""
    small = F.adaptive_avg_pool2d(to_8_bits(pixels).float(), min(SIDE, pixels.shape[-1]))
    return small.round().byte().flatten(1).numpy()


def pixel_digests(pixels: Real[Tensor, "n C S S"]) -> list[bytes]:
    """Return a hash of the pixels of each image."""
    return [
        hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in to_16_bits(pixels).contiguous()
    ]


def find_duplicates(
    small: UInt8[np.ndarray, "n d"], digests: Sequence[bytes], indices: Int64[np.ndarray, "n k"], *, threshold: float
) -> list[Duplicate]:
    """Return the pairs of neighbours whose thumbnails have at least this correlation, and all images with equal pixels.

    Of several equal images, each is paired with the first, so that m copies give m − 1 pairs. Equal pairs come first,
    then the highest correlations.

    Args:
        small: thumbnails.
        digests: hashes of the pixels.
        indices: the neighbours of each image.
        threshold: the least correlation, in (0, 1].
    """
    first_of: dict[bytes, int] = {}
    first = np.array([first_of.setdefault(digest, i) for i, digest in enumerate(digests)])
    equal = [Duplicate(int(first[i]), int(i), 1.0, True) for i in np.flatnonzero(first != np.arange(len(first)))]
    pairs = np.stack([np.repeat(np.arange(len(indices)), indices.shape[1]), indices.ravel()], axis=1)
    pairs = np.unique(np.sort(first[pairs], axis=1), axis=0)  # a copy stands for its first image
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    near: list[Duplicate] = []
    for block in np.array_split(pairs, len(pairs) // 65536 + 1):
        values = correlations(small[block[:, 0]], small[block[:, 1]])
        kept = values >= threshold
        near += [
            Duplicate(int(i), int(j), float(value), False)
            for (i, j), value in zip(block[kept], values[kept], strict=True)
        ]
    return equal + sorted(near, key=lambda pair: -pair.correlation)


def correlations(a: UInt8[np.ndarray, "n d"], b: UInt8[np.ndarray, "n d"]) -> Float32[np.ndarray, " n"]:
    """Return the Pearson correlation of each pair of rows; 0 if a row is constant.

    >>> correlations(np.array([[0, 100], [5, 5]], np.uint8), np.array([[20, 40], [1, 2]], np.uint8)).tolist()
    [1.0, 0.0]
    """
    x, y = (rows - rows.mean(axis=1, keepdims=True) for rows in (a.astype(np.float32), b.astype(np.float32)))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(axis=1) / np.where(norms > 0, norms, 1)
