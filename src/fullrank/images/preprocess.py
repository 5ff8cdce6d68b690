"""The deterministic preprocessing of evaluation: resize, centre crop, normalise. Decoded pixels have two forms: uint8
values, and float32 values in [0, 1], which keep the bits of 16-bit images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Real, UInt8
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import center_crop, resize

from fullrank.images.decode import RawImage, decode
from fullrank.images.decode_errors import DecodeErrors, Decoding
from fullrank.images.reading import Device

MAX_ASPECT = 64


@dataclass(frozen=True)
class Preprocess:
    """Resize the shorter side (antialiased bilinear), crop the centre, normalise.

    The result equals torchvision's `Resize(resize)` and `CenterCrop(size)` on Pillow images. By default both sides are
    `size`, and an image that has this size is not changed.

    Attributes:
        channels: 1 for grayscale, 3 for RGB; with any other number, the files must have that number of channels.
        size: Side of the square result; 0: the images keep their sizes.
        mean: Mean of each channel, for pixels in [0, 1].
        std: Standard deviation of each channel, for pixels in [0, 1].
        bits: Number of bits that the values of 16-bit images use.
        resize: Shorter side before the crop, such as 256 for a size of 224; 0: `size`.

    >>> preprocess = Preprocess(channels=1, size=4, mean=(0.5,), std=(0.5,))
    >>> preprocess.pixels(np.full((8, 16, 1), 255, dtype=np.uint8)).shape
    torch.Size([1, 4, 4])
    """

    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bits: int = 16
    resize: int = 0

    @property
    def resized(self) -> int:
        """Shorter side of the resized image."""
        return self.resize or self.size

    def decoding(self, device: Device, errors: DecodeErrors | None = None) -> Decoding:
        """Return how images are decoded for this network; `errors` records the unreadable ones."""
        errors = errors or DecodeErrors(max_error_fraction=device.max_error_fraction)
        return Decoding(device.workers, self.bits, errors)

    def at_most(self, side: int) -> "Preprocess":
        """Return the preprocessing for images of at most `side` pixels, with the same share of the image in the crop.

        >>> Preprocess(3, 224, (), (), resize=256).at_most(28)
        Preprocess(channels=3, size=28, mean=(), std=(), bits=16, resize=32)
        """
        if self.size <= side:
            return self
        return replace(self, size=side, resize=round(self.resize * side / self.size))

    def keeps(self, height: int, width: int) -> bool:
        """Return whether an image of these sides is already resized and cropped."""
        return height == width == self.size == self.resized

    def pixels(self, image: RawImage, *, name: str = "image") -> Real[Tensor, "C _ _"]:
        """Decode, resize and crop one image: uint8, or float32 in [0, 1] if its values have more than 8 bits.

        A JPEG is decoded at a reduced scale if its shorter side then has at least 2·`resize` pixels (as in Pillow's
        thumbnails).

        Raises:
            ImageDecodeError: the image is unreadable.
            UserError: the channels cannot be converted to `channels`.
        """
        smallest = (2 * self.resized, 2 * self.resized) if self.size else None
        decoded = decode(image, self.channels, bits=self.bits, min_size=smallest, name=name)
        return to_tensor(resize_and_center_crop(decoded, self.size, self.resized) if self.size else decoded)

    def normalize(self, pixels: Real[Tensor, "*n C H W"]) -> Float[Tensor, "*n C H W"]:
        """Return (x − mean) / std as float32, on the device of `pixels`, with x = pixels / 255 for uint8 and x = pixels
        for floats.
        """
        mean, std = (torch.tensor(values, device=pixels.device).view(-1, 1, 1) for values in (self.mean, self.std))
        return (to_unit(pixels) - mean) / std


def to_tensor(image: RawImage) -> Real[Tensor, "C H W"]:
    """Return a copy of decoded pixels as a tensor, channels first."""
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()


def resize_and_center_crop(image: RawImage, size: int, resized: int) -> RawImage:
    """Resize the shorter side to `resized` and crop the central square of `size`; arrays are resized one channel at a
    time.

    The longer side is first cropped to `MAX_ASPECT` times the shorter side: an image of 1×10⁷ pixels would else become
    huge.
    """
    if isinstance(image, np.ndarray):
        bands = (Image.fromarray(np.ascontiguousarray(band)) for band in np.moveaxis(image, 2, 0))
        return np.dstack([np.asarray(resize_and_center_crop(band, size, resized)) for band in bands])
    if image.size == (size, size) == (resized, resized):
        return image
    longest = MAX_ASPECT * min(image.size)
    picture: Any = image  # the annotations of torchvision's functions leave out Pillow images
    cropped: Any = center_crop(picture, [min(image.height, longest), min(image.width, longest)])
    whole: Any = center_crop(resize(cropped, [resized]), [size])
    return whole


def to_unit(pixels: Real[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return pixels in [0, 1]: uint8 values x become x / 255, floats are returned unchanged.

    >>> to_unit(torch.tensor([0, 51], dtype=torch.uint8)), to_unit(torch.tensor([0.3]))
    (tensor([0.0000, 0.2000]), tensor([0.3000]))
    """
    return pixels if pixels.is_floating_point() else pixels / 255


def to_8_bits(pixels: Real[Tensor, "*n"]) -> UInt8[Tensor, "*n"]:
    """Return uint8 pixels: floats x become round(255·x), uint8 values are returned unchanged.

    >>> to_8_bits(torch.tensor([0.0, 0.2, 1.0]))
    tensor([  0,  51, 255], dtype=torch.uint8)
    """
    return pixels.mul(255).round().clamp(0, 255).to(torch.uint8) if pixels.is_floating_point() else pixels


def to_16_bits(pixels: Real[Tensor, "*n"]) -> Real[Tensor, "*n"]:
    """Return uint16 pixels of the whole range: uint8 values x become 257·x, floats x become round(65535·x).

    >>> to_16_bits(torch.tensor([0, 255], dtype=torch.uint8)), to_16_bits(torch.tensor([0.5]))
    (tensor([    0, 65535], dtype=torch.uint16), tensor([32768], dtype=torch.uint16))
    """
    values = pixels.double().mul(65535).round().clamp(0, 65535) if pixels.is_floating_point() else pixels.int() * 257
    return values.to(torch.int32).to(torch.uint16)


def same_form(images: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors unchanged if they have one type; if only some are uint8, return all as floats in [0, 1].

    >>> [x.dtype for x in same_form([torch.ones(1), torch.ones(1, dtype=torch.uint8)])]
    [torch.float32, torch.float32]
    """
    return list(images) if len({image.dtype for image in images}) == 1 else [to_unit(image) for image in images]
