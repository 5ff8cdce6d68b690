"""The deterministic way from an image to what a backbone sees in evaluation."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from fullrank.images.decode import decode
from fullrank.images.source import Picture


@dataclass(frozen=True)
class Preprocess:
    """Shorter side to `size` (antialiased bilinear), centre crop, normalise.

    Equal to torchvision's `Resize(size)` and `CenterCrop(size)` of Pillow images; an image of that size already is not touched.

    Attributes:
        channels: 1 is grey, 3 is colour; any other number must be that of the files.
        size: Side of the square result.
        mean: Mean of each channel, for pixels in [0, 1].
        std: Standard deviation of each channel, likewise.

    >>> preprocess = Preprocess(channels=1, size=4, mean=(0.5,), std=(0.5,))
    >>> preprocess.pixels(np.full((8, 16, 1), 255, dtype=np.uint8)).shape
    torch.Size([1, 4, 4])
    """

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixels(self, image: Picture, *, name: str = "image") -> UInt8[Tensor, "C S S"]:
        """Decode, resize and crop one image.

        A JPEG is decoded at a reduced scale while that keeps the shorter side at 2·`size` or more (what Pillow's own thumbnails do).

        Raises:
            ImageDecodeError: the file is broken.
            UserError: its channels cannot become `channels`.
        """
        return to_tensor(fit(decode(image, self.channels, shorter=2 * self.size, name=name), self.size))

    def normalize(self, pixels: UInt8[Tensor, "*n C H W"]) -> Float[Tensor, "*n C H W"]:
        """Return (pixels / 255 − mean) / std as float32, on the device of `pixels`."""
        mean, std = (torch.tensor(values, device=pixels.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels / 255 - mean) / std


def to_tensor(image: Picture) -> UInt8[Tensor, "C H W"]:
    """Copy 8-bit pixels into a tensor, channels first."""
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()


def fit(image: Picture, size: int) -> Picture:
    """Resize the shorter side to `size` and cut the square in the middle; arrays are resized a channel at a time."""
    if isinstance(image, np.ndarray):
        return np.dstack([np.asarray(fit(Image.fromarray(np.ascontiguousarray(band)), size)) for band in np.moveaxis(image, 2, 0)])
    if image.size == (size, size):
        return image
    width, height = image.size
    short = min(width, height)
    width, height = size * width // short, size * height // short
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
