"""Files of several images, such as a stack of a microscope or a series of a scanner, of which the first image is
used.
"""

from typing import Any

import numpy as np


class FirstFrame(np.ndarray):
    """The pixels of the first image of a file; `frames` is the number of its images."""

    frames: int = 1


def first_of(pixels: np.ndarray, frames: int) -> np.ndarray:
    """Return the pixels with the number of images of their file."""
    if frames < 2:
        return pixels
    first = pixels.view(FirstFrame)
    first.frames = frames
    return first


def count_frames(image: Any) -> int:
    """Return how many images the file of an opened image has: pages of a TIFF file, frames of a DICOM file or of an
    animation.

    >>> count_frames(np.zeros((2, 2, 1))), count_frames(first_of(np.zeros((2, 2, 1)), 5))
    (1, 5)
    """
    return getattr(image, "frames" if isinstance(image, np.ndarray) else "n_frames", 1)
