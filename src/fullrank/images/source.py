"""What every source of images is: random access to undecoded images, with labels where there are any."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

Picture = Image.Image | np.ndarray  # a Pillow image, or an array (H, W, C)
Pixels = UInt8[np.ndarray, "H W C"]


class Images(ABC):
    """Random access to `n` undecoded images.

    Attributes:
        source: What the user wrote, with the split: `"photos[train]"`.
        labels: `(n,)` int64; -1 means none.
        classes: The names of the labels; `()` where they are unknown.
    """

    source: str
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, index: int) -> int:
        return int(self.labels[index])

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the file name, or `"train[17]"`."""

    @abstractmethod
    def open(self, index: int) -> Picture:
        """Open one image; its pixels are read when they are needed.

        Raises:
            ImageDecodeError: the file is no image, or cannot be read.
        """

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Images":
        """Return the images at `indices`, in that order."""
        return Subset(self, np.asarray(indices, dtype=np.int64))


class Subset(Images):
    """Some of the images of another source."""

    def __init__(self, whole: Images, indices: np.ndarray):
        self.whole, self.indices = whole, indices
        self.source, self.classes = whole.source, whole.classes
        self.labels = whole.labels[indices]

    def name(self, index: int) -> str:
        return self.whole.name(int(self.indices[index]))

    def open(self, index: int) -> Picture:
        return self.whole.open(int(self.indices[index]))
