"""Gaussian blur, Gaussian noise and normalisation of batches of images."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

# pixels of a row per matrix product; longer pieces multiply more zeros of the band matrix, shorter pieces copy more
# pixels
PIECE = 16


def gaussian_blur(x: Float[Tensor, "m C s s"], sigma: Float[Tensor, " m"], *, radius: int) -> Float[Tensor, "m C s s"]:
    """Convolve the rows and then the columns with g(d) ∝ exp(-d² / 2σ²), |d| <= radius, with reflected borders.

    Each image has its own σ and band matrix, which multiplies short, overlapping pieces of the rows.

    Args:
        x: Images.
        sigma: Standard deviation of each image's kernel, in pixels.
        radius: Radius of all kernels, at most half the side of the images.

    Source: `torchvision.transforms.v2.functional.gaussian_blur` with kernel_size = 2 radius + 1.

    >>> gaussian_blur(torch.eye(4)[None, None], torch.tensor([0.5]), radius=2)[0, 0, 0]
    tensor([6.6402e-01, 2.5131e-01, 2.3286e-02, 2.2471e-04])
    """
    return _blur_rows(_blur_rows(x, sigma, radius=radius).mT, sigma, radius=radius).mT


def _blur_rows(x: Tensor, sigma: Tensor, *, radius: int) -> Tensor:
    m, C, height, width = x.shape
    pieces = math.ceil(width / PIECE)
    length = math.ceil(width / pieces)
    x = pad(x, (radius, radius + pieces * length - width, 0, 0), mode="reflect")
    x = x.unfold(-1, length + 2 * radius, length).reshape(m, -1, length + 2 * radius)  # (m, C·height·pieces, …)
    d = torch.arange(-radius, length + radius, device=x.device)[:, None] - torch.arange(length, device=x.device)
    band = (-0.5 * (d / sigma[:, None, None]).square()).exp() * (d.abs() <= radius)  # (m, length + 2 radius, length)
    return (x @ (band / band.sum(-2, keepdim=True))).view(m, C, height, pieces * length)[..., :width]


def gaussian_noise_(
    x: Float[Tensor, "*b C H W"], std: Float[Tensor, "*b"], key: Float[Tensor, "*b"]
) -> Float[Tensor, "*b C H W"]:
    """x ← clamp(x + std · ε); the noise ε is standard normal and depends only on the key (an integer below 2²⁴) and the
    pixel.

    It would be too slow to draw a number per pixel of the whole batch on every process. Instead, each process hashes
    the key and the index of each pixel of its samples to a uniform number u, and ε is the normal quantile √2 erf⁻¹(2u −
    1).

    Source of the hash: lowbias32 (Wellons 2018, Prospecting for hash functions).

    >>> gray = torch.full((1, 3, 32, 32), 0.5)
    >>> gaussian_noise_(gray, torch.tensor([0.1]), torch.tensor([7.0])).std().round(decimals=2)
    tensor(0.1000)
    """
    pixel = torch.arange(x.shape[-3:].numel(), device=x.device).view(x.shape[-3:])
    h = _lowbias32(_lowbias32(key.long())[..., None, None, None] ^ pixel)
    # 2u − 1 in (−1, 1), without rounding: with 24 bits, float32 would round the largest value to 1, and ε = ∞ times a
    # std of 0 is NaN.
    centred = (h >> 9).to(x.dtype).add_(0.5 - 2**22).mul_(2.0**-22)
    return x.add_(centred.erfinv_().mul_(math.sqrt(2) * std[..., None, None, None])).clamp_(0, 1)


def _lowbias32(x: Tensor) -> Tensor:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF  # int64 overflows, but the low 32 bits are correct
    return x ^ (x >> 16)


def normalize_(
    x: Float[Tensor, "*b C H W"], mean: Float[Tensor, " C"], std: Float[Tensor, " C"]
) -> Float[Tensor, "*b C H W"]:
    """x ← (x - mean) / std for each channel.

    >>> normalize_(torch.ones(1, 1, 1), torch.tensor([0.5]), torch.tensor([0.25])).item()
    2.0
    """
    return x.sub_(mean[:, None, None]).mul_(std.reciprocal()[:, None, None])
