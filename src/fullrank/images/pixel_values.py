"""The two forms of decoded pixels: uint8 values, and float32 values in [0, 1], which keep the bits of 16-bit images."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Real, UInt8
from torch import Tensor


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
