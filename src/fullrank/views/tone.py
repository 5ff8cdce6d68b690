"""The last steps of a view, value by value and in place: solarisation, noise, normalisation."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def solarize_(x: Float[Tensor, "*b C H W"], threshold: Float[Tensor, "*b"]) -> Float[Tensor, "*b C H W"]:
    """x ← 1 - x where x >= threshold; a threshold above 1 does nothing.

    >>> solarize_(torch.tensor([[[0.25, 0.75]]]), torch.tensor(0.5))
    tensor([[[0.2500, 0.2500]]])
    """
    return x.copy_(torch.where(x >= threshold[..., None, None, None], 1 - x, x))


def noise_(x: Float[Tensor, "*b C H W"], std: Float[Tensor, "*b"], key: Float[Tensor, "*b"]) -> Float[Tensor, "*b C H W"]:
    """x ← clamp(x + std · ε), with ε standard normal, a function of the key (an integer below 2²⁴) and the pixel alone.

    A number per pixel is too much to draw for the whole batch on every process, so each is computed where it is needed:
    the key and the pixel's place are hashed to a uniform number u, and its normal quantile √2 erf⁻¹(2u − 1) is ε.

    Source of the hash: lowbias32 (Wellons 2018, Prospecting for hash functions).

    >>> noise_(torch.full((1, 3, 32, 32), 0.5), torch.tensor([0.1]), torch.tensor([7.0])).std().round(decimals=2)
    tensor(0.1000)
    """
    pixel = torch.arange(x.shape[-3:].numel(), device=x.device).view(x.shape[-3:])
    h = _hash(_hash(key.long())[..., None, None, None] ^ pixel)
    # 2u − 1 in (−1, 1), exact: of 24 bits and a half float32 would round the largest to 1, and ε = ∞ times a std of 0 is NaN.
    centred = (h >> 9).to(x.dtype).add_(0.5 - 2**22).mul_(2.0**-22)
    return x.add_(centred.erfinv_().mul_(math.sqrt(2) * std[..., None, None, None])).clamp_(0, 1)


def normalize_(x: Float[Tensor, "*b C H W"], mean: Float[Tensor, " C"], std: Float[Tensor, " C"]) -> Float[Tensor, "*b C H W"]:
    """x ← (x - mean) / std for each channel.

    >>> normalize_(torch.ones(1, 1, 1), torch.tensor([0.5]), torch.tensor([0.25])).item()
    2.0
    """
    return x.sub_(mean[:, None, None]).mul_(std.reciprocal()[:, None, None])


def _hash(x: Tensor) -> Tensor:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF  # int64 wraps; the low 32 bits are right
    return x ^ (x >> 16)
