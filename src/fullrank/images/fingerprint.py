"""The fingerprint of a set of images: a resumed run compares it with the stored one, and names what has changed."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image

from fullrank.errors import UserError
from fullrank.images.decode_errors import ImageDecodeError
from fullrank.images.load import MemoryImages
from fullrank.images.source import Images, RawImage
from fullrank.structure import structure

SAMPLE = 128  # number of images on disk whose content is compared, evenly spaced
UNREADABLE = 0  # checksum of an image that cannot be read


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a run remembers of its training images."""

    count: int
    """Number of images."""
    shape: tuple[int, ...]
    """Channels, height and width of the images in memory; () for images on disk."""
    names: str
    """Hash of the names, in order."""
    labels: str
    """Hash of the labels, in order."""
    classes: tuple[str, ...]
    contents: str
    """CRC-32 of each image, in base64: the pixels of all images in memory, the encoded files of a sample of the images
    on disk."""

    @classmethod
    def of(cls, images: Images | MemoryImages) -> "Fingerprint":
        """Compute the fingerprint of images.

        >>> from fullrank.images import load_images, open_images
        >>> digits = Fingerprint.of(load_images(open_images("digits")["all"], channels=1))
        >>> digits.count, digits.shape, digits.classes[:3]
        (1797, (1, 8, 8), ('0', '1', '2'))
        """
        if isinstance(images, MemoryImages):
            pixels, names = images.pixels.cpu().numpy(), images.names
            shape, checksums = (
                tuple(map(int, pixels.shape[1:])),
                [zlib.crc32(image) for image in np.ascontiguousarray(pixels)],
            )
        else:
            names = (images.name(index) for index in range(len(images)))
            shape, checksums = (), [_checksum(images, index) for index in compared_indices(len(images))]
        return cls(
            count=len(images),
            shape=shape,
            names=_hash(name.encode(errors="surrogateescape") + b"\0" for name in names),
            labels=_hash([np.asarray(images.labels, dtype=np.int64).tobytes()]),
            classes=tuple(images.classes),
            contents=base64.b64encode(np.array(checksums, dtype="<u4").tobytes()).decode(),
        )

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that identify the images."""
        return _hash([json.dumps(self.to_json()).encode()])[:8]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, *, source: str = "fingerprint") -> "Fingerprint":
        """Build a fingerprint from the result of `to_json`.

        Raises:
            UserError: a field is missing, unknown or of the wrong type.
        """
        if not isinstance(value, dict):
            raise UserError(f"{source} is {value!r}, expected an object")
        return structure(value, cls, source)

    def changes(self, images: Images | MemoryImages, found: "Fingerprint") -> list[str]:
        """Return one description for each difference from this fingerprint.

        Args:
            images: the images now.
            found: the fingerprint of these images.
        """
        if found.count != self.count:
            return [f"{self.count:,} images are now {found.count:,}"]
        if found.shape != self.shape:
            return [f"images {_describe(self.shape)} are now {_describe(found.shape)}"]
        changes = []
        if found.classes != self.classes:
            changes.append(_class_changes(self.classes, found.classes))
        if found.names != self.names:
            changes.append("files were renamed, or other files took their place")
        if found.labels != self.labels:
            changes.append("labels differ")
        if found.contents != self.contents:
            changes.append(self._content_changes(images, found))
        return changes

    def _content_changes(self, images: Images | MemoryImages, found: "Fingerprint") -> str:
        indices = range(self.count) if self.shape else compared_indices(self.count)
        pairs = zip(indices, self._checksums(), found._checksums(), strict=False)
        changed = [index for index, before, now in pairs if before != now]
        if not changed:
            return "the stored checksums of the images are incomplete"
        first = images.names[changed[0]] if isinstance(images, MemoryImages) else images.name(changed[0])
        compared, what = ("", "pixels") if self.shape else (" compared", "content")
        return f"{len(changed):,} of {len(indices):,}{compared} images have other {what} (first: {first})"

    def _checksums(self) -> list[int]:
        try:
            data = base64.b64decode(self.contents)
        except ValueError:
            return []
        return np.frombuffer(data[: len(data) // 4 * 4], dtype="<u4").tolist()


def compared_indices(count: int) -> list[int]:
    """Return the indices of the images on disk whose content is compared.

    >>> compared_indices(3), len(compared_indices(10**6)), compared_indices(10**6)[-1]
    ([0, 1, 2], 128, 999999)
    """
    return sorted(set(np.linspace(0, count - 1, min(count, SAMPLE)).round().astype(int).tolist()))


def _checksum(images: Images, index: int) -> int:
    try:
        return zlib.crc32(_encoded(images.open(index)))
    except (ImageDecodeError, OSError, ValueError):
        return UNREADABLE


def _encoded(image: RawImage) -> bytes:
    """Return the content of the image file, which is not decoded, or the pixels if there is no file."""
    if isinstance(image, Image.Image):
        file = getattr(image, "fp", None)
        if file is not None:
            file.seek(0)
            return file.read()
    return np.ascontiguousarray(np.asarray(image)).tobytes()


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def _describe(shape: tuple[int, ...]) -> str:
    return f"of {'×'.join(map(str, shape))} in memory" if shape else "on disk"


def _class_changes(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    if len(before) != len(now):
        return f"{len(before)} classes are now {len(now)}"
    renamed = [f"{old} → {new}" for old, new in zip(before, now, strict=True) if old != new]
    more = f" and {len(renamed) - 3} more" if len(renamed) > 3 else ""
    return f"classes renamed {', '.join(renamed[:3])}{more}"
