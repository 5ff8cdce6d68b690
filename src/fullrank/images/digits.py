"""The 1797 handwritten digits (8×8, grey) that come with scikit-learn: real images without a network."""

from typing import Any

import numpy as np

from fullrank.images.source import Images


class DigitImages(Images):
    """scikit-learn's `load_digits`; its values 0…16 are scaled to 0…255."""

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
