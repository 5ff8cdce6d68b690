"""Gaussian blur, each image with its own width: one band matrix per image, met by short overlapping pieces of its rows."""

from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

PIECE = 16  # pixels; longer pieces waste work outside of the band, shorter ones are copied more often


def blur(x: Float[Tensor, "m C s s"], sigma: Float[Tensor, " m"], *, radius: int) -> Float[Tensor, "m C s s"]:
    """Convolve the rows and then the columns with g(d) ∝ exp(-d² / 2σ²), |d| <= radius, the border reflected.

    Args:
        x: images.
        sigma: standard deviation of each image's kernel, in pixels.
        radius: of all kernels, at most half the side of the images.

    Source: `torchvision.transforms.v2.functional.gaussian_blur` with kernel_size = 2 radius + 1.

    >>> blur(torch.eye(4)[None, None], torch.tensor([0.5]), radius=2)[0, 0, 0]
    tensor([6.6402e-01, 2.5131e-01, 2.3286e-02, 2.2471e-04])
    """
    return _rows(_rows(x, sigma, radius=radius).mT, sigma, radius=radius).mT


def _rows(x: Tensor, sigma: Tensor, *, radius: int) -> Tensor:
    m, C, height, width = x.shape
    pieces = ceil(width / PIECE)
    length = ceil(width / pieces)
    x = pad(x, (radius, radius + pieces * length - width, 0, 0), mode="reflect")
    x = x.unfold(-1, length + 2 * radius, length).reshape(m, -1, length + 2 * radius)  # (m, C·height·pieces, …)
    d = torch.arange(-radius, length + radius, device=x.device)[:, None] - torch.arange(length, device=x.device)
    band = (-0.5 * (d / sigma[:, None, None]).square()).exp() * (d.abs() <= radius)  # (m, length + 2 radius, length)
    return (x @ (band / band.sum(-2, keepdim=True))).view(m, C, height, pieces * length)[..., :width]
