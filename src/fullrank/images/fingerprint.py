"""The fingerprint of a set of images, which a resumed run compares with the stored one."""

import hashlib

import numpy as np

from fullrank.config import config
from fullrank.images.dataset_info import evenly_spaced
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.load import MemoryImages
from fullrank.images.source import Images

# Number of images whose content counts, evenly spaced.
SAMPLE = 128


@config
class Fingerprint:
    """What a run remembers of its training images.

    Attributes:
        count: Number of images.
        digest: Hash of the names, the labels and the classes, and of the content of `SAMPLE` images: of the pixels in
            memory, or of the files on disk.
    """

    count: int
    digest: str

    @classmethod
    def of(cls, images: Images | MemoryImages) -> "Fingerprint":
        """Compute the fingerprint of images.

        >>> from fullrank.images import load_images, open_images
        >>> Fingerprint.of(load_images(open_images("digits")["all"], channels=1)).count
        1797
        """
        digest = hashlib.sha256(f"{images.classes}\0".encode(errors="surrogateescape"))
        digest.update(np.asarray(images.labels, dtype=np.int64).tobytes())
        in_memory = isinstance(images, MemoryImages)
        for name in images.names if in_memory else map(images.name, range(len(images))):
            digest.update(name.encode(errors="surrogateescape") + b"\0")
        for index in compared_indices(len(images)):
            digest.update(images.pixels[index].cpu().numpy().tobytes() if in_memory else _content(images, index))
        return cls(count=len(images), digest=digest.hexdigest()[:16])

    def changes(self, found: "Fingerprint") -> list[str]:
        """Return what differs from the fingerprint of the images now: one sentence, or nothing."""
        if found.count != self.count:
            return [f"{self.count:,} images are now {found.count:,}"]
        return [] if found == self else ["names, labels, classes or contents differ, or their place: memory or disk"]


def compared_indices(count: int) -> list[int]:
    """Return the indices of the images whose content counts.

    >>> compared_indices(3), len(compared_indices(10**6))
    ([0, 1, 2], 128)
    """
    return evenly_spaced(count, SAMPLE)


def _content(images: Images, index: int) -> bytes:
    """Return the content of the image file, which is not decoded, or the pixels if there is no file."""
    try:
        image = images.open(index)
    except (ImageDecodeError, OSError, ValueError):
        return b"unreadable"
    if (file := getattr(image, "fp", None)) is None:
        return np.ascontiguousarray(np.asarray(image)).tobytes()
    file.seek(0)
    return file.read()
