"""How many test images are also among the images of pretraining: equal pixels, whatever the file names and formats."""

import hashlib

import numpy as np

from fullrank.images import Images, MemoryImages, decode
from fullrank.images.decode_errors import ImageDecodeError


def count_overlap(test: Images | MemoryImages, pretraining: Images | MemoryImages, *, channels: int) -> int:
    """Return the number of test images whose decoded pixels equal those of an image of pretraining. Unreadable images
    are left out.

    Args:
        test: the test images.
        pretraining: the images of pretraining, all of which are decoded.
        channels: channels of the network; images are decoded to these.

    >>> from fullrank.images import open_images
    >>> digits = open_images("digits")["all"]
    >>> count_overlap(digits.subset(range(10)), digits.subset(range(7, 20)), channels=1)
    3
    """
    known = {content_hash(pretraining, row, channels) for row in range(len(pretraining))} - {None}
    return sum(content_hash(test, row, channels) in known for row in range(len(test)))


def content_hash(images: Images | MemoryImages, row: int, channels: int) -> bytes | None:
    """Return the hash of the size and the decoded pixels of an image, None if it is unreadable."""
    try:
        image = images.open(row) if isinstance(images, Images) else images.pixels[row].permute(1, 2, 0).cpu().numpy()
        pixels = np.array(decode(image, channels))
    except ImageDecodeError:
        return None
    pixels = pixels.reshape(*pixels.shape[:2], -1)  # one channel with or without an axis of its own
    return hashlib.blake2b(f"{pixels.shape}".encode() + pixels.tobytes(), digest_size=16).digest()
