"""Colour operations in place: a blend (brightness, contrast, saturation, grayscale), hue, and solarisation."""

import torch
from jaxtyping import Float
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)  # weights of ITU-R 601, rounded as in torchvision


def rgb_to_grayscale(x: Float[Tensor, "*b C H W"]) -> Float[Tensor, "*b 1 H W"]:
    """Return the luma of RGB images; for any other number of channels, the mean of the channels.

    >>> rgb_to_grayscale(torch.ones(3, 1, 1))
    tensor([[[0.9999]]])
    """
    if x.shape[-3] != 3:
        return x.mean(-3, keepdim=True)
    r, g, b = x.split(1, dim=-3)
    return (r * LUMA[0]).add_(g, alpha=LUMA[1]).add_(b, alpha=LUMA[2])


def blend_(x: Float[Tensor, "*b C H W"], weights: Float[Tensor, "*b 3"]) -> Float[Tensor, "*b C H W"]:
    """x ← clamp(α x + β g + γ ḡ) to [0, 1], with the luma g of each pixel and the mean ḡ of g over the image.

    (f, 0, 0) is the brightness of torchvision, (f, 0, 1-f) contrast, (f, 1-f, 0) saturation, (0, 1, 0) grayscale, and
    (1, 0, 0) the identity.

    Args:
        x: Values in [0, 1]; overwritten.
        weights: (α, β, γ) of each image.

    Returns:
        x.

    >>> blend_(torch.tensor([[[0.25]]]), torch.tensor([2.0, 0.0, 0.0])).item()
    0.5
    """
    alpha, beta, gamma = weights[..., None, None, None].unbind(-4)
    g = rgb_to_grayscale(x)
    mean = g.mean((-2, -1), keepdim=True)
    return x.mul_(alpha).add_((g * beta).add_(mean.mul_(gamma))).clamp_(0, 1)


def adjust_brightness_(x: Float[Tensor, "*b C H W"], factor: Float[Tensor, "*b"]) -> Float[Tensor, "*b C H W"]:
    """x ← clamp(f x): the blend (f, 0, 0), in a third of the time because no luma is computed.

    >>> adjust_brightness_(torch.tensor([[[0.25]]]), torch.tensor(2.0)).item()
    0.5
    """
    return x.mul_(factor[..., None, None, None]).clamp_(0, 1)


def adjust_hue_(x: Float[Tensor, "*b 3 H W"], shift: Float[Tensor, "*b"]) -> Float[Tensor, "*b 3 H W"]:
    """Shift the hue by `shift`, a share of the colour circle in [-1, 1].

    With the smallest and the largest channel m and M, the hue h in [-½, ½] obeys 6h = 1 + (g + b - r - m) / (M - m) on
    the half of the circle with g >= b; the other half is the mirror image. Conversely, the channel with its peak at p
    (red 0, green ⅓, blue ⅔) takes the value m + 6 (M - m) (⅓ - d), with d = |h + shift - p| around the circle, clamped
    to [⅙, ⅓].

    Args:
        x: Values in [0, 1]; overwritten.
        shift: Shift of each image.

    Returns:
        x; equal to torchvision's `adjust_hue`. The mirror image and the three peaks replace torchvision's six sectors
        (Smith, Color gamut transform pairs, SIGGRAPH 1978).

    >>> adjust_hue_(torch.tensor([[[1.0]], [[0.0]], [[0.0]]]), torch.tensor(1 / 3)).flatten().round(decimals=3).abs()
    tensor([0., 1., 0.])
    """
    r, g, b = x.split(1, dim=-3)
    m, M = torch.minimum(torch.minimum(r, g), b), torch.maximum(torch.maximum(r, g), b)
    range6 = (M - m).mul_(6)
    h = (g + b).sub_(r).sub_(m).div_(range6.clamp(min=torch.finfo(x.dtype).tiny)).add_(1 / 6).copysign_(g - b)
    h.add_(shift[..., None, None, None] + 2.5)  # + 2 makes h positive, + ½ moves the peak to the middle of the period
    p = torch.arange(3, device=x.device, dtype=x.dtype)[:, None, None] / 3
    d = x.copy_(h).sub_(p).frac_().sub_(0.5).abs_().clamp_(1 / 6, 1 / 3)
    return d.mul_(range6.neg_()).add_(M.mul_(2).sub_(m))


def solarize_(x: Float[Tensor, "*b C H W"], threshold: Float[Tensor, "*b"]) -> Float[Tensor, "*b C H W"]:
    """x ← 1 - x for values x >= threshold; a threshold above 1 changes nothing.

    >>> solarize_(torch.tensor([[[0.25, 0.75]]]), torch.tensor(0.5))
    tensor([[[0.2500, 0.2500]]])
    """
    return x.copy_(torch.where(x >= threshold[..., None, None, None], 1 - x, x))
