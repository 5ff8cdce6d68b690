"""Crop, resize and flip as the one linear map that they are: rows times image times columns, out = Wy · x · Wxᵀ."""

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor


def triangle(
    start: Float[Tensor, "*b"], length: Float[Tensor, "*b"], flip: Bool[Tensor, "*b"], *, size: int, full: int
) -> Float[Tensor, "*b size full"]:
    """Weights that resize the interval [start, start + length) of an axis of `full` pixels to `size` pixels.

    w_ij ∝ max(0, 1 - |j + ½ - c_i| / r) inside the interval, rows summing to 1, with centres
    c_i = start + (i + ½) length / size and support r = max(1, length / size): bilinear, antialiased when it shrinks.
    A flip reverses the rows.

    Source: the triangle filter of `torch.nn.functional.interpolate(mode="bilinear", antialias=True)` and of Pillow.

    >>> triangle(torch.tensor([0.0]), torch.tensor([4.0]), torch.tensor([False]), size=2, full=4)[0, 0]
    tensor([0.4286, 0.4286, 0.1429, 0.0000])
    """
    step = (length / size)[..., None]
    i = torch.arange(size, device=start.device, dtype=start.dtype)
    i = torch.where(flip[..., None], size - 1 - i, i)
    centre = start[..., None] + (i + 0.5) * step  # (*b, size)
    j = torch.arange(full, device=start.device, dtype=start.dtype) + 0.5
    w = (1 - (j - centre[..., None]).abs() / step[..., None].clamp(min=1)).clamp(min=0)
    inside = (start[..., None] < j) & (j < (start + length)[..., None])  # (*b, full)
    w = w * inside[..., None, :]
    return w / w.sum(-1, keepdim=True)


def crop(
    images: UInt8[Tensor, "n C H W"], box: Float[Tensor, "V n 4"], flips: Float[Tensor, "V n 2"], *, size: int
) -> Float[Tensor, "V n C size size"]:
    """Crop, resize (antialiased bilinear) and flip V views of each image in two batched matrix products; values in [0, 1].

    Args:
        images: in memory.
        box: top, left, height, width in pixels.
        flips: 1 where the view is flipped along x, along y.
        size: side of the views.

    >>> whole = torch.tensor([[[0.0, 0.0, 4.0, 4.0]]])
    >>> crop(torch.full((1, 3, 4, 4), 255, dtype=torch.uint8), whole, torch.zeros(1, 1, 2), size=2).unique()
    tensor([1.])
    """
    n, C, H, W = images.shape
    V = len(box)
    top, left, height, width = box.transpose(0, 1).unbind(-1)  # (n, V): a sample's views lie side by side, so that …
    flip_x, flip_y = flips.transpose(0, 1).bool().unbind(-1)
    Wy = triangle(top, height, flip_y, size=size, full=H) / 255
    Wx = triangle(left, width, flip_x, size=size, full=W)
    x = images.transpose(1, 2).to(Wy.dtype, memory_format=torch.contiguous_format).view(n, H, C * W)
    x = Wy.reshape(n, V * size, H) @ x  # … each image is read once for all of them: (n, V·size, C·W)
    x = x.view(n * V, size * C, W) @ Wx.reshape(n * V, size, W).mT
    return x.view(n, V, size, C, size).permute(1, 0, 3, 2, 4)
