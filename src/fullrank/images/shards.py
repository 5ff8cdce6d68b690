"""WebDataset shards: tar files whose members are images, each with its label in a member of the same key. Nothing is ever unpacked."""

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fullrank.config import MAX_PIXELS
from fullrank.errors import UserError, printable
from fullrank.images.decode import open_bytes
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.files import BYTES_PER_PIXEL, check_regular
from fullrank.images.folder import EXTENSIONS
from fullrank.images.source import MAX_CLASSES, Images, RawImage
from fullrank.images.splits import ALL, OTHER, split_of_file

LABEL = "cls"  # extension of a member with a class number or a class name, as WebDataset writes it
MAX_LABEL_BYTES = 256


class TarImages(Images):
    """Images that are members of tar files, read at their place in the file.

    Args:
        source: the source URI.
        files: the tar files.
        shard: (n,) the tar file of each image.
        offsets: (n,) the first byte of each image.
        sizes: (n,) the number of bytes of each image.
        names: (n,) the names of the images, as bytes.
        max_pixels: refuse an image with more pixels.
    """

    def __init__(
        self,
        source: str,
        files: Sequence[str],
        shard: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        names: np.ndarray,
        *,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.source, self.files, self.max_pixels = source, tuple(files), max_pixels
        self.shard, self.offsets, self.sizes, self.names = shard, offsets, sizes, names
        self.labels, self.classes = np.full(len(names), -1, dtype=np.int64), ()

    def name(self, index: int) -> str:
        """Return the shard and the name of the member."""
        return f"{os.path.basename(self.files[self.shard[index]])}/{os.fsdecode(self.names[index])}"

    def open(self, index: int) -> RawImage:
        name, size = self.name(index), int(self.sizes[index])
        with convert_errors(name):
            if not 0 <= size <= BYTES_PER_PIXEL * self.max_pixels:  # a damaged header can have a negative size
                raise ImageDecodeError(name, f"the image has {size} bytes, which is negative or more than data.max_pixels can need")
            with open(self.files[self.shard[index]], "rb") as file:
                file.seek(int(self.offsets[index]))
                data = file.read(size)
            if len(data) < size:
                raise ImageDecodeError(name, "the tar file is truncated")
        return open_bytes(data, name, max_pixels=self.max_pixels)


def open_shards(
    source: str, root: Path, files: Sequence[str], *, use_labels: bool = True, max_pixels: int = MAX_PIXELS
) -> dict[str, Images]:
    """Return the images of each split of tar files, by the split in their names (`train-000000.tar`), with labels from `.cls` members.

    The key of a member is its name up to the first dot of the last part, so `a/01.jpg` has its label in `a/01.cls`: a class number, or the
    name of a class. Links, devices and other members that are no files are ignored.

    Raises:
        UserError: a file cannot be read, or there are no images.
    """
    found = {file: split_of_file(file.removesuffix(Path(file).suffix)) for file in files}
    rest = OTHER if any(found.values()) else ALL
    members: dict[str, list[str]] = {}
    for file, split in found.items():
        members.setdefault(split or rest, []).append(str(root / file))
    indexed = {split: _index(source if split == ALL else f"{source}[{split}]", shards, max_pixels) for split, shards in members.items()}
    splits = {split: images for split, (images, _) in sorted(indexed.items()) if len(images)}
    if not splits:
        raise UserError(f"the tar files of {source} contain no images ({' '.join(sorted(EXTENSIONS))})")
    texts = {split: texts for split, (_, texts) in indexed.items()}
    if use_labels:
        _set_labels(splits, texts)
    return dict(splits)


def _index(source: str, files: list[str], max_pixels: int) -> tuple[TarImages, list[str | None]]:
    """Return the images of some tar files, and the text of the label of each."""
    rows: list[tuple[int, int, int, bytes]] = []
    texts: list[str | None] = []
    for shard, path in enumerate(files):
        keys: list[str] = []
        labels: dict[str, str] = {}
        try:
            check_regular(os.stat(path))
            with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    folder, slash, base = member.name.rpartition("/")
                    key, _, extension = base.partition(".")
                    key = folder + slash + key
                    if not member.isreg() or member.issparse() or base.startswith("."):
                        continue
                    if extension.lower() == LABEL and member.size <= MAX_LABEL_BYTES:
                        labels[key] = (tar.extractfile(member) or file).read(member.size).decode().strip()
                    elif os.path.splitext(base)[1].lower() in EXTENSIONS:
                        rows.append((shard, member.offset_data, member.size, os.fsencode(member.name)))
                        keys.append(key)
                    tar.members = []  # pyright: ignore[reportAttributeAccessIssue]  # tarfile keeps all
        except (OSError, tarfile.TarError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or f"{error}"
            remedy = "give complete, uncompressed tar files (unpack .tar.gz first)"
            raise UserError(f"cannot read the tar file '{path}': {printable(reason)}; {remedy}") from error
        texts += [labels.get(key) for key in keys]
    shards, offsets, sizes = (np.array([row[k] for row in rows], dtype=np.int64) for k in range(3))
    return TarImages(source, files, shards, offsets, sizes, np.array([row[3] for row in rows]), max_pixels=max_pixels), texts


def _set_labels(splits: dict[str, TarImages], texts: dict[str, list[str | None]]) -> None:
    """Set labels and classes: class numbers if all labels are numbers, else the sorted names of the classes, the same in all splits."""
    values = sorted({text for split in splits for text in texts[split] if text is not None})
    if not values:
        return
    numbers = all(text.isascii() and text.isdecimal() and len(text) < 19 for text in values)
    number = {text: int(text) if numbers else k for k, text in enumerate(values)}
    classes = () if numbers else tuple(map(printable, values))
    for split, images in splits.items():
        if max(number.values()) >= MAX_CLASSES:
            images.notes = (f"no labels, because the numbers in the .cls members go up to {max(number.values())}",)
            continue
        images.labels = np.array([-1 if text is None else number[text] for text in texts[split]], dtype=np.int64)
        images.classes, images.notes = classes, ("the .cls members are the labels (--data.labels none: no labels)",)
