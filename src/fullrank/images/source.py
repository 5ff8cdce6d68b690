"""The interface of all image sources: random access to undecoded images, with labels if available."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Real
from PIL import Image

RawImage = Image.Image | np.ndarray  # a Pillow image, or an array (H, W, C)
Pixels = Real[np.ndarray, "H W C"]  # uint8, or float32 in [0, 1] for images of more than 8 bits

MAX_CLASSES = (
    2**16
)  # larger integers number the images or something else; a classifier of so many classes would fill the memory


class Images(ABC):
    """Random access to `n` undecoded images.

    Attributes:
        source: The source URI with the split: `"photos[train]"`.
        labels: `(n,)` int64; -1 means no label.
        groups: `(n,)` int64; images of one number, such as those of one patient or scene, belong together; -1 means no
        group.
        classes: The names of the labels; `()` if the names are unknown.
        multi_labels: `(n, K)` int8 for images with several labels: 1 has the class, 0 lacks it; a row of -1 means no
            labels; `labels` is then -1 throughout. None for a source with one label an image.
        notes: What was decided when the source was opened, for the user.
        bits: Number of bits that the values of 16-bit images use; 0 if the source does not know.
    """

    source: str
    labels: np.ndarray
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    bits: int = 0
    multi_labels: np.ndarray | None = None
    _groups: np.ndarray | None = None

    @property
    def groups(self) -> np.ndarray:
        """The group of each image, `(n,)` int64; -1 means no group, as for all images of a source without groups."""
        return np.full(len(self), -1, dtype=np.int64) if self._groups is None else self._groups

    @groups.setter
    def groups(self, groups: np.ndarray) -> None:
        self._groups = groups

    @property
    def strata(self) -> np.ndarray:
        """What a stratified choice keeps the shares of, `(n,)` int64: the labels, or the number of the set of labels;
        -1: no label.
        """
        if self.multi_labels is None or not len(self):
            return self.labels
        sets = np.unique(self.multi_labels, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        return np.where(self.multi_labels[:, 0] < 0, -1, sets)

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, index: int) -> int:
        return int(self.labels[index])

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the file name, or `"train[17]"`."""

    @abstractmethod
    def open(self, index: int) -> RawImage:
        """Open one image; Pillow reads the pixels only when needed.

        Raises:
            ImageDecodeError: the file is not an image, or cannot be read.
        """

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """Return the images at `indices`, in that order."""
        return Subset(self, np.asarray(indices, dtype=np.int64))


class Subset(Images):
    """Some of the images of another source."""

    def __init__(self, images: Images, indices: np.ndarray):
        self.images, self.indices = images, indices
        self.source, self.classes, self.notes, self.bits = images.source, images.classes, images.notes, images.bits
        self.labels, self.groups = images.labels[indices], images.groups[indices]
        self.multi_labels = None if images.multi_labels is None else images.multi_labels[indices]

    def name(self, index: int) -> str:
        return self.images.name(int(self.indices[index]))

    def open(self, index: int) -> RawImage:
        return self.images.open(int(self.indices[index]))


class DigitImages(Images):
    """The 1797 handwritten digits (8×8, grayscale) of scikit-learn; the values 0…16 are scaled to 0…255."""

    def __init__(self):
        from sklearn.datasets import load_digits  # takes a second to import

        digits: Any = load_digits()
        self.source = "digits"
        self.pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # (1797, 8, 8, 1)
        self.labels = digits.target.astype(np.int64)
        self.classes = tuple(map(str, digits.target_names))

    def name(self, index: int) -> str:
        return f"digits[{index}]"

    def open(self, index: int) -> np.ndarray:
        return self.pixels[index]
